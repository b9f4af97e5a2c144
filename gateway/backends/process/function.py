"""One function: its desired state, its replicas, and the convergence of the one to the other."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import signal
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from gateway.backends.process.logs import FunctionLog
from gateway.backends.process.programs import Prepared
from gateway.backends.process.record import Context, Record
from gateway.backends.process.replica_changes import STARTED, Backoff, Member, next_change, opened
from gateway.backends.process.standing_by import StandingBy
from gateway.backends.process.workers.launcher import Ended, Program
from gateway.changes import within
from gateway.contract import BackendError, FunctionSpec, FunctionState, Replica
from gateway.placement import spread
from platform_words.labels import PLACEMENT

log = logging.getLogger(__name__)

_DRAIN_MARGIN_S = 3.0
"""Time a replica has beyond its write_timeout to end after its drain."""
_orders = itertools.count()


class ManagedFunction:
    """Owns the replicas of one function. All methods run on the event loop and do not block."""

    def __init__(
        self,
        spec: FunctionSpec,
        prepared: Prepared,
        desired: int,
        live_settings: Path,
        lines: FunctionLog,
        context: Context,
        caller_key: str = "",
    ) -> None:
        """Raises ConflictError when its GPU shares do not fit."""
        context.gpus.seats.reserve(spec.key, prepared.gpu_tenths, desired)
        self.spec = spec
        self.prepared = prepared
        self.desired = desired
        self.lines = lines
        self._caller_key = caller_key
        self.created_at_s = time.time()
        self.restarts = 0
        self.generation = 0
        self.replicas: dict[str, Record] = {}
        self._context = context
        self._live_settings = live_settings
        self._backoff = Backoff(context.settings.backoff)
        self._last_end = ""
        """The replica that ended last, how, and its last line."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._standing = StandingBy(context.settings, context.launcher, context.spawn)
        self._write_live_settings()

    def state(self) -> FunctionState:
        """A picture of now."""
        replicas = tuple(
            Replica(record.id, record.address, record.state, record.pid, record.started_at_s, record.machine)
            for record in self.replicas.values()
        )
        return FunctionState(
            self.spec,
            self.desired,
            replicas,
            self.prepared.max_inflight,
            self.created_at_s,
            self.restarts,
            self.standbys,
            self._activated(),
            self._caller_key,
            self._standing.time.seconds(),
            problems=(self._last_end,) if self._backoff.hopeless else (),
            sleeps=self.prepared.sleeps,
        )

    @property
    def standbys(self) -> int:
        """Replicas that wait; a function that was scaled to zero has none."""
        return self.prepared.standbys + self.desired - self._running if self.desired else 0

    @property
    def _running(self) -> int:
        """Those of the desired replicas that always take calls."""
        return 0 if self.prepared.sleeps else self.desired

    def activate(self, count: int) -> None:
        """So many standbys are to be activated, of those that there are."""
        if count != self._standing.asked:
            self._standing.asked = count
            self._assign()

    def scale(self, desired: int) -> None:
        """Set the desired number of replicas. Raises ConflictError when their GPU shares do not fit."""
        if desired != self.desired:
            self._context.gpus.seats.reserve(self.spec.key, self.prepared.gpu_tenths, desired)
            self.desired = desired
            self._backoff.reset()
            self._context.changed()
        self.reconcile()

    def update(self, spec: FunctionSpec, prepared: Prepared) -> None:
        """Live where possible, else a rolling update. Raises ConflictError when its GPU shares do not fit."""
        ordered, desired = self.spec.annotations.get(PLACEMENT), self.desired
        if prepared.places is not None and spec.annotations.get(PLACEMENT, ordered) != ordered:
            desired = sum(prepared.places.values())
        new_processes = self.prepared.needs_new_processes(prepared)
        self._context.gpus.seats.reserve(spec.key, prepared.gpu_tenths, desired, replace_all=new_processes)
        before, self.spec, self.prepared, self.desired = self.prepared, spec, prepared, desired
        self._backoff.reset()
        if new_processes:
            self.generation += 1
            self.lines.say("", "image, environment, process, secrets or GPU share changed: rolling update")
        if before.max_inflight != prepared.max_inflight:
            self._write_live_settings()
            for record in self.replicas.values():
                self._context.launcher.signal(record.slot, signal.SIGHUP)
        if before.limits != prepared.limits:
            for record in self.replicas.values():
                self.apply_limits(record)
        self._context.changed()
        self.reconcile()

    def apply_limits(self, record: Record) -> None:
        """Set the present limits on a running replica, now or when its memory use fits."""
        if not record.slot:
            return
        waited = record.memory_waits
        record.memory_waits = not self._context.launcher.limit(
            record.slot, self._standing.limits(record, self.prepared.limits)
        )
        limit = self.prepared.limits.memory_bytes
        if record.memory_waits and not waited:
            self.lines.say(
                record.id,
                f"uses more memory than the new limit of {limit} bytes even after reclaiming; it keeps its old limit "
                "until its use fits, it is not killed",
            )
        elif waited and not record.memory_waits:
            self.lines.say(record.id, f"memory use fits now; the limit is {limit} bytes")

    def reconcile(self) -> None:
        """Take the next step towards the desired state. Called after every change."""
        total = self._running + self.standbys
        step = next_change(self._members(), total, self.generation, self._by_machine(total))
        for replica_id in step.stop:
            self._drain(self.replicas[replica_id])
        self._assign()
        # Only a bounded number of functions may have a surge at once: each surge holds a whole replica's memory more.
        if not step.exchanging:
            # The turn is given back after the last old replica is gone, since until then its memory is still taken.
            if not any(record.draining() for record in self.replicas.values()):
                self._context.exchanges.done(self.spec.key)
        elif not self._context.exchanges.begin(self.spec.key, self.reconcile):
            return
        if not step.start:
            return
        wait_s = self._backoff.wait_s(self._loop.time())
        if wait_s > 0:  # a crash loop: the timer reconciles again
            if self._timer is None:
                self._timer = self._loop.call_later(wait_s, self._on_timer)
            return
        for machine in step.machines:
            record = Record(uuid.uuid4().hex[:12], self.generation, next(_orders), time.time(), machine)
            if self.prepared.gpu_tenths:
                record.gpu = self._context.gpus.seats.hold(self.spec.key, record.id, self.reconcile)
                if record.gpu is None:
                    self._make_room()
                    break
            self.replicas[record.id] = record
            record.start = self._context.spawn(self._start(record))
            record.start.add_done_callback(partial(self._given_up, record))
        self._context.changed()

    def _members(self) -> list[Member]:
        return [
            Member(record.id, record.state, record.generation, record.order, record.machine)
            for record in self.replicas.values()
        ]

    def _by_machine(self, count: int) -> Mapping[str, int] | None:
        return None if self.prepared.places is None else spread(self.prepared.places, count)

    def _assign(self) -> None:
        """Which of the started replicas take calls: as many as desired, and the standbys that are activated."""
        members = self._members()
        count = self._running + min(self._standing.asked, self.standbys) if self.standbys else len(members)
        chosen = opened(members, count, self.generation, self._by_machine(count) if self.standbys else None)
        drain_s, records = self.prepared.write_timeout_s, list(self.replicas.values())
        if self._standing.assign(records, chosen, self.prepared.limits, drain_s):
            self._context.changed()
        self._standing.time.count(self._activated())

    def _activated(self) -> int:
        ready = sum(record.state == "ready" for record in self.replicas.values())
        return min(self.standbys, max(0, ready - self._running))

    def _make_room(self) -> None:
        """No GPU has room for a new share next to the old ones: an old replica goes first, one at a time."""
        if any(record.state != "ready" for record in self.replicas.values()):
            return
        old = min(
            (record for record in self.replicas.values() if record.generation != self.generation),
            key=lambda record: record.order,
            default=None,
        )
        if old is not None:
            self.lines.say(old.id, "ends before its successor starts: no GPU has room for both shares")
            self._drain(old)

    def kill(self, record: Record, reason: str) -> None:
        """End a replica at once because something is wrong with it; it is replaced like a crashed one."""
        if record.state != "draining" and not record.reason:
            record.reason = reason
            self._context.launcher.signal(record.slot, signal.SIGKILL, group=True)

    async def end(self) -> None:
        """Drain everything and wait until it is gone."""
        self.desired = 0
        self._context.exchanges.done(self.spec.key)
        if self._timer is not None:
            self._timer.cancel()
        records = list(self.replicas.values())
        self.reconcile()
        await asyncio.gather(*(record.gone.wait() for record in records))

    def _on_timer(self) -> None:
        self._timer = None
        self.reconcile()

    def _write_live_settings(self) -> None:
        temporary = self._live_settings.with_suffix(".tmp")
        temporary.write_text(json.dumps({"max_inflight": self.prepared.max_inflight}))
        temporary.chmod(0o644)  # its folder is what only the function's user enters
        temporary.replace(self._live_settings)

    def _program(self, record: Record) -> Program:
        program = self.prepared.program
        environ = {**program.environ, **self._context.machine_environment(record.machine)}
        if record.gpu is not None:
            environ |= self._context.gpus.environment(record.gpu, self.prepared.gpu_tenths)
        elif self.prepared.gpu_memory:
            environ |= self._context.gpus.memory_environment()
        return replace(program, environ=environ)

    async def _start(self, record: Record) -> None:
        """Launch one replica and wait until it is ready, has ended, or took too long."""
        settings = self._context.settings
        async with self._context.starts:
            began_s = self._loop.time()
            limits = self.prepared.limits
            try:
                if record.gpu is not None or (self.prepared.gpu_memory and self._context.gpus.seats.gpus):
                    await self._context.gpus.ready()
                record.slot, record.pid, record.address = await self._context.launcher.launch(
                    self._program(record),
                    limits,
                    on_line=lambda text: self.lines.add(record.id, text),
                    on_ready=lambda: self._on_ready(record, began_s),
                    on_end=lambda ended: self._on_end(record, ended),
                )
            except BackendError as error:
                self._crashed(record, f"could not be started: {error}")
                return
            self._context.changed()
            if record.draining():
                self._context.launcher.signal(record.slot, signal.SIGKILL, group=True)
            elif limits != self.prepared.limits:
                self.apply_limits(record)
            # A slow starter gives its turn to others after a while, but goes on.
            await within(min(5.0, settings.ready_timeout_s), record.started)
        await within(began_s + settings.ready_timeout_s - self._loop.time(), record.started)
        if not record.started.is_set():
            self.kill(record, f"did not become ready within {settings.ready_timeout_s:.0f} s")

    def _on_ready(self, record: Record, began_s: float) -> None:
        record.ready_at_s = self._loop.time()
        self._backoff.ready()
        self._context.start_seconds.append(record.ready_at_s - began_s)
        record.started.set()
        if record.state == "starting":
            record.state = "standby" if self.standbys else "ready"
        self._context.changed()
        self.reconcile()

    def _on_end(self, record: Record, ended: Ended) -> None:
        sentence = record.reason or ended.sentence()
        if record.state == "draining":
            if ended.exit.signal or ended.exit.code:
                self.lines.say(record.id, f"{sentence} while draining")
            self._gone(record)
            return
        self._crashed(record, sentence, counts=not ended.parent_lost)

    def _crashed(self, record: Record, sentence: str, *, counts: bool = True) -> None:
        now_s = self._loop.time()
        ready_for_s = None if record.ready_at_s is None else now_s - record.ready_at_s
        delay_s = self._backoff.crashed(now_s, ready_for_s) if counts else 0.0
        self._last_end = ": ".join(filter(None, (record.id, sentence, self.lines.last(record.id)[:300])))
        self.restarts += 1
        again = "it is started again at once" if delay_s == 0 else f"it is started again in {delay_s:.2f} s"
        self.lines.say(record.id, f"replica {sentence}; {again} if still wanted (restart {self.restarts})")
        log.warning("%s replica %s %s", self.spec.key, record.id, sentence)
        self._gone(record)

    def _given_up(self, record: Record, start: asyncio.Task[None]) -> None:
        if record.slot or record.gone.is_set():
            return
        if start.cancelled():
            self._gone(record)
        elif (error := start.exception()) is not None:
            self._crashed(record, f"could not be started: {type(error).__name__} {error}")

    def _gone(self, record: Record) -> None:
        self.replicas.pop(record.id, None)
        self.lines.ended(record.id)
        record.gone.set()
        record.started.set()
        self._context.gpus.seats.gone(record.id)
        self._context.changed()
        self.reconcile()

    def _drain(self, record: Record) -> None:
        was_ready = record.state in STARTED
        self._standing.raise_limit(record, self.prepared.limits)  # ending takes CPU
        record.state = "draining"
        self._context.gpus.seats.drains(record.id)
        self._context.changed()
        if record.slot:
            self._context.spawn(self._end_replica(record, was_ready=was_ready))
        elif record.start is not None:  # it may wait for a warm parent that never comes
            record.start.cancel()

    async def _end_replica(self, record: Record, *, was_ready: bool) -> None:
        """Let callers turn away, ask it to finish, kill it when it does not."""
        launcher = self._context.launcher
        if was_ready:
            await asyncio.sleep(self._context.settings.settle_s)
            if not record.gone.is_set():
                await launcher.turn_to_end()
            launcher.signal(record.slot, signal.SIGTERM)
            await within(self.prepared.write_timeout_s + _DRAIN_MARGIN_S, record.gone)
            if not record.gone.is_set():
                record.reason = f"did not end within its write_timeout of {self.prepared.write_timeout_s:.0f} s: killed"
        launcher.signal(record.slot, signal.SIGKILL, group=True)
        await record.gone.wait()

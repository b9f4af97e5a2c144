"""Starts and ends replica processes: the warm parent's life, blanks and standbys, cgroups, readiness, exits.

Knows slots, not functions. A slot is one process from fork to end, with its cgroup; its name is never used twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.backends.process import networks
from gateway.backends.process.cgroup.limits import Cgroups
from gateway.backends.process.cgroup.mounts import detect
from gateway.backends.process.logs import LineReader
from gateway.backends.process.machines import MACHINE_VARIABLE
from gateway.backends.process.quantities import Limits
from gateway.backends.process.replica_changes import Backoff
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.workers import channel
from gateway.backends.process.workers.parent_client import Exit, Forked, WarmParentClient
from gateway.backends.process.workers.standbys import Standbys, own_bytes
from gateway.contract import BackendError, Usage

log = logging.getLogger(__name__)

WATCHDOG_MODULE = "gateway.backends.watchdog"
_BACKLOG = 512
_PREPARE_TIMEOUT_S = 60.0
_GENERATIONS = itertools.count(1)
"""Counts warm parents in this process: what the guardian of an ended one removes is never a later one's."""
_IDLE_BEFORE_STANDBYS_S = 1.0
"""Standbys are prepared once nothing was started for this long."""


@dataclass(frozen=True)
class Program:
    """What a process is to become."""

    entry: str
    name: str
    environ: Mapping[str, str]
    secrets: str = ""
    """Folder to show at /var/openfaas/secrets; empty where there is nothing to show."""
    group: str = ""
    """Programs of one group may be started from the same standbys; empty: from blanks only."""
    background: bool = False
    """It gives way to others where there is not enough processor time for all."""
    user: int | None = None
    """User and group id that it becomes; None: the gateway's user."""


@dataclass(frozen=True)
class Ended:
    """End of a slot, with the reason in words."""

    exit: Exit
    out_of_memory: bool
    parent_lost: bool

    def sentence(self) -> str:
        if self.parent_lost:
            return "ended because the warm parent died"
        if self.out_of_memory:
            return "killed because it was out of memory (its memory limit was reached)"
        return self.exit.sentence()


@dataclass
class _Slot:
    forked: Forked
    on_ready: Callable[[], None] | None = None
    on_prepared: asyncio.Future[None] | None = None
    on_end: Callable[[Ended], None] | None = None
    reader: LineReader | None = None
    share: float = 1.0
    """Weight by which it gets processors once it is ready."""
    starting: bool = False
    """It becomes a replica and is not ready yet."""
    cores: float | None = None
    """Real cores of its CPU limit once it is ready; None: no limit."""


@dataclass
class Turns:
    """One after the other, ``gap_s`` apart."""

    gap_s: float
    _next_s: float = 0.0

    async def next(self) -> None:
        """Wait for this one's turn."""
        now_s = asyncio.get_running_loop().time()
        self._next_s = max(now_s, self._next_s + self.gap_s)
        if self._next_s > now_s:
            await asyncio.sleep(self._next_s - now_s)


class Launcher:
    """All processes of one gateway."""

    def __init__(self, settings: ProcessSettings, memory: tuple[Path, ...] = ()) -> None:
        """``memory``: folders that go with the gateway, however it ends."""
        self._settings = settings
        self._memory = memory
        self._parent: WarmParentClient | None = None
        self._available = asyncio.Event()
        self._counter = 0
        self._launching = 0
        self._slots: dict[str, _Slot] = {}
        self._blanks: deque[str] = deque()
        self.standbys = Standbys(settings.standbys, settings.standby_bytes, self._prepare, self._discard)
        self._started_s = 0.0
        self._starts, self._ends = Turns(settings.start_gap_s), Turns(settings.start_gap_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refill_task: asyncio.Task[None] | None = None
        self._closing = False
        self._backoff = Backoff(settings.backoff)
        self.cgroups = Cgroups()

    async def start(self) -> None:
        """Start the warm parent. Raises BackendError."""
        await self._start_parent()
        for note in self.cgroups.notes:
            log.warning(note)

    async def close(self) -> None:
        """Kill what is left and wait until it is gone."""
        self._closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._parent is not None:
            await self._parent.close()
        for slot in list(self._slots):
            self._ended(slot, Exit(0, 9), parent_lost=True)
        await asyncio.to_thread(self.cgroups.close)

    @property
    def parent_pid(self) -> int | None:
        return self._parent.pid if self._parent else None

    async def launch(
        self,
        program: Program,
        limits: Limits,
        *,
        on_line: Callable[[str], None],
        on_ready: Callable[[], None],
        on_end: Callable[[Ended], None],
    ) -> tuple[str, int, str]:
        """Turn a standby or a blank into a replica; returns slot, pid and ``host:port``. Raises BackendError.

        After it returned, ``on_end`` is called exactly once. ``on_ready`` at most once, before that.
        """
        await self._available.wait()
        self._launching += 1
        try:
            await self._starts.next()
            slot = self._take_standby(program) or await self._take_blank()
            return self._assign(slot, program, limits, on_line, on_ready, on_end)
        finally:
            self._launching -= 1
            self._started_s = asyncio.get_running_loop().time()
            self._refill()

    async def turn_to_end(self) -> None:
        """Wait until a replica may be asked to end."""
        await self._ends.next()

    def signal(self, slot: str, number: int, *, group: bool = False) -> None:
        """Send a signal to a replica, or to it and everything it started."""
        if slot in self._slots and self._parent is not None:
            self._parent.signal(slot, number, group=group)

    def limit(self, slot: str, limits: Limits) -> bool:
        """Apply limits to a running slot; False when its memory use is above the new limit, which is then not set."""
        self.limit_cpu(slot, limits.cpu_cores)
        return self.cgroups.set_memory(slot, limits.memory_bytes)

    def limit_cpu(self, slot: str, cores: float | None) -> None:
        """Configured cores of a running slot, from when it is ready on; until then it has the startup CPU boost where
        that is more. None: no limit. A slot that is gone is left alone."""
        held = self._slots.get(slot)
        if held is None:
            return
        held.cores = None if cores is None else cores * self._settings.cpu_scale
        least = self._settings.startup_cpu_boost if held.starting else 0.0
        self.cgroups.set_cpu(slot, None if held.cores is None else max(held.cores, least))

    def measure(self, slot: str) -> Usage:
        return self.cgroups.measure(slot)

    def _assign(
        self,
        slot: str,
        program: Program,
        limits: Limits,
        on_line: Callable[[str], None],
        on_ready: Callable[[], None],
        on_end: Callable[[Ended], None],
    ) -> tuple[str, int, str]:
        held = self._slots[slot]
        held.starting = True
        if not self.limit(slot, limits):
            self._discard(slot)
            raise BackendError(f"a memory limit of {limits.memory_bytes} bytes is less than an empty replica uses")
        reading, writing = os.pipe()
        try:
            network = self._settings.networks.get(program.environ.get(MACHINE_VARIABLE, ""))
            with (
                networks.listen(network, _BACKLOG)
                if network
                else socket.create_server((self._settings.host, 0), backlog=_BACKLOG)
            ) as listener:
                # Inherited by every connection: asyncio does not set it where the socket came from elsewhere.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                host, port = listener.getsockname()[:2]
                message = {
                    "entry": program.entry,
                    "name": program.name,
                    "environ": {**program.environ, "port": str(port)},
                    "secrets": program.secrets,
                    "user": program.user,
                    "network": network.namespace if network else "",
                }
                channel.send(held.forked.line, message, (listener.fileno(), writing))
        except (channel.ChannelError, OSError) as error:
            os.close(reading)
            self._discard(slot)
            raise BackendError(f"a forked process could not be turned into a replica: {error}") from error
        finally:
            os.close(writing)
        held.reader = LineReader(reading, on_line)
        held.on_ready, held.on_end = on_ready, on_end
        held.share = self._settings.background_share if program.background else 1.0
        self._listen(slot)
        return slot, held.forked.pid, f"{host}:{port}"

    def _listen(self, slot: str) -> None:
        asyncio.get_running_loop().add_reader(self._slots[slot].forked.line.fileno(), self._line_readable, slot)

    def _line_readable(self, slot: str) -> None:
        held = self._slots.get(slot)
        if held is None:
            return
        try:
            message, _ = channel.receive(held.forked.line)
        except BlockingIOError:
            return
        except channel.ChannelError:
            asyncio.get_running_loop().remove_reader(held.forked.line.fileno())
            return
        event = message.get("event")
        if event == "prepared" and held.on_prepared is not None and not held.on_prepared.done():
            held.on_prepared.set_result(None)
        elif event == "ready" and held.on_ready is not None:
            on_ready, held.on_ready = held.on_ready, None
            self.cgroups.set_share(slot, held.share)
            held.starting = False
            self.cgroups.set_cpu(slot, held.cores)  # before anybody hears of the replica, so no call has the boost
            on_ready()

    def _take_standby(self, program: Program) -> str | None:
        slot = self.standbys.take(program.group, program.name, program.entry, program.environ)
        return slot if slot in self._slots else None

    async def _prepare(self, entry: str, environ: Mapping[str, str]) -> tuple[str, int]:
        """A new standby: its slot and own memory. Raises BackendError."""
        slot = await self._fork()
        held = self._slots[slot]
        self.cgroups.set_cpu(slot, self._settings.standby_cores)
        held.on_prepared = asyncio.get_running_loop().create_future()
        try:
            channel.send(held.forked.line, {"prepare": {"entry": entry, "environ": dict(environ)}})
            self._listen(slot)
            await asyncio.wait_for(held.on_prepared, _PREPARE_TIMEOUT_S)
        except (channel.ChannelError, OSError, TimeoutError, asyncio.CancelledError) as error:
            self._discard(slot)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise BackendError(f"a forked process did not get prepared: {type(error).__name__} {error}") from error
        return slot, own_bytes(held.forked.pid)

    async def _take_blank(self) -> str:
        while self._blanks:
            slot = self._blanks.popleft()
            if slot in self._slots:
                return slot
        return await self._fork()

    async def _fork(self) -> str:
        if self._parent is None:
            raise BackendError("the warm parent is not running")
        self._counter += 1
        slot = f"{self._counter:06d}"
        try:
            join = self.cgroups.make(slot)
        except OSError as error:
            raise BackendError(f"its cgroup could not be made: {error}") from error
        try:
            forked = await self._parent.fork(slot, join, self.cgroups.ending)
        except BaseException:
            self._tidy(slot)
            raise
        self._slots[slot] = _Slot(forked)
        self.cgroups.set_share(slot, self._settings.starting_share)
        return slot

    def _refill(self) -> None:
        if self._closing or (self._refill_task and not self._refill_task.done()):
            return
        self._refill_task = self._spawn(self._refill_pool())

    async def _refill_pool(self) -> None:
        """Fork blanks up to the desired number, then prepare standbys, while nobody waits for a real start."""
        while not self._launching and len(self._blanks) < self._settings.blanks and self._available.is_set():
            try:
                self._blanks.append(await self._fork())
            except BackendError as error:
                log.warning("no blank could be forked: %s", error)
                return
        while (wait_s := self._started_s + _IDLE_BEFORE_STANDBYS_S - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s)
        await self.standbys.fill(lambda: not self._launching and self._available.is_set())

    def _discard(self, slot: str) -> None:
        """End a blank that cannot be used; its exit is reported and cleaned up as always."""
        if self._parent is not None:
            self._parent.signal(slot, 9, group=True)

    def _on_exit(self, slot: str, ended: Exit) -> None:
        self._ended(slot, ended, parent_lost=False)
        if not self._closing:
            self._refill()

    def _ended(self, slot: str, ended: Exit, *, parent_lost: bool) -> None:
        held = self._slots.pop(slot, None)
        if held is None:
            return
        with contextlib.suppress(ValueError):
            self._blanks.remove(slot)
        self.standbys.forget(slot)
        if held.on_prepared is not None and not held.on_prepared.done():
            held.on_prepared.set_exception(BackendError("it ended"))
        asyncio.get_running_loop().remove_reader(held.forked.line.fileno())
        held.forked.line.close()
        if held.reader is not None:
            held.reader.close()
        out_of_memory = ended.signal == 9 and not parent_lost and self.cgroups.oom_kills(slot) > 0
        self._tidy(slot)
        if held.on_end is not None:
            held.on_end(Ended(ended, out_of_memory, parent_lost))

    def _tidy(self, slot: str) -> None:
        if not self.cgroups.remove(slot):
            self._spawn(self._remove_later(self.cgroups, slot))

    async def _remove_later(self, cgroups: Cgroups, slot: str) -> None:
        for _ in range(50):
            await asyncio.sleep(0.1)
            if cgroups.remove(slot):
                return
        log.warning("the cgroup of slot %s cannot be removed", slot)

    async def _start_parent(self) -> None:
        settings = self._settings
        self.cgroups = Cgroups(("cgroups are switched off: limits are accepted but not enforced.",))
        if settings.use_cgroups:
            self.cgroups = await asyncio.to_thread(
                detect, settings.cgroup_root, settings.proc_root, next(_GENERATIONS), settings.cpu_period_s
            )
        modules = [entry.partition(":")[0] for entry in settings.images.values()]
        preload = tuple(dict.fromkeys([*settings.preload, *modules, WATCHDOG_MODULE]))
        parent = WarmParentClient(
            settings.python, preload, self.cgroups.folders, self._memory, self._on_exit, self._on_lost
        )
        self._parent = parent
        try:
            await parent.start(settings.parent_timeout_s)
        except BaseException:
            await asyncio.to_thread(self.cgroups.close)
            raise
        self._available.set()
        self._refill()

    def _on_lost(self) -> None:
        """The warm parent died on its own; the kernel ends its children with it."""
        if not self._available.is_set():
            return  # still starting: start() reports it
        log.error("the warm parent died; it is started again and brings the replicas back")
        self._available.clear()
        delay_s = self._backoff.crashed(asyncio.get_running_loop().time(), None)
        self._spawn(self._revive(delay_s))

    async def _revive(self, delay_s: float) -> None:
        old = self._parent
        if old is not None:
            await old.close()
        for slot in list(self._slots):
            self._ended(slot, Exit(0, 9), parent_lost=True)
        await asyncio.to_thread(self.cgroups.close)
        while not self._closing:
            await asyncio.sleep(delay_s)
            try:
                await self._start_parent()
                return
            except BackendError as error:
                delay_s = self._backoff.crashed(asyncio.get_running_loop().time(), None)
                log.error("the warm parent could not be started again (%s); next try in %.1f s", error, delay_s)

    def _spawn(self, coroutine: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

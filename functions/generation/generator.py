"""All instances of a pipeline, and the queue in front of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.slots import ABSENT_S
from functions.generation.draining import Drain
from functions.generation.instance import Instance, NoKvError, UnreachableError, form
from functions.generation.measures import Measures
from functions.generation.phases import Phases, phases_of
from functions.generation.profiling import ProfileError, Profiler
from functions.generation.run import InstanceRun
from functions.generation.texts import Text, Waiting
from functions.ingress.calls import NodeCaller
from functions.ingress.passes import PipelinePass
from functions.serving.settings import ScheduleSettings
from functions.wire.errors import (
    CallError,
    DeadlineError,
    NoReplicaError,
    NotDeployedError,
    NotServedError,
    OverloadedError,
)
from moe.manifest import Manifest

log = logging.getLogger(__name__)

NOT_READY = "not every segment has a ready replica"
SPENT = "the request's time was spent waiting for pages of the segments"
LOOK_S = 0.1
"""How often waiting texts are looked at: whether their time is spent, their reader has caught up, an instance can be
made."""
REST_S = 1.0
"""How long a replica is left out that could not be reached."""


class Generator:
    """Takes texts, makes instances as replicas come and go, and runs them."""

    def __init__(
        self,
        manifest: Manifest,
        caller: NodeCaller,
        driver: PipelinePass,
        dispatcher: Dispatcher,
        *,
        queue_limit: int,
        timeout_s: float,
        computed: Callable[[int], object] = lambda tokens: None,
        schedule: ScheduleSettings | None = None,
    ) -> None:
        """``timeout_s``: time for a text's first pass, each next part of its prompt, and each token; ``computed`` hears
        of each iteration's tokens; ``schedule``: how prefill and decode are shared out, None: every text stays where it
        begins."""
        self._schedule = schedule = schedule or ScheduleSettings()
        self.measures = Measures()
        self.waiting = Waiting()
        self.runs: list[InstanceRun] = []
        self._manifest, self._caller, self._driver, self._dispatcher = manifest, caller, driver, dispatcher
        self._queue_limit, self._timeout_s, self._computed = queue_limit, timeout_s, computed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._failed_until_s: dict[str, float] = {}
        self._segments = list(dict.fromkeys(caller.address(segment.id)[0] for segment in manifest.segments))
        self._refusal: CallError = NoReplicaError(NOT_READY)
        self._joining: dict[Instance, asyncio.Task[None]] = {}
        """Instances that are being asked for their room or measured, and what does so."""
        self.phases = phases_of(schedule)
        self._profiler = Profiler(
            manifest,
            schedule.profiles,
            timeout_s,
            lambda: not self.runs and self.queued > 0,
            chunk_tokens=schedule.chunk_tokens,
        )
        if self.phases is not None:
            self._start(self.phases.watch())

    @property
    def queued(self) -> int:
        """Texts that wait: for an instance, at one, or for their readers."""
        waiting = self.waiting
        return len(waiting.texts) + len(waiting.parked) + sum(len(run.queued) for run in self.runs)

    @property
    def unscheduled(self) -> int:
        """Those of them that wait for an instance, or at one: their readers are not behind."""
        return self.queued - len(self.waiting.parked)

    def add(self, text: Text) -> None:
        """Have a text continued; its sink gets what comes of it. Raises OverloadedError."""
        if self.unscheduled >= self._queue_limit:
            raise OverloadedError(f"{self._queue_limit} texts wait to be continued; try again later")
        self.waiting.texts.append(text)
        self._place()

    async def longest(self) -> int | None:
        """Tokens that a text may have with its prompt, by the pages of the instances; None where none is there yet."""
        if not self.runs:
            self._make_instances()
        if not self.runs and self._joining:
            await asyncio.wait(self._joining.values(), timeout=REST_S)
        return min((run.room for run in self.runs), default=None)

    def cancel(self, text: Text) -> None:
        """Nobody reads this text any more: it leaves before the next iteration."""
        text.cancelled = True
        self._wake()

    def changed(self) -> None:
        """The table of replicas has changed."""
        self._wake()
        if self.runs or self.phases is not None:  # instances are measured before the first text comes
            self._look_after()

    def document(self) -> dict[str, Any]:
        """What instances do, as JSON: docs/generation.md."""
        phases, measures = self.phases, self.measures
        roles = {} if phases is None else phases.document()
        return {
            "schedule": self._schedule.rule,
            "ttft_s": self._schedule.targets.ttft_s,
            "tpot_s": self._schedule.targets.tpot_s,
            "chunk_tokens": self._schedule.chunk_tokens,
            "waiting": len(self.waiting.texts) + len(self.waiting.parked),
            "joining": len(self._joining),
            "instances": [
                _texts_and_pages(run) | roles.get(run, {"instance": number, "role": "both"})
                for number, run in enumerate(run for run in self.runs if not run.over)
            ],
            "flips": 0 if phases is None else phases.scheduler.flips,
            "flip_ms": [] if phases is None else [1000 * flip.took_s for flip in phases.flips],
            "decision_ms": [] if phases is None else [1000 * one for one in phases.decisions_s],
            "moved": measures.moved_document(),
        }

    def close(self) -> None:
        """Stop; texts under way get nothing more."""
        for task in self._tasks:
            task.cancel()

    def _wake(self) -> None:
        for run in self.runs:
            run.wake()

    def _place(self) -> None:
        """Waiting texts in order to instances: to the one that prefills them, where that is scheduled; else to the one
        with the fewest pages taken, while the first of them fits there."""
        queue = self.waiting.texts
        runs = [run for run in self.runs if run.open]
        while queue and runs:
            text, run = queue[0], min(runs, key=lambda one: one.pages)
            refusal = run.refusal(text)
            if refusal is None and not text.cancelled and self.phases is None and not run.fits(text):
                break
            queue.popleft()
            if text.cancelled or refusal is not None:
                self._end(text, refusal or self._refusal)
            elif self.phases is None:
                run.admit(text)
            else:
                self.phases.dispatch(text, self._loop.time()).expect(text)
        if self.queued:
            self._look_after()

    def _look_after(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = self._start(self._look())
        return self._looking

    async def _look(self) -> None:
        """Make instances; while texts wait, give up those whose time is spent and bring back those that are read."""
        waiting = self.waiting
        while True:
            self._make_instances()
            now_s = self._loop.time()
            absent = [] if self.runs else self._dispatcher.absent(self._segments)
            self._refusal = NotDeployedError(f"{absent[0]} is not deployed") if absent else NoReplicaError(NOT_READY)
            for text in [*waiting.texts, *waiting.parked]:
                spent_s = ABSENT_S if absent else self._timeout_s
                late = text.progress_s + spent_s <= now_s and text not in waiting.parked
                if text.cancelled or late or (text.deadline_s is not None and text.deadline_s <= now_s):
                    self._drop(text)
            for text in [text for text in waiting.parked if not text.sink.full()]:
                waiting.parked.remove(text)
                text.moved_s = text.progress_s = now_s
                waiting.texts.appendleft(text)
            for run in list(self.runs):
                for text in run.queued:
                    late = text.progress_s + self._timeout_s <= now_s or (text.deadline_s or now_s + 1) <= now_s
                    if text.cancelled or late:
                        run.give_up_waiting(text, DeadlineError(SPENT))
            self._place()
            if not self.queued:
                return
            await asyncio.sleep(LOOK_S)

    def _drop(self, text: Text) -> None:
        queue = self.waiting.parked if text in self.waiting.parked else self.waiting.texts
        queue.remove(text)
        self._end(text, DeadlineError(SPENT) if self.runs else self._refusal)

    def _end(self, text: Text, error: CallError) -> None:
        self.measures.finished(text, "abort", self._loop.time())
        if not text.cancelled:
            text.sink.failed(error)

    def _make_instances(self) -> None:
        """Begin to make those that replicas in none allow. What cannot be had is what waiting texts are refused
        with."""
        try:
            taken = [*(run.instance for run in self.runs), *self._joining]
            now_s = self._loop.time()
            avoided = {replica for replica, until_s in self._failed_until_s.items() if until_s > now_s}
            for replicas in form(self._manifest, self._caller, self._dispatcher, taken, avoided):
                instance = Instance(self._manifest, self._caller, self._driver, self._dispatcher, replicas)
                self._joining[instance] = self._start(self._make(instance))
            if self.waiting.texts and not self._joining and not any(run.open for run in self.runs):
                self._cut_drains_short(avoided)
        except NoKvError as error:
            self._refuse(error)

    def _refuse(self, error: NoKvError) -> None:
        while self.waiting.texts and not self.runs:
            self._end(self.waiting.texts.popleft(), NotServedError(str(error)))

    def _cut_drains_short(self, avoided: Collection[str]) -> None:
        """Texts wait, and instances that drain have the replicas that could serve them. Raises NoKvError."""
        if form(self._manifest, self._caller, self._dispatcher, [], avoided):
            for run in self.runs:
                run.drain.cut_short()
                run.wake()

    def _elsewhere(self, text: Text) -> InstanceRun | None:
        """Where a text of an instance that drains can go on at once; a scheduler of phases has texts end where they
        are decoded."""
        if self.phases is not None:
            return None
        runs = [run for run in self.runs if run.open and not run.queued and run.fits(text)]
        return min(runs, key=lambda run: run.pages, default=None)

    async def _make(self, instance: Instance) -> None:
        """Run an instance once it has stated its room; replicas that cannot be asked are left out for a while."""
        try:
            await instance.open()
            if self.phases is not None:
                await self._measure(instance, self.phases)
            elif instance.whole():
                self._begin(instance)
            else:
                await instance.close()
        except UnreachableError as error:
            log.info("an instance cannot be made yet: %s", error)
            self._failed_until_s[error.replica] = self._loop.time() + REST_S
            await instance.close()
        except NoKvError as error:
            self._refuse(error)
            await instance.close()
        finally:
            del self._joining[instance]
        self._place()

    async def _measure(self, instance: Instance, phases: Phases) -> None:
        """Measure an instance, then run it."""
        name = phases.reserve()
        try:
            profile = await self._profiler.profile(instance, name)
        except ProfileError as error:
            log.warning("%s", error)
            self._failed_until_s |= {one.id: self._loop.time() + REST_S for one in instance.replicas.values()}
            await instance.close()
        else:
            if instance.whole():
                phases.join(name, self._begin(instance), profile)
            else:
                await instance.close()
        finally:
            phases.reserved.discard(name)
        self._look_after()

    def _begin(self, instance: Instance) -> InstanceRun:
        drain = Drain(self._schedule.drain_s, self._elsewhere)
        run = InstanceRun(
            instance,
            self.waiting,
            self.measures,
            self._timeout_s,
            self._computed,
            self._place,
            self.phases,
            drain,
            self._schedule.chunk_tokens,
        )
        self.runs.append(run)
        self._start(run.run()).add_done_callback(lambda task: self._ended(run, task))
        return run

    def _ended(self, run: InstanceRun, task: asyncio.Task[None]) -> None:
        self.runs.remove(run)
        if not task.cancelled() and self.queued:
            self._look_after()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _texts_and_pages(run: InstanceRun) -> dict[str, object]:
    """What an instance has to do, for the live view."""
    return {
        "running": len(run.texts),
        "queue": len(run.queue),
        "arriving": len(run.migrations.texts),
        "pages_used": run.pages,
        "pages_kept": run.prefixes.pages,
        "pages": run.instance.pages,
    }

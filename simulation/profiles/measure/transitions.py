"""Times of change: cold start, drain, and each resize in place.

*cold_start*: from the order of one more replica until the feed calls it ready, at a full core and at a quarter of one.
*drain*: from the order of one less until the feed has forgotten it. *cpu_up*, *cpu_down*, *memory_up*, *memory_down*:
from the PUT until the replica's own cgroup holds the new limit. *concurrency_up*, *concurrency_down*: from the PUT
until the replica admits (refuses) calls accordingly.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace

from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.load import Target
from simulation.profiles.measure.measurement_plan import ProfileSettings
from simulation.profiles.measure.requests import Interference
from simulation.profiles.measure.run import Bench
from simulation.profiles.measure.target import Changes, Setting, Snapshot
from simulation.profiles.model.errors import MeasurementError

TIMEOUT_S = 30.0
SHARES = (0.25, 1.0)
"""Real cores of cold starts, and between which CPU is resized."""
BURST = 8
"""Calls sent at once to find out how many a replica admits."""
KINDS = (
    *("cold_start", "drain", "cpu_up", "cpu_down", "memory_up", "memory_down", "concurrency_up", "concurrency_down"),
)

OnKind = Callable[[str, float], None]
"""Called before each repeat: the transition, and which part of a node's transitions it is."""


def measure_transitions(
    bench: Bench, node: str, settings: ProfileSettings, runner: asyncio.Runner, on_kind: OnKind
) -> list[Row]:
    """One row for each kind of transition of ``node``. Raises MeasurementError where one does not end."""
    count = settings.transitions
    rows = []
    low, high = bench.setting(SHARES[0], settings.ample_mib, 1), bench.setting(SHARES[1], 2 * settings.ample_mib, BURST)
    for share in SHARES:
        setting = bench.setting(share, settings.ample_mib, 1)
        bench.functions[node].resize(setting)
        starts_s, drains_s, cpu_s = [], [], 0.0
        for _ in range(count):
            on_kind("cold start and drain", 0.4 / count)
            started_s, drained_s, used_s = scale_once(bench, node)
            starts_s.append(started_s)
            drains_s.append(drained_s)
            cpu_s += used_s / count
        start = replace(_row(node, "cold_start", starts_s, setting, share), cpu_s_per_call=cpu_s)
        rows += [start, _row(node, "drain", drains_s, setting, share)]
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS[2:]}
    bench.functions[node].resize(low)
    for _ in range(count):
        on_kind("resize in place", 0.2 / count)
        for up, setting in ((True, high), (False, low)):
            for kind, took_s in _resizes(bench, node, setting, up, runner).items():
                seconds[kind].append(took_s)
    return rows + [_row(node, kind, values, low, 0.0) for kind, values in seconds.items()]


def scale_once(bench: Bench, node: str) -> tuple[float, float, float]:
    """Seconds of one start and one drain next to a running replica, and CPU seconds of the start: of all processes but
    this one, counted in hundredths."""
    function = bench.functions[node]
    with function.changes() as changes:
        changes.next(TIMEOUT_S)
        machine, begun_s = Interference(()), time.perf_counter()
        function.scale(2)
        started_s = seconds_until(changes, lambda state: len(state.ready) == 2, begun_s, f"replica 2 of {node}")
        cpu_s = machine.others_s(0.0)
        begun_s = time.perf_counter()
        function.scale(1)
        drained_s = seconds_until(changes, lambda state: len(state.replicas) == 1, begun_s, f"the drain of {node}")
    return started_s, drained_s, cpu_s


def seconds_until(changes: Changes, reached: Callable[[Snapshot], bool], begun_s: float, what: str) -> float:
    end_s = begun_s + TIMEOUT_S
    while (left_s := end_s - time.perf_counter()) > 0:
        try:
            event = changes.next(left_s)
        except TimeoutError:
            break
        if event.at_s >= begun_s and reached(event):
            return event.at_s - begun_s
    raise MeasurementError(f"{what} was not done within {TIMEOUT_S:.0f} s")


def _resizes(bench: Bench, node: str, goal: Setting, up: bool, runner: asyncio.Runner) -> dict[str, float]:
    """Change CPU, then memory, then concurrency of the running replica to ``goal``, each by a PUT of its own."""
    function = bench.functions[node]
    replica = bench.ready(node)
    counters = bench.counters(node, replica)
    target = bench.target(node, 1, replica)
    word = "up" if up else "down"
    medians = {}
    now = function.setting
    share = counters.bandwidth()
    before = None if share is None else share.share

    def cpu_changed() -> bool:
        limit = counters.bandwidth()
        return limit is not None and limit.share != before

    limit_bytes = counters.memory_limit_bytes()
    medians[f"cpu_{word}"] = _timed(
        lambda: function.resize(Setting(goal.cpu_cores, now.memory_mib, now.concurrency)), cpu_changed, node
    )
    medians[f"memory_{word}"] = _timed(
        lambda: function.resize(Setting(goal.cpu_cores, goal.memory_mib, now.concurrency)),
        lambda: counters.memory_limit_bytes() != limit_bytes,
        node,
    )
    medians[f"concurrency_{word}"] = _timed(
        lambda: function.resize(goal), lambda: runner.run(_admits_burst(target)) == up, node
    )
    return medians


async def _admits_burst(target: Target) -> bool:
    """Whether a replica takes ``BURST`` calls at once; one that may take fewer refuses some with 429."""
    return all(await asyncio.gather(*(target.call() for _ in range(BURST))))


def _timed(change: Callable[[], None], done: Callable[[], bool], node: str) -> float:
    begun_s = time.perf_counter()
    change()
    while not done():
        if time.perf_counter() - begun_s > TIMEOUT_S:
            raise MeasurementError(f"a resize of {node} had no effect within {TIMEOUT_S:.0f} s")
    return time.perf_counter() - begun_s


def _row(node: str, kind: str, seconds: list[float], setting: Setting, share: float) -> Row:
    """``share`` 0 for a change between two shares."""
    quantiles = spread(seconds)
    return Row(
        node=node,
        family=kind,
        loop="",
        tokens=0,
        texts=0,
        cpu_cores=setting.cpu_cores,
        share=share,
        period_s=None,
        memory_mib=setting.memory_mib,
        concurrency=setting.concurrency,
        rate_rps=0.0,
        seed=0,
        repeat=0,
        feasible=True,
        note="",
        errors=0,
        seconds=sum(seconds),
        load1=os.getloadavg()[0],
        **vars(quantiles),
    )

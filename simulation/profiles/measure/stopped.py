"""Passes whose experts are stopped by their CPU limit: what a stop costs the calls, by how long it lasts.

A few requests are always in flight at the ingress while all experts have one share after another; segments and the
ingress keep a full core. Counted for each kind of expert are CPU seconds of a call, how often the kernel stopped a
replica for each call, and calls in a product. At a full core nothing is stopped: the others are compared with it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.in_pass import Spent, rows_between
from simulation.profiles.measure.load import Call, closed_loop
from simulation.profiles.measure.measurement_plan import NodeClass, ProfileSettings
from simulation.profiles.measure.products import products_of
from simulation.profiles.measure.requests import Counters, Interference
from simulation.profiles.measure.target import Function, Setting
from simulation.profiles.measure.throttle import limit_of
from simulation.profiles.model.errors import MeasurementError

FAMILY = "stopped"
CALLERS = (2, 8)
"""Requests in flight: of few hardly any two are computed together, many keep replicas at their limit."""
TIMES = 5
"""Each share and number of callers takes so many times as long as a point."""
LONGEST_PASS_S = 4.0
"""Shares below the one at which a pass takes longer are left out."""
AT_ONCE = 8
"""Calls that an expert takes at once."""


@dataclass(frozen=True)
class Experts:
    """The experts under test, and what counts. Mappings are by node id."""

    kinds: Sequence[NodeClass]
    functions: Mapping[str, Function]
    """The experts', as ``addresses`` (host:port)."""
    addresses: Mapping[str, str]
    spent: Callable[[], Spent]
    """What nodes have had so far."""


def stopped_s(settings: ProfileSettings) -> float:
    """About how long one repeat takes."""
    return len(_shares(settings)) * len(CALLERS) * (TIMES * settings.seconds_per_point + 2.0)


def measure_stopped(
    experts: Experts,
    calls: Sequence[Call],
    repeat: int,
    workers: Sequence[Counters],
    settings: ProfileSettings,
    runner: asyncio.Runner,
) -> list[Row]:
    """One row for each kind of expert, share and number of callers, the largest share first. ``calls``: requests that
    take turns; ``workers``: counters of all that works for them. Raises MeasurementError where one is not answered."""
    rows: list[Row] = []
    try:
        for share in _shares(settings):
            longest_s = 0.0
            for callers in CALLERS:
                more, pass_s = _measure(experts, calls, share, callers, workers, settings, runner)
                rows += [replace(row, repeat=repeat) for row in more]
                longest_s = max(longest_s, pass_s)
            if longest_s > LONGEST_PASS_S:
                break
    finally:
        _resize(experts, 1.0, settings)
    return rows


def _shares(settings: ProfileSettings) -> list[float]:
    """A full core, then the profile's shares below it, the largest first."""
    return [1.0, *sorted({share for share in settings.shares if share < 1.0}, reverse=True)]


def _measure(
    experts: Experts,
    calls: Sequence[Call],
    share: float,
    callers: int,
    workers: Sequence[Counters],
    settings: ProfileSettings,
    runner: asyncio.Runner,
) -> tuple[list[Row], float]:
    """Rows of one share, and seconds of a pass. Workers are asked for their products while they have a full core, as
    the answer would count as work of theirs."""
    turns = itertools.cycle(calls)

    async def call() -> bool:
        return await next(turns)()

    asked, each_s = _batches(experts), TIMES * settings.seconds_per_point
    _resize(experts, share, settings)
    runner.run(closed_loop(call, callers, 2 * callers, each_s))
    interference, before = Interference(workers), experts.spent()
    recorded = runner.run(closed_loop(call, callers, 1_000_000, each_s))
    cpu_s, after = interference.functions_s(), experts.spent()
    others_cores = interference.others_s(cpu_s) / recorded.seconds
    if recorded.errors or not recorded.latencies_s:
        raise MeasurementError(f"a request was not answered while experts had {share:g} cores")
    _resize(experts, 1.0, settings)
    batches = _batches(experts)
    rows = rows_between(before, after, experts.kinds, 0, others_cores, settings)
    members = {kind.node: kind.members for kind in experts.kinds}
    limited = [
        replace(
            row,
            family=FAMILY,
            loop="closed",
            share=share,
            cpu_cores=share / settings.cpu_scale,
            concurrency=callers,
            period_s=limit_of(share, 0.0, settings.cpu_period_ms / 1000).period_s,
            seconds=recorded.seconds,
            batch_calls=_each(asked, batches, members[row.node]),
        )
        for row in rows
    ]
    return limited, callers * recorded.seconds / len(recorded.latencies_s)


def _resize(experts: Experts, share: float, settings: ProfileSettings) -> None:
    for function in experts.functions.values():
        function.resize(Setting(share / settings.cpu_scale, settings.ample_mib, AT_ONCE))


def _batches(experts: Experts) -> dict[str, tuple[float, float]]:
    """Calls and products of each expert so far. Raises MeasurementError."""
    return {node: products_of(address) or (0.0, 0.0) for node, address in experts.addresses.items()}


def _each(
    before: Mapping[str, tuple[float, float]], after: Mapping[str, tuple[float, float]], members: Sequence[str]
) -> float | None:
    """Mean calls in a product of ``members``; None where they computed none."""
    calls, products = (sum(after[node][place] - before[node][place] for node in members) for place in (0, 1))
    return calls / products if products else None

"""Calls within passes: CPU seconds that each kind of node uses for a call while whole requests come one by one.

A call that is sent to its replica by itself finds a machine that was idle; in a pass the call before it has just ended,
and cores are awake. How much less a call then takes differs by kind: of short calls of experts most of it is waking up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.monitor.growth import Samples
from functions.serving.metric_names import NODE_CALLS, NODE_TOKENS
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.measurement_plan import NodeClass, ProfileSettings
from simulation.profiles.measure.requests import Counters, blank

FAMILY = "in_pass"


@dataclass(frozen=True)
class Spent:
    """What nodes have had so far, by node id."""

    cpu_s: Mapping[str, float | None]
    """CPU seconds of the replica; None where the kernel does not count them."""
    stops: Mapping[str, int | None]
    """How often its CPU limit has stopped the replica; None likewise."""
    calls: Mapping[str, float]
    tokens: Mapping[str, float]


def spent(counters: Mapping[str, Counters], metrics: Samples) -> Spent:
    """``counters``: of each node's replica; ``metrics``: the ingress's."""
    counted = {node: one.read() for node, one in counters.items()}
    return Spent(
        {node: one.cpu_s for node, one in counted.items()},
        {node: one.throttled_periods for node, one in counted.items()},
        by_node(metrics, NODE_CALLS),
        by_node(metrics, NODE_TOKENS),
    )


def by_node(metrics: Samples, series: str) -> dict[str, float]:
    """A counter of ``metrics``, summed by its label ``node``."""
    sums: dict[str, float] = {}
    for (name, labels), value in metrics.items():
        if name == series:
            node = dict(labels)["node"]
            sums[node] = sums.get(node, 0.0) + value
    return sums


def rows_between(
    before: Spent, after: Spent, classes: Sequence[NodeClass], repeat: int, others_cores: float,
    settings: ProfileSettings,
) -> list[Row]:  # fmt: skip
    """One row for each kind of node that was called; its tokens are the mean of a call. None of a kind of which a
    replica's CPU seconds are not known. ``others_cores``: what other processes used meanwhile."""
    rows = []
    for one in classes:
        calls, tokens = (
            sum(now.get(node, 0.0) - then.get(node, 0.0) for node in one.members)
            for then, now in ((before.calls, after.calls), (before.tokens, after.tokens))
        )
        used_s = _more(before.cpu_s, after.cpu_s, one.members)
        stops = _more(before.stops, after.stops, one.members)
        if calls > 0 and used_s is not None:
            rows.append(
                replace(
                    blank(round(tokens / calls), repeat, settings),
                    node=one.node,
                    family=FAMILY,
                    loop="paced",
                    n=round(calls),
                    others_cores=others_cores,
                    cpu_s_per_call=used_s / calls,
                    stops_per_call=None if stops is None else stops / calls,
                )
            )
    return rows


def _more(
    before: Mapping[str, float | None], after: Mapping[str, float | None], members: Sequence[str]
) -> float | None:
    """Sum over all members, between two readings; None where one was not counted."""
    read = [(before.get(node), after.get(node)) for node in members]
    counted = [now - then for then, now in read if then is not None and now is not None]
    return sum(counted) if len(counted) == len(read) else None

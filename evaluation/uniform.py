"""Uniform configurations: what all experts may have in common, and the search for the cheapest that keeps the SLO λ.

On one shared machine, and for loads whose peaks no mean describes, the queueing model is not enough: the simulator is
asked about one configuration for every expert at a time. Callers differ in replica counts, concurrency, memory and
order, which are arguments here, and in what they simulate; enumeration and choice are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoscaler.capacity import needs
from autoscaler.contract import Configuration, ConfigurationSpace
from simulation.workloads.workload import Workload


def uniform_configurations(
    space: ConfigurationSpace,
    replica_counts: Sequence[int],
    concurrency: int,
    *,
    memory_mb: Callable[[int, float], int] | None = None,
    order: Callable[[Configuration], float] | None = None,
) -> list[Configuration]:
    """Every resource of ``space`` with each of ``replica_counts``, replica counts outermost.

    ``memory_mb``: replicas and CPU cores → memory of a replica; None: the smallest there is. ``order``: sorts the
    result, ascending; configurations of equal value stay in the order of enumeration.
    """
    smallest_mb = min(space.memory_sizes_mb)
    candidates = [
        Configuration(
            smallest_mb if memory_mb is None else memory_mb(replicas, cores), cores, share, replicas, concurrency
        )
        for replicas in replica_counts
        for cores, share in space.resources
    ]
    return candidates if order is None else sorted(candidates, key=order)


def for_all_experts(workload: Workload, configuration: Configuration) -> dict[str, Configuration]:
    """Function → ``configuration``, of every expert."""
    return {node.function: configuration for node in workload.experts}


def fits(workload: Workload, configuration: Configuration) -> bool:
    """Whether the cluster has room for ``configuration`` of every expert."""
    room = workload.expert_room
    return room is None or needs(configuration).times(len(workload.experts)).within(room)


def cheapest_within(cost: Sequence[float], excess: Sequence[float], allowed: float) -> int:
    """Index of the candidate of least ``cost`` whose ``excess`` (P95 in seconds, share of windows above λ, …) is at
    most ``allowed``; where none is, of the one with the least excess. The first of equals."""
    keeping = [index for index, value in enumerate(excess) if value <= allowed]
    if keeping:
        return min(keeping, key=lambda index: cost[index])
    return min(range(len(excess)), key=lambda index: excess[index])


def first_keeping(count: int, keeps: Callable[[int], bool]) -> int:
    """Index of the first of ``count`` candidates, in order of price, that ``keeps`` λ; ``count`` where none does.

    By bisection, since a simulation is expensive: whatever costs more is taken to be at least as fast.
    """
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle + 1
    return low

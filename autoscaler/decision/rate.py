"""Rate of change: how far one decision may go on each axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoscaler.contract import Configuration, ConfigurationSpace

_TOUCH = 1 + 1e-9
"""0.3 of a GPU is three times 0.1, though not in binary numbers."""


def replicas_in_step(now: Configuration, target: Configuration, most: int) -> Configuration:
    """``target`` with at most ``most`` replicas more or fewer than ``now``; 0 = no limit."""
    if not most or abs(target.replicas - now.replicas) <= most:
        return target
    return target.with_replicas(now.replicas + most if target.replicas > now.replicas else now.replicas - most)


def limits_in_step(
    now: Configuration, target: Configuration, factor: float, space: ConfigurationSpace
) -> Configuration:
    """``target`` with memory, CPU cores and GPU share at most ``factor`` times those of ``now``, or a ``factor``-th.

    The next value of the space is always in reach. From CPU to GPU and back is no step but a change of resource.
    Configurations are in the space on the axes where they differ; 0 = no limit.
    """
    if not factor:
        return target
    return replace(
        target,
        memory_mb=int(_in_step(now.memory_mb, target.memory_mb, factor, space.memory_sizes_mb)),
        cpu_cores=_in_step(now.cpu_cores, target.cpu_cores, factor, space.cpu_cores),
        gpu_share=_in_step(now.gpu_share, target.gpu_share, factor, space.gpu_shares),
    )


def _in_step(before: float, after: float, factor: float, values: Sequence[float]) -> float:
    if before == after or not before or not after:
        return after
    low, high = min(before, after), max(before, after)
    between = sorted((value for value in values if low <= value <= high and value != before), reverse=before > after)
    reach = [value for value in between if value <= before * factor * _TOUCH and value * factor * _TOUCH >= before]
    return reach[-1] if reach else between[0]

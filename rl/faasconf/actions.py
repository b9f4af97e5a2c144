"""From an agent's outputs to a configuration of Φ, and back.

Five numbers of 0 to 1: GPU above ½, else CPU; then the size of that compute, memory, replicas and concurrency, each cut
into equal parts, one for every value of the axis. Eq. (2) is kept by raising memory to the least that is enough, and
where none is for so many replicas, by more of them.
"""

from __future__ import annotations

import numpy as np

from autoscaler.contract import Configuration, ConfigurationSpace, MemoryNeed
from simulation.arrays import Singles

OUTPUTS = ("gpu", "size", "memory", "replicas", "concurrency")
GPU_FROM = 0.5


def configuration(outputs: Singles, space: ConfigurationSpace, need: MemoryNeed) -> Configuration:
    """``outputs`` [5] of 0 to 1, in the order of ``OUTPUTS``. Where no memory is enough for any number of replicas: the
    most of both.
    """
    gpu, size, memory, replicas, concurrency = (float(value) for value in outputs)
    with_gpu = bool(space.gpu_shares) and (gpu > GPU_FROM or not space.cpu_cores)
    sizes = space.gpu_shares if with_gpu else space.cpu_cores
    compute = sizes[_part(size, len(sizes))]
    least = space.mask(need)
    wanted = space.replica_counts[_part(replicas, len(space.replica_counts))]
    count = next((tried for tried in range(wanted, space.replicas_max + 1) if least[tried]), space.replicas_max)
    memory_mb = max(
        space.memory_sizes_mb[_part(memory, len(space.memory_sizes_mb))], least[count] or space.memory_max_mb
    )
    slots = space.concurrencies[_part(concurrency, len(space.concurrencies))]
    return Configuration(memory_mb, 0.0 if with_gpu else compute, compute if with_gpu else 0.0, count, slots)


def outputs_of(configuration: Configuration, space: ConfigurationSpace) -> Singles:
    """[5] float32: middles of the parts that give the nearest of Φ to ``configuration``."""
    near = space.nearest(configuration)
    gpu = near.gpu_share > 0
    sizes, size = (space.gpu_shares, near.gpu_share) if gpu else (space.cpu_cores, near.cpu_cores)
    return np.array(
        [
            0.75 if gpu else 0.25,
            _middle(sizes.index(size), len(sizes)),
            _middle(space.memory_sizes_mb.index(near.memory_mb), len(space.memory_sizes_mb)),
            _middle(space.replica_counts.index(near.replicas), len(space.replica_counts)),
            _middle(space.concurrencies.index(near.concurrency), len(space.concurrencies)),
        ],
        dtype=np.float32,
    )


def _part(value: float, parts: int) -> int:
    return min(max(int(value * parts), 0), parts - 1)


def _middle(part: int, parts: int) -> float:
    return (part + 0.5) / parts

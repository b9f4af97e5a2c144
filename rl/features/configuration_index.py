"""Φ as positions and features: configurations to axes and back, Eq. (2) as a table, and the tables of the networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from autoscaler.capacity import replica_needs
from autoscaler.contract import MIB, Configuration, ConfigurationSpace, Resources, Topology
from autoscaler.prices import PriceSheet
from rl.agent.contract import CONFIGURATION_FEATURES, Amounts, Space
from rl.features.calls import CallTimes
from simulation.arrays import Bools, Floats

Ints16 = NDArray[np.int16]

MEMORY_MB = (128.0, 10240.0)
"""What becomes -1 and 1."""
CORES, REPLICAS, CONCURRENCY = 6.0, 8.0, 10.0
"""What becomes 1."""
PART = (0.01, 100.0)
"""Parts of λ / n: seconds of a call that become -1 and 1."""


class ConfigurationIndex:
    """Positions on the axes of Φ (``rl.agent.contract.AXES``) and configurations, for the experts of one pipeline."""

    def __init__(self, topology: Topology, space: ConfigurationSpace, prices: PriceSheet) -> None:
        self.space = space
        self.functions = [[node.function for node in topology.experts(layer)] for layer in range(topology.layers)]
        width = max((len(row) for row in self.functions), default=0)
        self.mask: Bools = np.array([[j < len(row) for j in range(width)] for row in self.functions], dtype=np.bool_)
        self.sizes_mb = np.array(space.memory_sizes_mb, dtype=np.float64)
        self.cores, self.shares = np.array(space.resources, dtype=np.float64).T
        self.unit_per_s: Floats = unit_prices(prices, self.sizes_mb[:, None], self.cores, self.shares)
        """[M, R] U_φ of one replica, currency per second."""
        self._axes = (len(self.sizes_mb), len(self.cores), len(space.replica_counts), len(space.concurrencies))
        self._known: dict[int, Configuration] = {}

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, R, P, Q."""
        return self._axes

    def configurations(self, actions: NDArray[np.integer]) -> dict[str, Configuration]:
        """Function → configuration of every expert, for ``actions [n, K, 4]``. Raises ValueError for a position that
        is not on its axis."""
        if actions.shape != (*self.mask.shape, 4):
            raise ValueError(f"actions are {actions.shape}; this pipeline takes {(*self.mask.shape, 4)}")
        return self._configurations([name for row in self.functions for name in row], actions[self.mask])

    def layer_configurations(self, layer: int, actions: NDArray[np.integer]) -> dict[str, Configuration]:
        """The same of one layer, ``actions [K, 4]``."""
        return self._configurations(self.functions[layer], actions[: len(self.functions[layer])])

    def _configurations(self, names: Sequence[str], chosen: NDArray[np.integer]) -> dict[str, Configuration]:
        if (chosen < 0).any() or (chosen >= np.array(self._axes)).any():
            raise ValueError(f"positions are 0 to {', '.join(str(size - 1) for size in self._axes)} on the four axes")
        numbers = np.ravel_multi_index(tuple(chosen.astype(np.int64).T), self._axes)
        return {name: self._at(number) for name, number in zip(names, numbers.tolist(), strict=True)}

    def _at(self, number: int) -> Configuration:
        """``space[number]``, remembered: few of the 203,520 are used."""
        if number not in self._known:
            self._known[number] = self.space[number]
        return self._known[number]

    def actions(self, configurations: Mapping[str, Configuration]) -> Ints16:
        """[n, K, 4]: the nearest of Φ of every expert's configuration (``ConfigurationSpace.nearest``); padding,
        and experts without one, are zeros."""
        rows = [
            (place, configurations[name])
            for place, name in zip(
                np.argwhere(self.mask), (name for row in self.functions for name in row), strict=True
            )
            if name in configurations
        ]
        positions = np.zeros((*self.mask.shape, 4), dtype=np.int16)
        if rows:
            layers, numbers = np.array([place for place, _ in rows]).T
            positions[layers, numbers] = self.nearest(np.array([_numbers(one) for _, one in rows], dtype=np.float64))
        return positions

    def nearest(self, raw: Floats) -> Ints16:
        """``raw [rows, 5]`` (memory_mb, cpu_cores, gpu_share, replicas, concurrency) → [rows, 4] positions."""
        memory_mb, cores, share, replicas, concurrency = raw.T
        space = self.space
        steps = np.ceil((memory_mb - space.memory_min_mb) / space.memory_step_mb)
        memory = np.clip(steps, 0, len(self.sizes_mb) - 1)
        places = np.arange(len(space.cpu_cores))
        if space.cpu_cores:
            places_cpu = np.abs(self.cores[: places.size] - cores[:, None]).argmin(axis=1)
            resource = places_cpu
        if space.gpu_shares:
            places_gpu = places.size + np.abs(self.shares[places.size :] - share[:, None]).argmin(axis=1)
            resource = np.where(cores > 0, resource, places_gpu) if space.cpu_cores else places_gpu
        low_p, low_q = space.replicas_min, space.concurrency_min
        counts = np.clip(replicas, low_p, space.replicas_max) - low_p
        calls = np.clip(concurrency, low_q, space.concurrency_max) - low_q
        return np.stack([memory, resource, counts, calls], axis=1).astype(np.int16)

    def least_memory(self, runtime_bytes: Floats, bytes_per_token: Floats, peak_tokens: Floats, alpha: float) -> Ints16:
        """Eq. (2) as ``ConfigurationSpace.mask`` has it, for many nodes: [rows, P] position of the first memory size
        that is enough, M where none is."""
        replicas = np.array(self.space.replica_counts, dtype=np.float64)
        need_bytes = runtime_bytes[:, None] + 2 * bytes_per_token[:, None] * peak_tokens[:, None] / replicas
        required_mb = need_bytes / alpha / MIB
        steps = np.ceil((required_mb - self.space.memory_min_mb) / self.space.memory_step_mb)
        return np.clip(steps, 0, len(self.sizes_mb)).astype(np.int16)

    def within(self, actions: NDArray[np.integer], least_memory: Ints16) -> Ints16:
        """``actions [n, K, 4]`` made to satisfy Eq. (2): memory raised to what ``least_memory [n, K, P]`` asks for so
        many replicas; where no memory is enough, more replicas; where none are, the largest memory and most replicas.
        Padding is zeros."""
        positions = np.asarray(actions, dtype=np.int16).copy()
        memories, _, counts, _ = self._axes
        enough = least_memory < memories
        places = np.arange(counts)
        least_count = np.where(enough.any(axis=2), np.where(enough, places, counts).min(axis=2), counts - 1)
        positions[..., 2] = np.maximum(positions[..., 2], least_count)
        least = np.take_along_axis(least_memory, positions[..., 2:3].astype(np.int64), axis=2)[..., 0]
        positions[..., 0] = np.maximum(positions[..., 0], np.minimum(least, memories - 1))
        positions[~self.mask] = 0
        return positions


def unit_prices(prices: PriceSheet, memory_mb: Floats, cores: Floats, shares: Floats) -> Floats:
    """U_φ (``PriceSheet.unit_per_s``) of many configurations; arguments broadcast. Arrays [...]."""
    return np.asarray(cores * prices.cpu_core_s + memory_mb / 1024 * prices.memory_gib_s + shares * prices.gpu_s)


def space_of(
    topology: Topology, space: ConfigurationSpace, prices: PriceSheet, calls: CallTimes, slo_s: float
) -> Space:
    """Φ of a pipeline as the networks' tables; ``slo_s`` λ."""
    configuration_index = ConfigurationIndex(topology, space, prices)
    memories, resources, _, _ = configuration_index.sizes
    if calls.seconds.shape != (resources,):
        raise ValueError(f"{calls.seconds.size} call times do not fit {resources} resources")
    table = np.zeros((memories, resources, len(CONFIGURATION_FEATURES)))
    place = {name: at for at, name in enumerate(CONFIGURATION_FEATURES)}
    table[..., place["memory"]] = scaled_log(configuration_index.sizes_mb, *MEMORY_MB)[:, None]
    table[..., place["cpu_cores"]] = configuration_index.cores / CORES
    table[..., place["gpu_share"]] = configuration_index.shares
    table[..., place["on_gpu"]] = configuration_index.shares > 0
    table[..., place["price"]] = configuration_index.unit_per_s / configuration_index.unit_per_s.max()
    table[..., place["call_time"]] = scaled_log(calls.seconds * topology.layers / slo_s, *PART)
    return Space(
        mask=torch.from_numpy(configuration_index.mask),
        resource_memory=torch.from_numpy(table.astype(np.float32)),
        replicas=torch.tensor([count / REPLICAS for count in space.replica_counts], dtype=torch.float32),
        concurrencies=torch.tensor([calls_ / CONCURRENCY for calls_ in space.concurrencies], dtype=torch.float32),
        edges=_edges(topology),
        amounts=Amounts(
            torch.tensor(
                [(each.cores, each.gpu_tenths) for each in map(_replica_needs, space.resources)], dtype=torch.float32
            ),
            torch.tensor(space.memory_sizes_mb, dtype=torch.float32),
            torch.tensor(list(space.replica_counts), dtype=torch.float32),
        ),
    )


def _replica_needs(resource: tuple[float, float]) -> Resources:
    return replica_needs(Configuration(1, *resource, 1, 1))


def scaled_log(values: Floats, low: float, high: float) -> Floats:
    """``low`` becomes -1, ``high`` 1, values in between by their logarithm, all others cut off. ``values`` [...]."""
    return np.asarray(2 * np.log(np.clip(values, low, high) / low) / np.log(high / low) - 1)


def _edges(topology: Topology) -> tuple[tuple[int, int], ...]:
    """Segments are nodes 0 … n, experts follow by layer and number; the ingress is left out."""
    order = [f"segment-{i}" for i in range(topology.layers + 1)]
    order += [node.id for layer in range(topology.layers) for node in topology.experts(layer)]
    number = {node: place for place, node in enumerate(order)}
    return tuple((number[a], number[b]) for a, b in topology.edges if a in number and b in number)


def _numbers(one: Configuration) -> tuple[float, float, float, int, int]:
    return one.memory_mb, one.cpu_cores, one.gpu_share, one.replicas, one.concurrency

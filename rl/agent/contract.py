"""What environment, networks and training hand each other: states of a pipeline, actions on Φ, and the two networks.

A *state* is one window of one pipeline before anything was decided in it; the decisions of a window are taken layer by
layer, each with those of the layers before it in view. A *batch* holds states of one pipeline only, so that layers
and configurations are the same in all of it; experts are padded to the largest layer and masked.

Sizes: B states, n MoE layers, K experts of the largest layer, F features of a node, G of the pipeline, C of a
configuration, and M, R, P, Q for the memory sizes, resources, replica counts and concurrencies of Φ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats32 = NDArray[np.float32]

AXES = ("memory", "resource", "replicas", "concurrency")
"""Axes of an action, in the order of Φ's numbering: positions on the axes of ``ConfigurationSpace``."""
CONFIGURATION_FEATURES = ("memory", "cpu_cores", "gpu_share", "on_gpu", "replicas", "concurrency", "price", "call_time")
"""C numbers about -1 to 1 that stand for a configuration, the same for every pipeline (``rl.features``)."""


@dataclass(frozen=True, eq=False)
class State:
    """One window, in NumPy; made by ``rl.features`` alone, in training as in production."""

    segments: Floats32
    """[n + 1, F]."""
    experts: Floats32
    """[n, K, F]; zeros where there is no expert."""
    pipeline: Floats32
    """[G]."""
    present: NDArray[np.int16]
    """[n, K, 4] configuration in force, the nearest of Φ; axes as in ``AXES``."""
    least_memory: NDArray[np.int16]
    """[n, K, P] Eq. (2): first memory size that is enough for so many replicas; M where none is."""
    room: Floats32 | None = None
    """[3] cores, MiB and tenths of GPUs that all experts may take together; None: anything."""


@dataclass(frozen=True, eq=False)
class Amounts:
    """What a configuration takes of a cluster; float32."""

    resources: Tensor
    """[R, 2] cores and tenths of a GPU of a replica."""
    memory_mb: Tensor
    """[M] MiB of a replica."""
    replicas: Tensor
    """[P]."""


@dataclass(frozen=True, eq=False)
class Space:
    """Φ of one pipeline as tables, and which experts there are. Constant while a pipeline runs."""

    mask: Tensor
    """[n, K] bool: True where there is an expert (Eq. (10))."""
    resource_memory: Tensor
    """[M, R, C] float32: features of a configuration that depend on memory and resource; others 0."""
    replicas: Tensor
    """[P] float32: feature of each replica count."""
    concurrencies: Tensor
    """[Q] float32: feature of each concurrency."""
    edges: tuple[tuple[int, int], ...]
    """Edges of the DAG, nodes numbered segments first, then experts by layer."""
    amounts: Amounts | None = None
    """None: what configurations take is not known, so decisions know no walls."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """M, R, P, Q."""
        memory, resource, _ = self.resource_memory.shape
        return memory, resource, len(self.replicas), len(self.concurrencies)


@dataclass(frozen=True, eq=False)
class Batch:
    """States of one pipeline as tensors: those of :class:`State` with a leading B, float32 and int64."""

    space: Space
    segments: Tensor
    experts: Tensor
    pipeline: Tensor
    present: Tensor
    least_memory: Tensor
    room: Tensor | None = None
    """[B, 3]; None where a state has none."""

    @classmethod
    def of(cls, space: Space, states: list[State]) -> Batch:
        """Stack states; all of the pipeline that ``space`` describes."""

        def stack(name: str) -> Tensor:
            return torch.from_numpy(np.stack([getattr(state, name) for state in states]))

        return cls(
            space,
            stack("segments").float(),
            stack("experts").float(),
            stack("pipeline").float(),
            stack("present").long(),
            stack("least_memory").long(),
            None if any(state.room is None for state in states) else stack("room").float(),
        )


class ActorNetwork(Protocol):
    """π_θ. Both calls decide all layers; they differ in whose decisions the later layers see."""

    def decide(self, batch: Batch, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """[B, n, K, 4] int64: layer after layer, each seeing the decisions just taken. Temperature 0: the arg max of
        Eq. (12); above it an exact sample of the softmax at that temperature. Eq. (2) and (4) always hold (where no
        memory is enough for any replica count: the largest memory and the most replicas). Where the batch has room
        all decisions of a state together stay within it, if Eq. (2) lets them. Padding is zeros."""

    def relaxed(self, batch: Batch, executed: Tensor) -> Tensor:
        """[B, n, K, C] float32: features of the arg max with the gradient of the expected features (straight-through);
        layer i is decided in view of ``executed`` [B, n, K, 4] in the layers before it."""

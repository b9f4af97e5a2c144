"""Φ as rows of features: what the networks read of a configuration, and how it falls into two parts.

The features of a configuration are a sum over its axes: f(m, r, p, q) = v(r) + u(m) + replicas(p) + concurrency(q), so
their expectation under the junction tree is exact (:mod:`rl.agent.siso`). U_φ is additive in memory and resource, and
so is its feature; a table that is not is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rl.agent.contract import CONFIGURATION_FEATURES, Space
from rl.agent.errors import NetworkError

MEMORY = CONFIGURATION_FEATURES.index("memory")
REPLICAS = CONFIGURATION_FEATURES.index("replicas")
CONCURRENCY = CONFIGURATION_FEATURES.index("concurrency")
PRICE = CONFIGURATION_FEATURES.index("price")
CALL_TIME = CONFIGURATION_FEATURES.index("call_time")
TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of the two cliques, replicas outermost in both. C features each, float32."""

    compute: Tensor
    """[P · R · Q, C] of (replicas, resource, concurrency)."""
    memory: Tensor
    """[P · M, C] of (replicas, memory); the feature of the replicas is part of the row, for scores."""
    memory_only: Tensor
    """[M, C] u(m): what memory adds to the features of a compute row."""
    replicas: Tensor
    """[P, C]: the feature of the replicas alone."""
    concurrencies: Tensor
    """[Q, C]: that of the concurrency."""
    same: Tensor
    """[R + P, P · R · Q]: 1 where a compute row has that resource, and below where it has so many replicas."""


@lru_cache(maxsize=64)
def rows(space: Space) -> Rows:
    """Split the features of Φ over the cliques. Raises NetworkError where memory and resource do not add up."""
    with torch.inference_mode(False):  # kept, and used where gradients are recorded too
        return _rows(space)


def _rows(space: Space) -> Rows:
    _, resources, counts, concurrencies = space.sizes
    table, features = space.resource_memory, space.resource_memory.shape[-1]
    of_resource = table[0].clone()  # [R, C]
    of_memory = table[:, 0] - table[:1, 0]  # [M, C]
    of_memory[:, MEMORY] = table[:, 0, MEMORY]
    of_resource[:, MEMORY] = 0.0
    worst = (of_memory[:, None] + of_resource - table).abs().amax((0, 1))
    if worst.max() > TOLERANCE:
        raise NetworkError(
            f"feature {CONFIGURATION_FEATURES[int(worst.argmax())]} of a configuration is not the sum of a part of its "
            f"memory and a part of its resource (off by {worst.max():.2g}); the scores need it to be"
        )
    of_count, of_concurrency = torch.zeros(counts, features), torch.zeros(concurrencies, features)
    of_count[:, REPLICAS], of_concurrency[:, CONCURRENCY] = space.replicas, space.concurrencies
    compute = of_count[:, None, None] + of_resource[:, None] + of_concurrency
    memory = of_count[:, None] + of_memory
    same_resource = torch.eye(resources).repeat(counts, 1).repeat_interleave(concurrencies, 0)
    same_replicas = torch.eye(counts).repeat_interleave(resources * concurrencies, 0)
    same = torch.cat((same_resource, same_replicas), 1).T.contiguous()
    return Rows(compute.flatten(0, 2), memory.flatten(0, 1), of_memory, of_count, of_concurrency, same)


def features_of(space: Space, actions: Tensor) -> Tensor:
    """Features [..., C] float32 of configurations ``actions`` [..., 4] int64; padding is not cleared."""
    memory, resource, replicas, concurrency = actions.unbind(-1)
    table = rows(space)
    return space.resource_memory[memory, resource] + table.replicas[replicas] + table.concurrencies[concurrency]


def allowed(least_memory: Tensor, memories: int) -> Tensor:
    """Eq. (2) with a way out: where no memory is enough for any number of replicas, the largest with the most.

    ``least_memory`` [..., P] int64 as in a state; so is the result, in which some count always has a memory.
    """
    nowhere = (least_memory >= memories).all(-1)
    opened = least_memory.clone()
    opened[..., -1] = torch.where(nowhere, memories - 1, opened[..., -1])
    return opened

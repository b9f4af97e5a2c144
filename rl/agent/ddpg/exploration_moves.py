"""Changes of a decision to compare it with: one expert's configuration, a whole layer's, or the whole pipeline's.

A softmax over each expert's configurations draws experts independently, so that a layer whose experts all have to
become faster, or a pipeline that is more careful than it need be, is never seen as one step. Here experts of a scope
move together, all of a layer or its most or least loaded ones: resource, replicas or concurrency up or down, or any
resource. Resources are those that no other beats in both price and time, in order of price: on the axis of Φ cores come
before GPU shares, and from the least share the next position down costs more and is slower. Memory follows Eq. (2), as
it is no speed knob and costs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from rl.agent.configuration_table import CALL_TIME, PRICE, allowed
from rl.agent.contract import Batch, Space
from rl.features import NODE_FEATURES

Scope = Literal["expert", "layer", "window"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FURTHEST = (2, 1, 4)
"""Positions that resource, replicas and concurrency move at most."""
ANYWHERE = 0.15
"""Share of moves that take any of the resources."""
AXES = 3
LOAD = [feature.name for feature in NODE_FEATURES].index("load_peak_5")


def moves(batch: Batch, base: Tensor, scope: Scope, count: int, draw: torch.Generator) -> Tensor:
    """[A, B, n, K, 4] int64: ``count`` changes of ``base`` [B, n, K, 4], each drawn once for an expert, for a layer, or
    for a window, where each layer takes part or not; of a layer all experts, or so many of the most or of the least
    loaded. Eq. (2) holds; what cannot hold it stays as in ``base``."""
    states, layers, experts, _ = base.shape
    shape = {"expert": (layers, experts), "layer": (layers, 1), "window": (1, 1)}[scope]
    drawn = (count, states, *shape)
    steps = [_step(drawn, furthest, draw) for furthest in FURTHEST]
    axis = torch.randint(AXES + 1, drawn, generator=draw)  # the last: resource and replicas against each other
    efficient, rank = resources_by_price(batch.space)
    place = rank[base[..., 1]] + steps[0]
    anywhere = torch.rand(drawn, generator=draw) < ANYWHERE
    place = torch.where(anywhere, torch.randint(len(efficient), drawn, generator=draw), place)
    moved = anywhere | (axis == 0) | (axis == AXES)
    resource = torch.where(moved, efficient[place.clamp(0, len(efficient) - 1)], base[..., 1])
    replicas = base[..., 2] + steps[1] * (axis == 1) - steps[0].sign() * (axis == AXES)
    concurrency = base[..., 3] + steps[2] * (axis == 2)
    candidates = _lawful(batch, base, resource, replicas, concurrency)
    if scope == "expert":
        return candidates
    part = _ends(batch, drawn, draw)
    if scope == "window":
        share = 0.1 + 0.9 * torch.rand(count, states, 1, 1, generator=draw)
        part = part & (torch.rand(count, states, layers, 1, generator=draw) < share)
    return torch.where(part.unsqueeze(-1), candidates, base)


def _ends(batch: Batch, drawn: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """[A, B, n, K] bool: the experts that move. Half of the changes are of whole layers, half of so many experts of a
    layer from the most or from the least loaded on: of those the slowest, or the ones with time to spare, are few."""
    mask = batch.space.mask
    load = batch.experts[..., LOAD].masked_fill(~mask, -torch.inf)
    rank = load.argsort(-1, descending=True).argsort(-1)  # padding comes last
    there = mask.sum(-1)[:, None]
    reach = torch.rand(drawn, generator=draw) * there
    hot = torch.rand(drawn, generator=draw) < 0.5
    whole = torch.rand(drawn, generator=draw) < 0.5
    return whole | torch.where(hot, rank <= reach, rank >= there - 1 - reach)


@lru_cache(maxsize=64)
def resources_by_price(space: Space) -> tuple[Tensor, Tensor]:
    """Positions [E] of the resources that none cheaper is as fast as, in order of price; and for every resource [R] its
    place among them: of the most expensive that costs no more."""
    prices, seconds = space.resource_memory[0, :, PRICE], space.resource_memory[0, :, CALL_TIME]
    efficient = list[int]()
    for position in prices.argsort().tolist():
        if not efficient or seconds[position] < seconds[efficient[-1]]:
            efficient.append(position)
    resources = torch.tensor(efficient)
    rank = (prices[resources] <= prices[:, None]).sum(-1) - 1
    return resources, rank


def mixed(base: Tensor, moved: Tensor, share: float, draw: torch.Generator) -> Tensor:
    """[A, B, n, K, 4]: ``base`` with about ``share`` of its layers as in ``moved``."""
    part = torch.rand(*moved.shape[:3], 1, 1, generator=draw) < share
    return torch.where(part, moved, base)


def _step(shape: tuple[int, ...], furthest: int, draw: torch.Generator) -> Tensor:
    """1 to ``furthest`` positions up or down."""
    size = torch.randint(1, furthest + 1, shape, generator=draw)
    return torch.where(torch.rand(shape, generator=draw) < 0.5, -size, size)


def _lawful(batch: Batch, base: Tensor, resource: Tensor, replicas: Tensor, concurrency: Tensor) -> Tensor:
    """Positions within Φ, with the least memory that Eq. (2) allows."""
    memories, _, counts, concurrencies = batch.space.sizes
    replicas = replicas.clamp(0, counts - 1)
    least = allowed(batch.least_memory, memories).expand(*replicas.shape, -1)
    memory = least.gather(-1, replicas.unsqueeze(-1)).squeeze(-1)
    axes = (memory.clamp(max=memories - 1), resource, replicas, concurrency.clamp(0, concurrencies - 1))
    moved = torch.stack([axis.expand(memory.shape) for axis in axes], -1)
    return torch.where((memory < memories).unsqueeze(-1), moved, base)

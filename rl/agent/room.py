"""What a cluster has left, layer by layer: a mask over Φ for each expert, so that decisions together stay within it.

Layers decide in order, experts of a layer in order of the pointer's weights (Eq. 11). An expert may take what those
before it left, less a floor for each one after it: the smallest configuration that Eq. (2) allows on cores (where Φ has
none, on a GPU share). Replicas are the separator of the junction tree, and what a configuration takes is replicas times
a part of its resource and a part of its memory, so the mask falls into the tree's two cliques and the arg max under it
is exact. Machines one by one are the decision limits' business (:mod:`autoscaler.decision.capacity`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, Self

import torch
from torch import Tensor

from rl.agent.configuration_table import allowed
from rl.agent.contract import Amounts, Batch

ROUNDING = 1e-6
"""Part of an amount: cores and tenths are sums of fractions that binary numbers only come near."""


class Masked(Protocol):
    """Scores of N experts that can be cut to some of them and to what fits."""

    def of(self, rows: Tensor) -> Self: ...

    def within(self, limits: Tensor, amounts: Amounts) -> Self: ...


class Room:
    """What experts took of each state's room so far. ``batch`` has :attr:`Batch.room`, its space amounts."""

    def __init__(self, batch: Batch) -> None:
        assert batch.room is not None and batch.space.amounts is not None
        self._amounts, self._mask = batch.space.amounts, batch.space.mask
        memories = batch.space.sizes[0]
        least = allowed(batch.least_memory, memories)
        self._floors = floors(self._amounts, least) * self._mask.unsqueeze(-1)
        """[B, n, K, 3]."""
        self._left = batch.room - self._floors.sum((1, 2))
        """[B, 3] beyond the floors of all that are not decided yet."""

    def beyond(self, actions: Tensor) -> Tensor:
        """[B] bool: whether ``actions`` [B, n, K, 4] take more than there is."""
        taken = (needs(self._amounts, actions) * self._mask[..., None]).sum((1, 2))
        room = self._left + self._floors.sum((1, 2))
        return (taken > room * (1 + ROUNDING)).any(-1)

    def decide(self, layer: int, scored: Masked, weights: Tensor, pick: Callable[[Masked], Tensor]) -> Tensor:
        """``scored`` [B · K_i] of the experts of ``layer`` and their pointer ``weights`` [B, K_i] → [B, K_i, 4]; each
        takes what ``pick`` chooses of what fits. Where not even floors fit, an expert has its floor."""
        batch, count = weights.shape
        chosen = pick(scored).view(batch, count, 4)  # without walls: most of them fit
        wanted = needs(self._amounts, chosen)
        at = torch.arange(batch)
        floors_of_layer = self._floors[:, layer][:, self._mask[layer]]
        for expert in torch.argsort(weights, dim=-1, descending=True, stable=True).unbind(-1):
            floor, taken = floors_of_layer[at, expert], wanted[at, expert]
            limits = (floor + self._left.clamp(min=0)) * (1 + ROUNDING)
            beyond = (taken > limits).any(-1)
            if beyond.any():
                within = pick(scored.of(at * count + expert).within(limits, self._amounts))
                chosen[at, expert] = torch.where(beyond.unsqueeze(-1), within, chosen[at, expert])
                taken = torch.where(beyond.unsqueeze(-1), needs(self._amounts, within), taken)
            self._left = self._left + floor - taken
        return chosen


def needs(amounts: Amounts, actions: Tensor) -> Tensor:
    """[..., 3] cores, MiB and tenths of GPUs that all replicas of ``actions`` [..., 4] take."""
    memory, resource, replicas, _ = actions.unbind(-1)
    cores, tenths = amounts.resources[resource].unbind(-1)
    return torch.stack((cores, amounts.memory_mb[memory], tenths), -1) * amounts.replicas[replicas].unsqueeze(-1)


def floors(amounts: Amounts, least: Tensor) -> Tensor:
    """[..., 3]: fewest replicas for which Eq. (2) has a memory, with the least of it and the smallest resource.

    ``least`` [..., P] position of the least memory, at least one of them on the axis."""
    memories = len(amounts.memory_mb)
    fewest = (least < memories).int().argmax(-1)
    memory = least.gather(-1, fewest.unsqueeze(-1)).squeeze(-1)
    on_cores = amounts.resources[:, 1] == 0
    size = torch.where(on_cores, amounts.resources[:, 0], torch.inf) if on_cores.any() else amounts.resources[:, 1]
    smallest = torch.full_like(fewest, int(size.argmin()))
    return needs(amounts, torch.stack((memory, smallest, fewest, torch.zeros_like(fewest)), -1))

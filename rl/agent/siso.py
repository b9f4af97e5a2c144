"""Scores over all of Φ that factorise (paper, Eq. 12): a junction tree of two cliques.

g(s, φ) = a(s; replicas, resource, concurrency) + b(s; replicas, memory), both bilinear: an expert's state gives a
query, a small network gives each row of a clique its key. Eq. (2) couples memory and replicas alone, so its mask is
inside the second clique and the tree, with the replicas as separator, is exact: arg max, partition function, samples
and expected features are those of the softmax over the whole masked Φ, from P·R·Q + P·M scores (2,552 instead of
203,520). The only restriction is that a score has no term of memory with resource or with concurrency.

Eq. (4) holds by the numbering: a resource is cores or a share, never both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.configuration_table import Rows, allowed, features_of, rows
from rl.agent.contract import Amounts, Space

FORBIDDEN = -1e9
"""Score of what a mask forbids: finite, so that a clique that is forbidden altogether has no NaN in it."""
LEAST_LOG, LEAST, LEAST_SHARE = -37.0, 1e-16, 1e-12
"""What has a smaller probability counts as 0 in gradients: exponentials that underflow, and products of the subnormal
numbers that follow from them, are ten times slower."""


class Scored(Protocol):
    """Scores of N experts over Φ, by which they are decided."""

    def best(self) -> Tensor: ...

    def sample(self, temperature: float, generator: torch.Generator | None) -> Tensor: ...

    def relaxed(self) -> Tensor: ...

    def score(self, actions: Tensor) -> Tensor: ...

    def log_prob(self, actions: Tensor) -> Tensor: ...

    def cross_entropy(self, actions: Tensor, weights: Tensor) -> Tensor: ...

    def entropy(self) -> Tensor: ...

    def top(self, count: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Prepared:
    """Keys of the rows of one Φ under the present weights: the same for all states."""

    space: Space
    rows: Rows
    compute_keys: Tensor
    """[rank, P · R · Q]."""
    memory_keys: Tensor
    """[rank, P · M]."""


@dataclass(frozen=True, eq=False)
class Cliques:
    """Scores of N experts over Φ, float32, forbidden ones at ``FORBIDDEN``; Φ's R and Q are one axis of ``compute``."""

    compute: Tensor
    """[N, P, R · Q]."""
    memory: Tensor
    """[N, P, M]."""
    space: Space
    rows: Rows

    def of(self, rows: Tensor) -> Cliques:
        """Scores of these experts alone, ``rows`` [X] int64."""
        return replace(self, compute=self.compute[rows], memory=self.memory[rows])

    def within(self, limits: Tensor, amounts: Amounts) -> Cliques:
        """What takes more than ``limits`` [N, 3] (cores, MiB, tenths of GPUs; all replicas) is forbidden, too."""
        counts = amounts.replicas
        resource = (counts[:, None, None] * amounts.resources > limits[:, None, None, [0, 2]]).any(-1)  # [N, P, R]
        memory = counts[:, None] * amounts.memory_mb > limits[:, None, None, 1]
        compute = self.compute.masked_fill(resource.repeat_interleave(len(self.space.concurrencies), -1), FORBIDDEN)
        return replace(self, compute=compute, memory=self.memory.masked_fill(memory, FORBIDDEN))

    def best(self) -> Tensor:
        """[N, 4] int64: the arg max of Eq. (12), the first one where several are equal."""
        compute, of_compute = self.compute.max(-1)
        memory, of_memory = self.memory.max(-1)
        replicas = (compute + memory).argmax(-1, keepdim=True)
        return self._join(replicas, of_compute.gather(-1, replicas), of_memory.gather(-1, replicas)).squeeze(-2)

    def sample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """[N, 4] int64 drawn exactly from the softmax at ``temperature``: replicas first, then each clique."""
        warm = replace(self, compute=_warmed(self.compute, temperature), memory=_warmed(self.memory, temperature))
        replicas = _gumbel_max(warm.of_replicas(), generator)
        at = torch.arange(len(replicas))
        compute = _gumbel_max(warm.compute[at, replicas], generator)
        memory = _gumbel_max(warm.memory[at, replicas], generator)
        return self._join(replicas, compute, memory)

    def of_replicas(self) -> Tensor:
        """[N, P]: log of the sum of exp(g) over the configurations with each replica count; has no gradient."""
        return _softmax(self.compute)[1] + _softmax(self.memory)[1]

    def relaxed(self) -> Tensor:
        """[N, C]: features of the arg max, with the gradient of the softmax's expected features (straight-through)."""
        of_compute = self.rows.compute.view(*self.compute.shape[1:], -1)
        features: Tensor = ExpectedFeatures.apply(  # type: ignore[no-untyped-call]
            self.compute, self.memory, of_compute, self.rows.memory_only, features_of(self.space, self.best())
        )
        return features

    def score(self, actions: Tensor) -> Tensor:
        """[N]: g at ``actions`` [N, 4]; about ``FORBIDDEN`` where a mask forbids them."""
        memory, resource, replicas, concurrency = actions.unbind(-1)
        at, row = torch.arange(len(actions)), resource * len(self.space.concurrencies) + concurrency
        return self.compute[at, replicas, row] + self.memory[at, replicas, memory]

    def log_prob(self, actions: Tensor) -> Tensor:
        """[N]: log of the softmax at ``actions`` [N, 4]."""
        return self.score(actions) - self.log_partition()

    def cross_entropy(self, actions: Tensor, weights: Tensor) -> Tensor:
        """[N]: of the softmax against ``weights`` [A, N], which add up to 1 over A, at ``actions`` [A, N, 4]."""
        scores = torch.stack([self.score(one) for one in actions])
        return self.log_partition() - (weights * scores).sum(0)

    def log_partition(self) -> Tensor:
        """[N]: log of the sum of exp(g) over all of Φ."""
        partition: Tensor = LogPartition.apply(self.compute, self.memory)  # type: ignore[no-untyped-call]
        return partition

    def entropy(self) -> Tensor:
        """[N]: of the softmax, in nats; at most the logarithm of how many configurations are allowed. No gradient."""
        compute, memory, shares, log_sum = _weights(self.compute, self.memory)
        mean = (compute * self.compute).sum(-1) + (memory * self.memory).sum(-1)
        return log_sum - (shares * mean).sum(-1)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` best configurations of each expert: actions [N, count, 4] and their log of the softmax."""
        width = min(count, self.memory.shape[-1])
        memory, of_memory = self.memory.topk(width, -1)  # the best pairs of a count are among its best of each clique
        compute, of_compute = self.compute.topk(min(count, self.compute.shape[-1]), -1)
        joint = (compute[..., :, None] + memory[..., None, :]).flatten(1)  # [N, P · x · y]
        scores, places = joint.topk(min(count, joint.shape[-1]), -1)
        places, y = places // width, places % width
        replicas, x = places // compute.shape[-1], places % compute.shape[-1]
        at = torch.arange(len(places)).unsqueeze(-1)
        actions = self._join(replicas, of_compute[at, replicas, x], of_memory[at, replicas, y])
        return actions, scores - self.log_partition().unsqueeze(-1)

    def _join(self, replicas: Tensor, compute: Tensor, memory: Tensor) -> Tensor:
        concurrencies = len(self.space.concurrencies)
        resource = compute // concurrencies
        return torch.stack((memory, resource, replicas, torch.sub(compute, resource, alpha=concurrencies)), -1)


def _warmed(scores: Tensor, temperature: float) -> Tensor:
    """Scores at a temperature; what is forbidden stays so at the highest."""
    return (scores / temperature).masked_fill_(scores < FORBIDDEN / 2, FORBIDDEN)


def _gumbel_max(scores: Tensor, generator: torch.Generator | None) -> Tensor:
    """One exact draw of the softmax over the last axis."""
    return (scores - torch.empty_like(scores).exponential_(generator=generator).log_()).argmax(-1)


class ExpectedFeatures(torch.autograd.Function):
    """Forward: features given next to the scores. Backward: the gradient of the softmax's expected features.

    With f(φ) = c(x) + u(y) of a row x of the first clique and a memory y, E[f] = Σ p(φ) f(φ), and for an incoming
    gradient G: dE/da_x = p(x) (G·c(x) + E[G·u | replicas of x] - E[G·f]), likewise for b_y.
    """

    @staticmethod
    def forward(
        ctx: Any, compute: Tensor, memory: Tensor, of_compute: Tensor, of_memory: Tensor, features: Tensor
    ) -> Tensor:
        """``compute`` [N, P, X], ``memory`` [N, P, M], ``of_compute`` [P, X, C], ``of_memory`` [M, C], [N, C]."""
        ctx.save_for_backward(*_weights(compute, memory)[:3], of_compute, of_memory)
        return features.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        compute, memory, shares, of_compute, of_memory = ctx.saved_tensors
        along = (gradient @ of_compute.flatten(0, 1).T).view_as(compute)  # [N, P, X] G·c
        along_memory = gradient @ of_memory.T  # [N, M] G·u
        mean = (compute * along).sum(-1)  # [N, P]
        mean_memory = torch.einsum("npm,nm->np", memory, along_memory)
        whole = (shares * (mean + mean_memory)).sum(-1, keepdim=True)
        along.add_((mean_memory - whole).unsqueeze(-1)).mul_(compute).mul_(shares.unsqueeze(-1))
        towards = along_memory.unsqueeze(1) + (mean - whole).unsqueeze(-1)
        return along, towards.mul_(memory).mul_(shares.unsqueeze(-1)), None, None, None


class LogPartition(torch.autograd.Function):
    """Forward: the logarithm of the sum of exp(g) over Φ, [N]. Backward: the softmax."""

    @staticmethod
    def forward(ctx: Any, compute: Tensor, memory: Tensor) -> Tensor:
        """``compute`` [N, P, X], ``memory`` [N, P, M]."""
        *weights, log_sum = _weights(compute, memory)
        ctx.save_for_backward(*weights)
        return log_sum

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        compute, memory, shares = ctx.saved_tensors
        towards = (shares * gradient.unsqueeze(-1)).unsqueeze(-1)
        return compute * towards, memory * towards


def _weights(compute: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """p(x | replicas) [N, P, X], p(memory | replicas) [N, P, M], p(replicas) [N, P], and log Σ exp g [N]."""
    of_compute, compute_sum = _softmax(compute)
    of_memory, memory_sum = _softmax(memory)
    of_replicas = compute_sum + memory_sum
    shares = functional.threshold(of_replicas.softmax(-1), LEAST_SHARE, 0.0)
    return of_compute, of_memory, shares, of_replicas.logsumexp(-1)


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax over the last axis and the logarithm of its sum; one pass of exp."""
    scores = scores.detach()
    most = scores.amax(-1, keepdim=True)
    weights = functional.threshold((scores - most).clamp_(min=LEAST_LOG).exp_(), LEAST, 0.0, inplace=True)
    sums = weights.sum(-1, keepdim=True)
    return weights.div_(sums), (most + sums.log()).squeeze(-1)


class Keys(nn.Sequential):
    """Keys of rows: [rows, C] → [rows, rank]."""

    def __init__(self, features: int, hidden: int, rank: int) -> None:
        super().__init__(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, rank))


class JunctionScores(nn.Module):
    """From states of experts to :class:`Cliques`. Its ``queries`` numbers an expert come from the actor."""

    def __init__(self, features: int, hidden: int, rank: int, keep_concurrency: bool) -> None:
        super().__init__()
        self.rank = rank
        self.queries = 2 * rank + 2
        """Two queries, and the worth of keeping the resource and the replicas in force: a change starts replicas."""
        self.keep_concurrency = keep_concurrency
        self.compute_keys = Keys(features, hidden, rank)
        self.memory_keys = Keys(features, hidden, rank)

    def prepare(self, space: Space) -> Prepared:
        """Keys of Φ's rows. Raises NetworkError for a Φ whose features do not add up."""
        table, scale = rows(space), 1 / math.sqrt(self.rank)
        return Prepared(
            space, table, self.compute_keys(table.compute).T * scale, self.memory_keys(table.memory).T * scale
        )

    def filters(self, space: Space, least_memory: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        """What masks and the configuration in force (``present`` [.., 4]) say, for any number of leading axes.

        Returns Eq. (2) as 0 or ``FORBIDDEN`` [.., P · M], which rows of ``Rows.same`` hold [.., R + P], and where the
        concurrency is to stay, the same for it [.., Q].
        """
        memories, resources, counts, concurrencies = space.sizes
        least = allowed(least_memory, memories)
        memory = (torch.arange(memories) < least.unsqueeze(-1)).float().mul_(FORBIDDEN).flatten(-2)
        same = torch.cat((torch.arange(resources) == present[..., 1:2], torch.arange(counts) == present[..., 2:3]), -1)
        if not self.keep_concurrency:
            return memory, same.float()
        return memory, same.float(), (torch.arange(concurrencies) != present[..., 3:]).float().mul_(FORBIDDEN)

    def scores(self, prepared: Prepared, queries: Tensor, filters: Sequence[Tensor]) -> Cliques:
        """``queries`` [N, queries] and ``filters`` of N experts, none of them padding."""
        memories, resources, counts, concurrencies = prepared.space.sizes
        first, second, resource, replicas = torch.split_with_sizes(queries, [self.rank, self.rank, 1, 1], -1)
        worth = torch.cat((resource.expand(-1, resources), replicas.expand(-1, counts)), -1) * filters[1]
        compute = torch.addmm(first @ prepared.compute_keys, worth, prepared.rows.same)
        if self.keep_concurrency:
            compute = (compute.view(len(queries), -1, concurrencies) + filters[2].unsqueeze(1)).flatten(1)
        memory = torch.addmm(filters[0], second, prepared.memory_keys)
        return Cliques(
            compute.view(len(queries), counts, -1),
            memory.view(len(queries), counts, memories),
            prepared.space,
            prepared.rows,
        )

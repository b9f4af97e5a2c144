"""The literal full-joint score (paper, Eq. 12): every one of Φ's configurations next to the state, one hidden layer.

g(s, φ) = w · relu(W_s s + W_φ f(φ)): any interaction of memory, resource, replicas and concurrency, over all 203,520.
The features of a configuration are a sum over its axes, so W_φ f(φ) is a sum of four short tables, and a compiled
loop goes over Φ without ever storing it. Arg max, samples and the partition function are exact. The gradient is not:
it goes through ``candidates`` allowed configurations drawn evenly, those next to the arg max, and the arg max itself
(``reference/rl.md``, 2.2 B). Slower than the junction tree in all respects; it is there to be compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl.agent.configuration_table import allowed, features_of, rows
from rl.agent.contract import Space
from simulation.arrays import Ints, Singles
from simulation.engine.compiled import compiled

FORBIDDEN = -1e30
NEARBY = 16
"""Candidates next to the arg max: each of its axes up to two steps away."""


@compiled
def _scores(
    state: Singles,
    memory: Singles,
    compute: Singles,
    weight: Singles,
    least: Ints,
    per_count: int,
    out: Singles,
) -> None:
    """g of one expert over Φ into ``out`` [P · R · Q, M]; ``FORBIDDEN`` below the least memory of a replica count.

    ``state`` [H], ``memory`` [H, M], ``compute`` [P · R · Q, H], ``weight`` [H], ``least`` [P].
    """
    hidden = len(memory)
    for row in range(compute.shape[0]):
        first = least[row // per_count]
        out[row, :first] = np.float32(FORBIDDEN)
        scores = out[row, first:]
        scores[:] = np.float32(0.0)
        for h in range(hidden):
            base, row_weight, line = state[h] + compute[row, h], weight[h], memory[h, first:]
            for m in range(scores.size):  # from 0 on, so that it is done many at a time
                unit = base + line[m]
                scores[m] += row_weight * (unit if unit > np.float32(0.0) else np.float32(0.0))


@compiled
def _draw(scores: Singles, temperature: float, uniform: float) -> int:
    """Place in the flat ``scores`` drawn from their softmax: the inverse of its distribution function."""
    most = scores.max()
    total = 0.0
    for at in range(scores.size):
        if scores[at] > FORBIDDEN / 2:
            total += np.exp((scores[at] - most) / temperature)
    left, last = uniform * total, 0
    for at in range(scores.size):
        if scores[at] > FORBIDDEN / 2:
            left -= np.exp((scores[at] - most) / temperature)
            last = at
            if left <= 0:
                return at
    return last


@dataclass(frozen=True, eq=False)
class JointPrepared:
    """W_φ f(φ) of one Φ under the present weights."""

    space: Space
    memory: Tensor
    """[M, H]."""
    compute: Tensor
    """[P · R · Q, H], bias included."""
    weight: Tensor
    """[H]."""
    candidates: int

    def score(self, states: Tensor, actions: Tensor) -> Tensor:
        """g [N, …] of ``states`` [N, H] at ``actions`` [N, …, 4], with its gradient."""
        memory, resource, replicas, concurrency = actions.unbind(-1)
        _, resources, _, concurrencies = self.space.sizes
        row = (replicas * resources + resource) * concurrencies + concurrency
        wide = states.view(len(states), *[1] * (actions.dim() - 2), -1)
        scores: Tensor = (wide + self.compute[row] + self.memory[memory]).relu() @ self.weight
        return scores


@dataclass(frozen=True, eq=False)
class Joint:
    """Scores of N experts over Φ; see ``rl.agent.siso.Scored``."""

    states: Tensor
    """[N, H]."""
    least: Tensor
    """[N, P]; some count of each expert has a memory."""
    prepared: JointPrepared

    def best(self) -> Tensor:
        """[N, 4] int64: the arg max over all of Φ."""
        return self._actions(np.array([scores.argmax() for scores in self._all()], dtype=np.int64))

    def sample(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """[N, 4] int64 drawn exactly from the softmax at ``temperature``."""
        uniform = torch.rand(len(self.states), generator=generator, dtype=torch.float64).tolist()
        drawn = [
            _draw(scores, temperature, row_uniform) for scores, row_uniform in zip(self._all(), uniform, strict=True)
        ]
        return self._actions(np.array(drawn, dtype=np.int64))

    def relaxed(self) -> Tensor:
        """[N, C]: features of the arg max, with the gradient of the expected features over the candidates."""
        best = self.best()
        candidates = torch.cat((best.unsqueeze(1), self._near(best), self._even()), 1)  # [N, candidates, 4]
        features = features_of(self.prepared.space, candidates)
        shares = self.prepared.score(self.states, candidates).softmax(-1)
        expected = (shares.unsqueeze(-1) * features).sum(1)
        return features[:, 0] + expected - expected.detach()

    def score(self, actions: Tensor) -> Tensor:
        """[N]: g at ``actions`` [N, 4]; ``FORBIDDEN`` where Eq. (2) does not allow them."""
        scores = self.prepared.score(self.states, actions)
        least = self.least.gather(1, actions[:, 2:3]).squeeze(1)
        return scores.masked_fill(actions[:, 0] < least, FORBIDDEN)

    def log_prob(self, actions: Tensor) -> Tensor:
        """[N]: log of the softmax at ``actions`` [N, 4]. Exact; its gradient is that over these and the candidates."""
        exact = (self.score(actions) - self._log_partition()).detach()
        among = self.prepared.score(self.states, torch.cat((actions.unsqueeze(1), self._even()), 1))
        estimated = among[:, 0] - among.logsumexp(-1)
        return exact + estimated - estimated.detach()

    def cross_entropy(self, actions: Tensor, weights: Tensor) -> Tensor:
        """[N]: of the softmax over these and the candidates against ``weights`` [A, N] at ``actions`` [A, N, 4]; its
        gradient is near that over all of Φ, its value is not."""
        among = self.prepared.score(self.states, torch.cat((actions.transpose(0, 1), self._even()), 1))
        return among.logsumexp(-1) - (weights.T * among[:, : len(actions)]).sum(-1)

    def entropy(self) -> Tensor:
        """[N]: of the softmax over Φ, in nats. No gradient."""
        entropies = []
        for scores in self._all():
            logs = torch.from_numpy(scores[scores > FORBIDDEN / 2]).log_softmax(0)
            entropies.append(-(logs.exp() * logs).sum())
        return torch.stack(entropies)

    def top(self, count: int) -> tuple[Tensor, Tensor]:
        """The ``count`` best configurations of each expert: actions [N, count, 4] and their log of the softmax."""
        actions, logs = [], []
        for scores in self._all():
            best = torch.from_numpy(scores).topk(min(count, len(scores)))
            actions.append(self._actions(best.indices.numpy()))
            logs.append(best.values.clone())
        return torch.stack(actions), torch.stack(logs) - self._log_partition().unsqueeze(-1)

    def _all(self) -> Iterator[Singles]:
        """Scores of one expert after the other, [P · R · Q · M], in one buffer."""
        prepared = self.prepared
        tables = (prepared.memory.T, prepared.compute, prepared.weight)
        memory, compute, weight = (np.ascontiguousarray(table.detach().numpy()) for table in tables)
        out = np.empty((len(compute), memory.shape[1]), dtype=np.float32)
        for state, least in zip(self.states.detach().numpy(), self.least.numpy(), strict=True):
            row_state = np.ascontiguousarray(state)
            _scores(row_state, memory, compute, weight, least, len(compute) // len(least), out)
            yield out.reshape(-1)

    def _log_partition(self) -> Tensor:
        return torch.stack([torch.from_numpy(scores).logsumexp(0) for scores in self._all()])

    def _actions(self, places: Ints) -> Tensor:
        """[.., 4] of places in [P · R · Q · M]."""
        memories, resources, counts, concurrencies = self.prepared.space.sizes
        actions = np.unravel_index(places, (counts, resources, concurrencies, memories))
        replicas, resource, concurrency, memory = (torch.from_numpy(np.asarray(axis)) for axis in actions)
        return torch.stack((memory, resource, replicas, concurrency), -1)

    def _even(self) -> Tensor:
        """[N, candidates, 4]: allowed configurations, all equally likely."""
        memories, resources, _, concurrencies = self.prepared.space.sizes
        number, count = len(self.states), self.prepared.candidates
        sizes = (memories - self.least).clamp(min=0)  # [N, P] memories that are enough
        replicas = torch.multinomial(sizes.float(), count, replacement=True)
        column = sizes.gather(1, replicas)
        memory = memories - 1 - (torch.rand(number, count) * column).long().minimum(column - 1)
        resource = torch.randint(resources, (number, count))
        return torch.stack((memory, resource, replicas, torch.randint(concurrencies, (number, count))), -1)

    def _near(self, best: Tensor) -> Tensor:
        """[N, NEARBY, 4]: up to two steps from the arg max on every axis, with memory enough (or the arg max)."""
        steps = torch.randint(-2, 3, (len(best), NEARBY, 4))
        ends = torch.tensor(self.prepared.space.sizes) - 1
        near = (best.unsqueeze(1) + steps).clamp(min=0).minimum(ends)
        enough = near[..., 0] >= self.least.gather(1, near[..., 2])
        return torch.where(enough.unsqueeze(-1), near, best.unsqueeze(1))


class JointScores(nn.Module):
    """From states of experts to :class:`Joint`."""

    def __init__(self, features: int, hidden: int, candidates: int) -> None:
        super().__init__()
        self.queries = hidden
        self.candidates = candidates
        self.of_configuration = nn.Linear(features, hidden)
        self.weight = nn.Parameter(torch.empty(hidden).uniform_(-1, 1) / hidden**0.5)

    def prepare(self, space: Space) -> JointPrepared:
        """The tables of Φ. Raises NetworkError for a Φ whose features do not add up."""
        table = rows(space)
        compute = self.of_configuration(table.compute)
        memory = table.memory_only @ self.of_configuration.weight.T
        return JointPrepared(space, memory, compute, self.weight, self.candidates)

    def filters(self, space: Space, least_memory: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        """Eq. (2) [.., P]; what is in force has no say in this score."""
        return (allowed(least_memory, space.sizes[0]),)

    def scores(self, prepared: JointPrepared, queries: Tensor, filters: Sequence[Tensor]) -> Joint:
        """``queries`` [N, H] and ``filters`` of N experts, none of them padding."""
        return Joint(queries, filters[0], prepared)

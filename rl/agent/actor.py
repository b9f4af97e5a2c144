"""π_θ: the actor of the paper's section 4 (:class:`Actor`), and what it shares with the flat one of an ablation.

An expert's state s = (ĥ, c, z): its refined embedding, its layer's context, and the summary of what was decided in the
layers before. A small network makes a query of it; the scores of Φ follow from the query (:mod:`rl.agent.siso`, or
:mod:`rl.agent.siso_full` in the arm ``full-joint``). All but z is computed for all layers at once, so deciding layer
after layer costs one small product a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn

from rl.agent.configuration_table import features_of
from rl.agent.contract import Batch, Space
from rl.agent.decisions import Decided
from rl.agent.encoder import Encoded, Encoder, inputs, padded
from rl.agent.pointer import small_init
from rl.agent.room import Masked, Room
from rl.agent.settings import NetworkSettings
from rl.agent.siso import JunctionScores, Scored


class Scoring(Protocol):
    """From queries to scores over Φ; two exist, the junction tree and the full joint."""

    queries: int
    """Numbers of a query."""

    def prepare(self, space: Space) -> object: ...

    def filters(self, space: Space, least_memory: Tensor, present: Tensor) -> tuple[Tensor, ...]: ...

    def scores(self, prepared: object, queries: Tensor, filters: Sequence[Tensor]) -> Scored: ...


def scoring_of(settings: NetworkSettings) -> nn.Module:
    """The arm's :class:`Scoring`."""
    if settings.arm == "full-joint":
        from rl.agent.siso_full import JointScores  # needs Numba, which serving the published policy does not

        return JointScores(settings.configuration_features, settings.joint_hidden, settings.candidates)
    keep = settings.arm == "no-concurrency"
    return JunctionScores(settings.configuration_features, settings.hidden, settings.rank, keep_concurrency=keep)


class SisoActor(nn.Module):
    """What follows from the queries of experts; how these come about is what two kinds of actors differ in."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        self.scores_of = scoring_of(settings)
        self._kept: dict[Space, object] | None = None

    def freeze(self) -> Self:
        """For serving: weights stay as they are from now on, so what follows from them and Φ alone is made once."""
        self.requires_grad_(False)
        self._kept = {}
        return self

    def prepared(self, space: Space) -> object:
        """Φ under the present weights."""
        if self._kept is None:
            return self.scoring.prepare(space)
        if space not in self._kept:
            self._kept[space] = self.scoring.prepare(space)
        return self._kept[space]

    @property
    def scoring(self) -> Scoring:
        return cast(Scoring, self.scores_of)

    def queries(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, n, K, Q] with ``executed`` [B, n, K, 4] in the layers before, and the pointer's [B, n, K]."""
        raise NotImplementedError

    def decide(self, batch: Batch, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """See ``ActorNetwork``. Returns [B, n, K, 4]."""
        raise NotImplementedError

    def scores(self, batch: Batch, executed: Tensor) -> Scored:
        """Scores of the experts that there are, in order of state, layer and number; layers before as ``executed``.
        ``executed`` [B, n, K, 4]."""
        return self.scores_and_pointer(batch, executed)[0]

    def scores_and_pointer(self, batch: Batch, executed: Tensor) -> tuple[Scored, Tensor]:
        """:meth:`scores`, and the pointer's weights [B, n, K]."""
        queries, weights = self.queries(batch, executed)
        return self._scored(batch, queries), weights

    def relaxed(self, batch: Batch, executed: Tensor) -> Tensor:
        """See ``ActorNetwork``. Returns [B, n, K, C]."""
        return spread(self.scores(batch, executed).relaxed(), batch.space.mask)

    def log_prob(self, batch: Batch, executed: Tensor) -> Tensor:
        """[B, n, K]: log of the softmax (temperature 1) at ``executed`` [B, n, K, 4]; padding 0."""
        log_probs = self.scores(batch, executed).log_prob(there(executed, padded(batch.space.mask)))
        return spread(log_probs, batch.space.mask)

    def entropy(self, batch: Batch, executed: Tensor) -> Tensor:
        """[B, n, K] nats: entropy of the softmax over Φ; padding 0."""
        return spread(self.scores(batch, executed).entropy(), batch.space.mask)

    @torch.no_grad()
    def explain(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        """The pointer's weights [B, n, K] (Eq. 11), and the scores g [B, n, K] of ``executed``; padding 0."""
        queries, weights = self.queries(batch, executed)
        scores = self._scored(batch, queries).score(there(executed, padded(batch.space.mask)))
        return weights, spread(scores, batch.space.mask)

    def _scored(self, batch: Batch, queries: Tensor) -> Scored:
        mask = padded(batch.space.mask)
        filters = self.scoring.filters(batch.space, there(batch.least_memory, mask), there(batch.present, mask))
        return self.scoring.scores(self.prepared(batch.space), there(queries, mask), filters)


class Actor(SisoActor):
    """The paper's actor, and the arms that take away its DAGNN, its pointer, its concurrency, or its factorisation."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__(settings)
        self.encoder = Encoder(settings)
        self.decided = Decided(settings.configuration_features, settings.width, settings.hidden)
        self.of_expert = nn.Linear(settings.width, settings.hidden)
        if settings.arm != "no-pointer":
            self.of_context = small_init(nn.Linear(settings.width, settings.hidden, bias=False))
        self.of_decided = small_init(nn.Linear(settings.width, settings.hidden, bias=False))
        self.direct = inputs(settings.node_features, settings.hidden, settings.hidden) if settings.direct else None
        self.to_queries = nn.Linear(settings.hidden, self.scoring.queries)

    def queries(self, batch: Batch, executed: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.encoder(batch)
        embedded = self._known(batch, encoded)
        summary = self.decided(batch.space, executed, encoded.experts)
        return self._query(embedded, summary), encoded.weights

    def decide(self, batch: Batch, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """See ``ActorNetwork``. Returns [B, n, K, 4]."""
        with torch.inference_mode():
            actions = self._decide(batch, temperature, generator)
            if batch.room is not None and batch.space.amounts is not None and self.settings.arm != "full-joint":
                room = Room(batch)
                beyond = room.beyond(actions)
                if beyond.any():
                    within = self._decide(batch, temperature, generator, room)
                    actions = torch.where(beyond[:, None, None, None], within, actions)
        return actions.clone()  # what leaves inference mode may be used where gradients are recorded

    def _decide(
        self, batch: Batch, temperature: float, generator: torch.Generator | None, room: Room | None = None
    ) -> Tensor:
        """Without ``room`` each layer's experts at once, else one after the other within what is left of it."""
        space, scoring, decided = batch.space, self.scoring, self.decided

        def pick(scored: Any) -> Tensor:
            chosen: Tensor = scored.sample(temperature, generator) if temperature > 0 else scored.best()
            return chosen

        prepared = self.prepared(space)
        encoded = self.encoder(batch)
        filters = scoring.filters(space, batch.least_memory, batch.present)
        parts = (self._known(batch, encoded), decided.of_expert(encoded.experts), *filters)
        layers = zip(*(_by_layer(part, space.mask) for part in parts), strict=True)
        summary, steps = decided.nothing(len(batch.experts)), []
        for layer, (expert_embedding, beside, *drawn_uniform) in enumerate(layers):  # [B, K_i, …]: of those there are
            queries = self._query(expert_embedding, summary).flatten(0, 1)
            scored = scoring.scores(prepared, queries, [part.flatten(0, 1) for part in drawn_uniform])
            if room is None:
                chosen = pick(scored).view(*expert_embedding.shape[:2], 4)
            else:
                weights = encoded.weights[:, layer].expand(len(batch.experts), -1)[:, space.mask[layer]]
                chosen = room.decide(layer, cast(Masked, scored), weights, pick)
            pooled = decided.pool(features_of(space, chosen), beside, None)
            summary = decided.step(summary, pooled)
            steps.append(chosen)
        together = torch.cat(steps, 1)
        return spread(together.flatten(0, 1), space.mask)

    def _known(self, batch: Batch, encoded: Encoded) -> Tensor:
        """[B, n, K, h]: the part of a state that does not depend on decisions."""
        embedded: Tensor = self.of_expert(encoded.experts)
        if self.direct is not None:
            embedded = embedded + self.direct(batch.experts)
        return embedded if encoded.context is None else embedded + self.of_context(encoded.context).unsqueeze(2)

    def _query(self, embedded: Tensor, summary: Tensor) -> Tensor:
        """[…, K, Q] of ``embedded`` […, K, h] and ``summary`` […, d]."""
        queries: Tensor = self.to_queries((embedded + self.of_decided(summary).unsqueeze(-2)).relu())
        return queries


def _by_layer(values: Tensor, mask: Tensor) -> list[Tensor]:
    """[B, n, K, …] → of each layer [B, K_i, …], the experts that there are."""
    layers = values.unbind(1)
    if padded(mask) is None:
        return list(layers)
    return [layer[:, layer_mask] for layer, layer_mask in zip(layers, mask.unbind(), strict=True)]


def there(values: Tensor, mask: Tensor | None) -> Tensor:
    """Rows of the experts that there are: [B, n, K, …] and ``padded`` mask → [N, …]."""
    return values.flatten(0, 2) if mask is None else values[:, mask].flatten(0, 1)


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """The other way round: [N, …] and [n, K] → [B, n, K, …], padding 0."""
    layers, experts = mask.shape
    if padded(mask) is None:
        return values.view(-1, layers, experts, *values.shape[1:])
    rows = values.view(-1, int(mask.sum()), *values.shape[1:])
    spread_values = values.new_zeros(len(rows), layers, experts, *values.shape[1:])
    spread_values[:, mask] = rows
    return spread_values

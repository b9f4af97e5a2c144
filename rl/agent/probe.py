"""Where in the actor experts stop being different: their representation at every stage between features and choice."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.agent.actor import Actor
from rl.agent.contract import Batch
from rl.agent.encoder import padded

STAGES = ("features", "dagnn", "joined", "pointer", "query")
"""In order: s, h of DAGNN (all layers side by side), h joined with h_G, ĥ of the Transformer, query of SISO."""


@torch.no_grad()
def stages(actor: Actor, batch: Batch, executed: Tensor) -> dict[str, Tensor]:
    """Name of :data:`STAGES` → [B, n, K, numbers]; layers before decided as ``executed`` [B, n, K, 4]. An arm without
    DAGNN has h^(0) there, one without pointer the same ĥ as h."""
    encoder, mask = actor.encoder, padded(batch.space.mask)
    embedded = encoder.of_expert(batch.experts)
    if encoder.propagation is not None:
        embedded, _ = encoder.propagation(batch, embedded, mask)
    encoded = encoder(batch)
    queries, _ = actor.queries(batch, executed)
    values = (batch.experts, embedded, encoder.joined(batch), encoded.experts, queries)
    return dict(zip(STAGES, values, strict=True))


def apart(values: Tensor, mask: Tensor) -> float:
    """Mean distance between experts of one layer and state over that between any two experts of the batch, 0 or more;
    ``values`` [B, n, K, numbers], ``mask`` [n, K]."""
    rows = values[:, mask].flatten(0, 1)
    within = [torch.pdist(layer[there]).mean() for state in values for layer, there in zip(state, mask, strict=True)]
    kept = torch.stack([distance for distance in within if not distance.isnan()])
    return float(kept.mean() / torch.pdist(rows).mean())

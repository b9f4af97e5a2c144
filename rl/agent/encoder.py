"""From the state of a window to what is known of every expert before anything is decided: DAGNN and pointer."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl.agent.contract import Batch, Space
from rl.agent.dagnn import Dagnn
from rl.agent.errors import NetworkError
from rl.agent.pointer import Pointed, Pointer, even, masked_max, small_init
from rl.agent.settings import NetworkSettings


class Encoded(NamedTuple):
    """Embeddings of the experts of all layers."""

    experts: Tensor
    """[B, n, K, d] ĥ; padding is meaningless."""
    context: Tensor | None
    """[B, n, d] c: of each layer; the arm without a pointer has none."""
    weights: Tensor
    """[B, n, K] the pointer's; even in the arm without one; padding 0."""


class Encoder(nn.Module):
    """States → embeddings h_ij = (h^(L), h_G) of experts (section 4.2), refined by the pointer (section 4.3).

    The features of a node go through a small network first (h^(0)), of segments and of experts apart from each other.
    All layers' h are kept side by side, as in DAGNN; h_G reads out the last segment, which everything flows into, and
    the largest value over all nodes. The pipeline's own features join h_G. The arm ``no-dagnn`` has h^(0) and the
    pipeline's features alone; ``no-pointer`` has no Transformer and no context.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
        self.of_expert = inputs(settings.node_features, hidden, width)
        node, read_out = width, 0
        self.propagation = None
        if settings.arm != "no-dagnn":
            self.propagation = Propagation(settings)
            node, read_out = self.propagation.width, 2 * self.propagation.width
        self.own = nn.Linear(node, width)
        self.shared = small_init(nn.Linear(read_out + settings.pipeline_features, width, bias=False))
        self.pointer = None if settings.arm == "no-pointer" else Pointer(width, settings.heads)

    def forward(self, batch: Batch) -> Encoded:
        """Raises NetworkError where the DAG is not that of a layered pipeline."""
        joined = self.joined(batch)
        if self.pointer is None:
            return Encoded(joined, None, even(batch.space.mask).expand(joined.shape[:3]))
        pointed: Pointed = self.pointer(joined, padded(batch.space.mask))
        return Encoded(*pointed)

    def joined(self, batch: Batch) -> Tensor:
        """[B, n, K, d] h_ij before the pointer."""
        mask = padded(batch.space.mask)
        experts = self.of_expert(batch.experts)
        shared = batch.pipeline
        if self.propagation is not None:
            experts, read_out = self.propagation(batch, experts, mask)
            shared = torch.cat((read_out, shared), -1)
        joined: Tensor = self.own(experts) + self.shared(shared)[:, None, None]
        return joined


class Propagation(nn.Module):
    """DAGNN over the layered pipeline, and its read-out h_G."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.of_segment = inputs(settings.node_features, settings.hidden, settings.width)
        self.dagnn = Dagnn(settings.width, settings.dagnn_layers)
        self.width = settings.width * (settings.dagnn_layers + 1)

    def forward(self, batch: Batch, experts: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """``experts`` [B, n, K, d] → [B, n, K, (L + 1) d], and h_G [B, 2 (L + 1) d]."""
        check_layered(batch.space)
        segments, experts = self.dagnn(self.of_segment(batch.segments), experts, mask)
        largest = torch.maximum(segments.amax(1), masked_max(experts, mask).amax(1))
        return experts, torch.cat((segments[:, -1], largest), -1)


def inputs(features: int, hidden: int, width: int) -> nn.Sequential:
    """A small network of a node's features."""
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, width))


def padded(mask: Tensor) -> Tensor | None:
    """``mask`` [n, K], or None where nothing is padding, which spares the work of masking."""
    return None if bool(mask.all()) else mask


@lru_cache(maxsize=64)
def check_layered(space: Space) -> None:
    """Raises NetworkError where edges are not segment → its layer's experts → next segment, and nothing else."""
    counts = space.mask.sum(-1).tolist()
    node, wanted = len(counts) + 1, set()
    for layer, count in enumerate(counts):
        for expert in range(node, node + count):
            wanted |= {(layer, expert), (expert, layer + 1)}
        node += count
    wrong = sorted(wanted ^ set(space.edges))
    if wrong:
        raise NetworkError(
            f"edge {wrong[0][0]} → {wrong[0][1]} of the pipeline is "
            + ("missing" if wrong[0] in wanted else "not one of a layered pipeline")
            + "; irregular graphs need rl.agent.dagnn_pyg"
        )

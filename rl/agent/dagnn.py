"""DAGNN (paper, section 4.2) on a layered pipeline: segments and experts alternate, so that each generation is dense.

In layer l of the network a node's message is m_v = Σ_u softmax_u(w · h_u^l) h_u^l over its predecessors u, and
h_v^l = GRU(input h_v^{l-1}, hidden m_v) (Thost and Chen, 2021). Their attention has a term of v too, which is the same
for all predecessors and so drops out of the softmax. An expert has one predecessor, so its message is that segment;
attention acts where a layer is gathered. :mod:`rl.agent.dagnn_general` is the same for any DAG, with the same weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DagnnLayer(nn.Module):
    """Weights of one layer of the network; both forms have them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRUCell(width, width)
        self.key = nn.Linear(width, 1, bias=False)


class Dagnn(nn.Module):
    """L layers with topological batching: 2n + 1 generations each."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DagnnLayer(width) for _ in range(layers)])

    def forward(self, segments: Tensor, experts: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings h^(0) … h^(L) side by side, of segments and of experts.

        Arguments: ``segments`` [B, n + 1, d], ``experts`` [B, n, K, d], ``mask`` [n, K] bool. Returns
        [B, n + 1, (L + 1) d] and [B, n, K, (L + 1) d]; padding holds h^(0) and meaningless numbers beyond.
        """
        of_segments, of_experts = [segments], [experts]
        padding = None if bool(mask.all()) else ~mask
        for layer in self.layers:
            assert isinstance(layer, DagnnLayer)
            segments, experts = _propagate(layer, segments, experts, padding)
            of_segments.append(segments)
            of_experts.append(experts)
        return torch.cat(of_segments, -1), torch.cat(of_experts, -1)


def _propagate(layer: DagnnLayer, segments: Tensor, experts: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
    """One layer: (segments, experts) → the same shapes. The inputs' part of the GRU is one product for all nodes."""
    gru, key = layer.gru, layer.key.weight[0]
    gates = functional.linear(segments, gru.weight_ih, gru.bias_ih).unbind(1)
    expert_gates = functional.linear(experts, gru.weight_ih, gru.bias_ih).unbind(1)
    segment = gru_step(gates[0], torch.zeros_like(segments[:, 0]), gru)  # [B, d]
    of_segments, of_experts = [segment], []
    for i, own_gates in enumerate(expert_gates):
        own = gru_step(own_gates, segment.unsqueeze(1), gru)  # [B, K, d]
        scores = own @ key  # [B, K]
        if padding is not None:
            scores = scores.masked_fill(padding[i], -torch.inf)
        message = torch.bmm(scores.softmax(-1).unsqueeze(1), own).squeeze(1)  # [B, d]
        segment = gru_step(gates[i + 1], message, gru)
        of_segments.append(segment)
        of_experts.append(own)
    return torch.stack(of_segments, 1), torch.stack(of_experts, 1)


def gru_step(gates: Tensor, hidden: Tensor, cell: nn.GRUCell) -> Tensor:
    """What ``cell`` makes of a hidden state [..., d], given the input's product ``gates`` [..., 3 d] with its bias."""
    own = functional.linear(hidden, cell.weight_hh, cell.bias_hh)
    width = hidden.shape[-1]
    reset, update = (gates[..., : 2 * width] + own[..., : 2 * width]).sigmoid().chunk(2, -1)
    new = torch.addcmul(gates[..., 2 * width :], reset, own[..., 2 * width :]).tanh()
    return torch.lerp(new, hidden.expand_as(new), update)

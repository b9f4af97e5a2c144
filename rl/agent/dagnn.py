"""DAGNN (paper, section 4.2) on a layered pipeline: segments and experts alternate, so that each generation is dense.

In layer l of the network a node's message is m_v = Σ_u softmax_u(w · h_u^l) h_u^l over its predecessors u, and
h_v^l = GRU(input h_v^{l-1}, hidden m_v) (Thost and Chen, 2021). Their attention has a term of v too, which is the same
for all predecessors and so drops out of the softmax. An expert has one predecessor, so its message is that segment;
attention acts where a layer is gathered. :mod:`rl.agent.dagnn_pyg` is the same for any DAG, with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterator

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

    def forward(self, segments: Tensor, experts: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Embeddings h^(0) … h^(L) side by side, of segments and of experts.

        Arguments: ``segments`` [B, n + 1, d], ``experts`` [B, n, K, d], ``mask`` [n, K] bool, None where nothing
        is padding. Returns [B, n + 1, (L + 1) d] and [B, n, K, (L + 1) d], meaningless at padding.
        """
        of_segments, of_experts = [segments], [experts]
        padding = None if mask is None else (~mask).unbind()
        for layer in self.layers:
            assert isinstance(layer, DagnnLayer)
            segments, experts = _propagate(layer, segments, experts, padding)
            of_segments.append(segments)
            of_experts.append(experts)
        return torch.cat(of_segments, -1), torch.cat(of_experts, -1)


def _propagate(
    layer: DagnnLayer, segments: Tensor, experts: Tensor, padding: tuple[Tensor, ...] | None
) -> tuple[Tensor, Tensor]:
    """One layer: (segments, experts) → the same shapes. The inputs' part of the GRU is one product for all nodes."""
    recurrence, key = Recurrence(layer.gru), layer.key.weight[0]
    of_segments, of_experts = recurrence.gates(segments, 1), recurrence.gates(experts, 1)
    segment = recurrence.step(*next(of_segments), torch.zeros_like(segments[:, 0]))  # [B, d]
    found_segments, found_experts = [segment], []
    for i, (gates, (reset_update, new)) in enumerate(zip(of_segments, of_experts, strict=True)):
        hidden = recurrence.spread(reset_update, new, segment)  # [B, K, d]
        scores = hidden @ key  # [B, K]
        if padding is not None:
            scores = scores.masked_fill(padding[i], -torch.inf)
        message = torch.bmm(scores.softmax(-1).unsqueeze(1), hidden).squeeze(1)  # [B, d]
        segment = recurrence.step(*gates, message)
        found_segments.append(segment)
        found_experts.append(hidden)
    return torch.stack(found_segments, 1), torch.stack(found_experts, 1)


class Recurrence:
    """A GRU cell whose inputs are known beforehand, in few operations a step. Gates: reset and update, then new."""

    def __init__(self, cell: nn.GRUCell) -> None:
        self._cell = cell
        self._weight = cell.weight_hh.T
        self._sizes = [2 * cell.hidden_size, cell.hidden_size]

    def gates(self, inputs: Tensor, axis: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The inputs' part of the gates [.., 2 d] and [.., d], one pair for each place along ``axis``."""
        gates = functional.linear(inputs, self._cell.weight_ih, self._cell.bias_ih)
        reset_update, new = torch.split_with_sizes(gates, self._sizes, -1)
        return zip(reset_update.unbind(axis), new.unbind(axis), strict=True)

    def step(self, reset_update: Tensor, new: Tensor, hidden: Tensor) -> Tensor:
        """The next hidden state [B, d]."""
        spread, own_new = torch.split_with_sizes(torch.addmm(self._cell.bias_hh, hidden, self._weight), self._sizes, -1)
        return _mixed(reset_update + spread, new, own_new, hidden)

    def spread(self, reset_update: Tensor, new: Tensor, hidden: Tensor) -> Tensor:
        """The next hidden states [B, K, d] of K nodes that start from one hidden state [B, d]."""
        spread = torch.addmm(self._cell.bias_hh, hidden, self._weight).unsqueeze(1)
        spread, own_new = torch.split_with_sizes(spread, self._sizes, -1)
        return _mixed(reset_update + spread, new, own_new, hidden.unsqueeze(1))


def _mixed(reset_update: Tensor, new: Tensor, own_new: Tensor, hidden: Tensor) -> Tensor:
    reset, update = reset_update.sigmoid_().chunk(2, -1)
    return torch.addcmul(new, reset, own_new).tanh_().lerp(hidden, update)

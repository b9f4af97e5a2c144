"""DAGNN on any directed acyclic graph, on torch-geometric: for irregular pipelines, and to test the layered form.

Weights are those of :class:`rl.agent.dagnn.Dagnn`, so a state dict of one loads into the other. Slower; only who has an
irregular DAG, and tests, import this module.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from rl.agent.dagnn import DagnnLayer
from rl.agent.errors import NetworkError


def generations(nodes: int, edges: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Topological batches: every node behind all its predecessors, as early as it can. NetworkError on cycles."""
    after: list[list[int]] = [[] for _ in range(nodes)]
    missing = [0] * nodes
    for source, target in edges:
        after[source].append(target)
        missing[target] += 1
    batch = [node for node in range(nodes) if not missing[node]]
    levels: list[list[int]] = []
    while batch:
        levels.append(batch)
        following = []
        for node in batch:
            for target in after[node]:
                missing[target] -= 1
                if not missing[target]:
                    following.append(target)
        batch = following
    if sum(map(len, levels)) != nodes:
        raise NetworkError("the edges of a pipeline form a cycle; its functions are a directed acyclic graph")
    return levels


class _Gather(MessagePassing):  # type: ignore[misc]
    """m_v = Σ_u softmax_u(w · h_u) h_u."""

    def __init__(self) -> None:
        super().__init__(aggr="sum", node_dim=0)

    def forward(self, hidden: Tensor, scores: Tensor, edges: Tensor) -> Tensor:
        """``hidden`` [V, B, d], ``scores`` [V, B, 1], ``edges`` [2, E] → [V, B, d]."""
        result: Tensor = self.propagate(edges, x=hidden, scores=scores, size=None)
        return result

    def message(self, x_j: Tensor, scores_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        weights: Tensor = softmax(scores_j, index, num_nodes=size_i, dim=0)
        return weights * x_j


class GeneralDagnn(nn.Module):
    """L layers over generations of any DAG."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DagnnLayer(width) for _ in range(layers)])
        self._gather = _Gather()

    def forward(self, nodes: Tensor, edges: tuple[tuple[int, int], ...]) -> Tensor:
        """Embeddings h^(0) … h^(L) side by side, [B, V, (L + 1) d], of ``nodes`` [B, V, d]. NetworkError on cycles."""
        hidden = nodes.transpose(0, 1)  # [V, B, d]
        batches = [torch.tensor(batch) for batch in generations(len(hidden), edges)]
        ends = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T
        of_layers = [hidden]
        for layer in self.layers:
            assert isinstance(layer, DagnnLayer)
            hidden = self._layer(layer, hidden, batches, ends)
            of_layers.append(hidden)
        return torch.cat(of_layers, -1).transpose(0, 1)

    def _layer(self, layer: DagnnLayer, below: Tensor, batches: list[Tensor], ends: Tensor) -> Tensor:
        states = torch.zeros_like(below)
        for batch in batches:
            into = ends[:, torch.isin(ends[1], batch)]
            message = self._gather(states, layer.key(states), into)
            inputs, hidden = below[batch].flatten(0, 1), message[batch].flatten(0, 1)
            hidden_new = layer.gru(inputs, hidden).reshape(len(batch), *below.shape[1:])
            states = states.index_copy(0, batch, hidden_new)
        return states

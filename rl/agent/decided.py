"""What was decided in the layers before: a summary that grows layer by layer, so that a later layer sees what is left.

Each expert's configuration is embedded beside the expert, pooled over its layer (mean and largest), and a GRU walks
over the layers. Layer i sees the state before its own decisions. In training all layers' decisions are known and the
walk is one pass; in serving it takes a step after each layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.contract import Space
from rl.agent.dagnn import gru_step
from rl.agent.lattice import features_of
from rl.agent.pointer import masked_max, masked_mean


class Decided(nn.Module):
    """Configurations and embeddings of experts → summaries [.., d]."""

    def __init__(self, features: int, width: int, hidden: int) -> None:
        super().__init__()
        self.of_configuration = nn.Linear(features, hidden)
        self.of_expert = nn.Linear(width, hidden, bias=False)
        self.gru = nn.GRUCell(2 * hidden, width)

    def forward(self, space: Space, executed: Tensor, experts: Tensor) -> Tensor:
        """[B, n, d], layer i's of ``executed`` [B, n, K, 4] in the layers before, beside ``experts`` [B, n, K, d]."""
        pooled = self.pool(features_of(space, executed), self.of_expert(experts), space.mask)
        gates = functional.linear(pooled, self.gru.weight_ih, self.gru.bias_ih).unbind(1)
        found = [self.nothing(len(executed))]
        for own in gates[:-1]:
            found.append(gru_step(own, found[-1], self.gru))
        return torch.stack(found, 1)

    def pool(self, features: Tensor, experts: Tensor, mask: Tensor) -> Tensor:
        """[B, n, 2 h] of ``features`` [B, n, K, C] and ``experts`` [B, n, K, h], already through ``of_expert``."""
        each = (self.of_configuration(features) + experts).relu()
        return torch.cat((masked_mean(each, mask), masked_max(each, mask)), -1)

    def step(self, summary: Tensor, pooled: Tensor) -> Tensor:
        """The summary [B, d] after one more layer, ``pooled`` [B, 2 h]."""
        gates = functional.linear(pooled, self.gru.weight_ih, self.gru.bias_ih)
        return gru_step(gates, summary, self.gru)

    def nothing(self, batch: int) -> Tensor:
        """Before the first layer."""
        return self.gru.weight_hh.new_zeros(batch, self.gru.hidden_size)

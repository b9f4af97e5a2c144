"""What was decided in the layers before: a summary that grows layer by layer, so that a later layer sees what is left.

Each expert's configuration is embedded next to the expert, pooled over its layer (mean and largest), and a GRU walks
over the layers. Layer i sees the state before its own decisions. In training all layers' decisions are known and the
walk is one pass; in serving it takes a step after each layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.agent.configuration_table import features_of
from rl.agent.contract import Space
from rl.agent.dagnn import Recurrence
from rl.agent.encoder import padded
from rl.agent.pointer import masked_max, masked_mean


class Decided(nn.Module):
    """Configurations and embeddings of experts → summaries [.., d]."""

    def __init__(self, features: int, width: int, hidden: int) -> None:
        super().__init__()
        self.of_configuration = nn.Linear(features, hidden)
        self.of_expert = nn.Linear(width, hidden, bias=False)
        self.gru = nn.GRUCell(2 * hidden, width)

    def forward(self, space: Space, executed: Tensor, experts: Tensor) -> Tensor:
        """[B, n, d], layer i's of ``executed`` [B, n, K, 4] in the layers before, next to ``experts`` [B, n, K, d]."""
        pooled = self.pool(features_of(space, executed), self.of_expert(experts), padded(space.mask))
        recurrence, summaries = Recurrence(self.gru), [self.nothing(len(executed))]
        for gates in recurrence.gates(pooled[:, :-1], 1):
            summaries.append(recurrence.step(*gates, summaries[-1]))
        return torch.stack(summaries, 1)

    def pool(self, features: Tensor, experts: Tensor, mask: Tensor | None) -> Tensor:
        """[…, 2 h] of ``features`` […, K, C] and ``experts`` […, K, h], already through ``of_expert``."""
        each = (self.of_configuration(features) + experts).relu()
        return torch.cat((masked_mean(each, mask), masked_max(each, mask)), -1)

    def step(self, summary: Tensor, pooled: Tensor) -> Tensor:
        """The summary [B, d] after one more layer, ``pooled`` [B, 2 h]."""
        summary_after: Tensor = self.gru(pooled, summary)
        return summary_after

    def nothing(self, batch: int) -> Tensor:
        """Before the first layer. [B, d]."""
        return self.gru.weight_hh.new_zeros(batch, self.gru.hidden_size)

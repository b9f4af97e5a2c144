"""Q_ω: what a layer's decisions are worth (paper, section 4.4), for all layer steps of a window at once.

A set critic: every expert's configuration is judged next to its embedding, its layer's context and what was decided in
the layers before; mean and largest over the experts make the layer's value, so the number of experts may vary. Its
encoder is its own. It is the critic of :mod:`rl.paper_agent`; ours judges whole windows
(:mod:`rl.agent.ddpg.window_critic`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.agent.configuration_table import CONCURRENCY, PRICE, REPLICAS
from rl.agent.contract import Batch
from rl.agent.decisions import Decided
from rl.agent.encoder import Encoder, padded
from rl.agent.pointer import masked_max, masked_mean
from rl.agent.settings import NetworkSettings

PRODUCTS = 3


def with_products(features: Tensor) -> Tensor:
    """[..., C + 3]: next to the features of a configuration, what it costs, its slots, and cost of a slot's worth."""
    replicas, price, concurrency = (features[..., at] for at in (REPLICAS, PRICE, CONCURRENCY))
    products = torch.stack((replicas * price, replicas * concurrency, replicas * price * concurrency), -1)
    return torch.cat((features, products), -1)


class Critic(nn.Module):
    """[B, n] float32: Q(s_i, a_i) with a_i from ``features`` [B, n, K, C] and the layers before i as ``executed``
    [B, n, K, 4]."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        width, hidden = settings.width, settings.hidden
        self.encoder = Encoder(settings)
        self.decided = Decided(settings.configuration_features, width, hidden)
        self.of_expert = nn.Linear(width, hidden)
        shared = width if settings.arm == "no-pointer" else 2 * width
        self.of_shared = nn.Linear(shared, hidden, bias=False)
        self.of_configuration = nn.Linear(settings.configuration_features + PRODUCTS, hidden, bias=False)
        self.each = nn.Linear(hidden, hidden)
        self.value = nn.Sequential(
            nn.Linear(2 * hidden + shared + settings.pipeline_features, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch: Batch, features: Tensor, executed: Tensor) -> Tensor:
        mask = padded(batch.space.mask)
        encoded = self.encoder(batch)
        summary = self.decided(batch.space, executed, encoded.experts)
        shared = summary if encoded.context is None else torch.cat((encoded.context, summary), -1)
        each = self.of_expert(encoded.experts) + self.of_configuration(with_products(features))
        each = self.each((each + self.of_shared(shared).unsqueeze(2)).relu()).relu()  # [B, n, K, h]
        pipeline = batch.pipeline.unsqueeze(1).expand(-1, shared.shape[1], -1)
        layer = torch.cat((masked_mean(each, mask), masked_max(each, mask), shared, pipeline), -1)
        value: Tensor = self.value(layer).squeeze(-1)
        return value

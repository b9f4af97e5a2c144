"""Q_ω: what a layer's decisions are worth (paper, section 4.4), for all layer steps of a window at once.

A set critic: every expert's configuration is judged next to its embedding, its layer's context and what was decided in
the layers before; mean and largest over the experts make the layer's value, so the number of experts may vary. Its
encoder is its own. The provisioned cost of an action is known, replicas × U_φ × window: the critic adds it up, scaled
by a positive factor that it reads off the pipeline's features, and learns the rest.
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


class KnownCost(nn.Module):
    """Minus the provisioned cost of a layer, up to a positive factor that the pipeline's features give."""

    def __init__(self, pipeline_features: int) -> None:
        super().__init__()
        self.log_factor = nn.Linear(pipeline_features, 1)
        nn.init.zeros_(self.log_factor.weight)
        nn.init.zeros_(self.log_factor.bias)

    def forward(self, batch: Batch, features: Tensor) -> Tensor:
        """[B, n] of ``features`` [B, n, K, C]."""
        cost = (features[..., REPLICAS] * features[..., PRICE] * batch.space.mask).sum(-1)
        factor: Tensor = self.log_factor(batch.pipeline).clamp(-10, 10).exp()
        return -factor * cost


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
        self.known = KnownCost(settings.pipeline_features) if settings.known_cost else None

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
        return value if self.known is None else value + self.known(batch, features)

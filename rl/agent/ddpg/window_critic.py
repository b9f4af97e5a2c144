"""The critic of whole windows: what the decisions of all layers together are worth.

A window's return is its cost, its SLO penalty, and γ times what follows. The cost is known from the decisions
(provisioned: exactly; busy: times the part of the window that replicas work, which is learnt). The penalty is a known
function of the P95; so what is learnt is the *distribution* of P95 / λ, as quantiles by the pinball loss, and how
likely any request comes.
Every window teaches that, whether it kept the SLO or not, where the penalty by itself is 0 for most windows and says
nothing of how near they were. The mean penalty over the quantiles is smooth in the decisions although the penalty has
a corner.

The network follows the pass: a layer takes as long as its slowest expert (largest over experts), a request as long as
all layers (mean over layers, as times are in λ / n).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.contract import CONFIGURATION_FEATURES, Batch
from rl.agent.critic import PRODUCTS, with_products
from rl.agent.ddpg.buffer import WindowSamples
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.targets import penalties
from rl.agent.encoder import Encoder
from rl.agent.lattice import PRICE, REPLICAS, features_of
from rl.agent.pointer import masked_max, masked_mean
from rl.agent.settings import NetworkSettings

QUANTILES = 12
CALL_TIME = CONFIGURATION_FEATURES.index("call_time")
LONGEST = 20.0
"""Of a mean call, in λ / n."""
FASTEST_P95, SLOWEST_P95 = 0.05, 20.0
"""P95 over λ is learnt between these."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Of B windows."""

    p95: Tensor
    """[B, QUANTILES] logarithm of P95 over λ where requests are judged, rising."""
    judged: Tensor
    """[B] logit of that any request is."""
    busy: Tensor
    """[B, n] part of the window that replicas work, 0 to 1."""
    future: Tensor
    """[B] what follows the window, discounted."""


class WindowCritic(nn.Module):
    """Q(s, a_1 … a_n) of a window."""

    levels: Tensor

    def __init__(self, networks: NetworkSettings, learner: LearnerSettings) -> None:
        super().__init__()
        self.learner = learner
        width, hidden = networks.width, networks.hidden
        flat = networks.arm == "ddpg-only"
        self.encoder = Encoder(replace(networks, arm="no-dagnn") if flat else networks)
        shared = networks.pipeline_features + (0 if self.encoder.pointer is None else width)
        self.of_expert = nn.Linear(width, hidden)
        self.of_shared = nn.Linear(shared, hidden, bias=False)
        self.of_configuration = nn.Linear(networks.configuration_features + PRODUCTS + 1, hidden, bias=False)
        self.each = nn.Linear(hidden, hidden)
        self.layer = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.busy = nn.Linear(hidden, 1)
        self.whole = nn.Sequential(
            nn.Linear(2 * hidden + networks.pipeline_features, hidden), nn.ReLU(), nn.Linear(hidden, QUANTILES + 2)
        )
        levels = (torch.arange(QUANTILES) + 0.5) / QUANTILES
        self.register_buffer("levels", levels, persistent=False)

    def forward(self, batch: Batch, features: Tensor) -> Prediction:
        """``features`` [B, n, K, C] of every layer's decisions."""
        mask = batch.space.mask
        each = self._each(self._known(batch), features)
        layers = self.layer(torch.cat((masked_mean(each, mask), masked_max(each, mask)), -1))  # [B, n, h]
        return self._predicted(layers.mean(1), layers.amax(1), batch.pipeline, self.busy(layers).squeeze(-1).sigmoid())

    def _known(self, batch: Batch) -> Tensor:
        """[B, n, K, h]: of the experts, what does not hang on decisions."""
        encoded = self.encoder(batch)
        pipeline = batch.pipeline.unsqueeze(1).expand(-1, len(batch.space.mask), -1)
        shared = pipeline if encoded.context is None else torch.cat((encoded.context, pipeline), -1)
        known: Tensor = self.of_expert(encoded.experts) + self.of_shared(shared).unsqueeze(2)
        return known

    def _each(self, known: Tensor, features: Tensor) -> Tensor:
        """[B, n, K, h] of experts with their decisions."""
        each: Tensor = self.each((known + self.of_configuration(_seen(features))).relu())
        return each.relu()

    def _predicted(self, mean: Tensor, largest: Tensor, pipeline: Tensor, busy: Tensor) -> Prediction:
        """Of layers pooled to ``mean`` and ``largest`` [.., h]."""
        found = self.whole(torch.cat((mean, largest, pipeline), -1))
        steps = functional.softplus(found[..., 1:QUANTILES]) / QUANTILES
        p95 = torch.cat((found[..., :1], found[..., :1] + steps.cumsum(-1)), -1)
        return Prediction(p95, found[..., -2], busy, found[..., -1])

    def value(self, batch: Batch, features: Tensor, executed: Tensor, unit: float) -> Tensor:
        """[B] Q of a window; all decisions are in ``features``."""
        found = self(batch, features)
        total: Tensor = self.costs(batch, features, found, unit).sum(-1) + self.punished(found) + found.future
        return total

    @torch.no_grad()
    def counterfactuals(self, batch: Batch, features: Tensor, others: Tensor, unit: float) -> Tensor:
        """[A, B, n, K]: Q of the window with one expert's configuration replaced, all others as in ``features``.

        ``others`` [A, B, n, K, C]: A alternatives of every expert. Each is the critic's exact value, at the price of
        pooling anew: an expert leaves its layer's mean and maximum, its layer the pipeline's. Padding is meaningless.
        Cost counts as provisioned.
        """
        mask, known = batch.space.mask, self._known(batch)
        each = self._each(known, features)
        count = mask.sum(-1)[:, None, None]
        mean, beside = masked_mean(each, mask).unsqueeze(2), _largest_beside(each.masked_fill(~mask[..., None], 0.0))
        layers = self.layer(torch.cat((masked_mean(each, mask), masked_max(each, mask)), -1))  # [B, n, h]
        layers_mean, layers_beside = layers.mean(1)[:, None, None], _largest_beside(layers.unsqueeze(1)).squeeze(1)
        price, found = features[..., REPLICAS] * features[..., PRICE], []
        known_cost = (price * mask).sum((-1, -2))[:, None, None]
        pipeline = batch.pipeline[:, None, None].expand(-1, *mask.shape, -1)
        for other in others:
            own = self._each(known, other)
            pooled = torch.cat((mean + (own - each) / count, torch.maximum(beside, own)), -1)
            layer = self.layer(pooled)  # [B, n, K, h]: the expert's layer with it replaced
            whole = layers_mean + (layer - layers.unsqueeze(2)) / len(mask)
            largest = torch.maximum(layers_beside.unsqueeze(2), layer)
            one = self._predicted(whole, largest, pipeline, torch.ones(()))
            cost = known_cost + other[..., REPLICAS] * other[..., PRICE] - price
            found.append(self.punished(one) + one.future - unit * cost)
        return torch.stack(found)

    def window_value(self, batch: Batch, features: Tensor, executed: Tensor, unit: float) -> Tensor:
        """[B] the same: what a window is worth under decisions that are about to be taken."""
        return self.value(batch, features, executed, unit)

    def costs(self, batch: Batch, features: Tensor, found: Prediction, unit: float) -> Tensor:
        """[B, n] minus what each layer costs, in C_ref."""
        known = (features[..., REPLICAS] * features[..., PRICE] * batch.space.mask).sum(-1)
        return -unit * (known * found.busy if self.learner.busy_meter else known)

    def punished(self, found: Prediction) -> Tensor:
        """[..] mean penalty over what the P95 may be."""
        mean: Tensor = penalties(found.p95.clamp(max=4.0).exp(), self.learner).mean(-1)
        return found.judged.sigmoid() * mean

    def loss(self, samples: WindowSamples, following: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Of predictions against what came; ``following`` [B]: the next window's value, 0 where nothing follows."""
        batch = samples.observations
        features = features_of(batch.space, samples.actions)
        found = self(batch, features)
        judged = ~samples.p95.isnan()
        seen = samples.p95.nan_to_num(1.0).clamp(FASTEST_P95, SLOWEST_P95).log()
        pinball = _pinball(seen[:, None] - found.p95, self.levels).mean(-1)
        parts = {
            "p95": (pinball * judged).sum() / judged.sum().clamp(min=1),
            "judged": functional.binary_cross_entropy_with_logits(found.judged, judged.float()),
            "future": functional.mse_loss(found.future, self.learner.gamma * following),
        }
        if self.learner.busy_meter:
            parts["cost"] = functional.mse_loss(
                self.costs(batch, features, found, samples.unit).sum(-1), samples.rewards.sum(-1)
            )
        off = ((found.p95.mean(-1) - seen).abs() * judged).sum() / judged.sum().clamp(min=1)
        named = {f"critic_{name}": float(part.detach()) for name, part in parts.items()}
        return torch.stack(list(parts.values())).sum(), named | {"critic_p95_off": float(off.detach())}


def _largest_beside(values: Tensor) -> Tensor:
    """[.., K, h] of ``values`` [.., K, h], none below 0: for each the largest of the others; 0 where it is alone."""
    if values.shape[-2] == 1:
        return torch.zeros_like(values)
    first, second = values.topk(2, -2).values.unbind(-2)
    return torch.where(values == first.unsqueeze(-2), second.unsqueeze(-2), first.unsqueeze(-2))


def _seen(features: Tensor) -> Tensor:
    """[.., C + 4]: beside the products, the mean call's time itself, in λ / n (the feature is its logarithm)."""
    seconds = (100.0 ** features[..., CALL_TIME : CALL_TIME + 1]).clamp(max=LONGEST)
    return torch.cat((with_products(features), seconds), -1)


def _pinball(off: Tensor, levels: Tensor) -> Tensor:
    """Loss of quantiles at ``levels``; ``off``: seen minus predicted. Rounded near 0, so that its gradient settles."""
    return (
        torch.where(off >= 0, levels, 1 - levels)
        * functional.huber_loss(off, torch.zeros_like(off), reduction="none", delta=0.05)
        / 0.05
    )

"""The critic of whole windows: what the decisions of all layers together are worth.

A window's return is its cost, its SLO penalty, and γ times what follows. The cost is known from the decisions
(provisioned: exactly; busy: times the part of the window that replicas work, which is learnt). The penalty is a known
function of the P95; so what is learnt is the *distribution* of P95 / λ, as quantiles by the pinball loss, and how
likely any request comes. Every window teaches that, whether it kept the SLO or not. The mean penalty over the quantiles
is smooth in the decisions although the penalty has a corner.

The network follows the pass, in logarithms of times. A call takes a mean call's time on its resource, times what is
learnt from load and configuration; a layer as long as its slowest expert (a soft maximum), times what is learnt; a
request as long as its layers and segments together, times what is learnt, by quantile. Before it has learnt anything it
shows how long a pass takes when nothing waits. What the next state shows of each expert's and each layer's latency
is learnt too: a window then teaches hundreds of numbers and not one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.configuration_table import CALL_TIME, CONCURRENCY, PRICE, REPLICAS, features_of
from rl.agent.contract import Batch
from rl.agent.critic import PRODUCTS, with_products
from rl.agent.ddpg.buffer import WindowSamples
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.targets import penalties
from rl.agent.ddpg.visited import NODE, PIPELINE, check_features
from rl.agent.encoder import Encoder
from rl.agent.pointer import masked_max, masked_mean
from rl.agent.settings import NetworkSettings

QUANTILES = 16
LOG_CALL = math.log(100)
"""A feature of 1 is a call of 100 λ / n."""
LOADS = ("requests_per_s", "load_mean_5", "load_peak_5")
"""Load features of an expert: calls at once that a replica of a mean resource would have in service."""
PHYSICAL = 6 + 2 * len(LOADS)
SHARP = 0.25
"""Sharpness of the soft maximum over a layer's experts, in logarithms."""
SHORTEST, LONGEST = -6.0, 6.0
"""Logarithms of times, in λ / n or λ."""
FASTEST_P95, SLOWEST_P95 = 0.05, 20.0
"""P95 over λ is learnt between these."""
BETA = 0.2
"""Where the loss of a latency's logarithm turns from squares to straight."""


@dataclass(frozen=True, eq=False)
class Experts:
    """Experts with decisions; leading axes as of the decisions' features."""

    hidden: Tensor
    """[.., n, K, h], 0 or more."""
    p95: Tensor
    """[.., n, K] logarithm of a call's P95, waiting included, in λ / n."""
    mean: Tensor
    """[.., n, K] of its mean."""


@dataclass(frozen=True, eq=False)
class Layers:
    """Layers of experts."""

    hidden: Tensor
    """[.., n, h]."""
    barrier: Tensor
    """[.., n] logarithm of the P95 from scatter to last gather, in λ / n."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions of B windows."""

    p95: Tensor
    """[.., QUANTILES] logarithm of P95 over λ where requests are judged, rising."""
    judged: Tensor
    """[..] logit of that any request is."""
    future: Tensor
    """[..] what follows the window, discounted."""


class WindowCritic(nn.Module):
    """Q(s, a_1 … a_n) of a window. Raises NetworkError for states of other features than ``rl.features``."""

    levels: Tensor

    def __init__(self, networks: NetworkSettings, learner: LearnerSettings) -> None:
        super().__init__()
        check_features(networks)
        self.learner = learner
        width, hidden = networks.width, networks.hidden
        flat = networks.arm == "ddpg-only"
        self.encoder = Encoder(replace(networks, arm="no-dagnn") if flat else networks)
        shared = networks.pipeline_features + (0 if self.encoder.pointer is None else width)
        self.of_expert = nn.Linear(width, hidden)
        self.of_shared = nn.Linear(shared, hidden, bias=False)
        self.of_configuration = nn.Linear(networks.configuration_features + PRODUCTS + PHYSICAL, hidden, bias=False)
        self.each = nn.Linear(hidden, hidden)
        self.latency = _zeroed(hidden, 2)
        self.layer = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.barrier = _zeroed(hidden, 1)
        self.busy = nn.Linear(hidden, 1)
        self.whole = nn.Sequential(
            nn.Linear(2 * hidden + networks.pipeline_features + 1, hidden), nn.ReLU(), nn.Linear(hidden, QUANTILES + 2)
        )
        levels = (torch.arange(QUANTILES) + 0.5) / QUANTILES
        self.register_buffer("levels", levels, persistent=False)

    def forward(self, batch: Batch, features: Tensor) -> tuple[Prediction, Layers, Experts]:
        """``features`` [B, n, K, C] of every layer's decisions."""
        experts = self._experts(_Load.of(batch), self.embedded_experts(batch), features)
        layers = self._layers(experts, batch.space.mask)
        return self._window(layers, batch.pipeline), layers, experts

    def embedded_experts(self, batch: Batch) -> Tensor:
        """[B, n, K, h]: experts embedded, as far as that does not depend on decisions."""
        encoded = self.encoder(batch)
        pipeline = batch.pipeline.unsqueeze(1).expand(-1, len(batch.space.mask), -1)
        shared = pipeline if encoded.context is None else torch.cat((encoded.context, pipeline), -1)
        embedded: Tensor = self.of_expert(encoded.experts) + self.of_shared(shared).unsqueeze(2)
        return embedded

    def _experts(self, load: _Load, embedded: Tensor, features: Tensor) -> Experts:
        """``features`` [.., B, n, K, C]."""
        inputs = torch.cat((with_products(features), load.physical(features)), -1)
        hidden = self.each((embedded + self.of_configuration(inputs)).relu()).relu()
        off_p95, off_mean = self.latency(hidden).unbind(-1)
        call = features[..., CALL_TIME] * LOG_CALL
        return Experts(hidden, _bounded(call + off_p95), _bounded(call + off_mean))

    def _layers(self, experts: Experts, mask: Tensor) -> Layers:
        pooled = torch.cat((masked_mean(experts.hidden, mask), masked_max(experts.hidden, mask)), -1)
        return self._pooled(pooled, _weight(experts.p95).mul(mask).sum(-1))

    def _pooled(self, pooled: Tensor, weight: Tensor) -> Layers:
        """``pooled`` [.., 2 h] mean and largest over a layer's experts, ``weight`` [..] the sum of theirs."""
        hidden = self.layer(pooled)
        slowest = SHARP * weight.clamp(min=1e-12).log()
        return Layers(hidden, _bounded(slowest + self.barrier(hidden).squeeze(-1)))

    def _window(self, layers: Layers, pipeline: Tensor) -> Prediction:
        hidden, barrier = layers.hidden, layers.barrier.exp()
        return self._predicted(hidden.mean(-2), hidden.amax(-2), barrier.mean(-1), pipeline)

    def _predicted(self, mean: Tensor, largest: Tensor, barriers: Tensor, pipeline: Tensor) -> Prediction:
        """Prediction of layers pooled to ``mean`` and ``largest`` [.., h]; ``barriers`` [..] all of them together, in
        λ."""
        segments = PIPELINE.log("segments", pipeline).exp() * PIPELINE.is_known("segments", pipeline)
        total = (barriers + segments).log().unsqueeze(-1)
        output = self.whole(torch.cat((mean, largest, pipeline.expand(*mean.shape[:-1], -1), total), -1))
        steps = functional.softplus(output[..., 1:QUANTILES] - 2.0) * 2 / QUANTILES
        first = total + output[..., :1]
        return Prediction(torch.cat((first, first + steps.cumsum(-1)), -1), output[..., -2], output[..., -1])

    def value(self, batch: Batch, features: Tensor, unit: float) -> Tensor:
        """[B] Q of a window; all decisions are in ``features``."""
        values, layers, _ = self(batch, features)
        total: Tensor = self.costs(batch, features, layers, unit).sum(-1) + self.punished(values) + values.future
        return total

    @torch.no_grad()
    def of_experts(self, batch: Batch, embedded: Tensor, features: Tensor, others: Tensor, unit: float) -> Tensor:
        """[A, B, n, K]: Q of the window with one expert's configuration replaced, all others as in ``features``.

        ``embedded``: of :meth:`embedded`; ``others`` [A, B, n, K, C]: A alternatives of every expert. Each is the
        critic's exact value, at the cost of pooling again: an expert is taken out of its layer's mean and maximum, its
        layer out of the pipeline's. Padding is meaningless.
        """
        mask, load = batch.space.mask, _Load.of(batch)
        experts = self._experts(load, embedded, features)
        each, weight = experts.hidden, _weight(experts.p95) * mask
        mean, count = masked_mean(each, mask).unsqueeze(2), mask.sum(-1)[:, None, None]
        beside = largest_of_others(each.masked_fill(~mask[..., None], 0.0))
        weight_beside = weight.sum(-1, keepdim=True) - weight
        layers, price, values = self._layers(experts, mask), _price(features), []
        pooled, pipeline = _Beside.of(layers), batch.pipeline[:, None, None]
        layer_price, of_others = self._prices(price * mask, layers)
        for other in others:
            expert_terms = self._experts(load, embedded, other)
            at = torch.cat(
                (mean + (expert_terms.hidden - each) / count, torch.maximum(beside, expert_terms.hidden)), -1
            )
            layer = self._pooled(
                at, weight_beside + _weight(expert_terms.p95)
            )  # of the expert's layer with it replaced
            one = self._predicted(*pooled.with_one(layer, expand=True), pipeline)
            cost = (layer_price.unsqueeze(-1) + _price(other) - price) * self._worked(layer)
            values.append(self.punished(one) + one.future - unit * (of_others.unsqueeze(-1) + cost))
        return torch.stack(values)

    @torch.no_grad()
    def of_layers(self, batch: Batch, embedded: Tensor, features: Tensor, others: Tensor, unit: float) -> Tensor:
        """[A, B, n]: the same with all experts of one layer replaced by those in ``others`` [A, B, n, K, C]."""
        mask, load = batch.space.mask, _Load.of(batch)
        layers, values = self._layers(self._experts(load, embedded, features), mask), []
        pooled = _Beside.of(layers)
        _, of_others = self._prices(_price(features) * mask, layers)
        for other in others:
            layer = self._layers(self._experts(load, embedded, other), mask)
            one = self._predicted(*pooled.with_one(layer, expand=False), batch.pipeline[:, None])
            cost = of_others + (_price(other) * mask).sum(-1) * self._worked(layer)
            values.append(self.punished(one) + one.future - unit * cost)
        return torch.stack(values)

    @torch.no_grad()
    def of_windows(self, batch: Batch, embedded: Tensor, others: Tensor, unit: float) -> Tensor:
        """[A, B]: the same with all experts replaced."""
        mask, load, values = batch.space.mask, _Load.of(batch), []
        for other in others:
            layers = self._layers(self._experts(load, embedded, other), mask)
            one = self._window(layers, batch.pipeline)
            cost = ((_price(other) * mask).sum(-1) * self._worked(layers)).sum(-1)
            values.append(self.punished(one) + one.future - unit * cost)
        return torch.stack(values)

    def _prices(self, price: Tensor, layers: Layers) -> tuple[Tensor, Tensor]:
        """[B, n] each: what a layer's replicas cost all the window, of ``price`` [B, n, K], and what all other layers
        cost."""
        layer_price = price.sum(-1)
        costs = layer_price * self._worked(layers)
        return layer_price, costs.sum(-1, keepdim=True) - costs

    def _worked(self, layers: Layers) -> Tensor:
        """Part of the window that the replicas of ``layers`` count for, 0 to 1: all of it as provisioned. Scalar, or
        the layers' axes."""
        if not self.learner.busy_meter:
            return torch.ones(())
        worked: Tensor = self.busy(layers.hidden).squeeze(-1).sigmoid()
        return worked

    def costs(self, batch: Batch, features: Tensor, layers: Layers, unit: float) -> Tensor:
        """[B, n] minus what each layer costs, in C_ref."""
        prices = (_price(features) * batch.space.mask).sum(-1)
        return -unit * prices * self._worked(layers)

    def punished(self, prediction: Prediction) -> Tensor:
        """[..] mean penalty over what the P95 may be."""
        mean: Tensor = penalties(prediction.p95.clamp(max=4.0).exp(), self.learner).mean(-1)
        return prediction.judged.sigmoid() * mean

    def loss(self, samples: WindowSamples, following: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Loss of predictions against what came; ``following`` [B]: the next window's value, 0 where nothing
        follows."""
        batch = samples.observations
        features = features_of(batch.space, samples.actions)
        values, layers, experts = self(batch, features)
        judged = ~samples.p95.isnan()
        log_p95 = samples.p95.nan_to_num(1.0).clamp(FASTEST_P95, SLOWEST_P95).log()
        pinball = _pinball(log_p95[:, None] - values.p95, self.levels).mean(-1)
        parts = {
            "p95": _mean(pinball, judged),
            "judged": functional.binary_cross_entropy_with_logits(values.judged, judged.float()),
            "future": _mean((values.future - self.learner.gamma * following).square(), samples.simulated),
            "change": self._changes(samples, values.p95.mean(-1), log_p95, judged),
            **self._latencies(samples, layers, experts),
        }
        if self.learner.busy_meter:
            off_cost = self.costs(batch, features, layers, samples.unit).sum(-1) - samples.rewards.sum(-1)
            parts["cost"] = off_cost.square().mean()
        off = _mean((values.p95.mean(-1) - log_p95).abs(), judged)
        named = {f"critic_{name}": float(part.detach()) for name, part in parts.items()}
        return torch.stack(list(parts.values())).sum(), named | {"critic_p95_off": float(off.detach())}

    def _changes(self, samples: WindowSamples, values: Tensor, log_p95: Tensor, judged: Tensor) -> Tensor:
        """Loss of what a change of decision does to the logarithm of the P95 of the very same window: all that is not
        known of the window is in both, so it does not hide the effect, nor stand in for it."""
        simulated, branch = samples.pairs.unbind(-1)
        off = (values[branch] - values[simulated]) - (log_p95[branch] - log_p95[simulated])
        loss = functional.smooth_l1_loss(off, torch.zeros_like(off), reduction="none", beta=BETA)
        return _mean(loss, judged[branch] & judged[simulated])

    def _latencies(self, samples: WindowSamples, layers: Layers, experts: Experts) -> dict[str, Tensor]:
        """Losses of experts and layers against what the next state shows of the window."""
        ahead, latencies = samples.next_observations.experts, {}
        barrier = layers.barrier.unsqueeze(-1).expand_as(experts.p95)
        for name, value in (("latency_p95", experts.p95), ("latency_mean", experts.mean), ("barrier_p95", barrier)):
            there = samples.observations.space.mask * NODE.is_known(name, ahead) * samples.simulated[:, None, None]
            loss = functional.smooth_l1_loss(value, NODE.log(name, ahead), reduction="none", beta=BETA)
            latencies[name] = _mean(loss, there)
        return latencies


@dataclass(frozen=True, eq=False)
class _Load:
    """What a state shows of its experts apart from decisions: once for all that are compared in it."""

    present: Tensor
    """[B, n, K, C] of the configurations that are there."""
    mean: Tensor
    """Mean logarithm of a call's time on the resources of Φ."""
    loads: tuple[tuple[Tensor, Tensor], ...]
    """The logarithm [B, n, K] of each of ``LOADS``, and 1 where it is known."""

    @classmethod
    def of(cls, batch: Batch) -> _Load:
        mean = (batch.space.resource_memory[0, :, CALL_TIME] * LOG_CALL).mean()
        loads = tuple((NODE.log(name, batch.experts), NODE.is_known(name, batch.experts)) for name in LOADS)
        return cls(features_of(batch.space, batch.present), mean, loads)

    def physical(self, features: Tensor) -> Tensor:
        """[.., PHYSICAL]: time of a call, replicas, slots, what changes, and how loaded a replica would be, by now and
        as in the last windows."""
        call = features[..., CALL_TIME] * LOG_CALL
        replicas = (features[..., REPLICAS] * 8).log()
        parts = [
            call / 5,
            call.clamp(max=3.0).exp() / 20,
            replicas,
            replicas + (features[..., CONCURRENCY] * 10).log(),
            ((self.present[..., CALL_TIME] - features[..., CALL_TIME]).abs() > 1e-6).float(),
            replicas - (self.present[..., REPLICAS] * 8).log(),
        ]
        for log, is_known in self.loads:
            load = log + call - self.mean - replicas
            parts += [load / 5 * is_known, load.clamp(-9.0, 1.4).exp() / 2 * is_known]
        return torch.stack([part.expand_as(call) for part in parts], -1)


@dataclass(frozen=True, eq=False)
class _Beside:
    """Layers pooled to what a window's prediction needs, each left out in turn."""

    layers: Layers
    mean: Tensor
    """[B, h] over layers."""
    largest: Tensor
    """[B, n, h] of the other layers."""
    barriers: Tensor
    """[B] all of them together, in λ."""

    @classmethod
    def of(cls, layers: Layers) -> _Beside:
        largest = largest_of_others(layers.hidden)
        return cls(layers, layers.hidden.mean(1), largest, layers.barrier.exp().mean(1))

    def with_one(self, layer: Layers, *, expand: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, largest and barriers with each layer replaced by ``layer``'s, [B, n] or with ``expand`` [B, n, K]."""
        count = self.layers.hidden.shape[1]
        mean, barriers = self.mean[:, None], self.barriers[:, None]
        hidden, barrier, largest = self.layers.hidden, self.layers.barrier, self.largest
        if expand:
            mean, barriers = mean.unsqueeze(2), barriers.unsqueeze(2)
            hidden, barrier, largest = hidden.unsqueeze(2), barrier.unsqueeze(2), largest.unsqueeze(2)
        return (
            mean + (layer.hidden - hidden) / count,
            torch.maximum(largest, layer.hidden),
            (barriers + (layer.barrier.exp() - barrier.exp()) / count).clamp(min=1e-9),
        )


def _price(features: Tensor) -> Tensor:
    return features[..., REPLICAS] * features[..., PRICE]


def _weight(logs: Tensor) -> Tensor:
    """What an expert adds to its layer's soft maximum."""
    return (logs / SHARP).exp()


def _bounded(logs: Tensor) -> Tensor:
    return logs.clamp(SHORTEST, LONGEST)


def _mean(losses: Tensor, there: Tensor) -> Tensor:
    return (losses * there).sum() / there.sum().clamp(min=1)


def _zeroed(inputs: int, outputs: int) -> nn.Linear:
    """A linear part whose output is 0 until it has learnt."""
    linear = nn.Linear(inputs, outputs)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def largest_of_others(values: Tensor) -> Tensor:
    """[.., K, h] of ``values`` [.., K, h], none below 0: for each the largest of the others; 0 where it is alone."""
    if values.shape[-2] == 1:
        return torch.zeros_like(values)
    first, second = values.topk(2, -2).values.unbind(-2)
    return torch.where(values == first.unsqueeze(-2), second.unsqueeze(-2), first.unsqueeze(-2))


def _pinball(off: Tensor, levels: Tensor) -> Tensor:
    """Loss of quantiles at ``levels``; ``off``: seen minus predicted. Rounded near 0, so that its gradient settles."""
    return (
        torch.where(off >= 0, levels, 1 - levels)
        * functional.huber_loss(off, torch.zeros_like(off), reduction="none", delta=0.05)
        / 0.05
    )

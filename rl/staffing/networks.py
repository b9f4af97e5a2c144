"""Actor and critic of the staffing policy, on the paper's DAGNN and pointer (:mod:`rl.agent.encoder`)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl.agent.contract import Batch
from rl.agent.encoder import Encoder, inputs, padded
from rl.agent.pointer import masked_max, masked_mean, small_init
from rl.agent.settings import NetworkSettings
from rl.staffing.action import AXES, Actions

NUMBERS = len(AXES)
SMALL = 0.05
"""Part of the usual size that the last layer begins with: at first every expert has the start's numbers, nearly."""


MOST_PRIORITY = 2.0
"""An action of the environment, which is within -1 and 1, holds it less 1."""


class Staffed(NamedTuple):
    """What the actor decides."""

    actions: Tensor
    """[B, n, K, 8] within -1 and 1; padding is meaningless."""
    priority: Tensor
    """[B, n, K] the pointer's weight over an even one, ``MOST_PRIORITY`` at most: who is granted standbys first;
    padding 0. No critic sees it, so it follows from what the context is worth."""


class StaffingActor(nn.Module):
    """State → eight numbers of every expert. ``start`` [8]: what it decides before anything was learnt, nearly."""

    def __init__(self, settings: NetworkSettings, start: Actions | None = None) -> None:
        super().__init__()
        self.settings = settings
        width, hidden = settings.width, settings.hidden
        self.encoder = Encoder(settings)
        self.of_expert = nn.Linear(width, hidden)
        self.of_context = small_init(nn.Linear(width, hidden, bias=False))
        self.of_pipeline = inputs(settings.pipeline_features, hidden, hidden)
        self.direct = inputs(settings.node_features, hidden, hidden)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, NUMBERS))
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(SMALL)
            if start is not None:
                last.bias.copy_(torch.atanh(torch.from_numpy(start).clamp(-0.97, 0.97)))

    def forward(self, batch: Batch) -> Staffed:
        encoded = self.encoder(batch)
        each = self.of_expert(encoded.experts) + self.direct(batch.experts)
        each = each + self.of_pipeline(batch.pipeline)[:, None, None]
        if encoded.context is not None:
            each = each + self.of_context(encoded.context).unsqueeze(2)
        counts = batch.space.mask.sum(-1, keepdim=True)
        return Staffed(self.head(each).tanh(), (encoded.weights * counts).clamp(max=MOST_PRIORITY))


class Judgement(NamedTuple):
    """What the critic expects of a window."""

    costs: Tensor
    """[B, n, K] of each expert, in C_ref; padding 0."""
    risk: Tensor
    """[B]: of P95 against λ (:mod:`rl.staffing.risk`)."""


class StaffingCritic(nn.Module):
    """Q(s, a) in parts: what each expert will cost, and the risk that the window breaks λ.

    The cost of an expert depends on its own action next to what is known of the pipeline; the risk on those of all:
    mean and largest over the experts of a layer, then over layers.
    """

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        width, hidden = settings.width, settings.hidden
        self.encoder = Encoder(settings)
        self.of_expert = nn.Linear(width, hidden)
        self.direct = inputs(settings.node_features, hidden, hidden)
        self.of_action = inputs(NUMBERS, hidden, hidden)
        self.of_pipeline = inputs(settings.pipeline_features, hidden, hidden)
        self.each = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.cost = nn.Linear(hidden, 1)
        self.layer = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU())
        self.risk = nn.Sequential(
            nn.Linear(2 * hidden + settings.pipeline_features, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch: Batch, actions: Tensor) -> Judgement:
        """``actions`` [B, n, K, 8]."""
        mask = padded(batch.space.mask)
        encoded = self.encoder(batch)
        each = self.of_expert(encoded.experts) + self.direct(batch.experts) + self.of_action(actions)
        each = self.each(each + self.of_pipeline(batch.pipeline)[:, None, None])
        costs = functional.softplus(self.cost(each)).squeeze(-1) * batch.space.mask
        layers = self.layer(torch.cat((masked_mean(each, mask), masked_max(each, mask)), -1))
        whole = torch.cat((layers.mean(1), layers.amax(1), batch.pipeline), -1)
        return Judgement(costs, functional.softplus(self.risk(whole)).squeeze(-1))

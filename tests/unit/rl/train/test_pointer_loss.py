"""The pointer's own loss: least where its weights are the shares of who was slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from rl.agent.ddpg.pointer_loss import STEEP, pointer_loss
from rl.agent.ddpg.visited import NODE
from rl.features import NODE_FEATURES

AT = {feature.name: at for at, feature in enumerate(NODE_FEATURES)}


def after(encoded: list[list[float]]) -> Any:
    """One window after which calls of the experts of each layer had these P95s, encoded."""
    p95 = torch.tensor(encoded)
    experts = torch.zeros(1, *p95.shape, len(NODE_FEATURES))
    experts[0, ..., AT["latency_p95"]] = p95
    mask = torch.ones(p95.shape, dtype=torch.bool)
    return SimpleNamespace(
        next_observations=SimpleNamespace(experts=experts),
        observations=SimpleNamespace(space=SimpleNamespace(mask=mask)),
        simulated=torch.ones(1, dtype=torch.bool),
    )


def test_it_is_least_at_the_shares_of_the_layer_s_latency_and_draws_there() -> None:
    samples = after([[0.1, 0.3, 0.2], [0.0, 0.0, 0.4]])
    shares = (STEEP * NODE.log("latency_p95", samples.next_observations.experts)).softmax(-1)
    logits = torch.zeros(1, 2, 3, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(500):
        optimizer.zero_grad()
        pointer_loss(samples, logits.softmax(-1)).backward()
        optimizer.step()
    assert torch.allclose(logits.softmax(-1), shares, atol=0.01)
    assert shares[0, 0].argmax() == 1 and shares[0, 1].argmax() == 2


def test_experts_that_were_not_called_do_not_count() -> None:
    samples = after([[0.1, 0.3, 0.2]])
    samples.next_observations.experts[0, 0, 1, AT["latency_unknown"]] = 1.0
    even = torch.full((1, 1, 3), 1 / 3)
    without = after([[0.1, 0.2]])
    assert torch.isclose(pointer_loss(samples, even), pointer_loss(without, even[..., :2]))
    samples.next_observations.experts[..., AT["latency_unknown"]] = 1.0
    assert pointer_loss(samples, even) == 0

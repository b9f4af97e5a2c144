"""Two critics: what is taken of each, that both learn, and what the actor is to clone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl.staffing.action import action_of
from rl.staffing.ddpg import batch_of
from rl.staffing.networks import Judgement
from rl.staffing.warm_start import MOST, RULES, labels
from tests.unit.rl.staffing.test_training import stepped


class Planted(torch.nn.Module):
    """Judges by one number: the actions' distance from ``best``, and a risk that is the same everywhere."""

    def __init__(self, risk: float, best: np.ndarray | None = None) -> None:
        super().__init__()
        self.risk, self.best = risk, None if best is None else torch.from_numpy(best)

    def forward(self, batch: object, actions: torch.Tensor) -> Judgement:
        costs = torch.ones(actions.shape[:3]) * self.risk
        if self.best is not None:
            costs = ((actions - self.best) ** 2).sum(-1)
        return Judgement(costs, torch.full((len(actions),), self.risk))


@pytest.mark.slow
def test_the_mean_cost_counts_and_the_larger_risk() -> None:
    model = stepped(3)
    model.judges.qf0, model.judges.qf1 = Planted(1.0), Planted(5.0)  # type: ignore[assignment]
    drawn = model.replay_buffer.drawn(4, np.random.default_rng(1))
    expected = model.expected(batch_of(model.judges.space, drawn.observations), drawn.actions)
    experts = drawn.costs[0].numel()
    assert expected.tolist() == [3.0 * experts + 5.0] * 4


@pytest.mark.slow
def test_both_critics_learn() -> None:
    model = stepped(3)
    before = [[value.detach().clone() for value in critic.parameters()] for critic in model.judges.both]
    model.learn_outcomes(3, 8)
    for critic, values in zip(model.judges.both, before, strict=True):
        assert any(not torch.equal(now, then) for now, then in zip(critic.parameters(), values, strict=True))


@pytest.mark.slow
def test_labels_are_the_rule_that_the_critics_expect_to_cost_least() -> None:
    model, best = stepped(3), action_of(RULES[13])
    model.judges.qf0, model.judges.qf1 = Planted(0.0, best), Planted(0.0, best)  # type: ignore[assignment]
    wanted = labels(model)
    assert wanted.shape == (2 * model.replay_buffer.size(), 8)
    assert np.allclose(wanted, best.clip(-MOST, MOST))

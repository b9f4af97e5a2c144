"""Returns, discounts and penalties against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.agent.ddpg.layer_critic import LayerCritic
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.targets import discounts, own_returns, penalties, returns
from rl.reward import RewardSettings, penalty
from tests.unit.rl.train import world
from tests.unit.rl.train.test_buffer import filled


def test_only_the_last_layer_is_discounted() -> None:
    assert discounts(4, 0.9).tolist() == pytest.approx([1, 1, 1, 0.9])


def test_returns_run_to_the_windows_end_and_bootstrap_there() -> None:
    rewards = torch.tensor([[-1.0, -2.0, -3.0], [0.0, -1.0, 0.0]])
    found = returns(rewards, torch.tensor([-10.0, 0.0]), 0.5)
    assert found.tolist() == [[-11.0, -10.0, -8.0], [-1.0, -1.0, 0.0]]


def test_a_change_of_what_follows_moves_every_layer_by_gamma_once() -> None:
    rewards = torch.zeros(1, 12)
    moved = returns(rewards, torch.tensor([-1.0]), 0.7) - returns(rewards, torch.tensor([0.0]), 0.7)
    assert moved == pytest.approx(torch.full((1, 12), -0.7))


def test_own_returns_leave_out_what_other_layers_cost() -> None:
    found = own_returns(torch.tensor([[-1.0, -2.0]]), torch.tensor([-4.0]), torch.tensor([-10.0]), 0.5)
    assert found.tolist() == [[-10.0, -11.0]]


@given(excess=st.floats(0, 0.01), weight=st.floats(0.1, 50))
def test_near_the_slo_the_penalty_is_that_of_the_reward(excess: float, weight: float) -> None:
    wanted = penalty((1 + excess) * 0.08, 0.08, RewardSettings(slo_weight=weight))
    found = float(penalties(torch.tensor(1 + excess), LearnerSettings(slo_weight=weight, guard=1.0)))
    assert found == pytest.approx(wanted, rel=0.03, abs=1e-5 * weight)


@given(overload=st.floats(1.0, 1000), factor=st.floats(1.0, 10))
def test_a_worse_overload_is_never_punished_less(overload: float, factor: float) -> None:
    low, high = penalties(torch.tensor([overload, overload * factor], dtype=torch.float64), LearnerSettings())
    assert high <= low


@given(overload=st.floats(1.0, 1000), factor=st.floats(1.001, 10))
def test_an_overload_that_is_a_thousandth_worse_is_punished_more(overload: float, factor: float) -> None:
    """The penalty saturates, so two overloads that differ by rounding have the same one."""
    low, high = penalties(torch.tensor([overload, overload * factor], dtype=torch.float64), LearnerSettings(guard=1.0))
    assert high < low


def test_a_lost_window_costs_at_most_the_weight_over_k() -> None:
    assert float(penalties(torch.tensor(1e6), LearnerSettings(slo_weight=45.0))) == pytest.approx(-15.0)


def test_a_window_without_requests_has_no_penalty() -> None:
    assert penalties(torch.tensor([math.nan]), LearnerSettings()).tolist() == [0.0]


@pytest.mark.parametrize(("credit", "wanted"), [("return", [-7.5, -6.5]), ("own", [-7.0, -6.5])])
def test_the_layer_critic_learns_cost_penalty_and_what_follows(credit: str, wanted: list[float]) -> None:
    learner = LearnerSettings(
        judge="layer", gradient="straight-through", credit=credit, gamma=0.5, guard=1.0, slo_weight=6.0
    )  # type: ignore[arg-type]
    buffer = filled(1)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    samples = samples._replace(rewards=torch.tensor([[-1.0, -0.5]]), p95=torch.tensor([2 ** (1 / 3)]))
    critic = LayerCritic(world.networks(), learner)
    found = critic.targets(samples, torch.tensor([-10.0]))[0]
    assert found.tolist() == pytest.approx(
        wanted
    )  # costs, then 6 · (1 - 1/2) / 3 of penalty and 0.5 · 10 of what follows

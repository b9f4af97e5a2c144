"""The learner's SLO penalty against the reward's, and at its ends."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.targets import penalties
from rl.reward import RewardSettings, penalty


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

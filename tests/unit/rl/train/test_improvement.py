"""How strongly changes pull: gains alone, the best most; what is not improved is held."""

from __future__ import annotations

import torch

from rl.agent.ddpg.improvement import HOLD, pulls


def pulled(*values: float, notable: float = 0.1) -> list[float]:
    """Of one place: the actor's own value first."""
    found, _ = pulls(torch.tensor(values).view(-1, 1, 1, 1), notable)
    return [float(one) for one in found.flatten()]


def test_a_notable_gain_pulls_with_all_its_strength_and_nothing_is_held() -> None:
    own, worse, better, best = pulled(-2.0, -3.0, -1.9, -1.0)
    assert own == worse == 0.0
    assert 0 < better < best
    assert abs(better + best - 1.0) < 1e-6


def test_what_no_change_improves_is_held() -> None:
    assert pulled(-2.0, -3.0, -2.5) == [torch.tensor(HOLD).item(), 0.0, 0.0]


def test_a_gain_within_the_critics_noise_is_none() -> None:
    own, other = pulled(-2.0, -1.9999)
    assert own > 0 and other == 0.0


def test_a_small_gain_pulls_in_proportion() -> None:
    own, other = pulled(-2.0, -1.95)
    assert abs(other - 0.5) < 1e-3 and abs(own - HOLD / 2) < 1e-3


def test_the_mean_gain_leaves_losses_out() -> None:
    values = torch.tensor([[-2.0, -2.0], [-1.0, -9.0]]).view(2, 1, 1, 2)
    assert pulls(values, 0.1)[1] == 0.5

from __future__ import annotations

import pytest

from smoe.commands.demo import SLO_STEPS_S, round_slo_s


@pytest.mark.parametrize("least_s", [0.6, 0.51, 0.75, 0.99, 1.0])
def test_the_slo_does_not_move_with_the_noise_of_a_few_prompts(least_s: float) -> None:
    assert round_slo_s(least_s) == 1.0


def test_an_slo_beyond_all_round_numbers_is_what_was_asked_for() -> None:
    assert round_slo_s(SLO_STEPS_S[-1] * 2) == SLO_STEPS_S[-1] * 2

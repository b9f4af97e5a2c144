"""Profiles: fits, the most tokens within TPOT, and TTFT of a queue against a clock stepped by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.scheduling.predictor import DecodeModel, fit_decode, fit_prefill, least_squares
from functions.scheduling.settings import SchedulingError


def test_a_quadratic_is_fitted_exactly_where_the_times_are_one() -> None:
    lengths = [100, 500, 1000, 4000]
    model = fit_prefill(lengths, [0.01 + 2e-4 * n + 3e-9 * n * n for n in lengths])
    assert model.seconds(2000) == pytest.approx(0.01 + 0.4 + 0.012)


def test_coefficients_are_exact_so_that_no_cpu_rounds_them_its_way() -> None:
    at = [1.0, 2.0, 3.0, 5.0, 7.0, 1100.0]
    assert least_squares(at, [2 * x * x + 0.5 * x + 3 for x in at], 2) == [2.0, 0.5, 3.0]
    assert least_squares(at, [0.25 * x - 8 for x in at], 1) == [0.25, -8.0]
    noisy = [0.1, 0.3, 0.2, 0.9, 0.4, 0.7]
    for degree in (1, 2):
        assert least_squares(at, noisy, degree) == pytest.approx(np.polyfit(at, noisy, degree).tolist(), rel=1e-9)
        assert least_squares(at[::-1], noisy[::-1], degree) == least_squares(at, noisy, degree)


def test_a_curve_that_rises_over_all_measured_lengths_is_kept_though_it_would_rise_again_below_them() -> None:
    lengths = [100, 200, 400, 800]
    model = fit_prefill(lengths, [1.0 - 1e-3 * n + 1e-5 * n * n for n in lengths])  # least at 50
    assert model.seconds(600) == pytest.approx(1.0 - 0.6 + 3.6)


def test_a_fit_that_dips_below_zero_predicts_no_time() -> None:
    assert fit_prefill([100, 200, 300], [0.0, 0.1, 0.2]).seconds(1) == 0.0


@given(st.floats(0.001, 0.05), st.floats(1e-8, 1e-4), st.floats(0.01, 0.5))
def test_most_tokens_is_the_last_number_within_the_target(constant: float, linear: float, target: float) -> None:
    model = DecodeModel(constant, linear)
    most = model.most_tokens(target)
    assert most == 0 or model.seconds(most) <= target * (1 + 1e-6)
    assert model.seconds(most + 1) > target


def test_a_decode_profile_is_a_line() -> None:
    model = fit_decode([1000, 2000, 3000], [0.02, 0.03, 0.04])
    assert model.most_tokens(0.0951) == 8510


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: fit_prefill([1, 1, 2], [1, 1, 2]), "at least 3 different"),
        (lambda: fit_decode([1, 2], [0.2, 0.1]), "does not grow"),
        (lambda: fit_decode([1, 2], [0.2]), "1 times were measured"),
        (lambda: fit_decode([1, 2], [0.2, float("nan")]), "finite"),
    ],
)
def test_bad_measurements_are_refused_in_a_sentence(call, why: str) -> None:
    with pytest.raises(SchedulingError, match=why):
        call()


def test_jitter_never_makes_longer_prompts_take_no_time() -> None:
    bent = fit_prefill([10, 100, 500], [0.1, 1.0, 2.0])
    assert bent.square_s == 0 and bent.seconds(5000) > bent.seconds(500) > 1.5
    falling = fit_prefill([10, 100, 500], [3.0, 2.0, 1.0])
    assert falling.seconds(5000) == pytest.approx(2.0)

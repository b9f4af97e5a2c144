"""Interquartile means and intervals against SciPy and known answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.comparison.intervals import interval, iqm, share


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10).map(lambda values: values * 4))
def test_iqm_of_a_multiple_of_four_is_scipys_trimmed_mean(values: list[float]) -> None:
    from scipy.stats import trim_mean

    assert iqm(np.array(values)) == pytest.approx(trim_mean(values, 0.25), abs=1e-6)


def test_iqm_counts_values_at_the_edge_in_part() -> None:
    # n = 6 leaves out 1.5 on each side: half of the second, all of the third and fourth, half of the fifth
    assert iqm(np.array([9.0, 1.0, 2.0, 3.0, 4.0, -9.0])) == pytest.approx((0.5 * 1 + 2 + 3 + 0.5 * 4) / 3)


def test_one_outlier_moves_the_mean_and_not_the_iqm() -> None:
    assert iqm(np.array([1.0, 1.0, 1.0, 1000.0])) == 1.0


def test_strata_keep_the_spread_between_workloads_out_of_the_interval() -> None:
    apart = interval([[1.0, 1.1, 0.9, 1.0], [10.0, 10.1, 9.9, 10.0]])
    mixed = interval([[1.0, 1.1, 0.9, 1.0, 10.0, 10.1, 9.9, 10.0]])
    assert apart.low <= apart.value <= apart.high
    assert apart.high - apart.low < 0.3 < mixed.high - mixed.low


def test_the_interval_of_many_draws_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(200):
        bounds = interval([list(rng.normal(5.0, 1.0, 40))], seed=trial, draws=300)
        hits += bounds.low <= 5.0 <= bounds.high
    assert 176 <= hits <= 200


def test_a_share_has_wilsons_interval_and_nothing_has_none() -> None:
    wilson = share(0, 10)
    assert wilson is not None
    assert (wilson.value, wilson.low) == (0.0, 0.0)
    assert wilson.high == pytest.approx(0.2775, abs=1e-4)  # Wilson (1927) for 0 of 10
    assert share(0, 0) is None


def test_an_empty_stratum_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        interval([[1.0], []])

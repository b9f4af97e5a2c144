"""Sums, thinning and many users of one profile: held to what theory gives for their mean and variance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parameters import examples
from traces import scale
from traces.dispersion import MINUTE_S, SCALES_S, counts, dispersion, dispersions, expected
from traces.errors import TraceError
from traces.generate import synthetic
from traces.model import Trace, make_trace


def of_minutes(requests: list[int], seed: int = 0) -> Trace:
    """``requests`` in each minute, at random seconds."""
    rng = np.random.default_rng(seed)
    times = [minute * 60 + rng.uniform(0, 60, count) for minute, count in enumerate(requests)]
    return make_trace(np.sort(np.concatenate(times)), duration_s=60.0 * len(requests), source="t")


@given(st.lists(st.lists(st.floats(0, 100), max_size=30), min_size=1, max_size=5))
def test_a_sum_holds_every_request_of_its_parts_in_order(times: list[list[float]]) -> None:
    parts = [make_trace(sorted(part), duration_s=100.0 + n, source="t") for n, part in enumerate(times)]
    total = scale.superpose(parts, "sum")
    assert total.arrival_s.tolist() == sorted(time for part in times for time in part)
    assert total.duration_s == 99.0 + len(times) and total.context_tokens is None


def test_a_sum_keeps_each_requests_tokens_where_all_parts_have_them() -> None:
    one = make_trace([0, 2], source="a", context_tokens=[1, 3], generated_tokens=[10, 30])
    two = make_trace([1], source="b", context_tokens=[2])
    total = scale.superpose([one, two], "sum")
    assert total.context_tokens is not None and total.context_tokens.tolist() == [1, 2, 3]
    assert total.generated_tokens is None
    with pytest.raises(TraceError, match="sum of no traces"):
        scale.superpose([], "sum")


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from([0.4, 0.7, 2.5]), st.integers(0, 1000))
def test_a_sum_of_independent_streams_has_the_mean_of_their_indices_and_a_cv_nearer_to_one(
    cv: float, seed: int
) -> None:
    parts = [synthetic(20_000, 3600.0, cv, seed * 20 + number) for number in range(12)]
    total = scale.superpose(parts, "sum")
    of_parts = np.mean([dispersion(part, 1.0) for part in parts])
    assert dispersion(total, 1.0) == pytest.approx(of_parts, rel=0.2)
    assert parts[0].iat_cv is not None and total.iat_cv is not None
    assert abs(total.iat_cv - 1) < abs(parts[0].iat_cv - 1) / 2


@settings(max_examples=examples(20), deadline=None)
@given(st.floats(0.05, 1), st.floats(0.3, 4), st.integers(0, 1000))
def test_thinning_leaves_the_share_p_of_the_excess_over_one(keep: float, cv: float, seed: int) -> None:
    trace = synthetic(100_000, 3600.0, cv, seed)
    thinned, theory = scale.thin(trace, keep, seed + 1), expected(trace, keep)
    assert thinned.requests == pytest.approx(100_000 * keep, rel=0.05)
    for scale_s, most in (("0.1", 0.1), ("1", 0.15)):
        assert dispersions(thinned)[scale_s] == pytest.approx(theory[scale_s], rel=most)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 60), min_size=60, max_size=60), st.floats(1.5, 200), st.integers(0, 1000))
def test_many_users_have_the_mean_and_variance_of_a_cox_process(requests: list[int], factor: float, seed: int) -> None:
    """Given the rate path, counts are Poisson: mean f c in every minute, and an index of 1 + f Var(c) / E(c)."""
    path = np.array(requests, dtype=float)
    replayed = scale.many_users(of_minutes(requests), factor, seed)
    drawn = counts(replayed.arrival_s, 3600.0, MINUTE_S)
    assert np.abs(drawn - factor * path).max() <= 6 * np.sqrt(factor * path.max()) + 6
    assert drawn[path == 0].sum() == 0
    if path.sum() * factor > 3000:
        assert replayed.requests == pytest.approx(factor * path.sum(), abs=6 * np.sqrt(factor * path.sum()))
        at_minute = 1 + factor * path.var() / path.mean()
        assert dispersion(replayed, 60.0) == pytest.approx(at_minute, rel=0.75)
        assert dispersion(replayed, 1.0) == pytest.approx(1 + (at_minute - 1) / 60, rel=0.25)


def test_the_index_of_many_users_is_the_expected_one_on_average() -> None:
    source = of_minutes([40, 0, 3, 90, 25, 8] * 10)
    drawn = [dispersions(scale.many_users(source, 20.0, seed)) for seed in range(40)]
    for scale_s, theory in expected(source, 20.0).items():
        assert theory is not None and np.mean([one[scale_s] for one in drawn]) == pytest.approx(theory, rel=0.03)


def test_no_second_of_a_steady_profile_is_busier_than_poisson_allows() -> None:
    """What evenly added requests did: a steady hour of 20 requests/s with hundreds in one second."""
    replayed = scale.at_rate(of_minutes([20] * 60), 20.0, 1)
    assert counts(replayed.arrival_s, 3600.0, 1.0).max() < 20 + 6 * 20**0.5
    assert replayed.iat_cv == pytest.approx(1, abs=0.03)


@given(st.floats(0.05, 30), st.integers(0, 5))
def test_any_rate_is_reached_and_times_stay_in_the_span(mean_rps: float, seed: int) -> None:
    trace = synthetic(2000, 1000.0, 3.0, 7)
    replayed = scale.at_rate(trace, mean_rps, seed)
    assert abs(replayed.requests - 1000 * mean_rps) <= 6 * (1000 * mean_rps) ** 0.5
    assert replayed.requests == 0 or 0 <= replayed.arrival_s[0] <= replayed.arrival_s[-1] <= replayed.duration_s
    assert scale.at_rate(trace, mean_rps, seed).sha256 == replayed.sha256


def test_a_request_of_many_users_has_tokens_of_its_minute() -> None:
    trace = make_trace([1.0, 2.0, 70.0], duration_s=90.0, source="three", context_tokens=[5, 7, 9])
    replayed = scale.many_users(trace, 50.0, 0)
    assert replayed.context_tokens is not None and replayed.arrival_s[-1] < 90
    first = replayed.arrival_s < 60
    assert set(replayed.context_tokens[first].tolist()) == {5, 7}
    assert set(replayed.context_tokens[~first].tolist()) == {9}


@pytest.mark.parametrize("factor", [0.0, -2.0, float("nan"), 1e9])
def test_a_factor_that_cannot_be_is_a_sentence(factor: float) -> None:
    with pytest.raises(TraceError, match=r"positive number|are above"):
        scale.many_users(synthetic(10, 10.0, 1.0, 0), factor, 0)


def test_faster_time_moves_the_index_to_shorter_scales() -> None:
    day = of_minutes([5, 30, 90, 30] * 360)
    theory, fast = expected(day, 1.0, speed=24.0), scale.compress(day, 24.0)
    for scale_s in SCALES_S:
        assert dispersion(fast, scale_s) == pytest.approx(theory[f"{scale_s:g}"], rel=0.02)

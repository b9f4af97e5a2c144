"""The fit finds a known law again, is monotone whatever the rows say, and says how far it is off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.profiles.fit.fitting import Fit, factors, fit, least_disturbed, predict
from simulation.profiles.fit.validation import cross_validate
from simulation.profiles.model.errors import ProfileError
from tests.parameters import examples
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK, TICK_S, TOKENS, Truth

LAW = Truth()


@pytest.fixture(scope="module")
def exact() -> Fit:
    return fit(truth.rows(LAW), TICK_S)


def test_finds_the_work_and_the_rest_of_a_call_again(exact: Fit) -> None:
    node = exact.nodes["expert-0-0"]
    assert node.work(TOKENS) == pytest.approx([LAW.work_s(tokens) for tokens in TOKENS], rel=1e-6)
    assert node.apart(TOKENS) == pytest.approx(LAW.apart_s, rel=1e-6)


def test_interpolates_tokens_between_the_measured_ones(exact: Fit) -> None:
    node = exact.nodes["expert-0-0"]
    assert float(node.work(300)) == pytest.approx(LAW.work_s(300), rel=1e-6)
    assert float(node.work(900)) == pytest.approx(LAW.work_s(900), rel=1e-6)


@pytest.mark.parametrize(("tokens", "calls"), [(8, 2), (32, 4), (64, 3), (512, 8), (1, 2)])
def test_finds_the_effect_of_a_batch_again(exact: Fit, tokens: int, calls: int) -> None:
    found = float(exact.nodes["expert-0-0"].together_s(tokens, calls, 1.0))
    assert found == pytest.approx(LAW.together_s(tokens, calls), rel=0.02)


def test_finds_the_tick_of_the_machine_again(exact: Fit) -> None:
    assert exact.tick_s == TICK_S


def test_scatter_moves_the_fit_by_no_more_than_the_scatter() -> None:
    node = fit(truth.rows(LAW, seed=3, repeats=3), TICK_S).nodes["expert-0-0"]
    assert node.work(TOKENS) == pytest.approx([LAW.work_s(tokens) for tokens in TOKENS], rel=0.03)


def test_cross_validation_is_small_where_the_law_holds() -> None:
    errors = cross_validate(truth.rows(LAW, seed=1, repeats=2), TICK_S)
    assert errors["alone"].points == 25
    assert errors["all"].points == 25 + 25 + 27
    assert errors["all"].mean < 0.1
    assert errors["alone"].p50 < 0.15


def test_cross_validation_is_large_where_the_law_does_not_hold() -> None:
    """Rows with latencies that have nothing to do with their settings must not look well fitted."""
    random = np.random.default_rng(0)
    broken = []
    for row in truth.rows(LAW):
        factor = float(random.lognormal(0, 1.5))
        assert row.mean_s and row.p50_s and row.p95_s and row.cpu_s_per_call
        broken.append(
            replace(
                row,
                mean_s=row.mean_s * factor,
                p50_s=row.p50_s * factor,
                p95_s=row.p95_s * factor,
                cpu_s_per_call=row.cpu_s_per_call * factor,
            )
        )
    assert cross_validate(broken, TICK_S)["all"].p50 > 0.5


@pytest.mark.slow
@given(
    seeds=st.integers(0, 10**6),
    tokens=st.lists(st.floats(0, 4000), min_size=2, max_size=8),
    calls=st.lists(st.integers(1, 20), min_size=2, max_size=8),
)
@settings(max_examples=examples(25), deadline=None)
def test_is_monotone_in_tokens_and_calls_whatever_the_rows_say(
    seeds: int, tokens: list[float], calls: list[int]
) -> None:
    random = np.random.default_rng(seeds)
    rows = [
        replace(
            BLANK,
            family=family,
            tokens=count,
            share=share,
            concurrency=m,
            mean_s=float(random.lognormal(-6, 1)),
            p50_s=float(random.lognormal(-6, 1)),
            cpu_s_per_call=float(random.lognormal(-7, 1)),
        )
        for family, m in (("alone", 1), ("busy", 1), ("concurrency", 2), ("concurrency", 5))
        for count in (1, 16, 64)
        for share in (0.25, 1.0)
    ]
    node = fit(rows, TICK_S).nodes["expert-0-0"]
    assert (np.diff(node.work(np.sort(tokens))) >= -1e-15).all()
    assert (np.diff(node.apart(np.sort(tokens))) >= -1e-15).all()
    rounds = node.together_s(np.sort(tokens)[:, None], np.sort(calls)[None, :], 0.5)
    assert (np.diff(rounds, axis=0) >= -1e-12).all()
    assert (np.diff(rounds, axis=1) >= -1e-12).all()


def test_points_measured_beside_other_work_are_left_out_where_a_quieter_repeat_is_there() -> None:
    idle, loud = replace(BLANK, others_cores=0.1), replace(BLANK, others_cores=1.4, repeat=1)
    lonely = replace(BLANK, tokens=8, others_cores=1.4)
    assert least_disturbed([idle, loud, lonely]) == [idle, lonely]


def test_scatter_has_mean_one_and_never_falls() -> None:
    fitted = factors(row for row in truth.rows(LAW) if row.family == "alone" and row.share == 0.12)
    assert (np.diff(fitted) >= 0).all()
    assert (fitted[:-1] + fitted[1:]).mean() / 2 == pytest.approx(1, abs=1e-6)


def test_says_what_single_calls_and_calls_in_a_row_take(exact: Fit) -> None:
    node = exact.nodes["expert-0-0"]
    for row in truth.rows(LAW):
        assert row.mean_s is not None
        assert predict(node, row, exact.tick_s).mean_s == pytest.approx(row.mean_s, rel=0.12)


def test_rows_without_single_calls_are_refused() -> None:
    with pytest.raises(ProfileError, match="no measured single calls"):
        fit([row for row in truth.rows(LAW) if row.family != "alone"], TICK_S)


def test_rows_without_cpu_seconds_are_refused() -> None:
    with pytest.raises(ProfileError, match="no CPU seconds"):
        fit([replace(row, cpu_s_per_call=None) for row in truth.rows(LAW)], TICK_S)


def test_infeasible_rows_are_not_fitted() -> None:
    bad = [replace(row, feasible=False, cpu_s_per_call=9.0) for row in truth.rows(LAW)]
    node = fit([*truth.rows(LAW), *bad], TICK_S).nodes["expert-0-0"]
    assert float(node.work(8)) == pytest.approx(LAW.work_s(8), rel=1e-6)

"""A decoder's iterations: closed queues against other ways to solve them, lines against least squares."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.policy.iterations import PRIOR as RIDGE
from autoscaler.policy.iterations import Called, IterationModel, Line, alone_seconds, met_seconds

SHARED = 1.0


def chain_seconds(alone_s: float, elsewhere_s: float, callers: int, replicas: int, slots: int, sharing: float) -> float:
    """Mean seconds of a call by the balance equations of the whole chain, as a matrix."""
    up = [(callers - n) / elsewhere_s for n in range(callers)]
    down = [ended(n, replicas, slots, sharing) / alone_s for n in range(1, callers + 1)]
    rates = np.diag(up, 1) + np.diag(down, -1)
    rates -= np.diag(rates.sum(axis=1))
    balance = np.vstack([rates.T, np.ones(callers + 1)])
    states = np.linalg.lstsq(balance, np.append(np.zeros(callers + 1), 1.0), rcond=None)[0]
    return float(states @ np.arange(callers + 1) / (states[1:] @ np.array(down)))


def ended(calls: int, replicas: int, slots: int, sharing: float) -> float:
    """Calls dealt out one by one to the emptiest replica; each goes at 1 / (1 + sharing · others)."""
    at = [0] * replicas
    for _ in range(min(calls, replicas * slots)):
        at[at.index(min(at))] += 1
    return sum(count / (1 + sharing * (count - 1)) for count in at if count)


def mean_value_analysis(alone_s: float, elsewhere_s: float, callers: int) -> float:
    """One replica that its calls share evenly, by the recursion over callers (Reiser and Lavenberg)."""
    seconds, calls = alone_s, 0.0
    for number in range(1, callers + 1):
        seconds = alone_s * (1 + calls)
        calls = number * seconds / (elsewhere_s + seconds)
    return seconds


@pytest.mark.parametrize("elsewhere_s", [0.01, 0.2, 3.0])
@pytest.mark.parametrize("callers", [1, 2, 5, 8])
def test_one_replica_is_what_mean_value_analysis_says(callers: int, elsewhere_s: float) -> None:
    wanted_s = mean_value_analysis(0.1, elsewhere_s, callers)
    assert met_seconds(0.1, elsewhere_s + wanted_s, callers, 1, 0, SHARED) == pytest.approx(wanted_s, rel=1e-5)


@given(
    st.floats(0.01, 1.0), st.floats(0.05, 5.0), st.integers(2, 6), st.integers(1, 4), st.integers(1, 3),
    st.sampled_from((0.0, 0.5, 1.0)),
)  # fmt: skip
def test_replicas_with_few_slots_are_what_the_balance_equations_say(
    alone_s: float, elsewhere_s: float, callers: int, replicas: int, slots: int, sharing: float
) -> None:
    wanted_s = chain_seconds(alone_s, elsewhere_s, callers, replicas, slots, sharing)
    cycle_s = elsewhere_s + wanted_s
    assert met_seconds(alone_s, cycle_s, callers, replicas, slots, sharing) == pytest.approx(wanted_s, rel=1e-5)
    assert alone_seconds(wanted_s, cycle_s, callers, replicas, slots, sharing) == pytest.approx(alone_s, rel=1e-5)


def test_callers_that_cannot_come_round_so_fast_share_the_replicas_all_the_time() -> None:
    assert met_seconds(0.1, 0.15, 4, 1, 0, 1.0) == pytest.approx(0.4)
    assert met_seconds(0.1, 0.15, 4, 2, 0, 1.0) == pytest.approx(0.2)
    assert met_seconds(0.1, 0.01, 1, 1, 0, 1.0) == 0.1


@given(st.lists(st.tuples(st.floats(1, 40), st.floats(0.001, 1)), min_size=2, max_size=8), st.floats(0, 1))
def test_a_line_is_the_least_squares_with_the_assumed_slope_as_one_more_row(
    windows: list[tuple[float, float]], fixed: float
) -> None:
    tokens, seconds = np.array(windows).T
    line = Line()
    for n, s in windows:
        line = line.with_window(n, s, 1.0)
    steepest = seconds.mean() / tokens.mean()
    weight = (RIDGE * tokens.mean() ** 2 * len(windows)) ** 0.5
    rows = np.vstack([np.column_stack([np.ones_like(tokens), tokens]), [0.0, weight]])
    wanted = np.append(seconds, weight * (1 - fixed) * steepest)
    slope = np.clip(np.linalg.lstsq(rows, wanted, rcond=None)[0][1], 0, steepest)
    expected_s = seconds.mean() + slope * (20 - tokens.mean())
    assert line.at(20, fixed) == pytest.approx(expected_s, rel=1e-6, abs=1e-9)


def test_old_windows_are_forgotten_and_none_are_no_seconds() -> None:
    line = Line()
    for _ in range(50):
        line = line.with_window(10, 1.0, 0.5)
    for _ in range(50):
        line = line.with_window(10, 3.0, 0.5)
    assert line.at(10, 0.5) == pytest.approx(3.0) and line.at(20, 0.5) == pytest.approx(4.5)
    assert Line().at(10, 0.5) == 0.0


def flat(seconds: float) -> Line:
    """Calls that take as long whatever their tokens: two sizes seen often."""
    line = Line()
    for tokens in (1.0, 1000.0) * 50:
        line = line.with_window(tokens, seconds, 1.0)
    return line


def test_a_layer_is_as_long_as_its_slowest_activated_expert() -> None:
    """By all subsets of activated experts: parts 0.5, 0.3 and 0.2 of two tokens."""
    seconds, parts = (0.1, 0.4, 0.2), (0.5, 0.3, 0.2)
    layer = [Called(str(i), flat(s), p) for i, (s, p) in enumerate(zip(seconds, parts, strict=True))]
    model = IterationModel([], [layer], dict.fromkeys("012", 0), 2.0, 0.0, SHARED, 1.0)
    activated = [1 - (1 - part) ** 2 for part in parts]
    wanted_s = sum(
        float(np.prod([a if on else 1 - a for a, on in zip(activated, chosen, strict=True)]))
        * max([0.0, *(s for s, on in zip(seconds, chosen, strict=True) if on)])
        for chosen in product((False, True), repeat=3)
    )
    assert model.iteration(1, 1.0).experts_s(dict.fromkeys("012", 1)) == pytest.approx(wanted_s, rel=1e-3)


def test_tokens_come_while_an_iteration_lasts_until_more_come_than_it_computes() -> None:
    """20 ms, and 10 ms a token; n tokens in n / rate seconds: n / rate = 0.02 + 0.01 n, or never from 100 a second."""
    segment = Called("s", Line().with_window(8.0, 0.1, 1.0), 1.0)

    def settled_s(tokens_per_s: float, batch: float, instances: int) -> float:
        return IterationModel([segment], [], {}, tokens_per_s, batch, SHARED, 0.2).seconds(instances, {}, 10.0)

    assert settled_s(80.0, 0.0, 1) == pytest.approx(0.02 / (1 - 0.8))
    assert settled_s(160.0, 0.0, 1) == np.inf
    assert settled_s(160.0, 0.0, 2) == pytest.approx(0.1)
    assert settled_s(80.0, 30.0, 1) == pytest.approx(0.02 + 0.3)


def test_instances_that_rest_between_iterations_meet_less() -> None:
    layer = [Called("e", flat(0.1), 1.0)]
    model = IterationModel([], [layer], {"e": 0}, 2.0, 0.0, SHARED, 1.0)
    idle = model.iteration(4, 0.2)
    assert (idle.tokens, idle.cycle_s) == (1.0, pytest.approx(2.0))
    assert idle.seconds("e", 1) == pytest.approx(met_seconds(0.1, 2.0, 4, 1, 0, 1.0), rel=1e-2)

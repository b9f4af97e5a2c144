"""The rule of burst activation against its definition, moment by moment."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.dispatch.activation import Burst, Standbys, token_rates

arrivals = st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40).map(np.cumsum)


@given(arrivals, st.floats(0.1, 5), st.data())
def test_a_rate_counts_the_tokens_of_its_look_back(
    arrival_s: np.ndarray, look_back_s: float, data: st.DataObject
) -> None:
    tokens = np.array(data.draw(st.lists(st.integers(1, 9), min_size=arrival_s.size, max_size=arrival_s.size)))
    first = data.draw(st.integers(0, arrival_s.size - 1))
    expected = [
        sum(t for s, t in zip(arrival_s[: k + 1], tokens, strict=False) if s > arrival_s[k] - look_back_s) / look_back_s
        for k in range(first, arrival_s.size)
    ]
    assert token_rates(arrival_s, tokens.astype(np.uint16), first, look_back_s) == pytest.approx(expected)


@given(st.floats(0, 1e4), st.floats(0, 1e4), st.floats(0, 5), st.floats(0, 5))
def test_more_work_never_wants_fewer_replicas(one: float, other: float, headroom: float, spare: float) -> None:
    low, high = Burst(3, headroom, spare).wanted(np.array(sorted((one, other))), 0.01)
    assert low <= high


def test_the_worked_example() -> None:
    assert Burst(9, 1.2, 1.0).wanted(np.array([200.0, 0.0]), 0.02).tolist() == [7, 0]


@pytest.mark.slow
@given(
    arrivals,
    st.lists(st.integers(0, 9), min_size=40, max_size=40),
    st.sampled_from([0.2, 1.0, 4.0]),
    st.integers(0, 3),
    st.sampled_from([0.7, 5.0, 1000.0]),
)
def test_a_standby_is_active_while_the_last_hold_asks_for_it_however_time_is_cut(
    arrival_s: np.ndarray, counts: list[int], hold_s: float, replicas: int, window_s: float
) -> None:
    wanted = np.array(counts[: arrival_s.size])
    standbys, active, begun_at = Standbys(Burst(4, hold_s=hold_s), replicas), [], {}
    for end_s in np.arange(window_s, arrival_s[-1] + hold_s + 2 * window_s, window_s):
        inside = (arrival_s >= end_s - window_s) & (arrival_s < end_s)
        for number, begun_s, released_s in standbys.spans(arrival_s[inside], wanted[inside], float(end_s)):
            if begun_s is not None:
                begun_at[number] = begun_s
            if released_s is not None:
                active.append((number, begun_at.pop(number), released_s))
    assert not begun_at, "all are released in the end"
    for moment_s in np.concatenate([arrival_s, arrival_s + hold_s - 1e-6, arrival_s + hold_s + 1e-6]):
        lately = (arrival_s <= moment_s) & (arrival_s > moment_s - hold_s)
        most = max([0, *(wanted[lately] - replicas)])
        counted = {number for number, begun_s, released_s in active if begun_s <= moment_s < released_s}
        assert counted == set(range(min(4, most)))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"standbys": -1}, "standbys is -1; allowed is 0 or more"),
        ({"standbys": 1, "headroom": math.nan}, "headroom is nan"),
        ({"standbys": 1, "hold_s": -1.0}, "hold_s is -1.0"),
        ({"standbys": 1, "look_back_s": 0.0}, "look_back_s is 0.0; allowed is above 0"),
    ],
)
def test_what_is_no_setting_is_refused(fields: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Burst(**fields)  # type: ignore[arg-type]

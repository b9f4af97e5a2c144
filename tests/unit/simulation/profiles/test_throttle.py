"""The CFS limit played through, against hand-worked cases and an independent step-by-step play."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.profiles.measure.throttle import (
    Limit,
    bucket_stream_s,
    burst_s,
    busy_call_s,
    idle_call_s,
    idle_table,
    limit_of,
    mean_idle_s,
    stream_s,
)
from tests.parameters import examples

TICK_S = 0.004
shares = st.floats(0.02, 0.98)
works = st.floats(1e-4, 0.05)


def slow_simulation(work_s: float, limit: Limit, refill_s: float, tick_s: float) -> float:
    """The same rules in steps of 10 µs: an oracle that shares no code with the event-driven play."""
    step_s, budget, done_s, running, count = 1e-5, limit.quota_s, 0.0, True, 0
    while done_s < work_s - 1e-9:
        count += 1
        if running:
            done_s += step_s
            budget -= step_s
        now_s = count * step_s
        if running and (now_s - tick_s) % limit.tick_s < step_s * 0.999 and now_s >= tick_s - 1e-9 and budget <= 1e-9:
            running = False
        if now_s >= refill_s - 1e-9:
            budget = min(limit.quota_s, budget + limit.quota_s)
            refill_s += limit.period_s
            running = running or budget > 0
    return count * step_s


def test_a_limit_is_set_as_the_process_backend_sets_it() -> None:
    assert limit_of(0.25, TICK_S) == Limit(0.0025, 0.01, TICK_S)
    small = limit_of(0.03, TICK_S)
    assert small.quota_s == 0.001
    assert small.period_s == pytest.approx(0.0333, abs=1e-4)


def test_a_call_within_the_quota_is_not_slowed_down() -> None:
    assert idle_call_s(0.001, limit_of(0.25, TICK_S)) == pytest.approx(0.001)


def test_a_full_core_limits_nothing() -> None:
    assert mean_idle_s(0.7, limit_of(1.0, TICK_S)) == 0.7
    assert busy_call_s(0.02, limit_of(1.5, TICK_S)) == pytest.approx(0.02)


@pytest.mark.parametrize("work_s", [0.002, 0.0045, 0.012])
def test_idle_calls_take_what_a_slow_simulation_of_the_same_rules_gives(work_s: float) -> None:
    limit = limit_of(0.12, TICK_S)
    phases = (np.arange(12) + 0.5) / 12
    slow = [slow_simulation(work_s, limit, p * limit.period_s, t * limit.tick_s) for p in phases for t in phases]
    assert mean_idle_s(work_s, limit) == pytest.approx(float(np.mean(slow)), rel=0.03)


@given(share=shares, work_s=works)
@settings(max_examples=examples(40), deadline=None)
def test_calls_one_after_the_other_get_exactly_the_share(share: float, work_s: float) -> None:
    limit = limit_of(share, TICK_S)
    calls = max(60, int(60 * (limit.quota_s + TICK_S) / work_s))
    mean_s = float(busy_call_s(work_s, limit, min(calls, 3000)).mean())
    assert mean_s == pytest.approx(work_s / limit.share, rel=0.12)


@given(share=shares, work_s=works)
@settings(max_examples=examples(60), deadline=None)
def test_an_idle_replica_is_never_slower_than_its_share_nor_faster_than_a_core(share: float, work_s: float) -> None:
    limit = limit_of(share, TICK_S)
    seconds = idle_call_s(work_s, limit)
    assert (seconds >= work_s - 1e-9).all()
    assert seconds.mean() <= work_s / limit.share + limit.period_s


@given(share=shares, work_s=works, more=st.floats(1.0, 3.0))
@settings(max_examples=examples(60), deadline=None)
def test_more_work_never_takes_less_time(share: float, work_s: float, more: float) -> None:
    limit = limit_of(share, TICK_S)
    assert (idle_call_s(work_s * more, limit) >= idle_call_s(work_s, limit) - 1e-9).all()


@pytest.mark.slow
@given(
    works=st.lists(st.floats(1e-5, 3.0), min_size=2, max_size=6),
    shares=st.lists(st.floats(0.005, 2.0), min_size=2, max_size=6),
)
@settings(max_examples=examples(60), deadline=None)
def test_the_table_rises_with_work_and_falls_with_share(works: list[float], shares: list[float]) -> None:
    seconds = idle_table(TICK_S).seconds(np.sort(works)[:, None], np.sort(shares)[None, :])
    assert (np.diff(seconds, axis=0) >= -1e-12).all()
    assert (np.diff(seconds, axis=1) <= 1e-12).all()


@pytest.mark.parametrize("share", [0.06, 0.12, 0.3, 0.7])
def test_the_table_is_near_to_what_it_tabulates(share: float) -> None:
    work_s = np.array([0.0007, 0.003, 0.011, 0.06])
    simulated = [mean_idle_s(float(work), limit_of(share, TICK_S)) for work in work_s]
    assert idle_table(TICK_S).seconds(work_s, share) == pytest.approx(simulated, rel=0.2)


@pytest.mark.parametrize("share", [0.06, 0.25, 0.6])
def test_long_calls_take_as_long_on_the_bucket_as_under_the_limit(share: float) -> None:
    limit = limit_of(share, TICK_S)
    on_bucket = max(0.2, (0.2 - burst_s(limit)) / limit.share)
    assert on_bucket == pytest.approx(float(idle_call_s(0.2, limit).mean()), rel=0.05)


def test_a_debt_waits_for_the_next_call_however_long_the_replica_is_idle() -> None:
    """The first of two calls of 2 ms overruns its quota of 1 ms; a second later the second begins with nothing left and
    waits 2.7 ms until the period ends at 1.0037 s."""
    limit = Limit(quota_s=0.001, period_s=0.01, tick_s=10.0)
    assert stream_s(0.002, limit, [0.0, 1.001]) == pytest.approx((0.002 + 0.0027 + 0.002) / 2)


@pytest.mark.parametrize("share", [0.012, 0.06, 0.25, 0.6])
@pytest.mark.parametrize(("quotas", "load"), [(1.0, 0.4), (1.0, 0.8), (1.5, 0.6), (2.5, 0.5)])
def test_a_stream_takes_as_long_on_the_bucket_as_under_the_limit(share: float, quotas: float, load: float) -> None:
    limit = limit_of(share, TICK_S)
    work_s = quotas * limit.quota_s
    arrival_s = np.cumsum(np.random.default_rng(3).exponential(work_s / limit.share / load, 4000)).tolist()
    on_bucket_s = bucket_stream_s(work_s, limit.share, burst_s(limit), arrival_s)
    assert on_bucket_s == pytest.approx(stream_s(work_s, limit, arrival_s), rel=0.15)

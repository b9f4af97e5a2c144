"""The fitted model keeps the protocol's promises, and refuses what it was not measured for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.latency.contract import LatencyModel, NodeCost
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.profiled import FittedLatencyModel, fitted_model, lifecycle
from tests.parameters import examples
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK, Truth

LAW = Truth()
COST = NodeCost("expert", 1000.0, 0.0, 0.0, 4000.0, 4000.0, 100.0, 100.0)
OTHER = replace(COST, weights_bytes=8000.0)


@pytest.fixture(scope="module")
def model() -> FittedLatencyModel:
    return fitted_model(truth.profile(truth.rows(LAW)), {"expert-0-0": COST, "expert-0-1": COST})


def test_is_a_latency_model(model: FittedLatencyModel) -> None:
    as_protocol: LatencyModel = model
    assert "Made CPU" in as_protocol.name


def test_an_unlimited_call_takes_its_work_and_the_rest(model: FittedLatencyModel) -> None:
    expected = LAW.work_s(32) + LAW.apart_s
    assert float(model.seconds(COST, 32, 1.0, 0.0)) == pytest.approx(expected, rel=0.03)
    assert float(model.work_seconds(COST, 32)) == pytest.approx(expected, rel=1e-6)


def test_a_short_call_to_an_idle_limited_replica_is_not_slowed_down(model: FittedLatencyModel) -> None:
    assert float(model.seconds(COST, 1, 0.12, 0.0)) == pytest.approx(float(model.work_seconds(COST, 1)), rel=0.05)


def test_a_long_call_to_a_limited_replica_takes_its_work_over_the_share(model: FittedLatencyModel) -> None:
    seconds = float(model.seconds(COST, 50_000, 0.25, 0.0))
    assert seconds == pytest.approx(LAW.work_s(50_000) / 0.25, rel=0.05)


@given(
    tokens=st.lists(st.floats(0, 3000), min_size=2, max_size=6),
    cores=st.lists(st.floats(0.01, 8), min_size=2, max_size=6),
    calls=st.lists(st.integers(1, 16), min_size=1, max_size=6),
)
@settings(max_examples=examples(40), deadline=None)
def test_keeps_the_promises_of_the_protocol(
    model: FittedLatencyModel, tokens: list[float], cores: list[float], calls: list[int]
) -> None:
    t, c = np.sort(tokens)[:, None], np.sort(cores)[None, :]
    seconds = model.seconds(COST, t, c, 0.0)
    assert (seconds > 0).all()
    assert (np.diff(seconds, axis=0) >= -1e-12).all()
    assert (np.diff(seconds, axis=1) <= 1e-12).all()
    m = np.array(calls, dtype=float)[:, None, None]
    speedup = model.speedup(COST, t, c, 0.0, m)
    assert (speedup > 0).all()
    assert (speedup <= m).all()
    assert (model.speedup(COST, t, c, 0.0, 1) == 1).all()
    used = model.utilisation(COST, t, c, 0.0)
    assert ((used >= 0) & (used <= 1)).all()


def test_calls_at_once_at_a_full_core_share_it_as_batches_do(model: FittedLatencyModel) -> None:
    alone_s = LAW.work_s(32) + LAW.apart_s
    expected = 4 * alone_s / LAW.together_s(32, 4)
    assert float(model.speedup(COST, 32, 1.0, 0.0, 4)) == pytest.approx(expected, rel=0.05)


def test_the_bucket_of_a_limited_replica_refills_at_its_share(model: FittedLatencyModel) -> None:
    bucket = model.throttle(COST, np.array([0.12, 0.5, 2.0]), 0.0)
    assert bucket.refill == pytest.approx([0.12, 0.5, 1.0])
    assert 0.001 < bucket.burst_s[0] < 0.005
    assert bucket.burst_s[2] == 0.0


@pytest.mark.slow
def test_limits_have_the_period_that_those_of_the_profile_had(model: FittedLatencyModel) -> None:
    """In 200 ms a call of 1 ms fits into 0.06 cores, in 17 it does not."""
    longer = fitted_model(truth.profile(truth.rows(LAW, period_s=0.2)), {"expert-0-0": COST})
    assert longer.throttle(COST, np.array([0.012, 0.12]), 0.0).quota_s == pytest.approx([0.0024, 0.024])
    assert model.throttle(COST, np.array([0.012, 0.12]), 0.0).quota_s == pytest.approx([0.001, 0.0012])
    whole_s = LAW.work_s(32) + LAW.apart_s
    assert float(longer.seconds(COST, 32, 0.06, 0.0)) == pytest.approx(whole_s, rel=0.05)
    assert float(longer.seconds(COST, 512, 0.012, 0.0)) > 2 * (LAW.work_s(512) + LAW.apart_s)


def test_configured_cores_are_scaled_to_real_ones() -> None:
    profile = truth.profile(truth.rows(LAW))
    scaled = fitted_model(profile, {"expert-0-0": COST}, cpu_scale=0.25)
    plain = fitted_model(profile, {"expert-0-0": COST})
    assert scaled.seconds(COST, 512, 2.0, 0.0) == pytest.approx(plain.seconds(COST, 512, 0.5, 0.0))


def test_says_where_it_was_measured(model: FittedLatencyModel) -> None:
    assert bool(model.measured(COST, 100, 0.5, 0.0))
    assert not bool(model.measured(COST, 1000, 0.5, 0.0))
    assert not bool(model.measured(COST, 100, 4.0, 0.0))


def test_scatter_has_mean_one(model: FittedLatencyModel) -> None:
    grid = model.noise(COST, gpu=False).factors
    assert (grid[:-1] + grid[1:]).mean() / 2 == pytest.approx(1, abs=1e-3)


def test_a_gpu_share_is_refused(model: FittedLatencyModel) -> None:
    with pytest.raises(ProfileError, match="without a GPU"):
        model.seconds(COST, 1, 0.0, 0.5)


def test_a_node_of_another_pipeline_is_refused(model: FittedLatencyModel) -> None:
    with pytest.raises(ProfileMismatchError, match="no node like this expert of 1000 FLOPs"):
        model.seconds(OTHER, 1, 1.0, 0.0)


def test_a_node_that_was_not_measured_is_refused() -> None:
    with pytest.raises(ProfileError, match="no node 'segment-0'"):
        fitted_model(truth.profile(truth.rows(LAW)), {"segment-0": COST})


def test_times_of_change_are_medians() -> None:
    kinds = ("cold_start", "drain", "cpu_up", "cpu_down", "memory_up", "memory_down")
    rows = [replace(BLANK, family=kind, tokens=0, p50_s=0.01 * place) for place, kind in enumerate(kinds, start=1)]
    cycle = lifecycle(truth.profile(rows))
    assert (cycle.cold_start_s, cycle.drain_s) == (0.01, 0.02)
    assert cycle.resize_s == pytest.approx(0.045)
    assert cycle.cold_s(10**9, gpu=False) == 0.01


def test_times_of_change_that_were_not_measured_are_refused() -> None:
    with pytest.raises(ProfileError, match="no rows of cold_start"):
        lifecycle(truth.profile(truth.rows(LAW)))

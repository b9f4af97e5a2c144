"""A profile beyond its machine: cores stay what was measured, GPU shares are measured or modelled, and told apart."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import Configuration
from autoscaler.prices import load_prices
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import LimitedLatencyModel, NodeCost
from simulation.latency.devices import RTX_3090
from simulation.latency.roofline import Roofline
from simulation.profiles.fit.rows import Row
from simulation.profiles.model.bundled import find
from simulation.profiles.model.cluster import ClusterLatencyModel, cluster_model
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.pipeline import clustered_workload
from simulation.profiles.model.profiled import FittedLatencyModel, fitted_model
from simulation.workloads.paper import LIFECYCLE, PAPER_PRICES
from simulation.workloads.workload import TokenLengths, Workload
from tests.parameters import examples
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK, Truth

LAW = Truth()
COST = NodeCost("expert", 4.0 * 768 * 3072, 0.0, 0.0, 19e6, 19e6, 3072.0, 3072.0)
COSTS = {"expert-0-0": COST}
GPU_SHARES, GPU_TOKENS, CALLS = (0.2, 0.5, 1.0), (8, 128), (1, 8)


def gpu_seconds(tokens: int, share: float, calls: int = 1) -> float:
    """A made GPU: 0.4 ms, and 4 µs a token over the share; a batch of m takes as long as 1 + (m - 1) / 4 calls."""
    return 0.0004 + 4e-6 * tokens / share * (1 + (calls - 1) / 4)


def gpu_row(family: str, tokens: int, share: float, calls: int = 1) -> Row:
    mean_s = gpu_seconds(tokens, share, calls)
    return replace(
        BLANK, family=family, tokens=tokens, cpu_cores=0.0, share=0.0, gpu_share=share, concurrency=calls,
        mean_s=mean_s, p50_s=mean_s, quantiles_s=(0.9 * mean_s, mean_s, 1.1 * mean_s),
    )  # fmt: skip


def gpu_rows() -> list[Row]:
    points = list(product(GPU_TOKENS, GPU_SHARES))
    return [
        *(gpu_row("gpu_alone", tokens, share) for tokens, share in points),
        *(gpu_row("gpu_busy", tokens, share, calls) for (tokens, share), calls in product(points, CALLS)),
    ]


@pytest.fixture(scope="module")
def cores() -> FittedLatencyModel:
    return fitted_model(truth.profile(truth.rows(LAW)), COSTS)


@pytest.fixture(scope="module")
def modelled() -> ClusterLatencyModel:
    return cluster_model(truth.profile(truth.rows(LAW)), COSTS)


@pytest.fixture(scope="module")
def measured() -> ClusterLatencyModel:
    return cluster_model(truth.profile([*truth.rows(LAW), *gpu_rows()]), COSTS)


def test_cores_are_what_the_profile_says(modelled: ClusterLatencyModel, cores: FittedLatencyModel) -> None:
    protocol: LimitedLatencyModel = modelled
    tokens, shares, calls = np.array([1, 32, 600])[:, None], np.array([0.06, 0.4, 3.0]), np.array([1, 4, 9])
    assert (protocol.seconds(COST, tokens, shares, 0.0) == cores.seconds(COST, tokens, shares, 0.0)).all()
    assert (protocol.work_seconds(COST, tokens) == cores.work_seconds(COST, tokens)).all()
    assert (protocol.core_use(COST, tokens, calls) == cores.core_use(COST, tokens, calls)).all()
    for one in ("speedup", "core_speedup"):
        given_ = (COST, tokens, shares, 0.0, calls)
        assert (getattr(protocol, one)(*given_) == getattr(cores, one)(*given_)).all()
    mine, theirs = protocol.throttle(COST, shares, 0.0), cores.throttle(COST, shares, 0.0)
    assert (mine.burst_s == theirs.burst_s).all() and (mine.refill == theirs.refill).all()
    assert (protocol.measured(COST, tokens, shares, 0.0) == cores.measured(COST, tokens, shares, 0.0)).all()
    assert (protocol.noise(COST, gpu=False).factors == cores.noise(COST, gpu=False).factors).all()


def test_a_modelled_share_takes_the_measured_host_and_the_devices_roofline(modelled: ClusterLatencyModel) -> None:
    moved, host_s = 128 * 6144.0, LAW.apart_s + LAW.work_s(1)
    product_s = max(
        128 * COST.flops_per_token / (0.5 * 35.6e12 * RTX_3090.compute_efficiency),
        (19e6 + moved) / (0.5 * 936e9 * RTX_3090.memory_efficiency),
    )
    by_hand = host_s + RTX_3090.launch_s + moved / 31.5e9 + product_s
    assert float(modelled.seconds(COST, 128, 0.0, 0.5)) == pytest.approx(by_hand, rel=0.01)
    assert float(modelled.work_seconds(COST, 128, 0.5)) == float(modelled.seconds(COST, 128, 0.0, 0.5))
    assert not modelled.measured(COST, [1, 128], 0.0, 0.5).any()
    assert "modelled (roofline): NVIDIA GeForce RTX 3090" in modelled.name


def test_no_limit_of_cores_stops_a_share(modelled: ClusterLatencyModel) -> None:
    limit = modelled.throttle(COST, [0.0, 0.5], [0.5, 0.0])
    assert limit.refill.tolist() == [1.0, 0.5] and limit.burst_s[0] == 0.0 < limit.burst_s[1]


def test_measured_shares_are_reported_as_they_were_measured(measured: ClusterLatencyModel) -> None:
    for tokens, share in product(GPU_TOKENS, GPU_SHARES):
        assert float(measured.seconds(COST, tokens, 0.0, share)) == pytest.approx(gpu_seconds(tokens, share), rel=1e-6)
        together = 8 * gpu_seconds(tokens, share) / gpu_seconds(tokens, share, 8)
        assert float(measured.speedup(COST, tokens, 0.0, share, 8)) == pytest.approx(together, rel=1e-6)
    inside = measured.measured(COST, [1, 8, 128, 200], 0.0, 0.5)
    assert inside.tolist() == [False, True, True, False]
    assert measured.measured(COST, 8, 0.0, [0.1, 0.2, 1.0]).tolist() == [False, True, True]
    assert measured.name.endswith("GPU shares measured on a GPU")
    assert measured.noise(COST, gpu=True).factors.max() == pytest.approx(1.1, abs=0.01)


def test_beyond_what_was_measured_a_share_has_the_rooflines_shape(measured: ClusterLatencyModel) -> None:
    plain = Roofline(host_s=fitted_model(truth.profile(truth.rows(LAW)), COSTS).host_seconds)
    for tokens, share, near in ((512, 0.5, (128, 0.5)), (128, 0.1, (128, 0.2))):
        grown = float(measured.seconds(COST, tokens, 0.0, share)) / gpu_seconds(*near)
        expected = float(plain.seconds(COST, tokens, 0.0, share)) / float(plain.seconds(COST, near[0], 0.0, near[1]))
        assert grown == pytest.approx(expected, rel=1e-6) and grown > 1


def test_shares_measured_alone_but_never_in_flight_are_refused() -> None:
    rows = [row for row in gpu_rows() if row.family == "gpu_alone"]
    with pytest.raises(ProfileError, match="none always in flight"):
        cluster_model(truth.profile([*truth.rows(LAW), *rows]), COSTS)


@pytest.mark.parametrize("which", ["modelled", "measured"])
@given(
    tokens=st.lists(st.integers(0, 2000), min_size=2, max_size=5),
    shares=st.lists(st.floats(0.05, 1), min_size=2, max_size=5),
    calls=st.lists(st.integers(1, 16), min_size=1, max_size=5),
)
@settings(max_examples=examples(40))
def test_keeps_the_promises_of_the_protocol(
    request: pytest.FixtureRequest, which: str, tokens: list[int], shares: list[float], calls: list[int]
) -> None:
    model: ClusterLatencyModel = request.getfixturevalue(which)
    t, s = np.sort(tokens)[:, None], np.sort(shares)[None, :]
    seconds = model.seconds(COST, t, 0.0, s)
    assert (seconds > 0).all()
    assert (np.diff(seconds, axis=0) >= -1e-12).all() and (np.diff(seconds, axis=1) <= 1e-12).all()
    m = np.array(calls)
    for speedup in (model.speedup, model.core_speedup):
        speeds = speedup(COST, 32, 0.0, 0.3, m)
        assert (speeds > 0).all() and (speeds <= m + 1e-9).all() and (speeds[m == 1] == 1).all()
    use = model.utilisation(COST, t, 0.0, s)
    assert ((use >= 0) & (use <= 1)).all()


def test_each_element_goes_by_its_own_resource(modelled: ClusterLatencyModel) -> None:
    cores, share = np.array([0.3, 0.0, 2.0]), np.array([0.0, 0.4, 0.0])
    together = modelled.seconds(COST, 64, cores, share)
    assert together.tolist() == [float(modelled.seconds(COST, 64, c, s)) for c, s in zip(cores, share, strict=True)]


@pytest.fixture(scope="module")
def clustered(minilm_pipeline: Path) -> Workload:
    return clustered_workload(
        minilm_pipeline, find(minilm_pipeline, None), TokenLengths.fixed(64), slo_s=0.1, changes=LIFECYCLE,
        prices=load_prices(PAPER_PRICES), cpu_scale=1.0,
    )  # fmt: skip


def test_a_pipeline_on_the_cluster_is_simulated_with_cores_and_with_shares(clustered: Workload) -> None:
    arrivals = np.arange(400) / 40.0
    requests = draw_requests(clustered, arrivals, seed=0, source="made")
    medians = []
    for cores, share in ((0.03, 0.0), (1.0, 0.0), (0.0, 0.5)):
        expert = Configuration(512, cores, share, 1, 8)
        simulation = Simulation(clustered, requests, clustered.initial(expert), seed=0)
        medians.append(float(np.median(simulation.advance(60.0).latency_s)))
    assert medians[0] > medians[1] > medians[2] > 0
    assert clustered.host is None and clustered.hop_s > 0 and clustered.prices.name != load_prices().name

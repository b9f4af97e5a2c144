"""The controller's contracts on the simulator: observations against the windows they are made of, and the real loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from autoscaler.contract import Configuration, Observation, Proposal
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import PlatformError
from autoscaler.prices import total_cost
from autoscaler.state.quantiles import histogram_quantile
from simulation.engine import kernel
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.metrics import SimulatedMetrics, buckets_of, quantiles_of
from simulation.engine.requests import draw_requests
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import BOUNDS, Simulation, Window
from simulation.latency.contract import NodeCost, Noise, Throttle
from simulation.workloads.workload import Host
from tests.unit.simulation.engine.builders import (
    EXPERT,
    Arithmetic,
    Limited,
    configuration,
    initial,
    one_expert,
    poisson,
    workload,
)

EPOCH_S = 1_700_000_000.0
GPU = configuration(2, cpu_cores=0.0, gpu_share=0.2)
HOST = Host(4.0, 0.01, 0.002, 0.003, 0.04, 0.0001)


class Halved(Limited):
    """A configured core is half a real one."""

    def throttle(self, node: NodeCost, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Throttle:
        return super().throttle(node, 0.5 * np.asarray(cpu_cores), gpu_share)


def simulation(rate: float = 40.0, count: int = 2000, expert: Configuration | None = None) -> Simulation:
    small_workload = workload((3, 2), Arithmetic(power=0.3, scatter=Noise.lognormal(0.3)))
    return Simulation(
        small_workload, draw_requests(small_workload, poisson(rate, count), seed=2), initial(small_workload, expert)
    )


def observed(subject: Simulation, moments: list[float], look_back_s: float) -> tuple[Observation, list[Window]]:
    metrics, windows = SimulatedMetrics(subject, EPOCH_S), []
    for moment in moments:
        windows.append(subject.advance(moment))
        metrics.add(windows[-1])
    return metrics.observe(EPOCH_S + moments[-1], look_back_s), windows


@pytest.mark.parametrize("expert", [configuration(2), GPU])
def test_an_observation_says_what_happened_in_its_window(expert: Configuration) -> None:
    subject = simulation(expert=expert)
    observation, windows = observed(subject, [10.0, 20.0], 10.0)
    window, node = windows[1], observation.node("expert-1-0")
    assert node is not None and not observation.stale and observation.problems == ()
    row = window.meter[subject.index["m-expert-1-0"]]
    assert observation.start_s == EPOCH_S + 10 and observation.end_s == EPOCH_S + 20
    assert observation.requests == window.finished.size and observation.in_flight == window.in_flight
    assert node.configuration == expert and node.ready_replicas == 2
    assert node.requests_per_s == pytest.approx(row[kernel.CALLS] / 10)
    assert node.tokens_per_s == pytest.approx(row[kernel.TOKENS] / 10)
    assert node.in_flight == pytest.approx(row[kernel.SERVED_S] / 10)
    assert node.busy_replica_s == pytest.approx(row[kernel.BUSY_S])
    assert node.concurrency_utilisation == pytest.approx(row[kernel.SERVED_S] / 10 / 8)
    assert node.peak_tokens == max(row[kernel.PEAK], windows[0].meter[subject.index["m-expert-1-0"], kernel.PEAK])
    assert node.gpu_utilisation is None
    if not expert.gpu_share:
        assert node.cpu_utilisation == pytest.approx(0.5 * row[kernel.BUSY_S] / 20)
    assert 0 < (node.memory_utilisation or 0) < 1


@pytest.mark.parametrize("host", [None, HOST])
def test_cores_in_use_are_of_the_real_cores_that_a_configured_one_is(host: Host | None) -> None:
    found, requests = one_expert([0.0, 0.5, 1.0], [10, 10, 10], Halved(base_s=0.1, token_s=0.0), host=host)
    subject = Simulation(found, requests, initial(found, configuration(cpu_cores=0.6)))
    observation, windows = observed(subject, [4.0, 8.0], 8.0)
    spent_s = sum(window.meter[subject.index[EXPERT], kernel.CPU_S] for window in windows)
    node = observation.node("expert-0-0")
    assert node is not None and spent_s > 0
    assert node.cpu_utilisation == pytest.approx(spent_s / (8 * 0.6 * 0.5))


def test_shares_and_entropy_are_those_of_the_real_state_code() -> None:
    observation, windows = observed(simulation(), [10.0], 10.0)
    tokens = windows[0].meter[3:6, kernel.TOKENS]
    shares = [node.token_share for node in observation.nodes if node.layer == 0 and node.kind == "expert"]
    assert shares == pytest.approx((tokens / tokens.sum()).tolist())
    assert observation.layers[0].token_routing_entropy == pytest.approx(
        -sum(p * math.log(p) for p in tokens / tokens.sum())
    )
    assert observation.layers[1].barrier_p95_s is not None


def test_the_observed_p95_is_the_exact_one_as_its_buckets_show_it() -> None:
    observation, windows = observed(simulation(), [40.0], 40.0)
    exact = windows[0].quantile_s(0.95)
    assert exact is not None and observation.latency_p95_s is not None
    assert exact / 1.3 <= observation.latency_p95_s <= exact * 1.3
    assert windows[0].request_histogram.sum() == windows[0].finished.size


def test_looking_back_over_several_windows_adds_them_up() -> None:
    observation, windows = observed(simulation(), [5.0, 10.0, 15.0, 20.0], 10.0)
    assert observation.requests == sum(window.finished.size for window in windows[2:])
    assert observation.window_s == pytest.approx(10.0)


def test_nothing_simulated_is_no_data_and_not_zero() -> None:
    subject = simulation()
    observation = SimulatedMetrics(subject, EPOCH_S).observe(EPOCH_S + 60, 10.0)
    assert observation.stale and observation.requests is None and observation.nodes[1].requests_per_s is None
    assert "nothing was simulated in the 10 s" in observation.problems[0]


def test_a_broken_change_is_a_platform_error_and_so_is_one_that_cannot_be_simulated() -> None:
    subject = simulation()
    platform = SimulatedPlatform(subject)
    with pytest.raises(PlatformError, match="cannot be simulated"):
        platform.apply("m-expert-0-0", configuration(), configuration(concurrency=0))
    assert platform.configurations() == subject.workload.initial(configuration())


class Doubling:
    """Wishes twice the replicas of one expert at every tick, up to eight."""

    name = "doubling"

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        node = observation.node("expert-0-0")
        assert node is not None and node.configuration is not None
        desired = node.configuration.with_replicas(min(8, 2 * node.configuration.replicas))
        return Proposal({node.function: desired}, {node.function: "test"}, memory)


def run() -> list[Step]:
    return simulate_policy(simulation(), Doubling(), LimitSettings(), window_s=5.0, until_s=30.0, epoch_s=EPOCH_S)


def test_the_real_loop_scales_the_simulated_pipeline() -> None:
    steps = run()
    node = 3
    assert [step.window.end_s for step in steps] == [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]
    assert [list(step.report.applied) for step in steps] == [["m-expert-0-0"]] * 3 + [[]] * 3
    assert [int(step.window.replicas["ready"][node]) for step in steps] == [1, 2, 4, 8, 8, 8]
    assert all(step.report.failures == {} and step.report.observation.problems == () for step in steps)


def test_the_same_episode_twice_is_the_same_to_the_last_bit() -> None:
    for one, other in zip(run(), run(), strict=True):
        assert one.report.observation == other.report.observation
        assert one.window.latency_s.tobytes() == other.window.latency_s.tobytes()


def test_cost_meters_are_those_of_the_price_sheet() -> None:
    steps = run()
    sheet = simulation().workload.prices
    unit = sheet.unit_per_s(configuration())
    by_node = total_cost(steps[0].report.observation, sheet)[1]
    busy_s = steps[0].window.meter[3, kernel.BUSY_S]
    assert by_node["expert-0-0"].busy == pytest.approx(busy_s * unit)
    assert by_node["expert-0-0"].provisioned == pytest.approx(5.0 * unit)
    assert steps[0].report.cost.provisioned == pytest.approx(sum(c.provisioned or np.nan for c in by_node.values()))


@given(seed=st.integers(0, 100_000), q=st.floats(0.001, 1.0))
def test_quantiles_of_all_nodes_at_once_are_those_of_each_histogram(seed: int, q: float) -> None:
    generator = np.random.default_rng(seed)
    counts = generator.integers(0, 5, (6, len(BOUNDS))) * (generator.random((6, len(BOUNDS))) < 0.2)
    counts[0], counts[1, :-1], counts[1, -1] = 0, 0, 3
    each = [histogram_quantile(q, buckets) for buckets in buckets_of(counts)]
    assert quantiles_of(q, counts) == [None if one is None else pytest.approx(one, rel=1e-14) for one in each]

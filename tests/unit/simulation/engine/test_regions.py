"""Measured and modelled calls are told apart, by a model that was measured up to some tokens on one core only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from autoscaler.decision.limits import LimitSettings
from autoscaler.policy.static import StaticPolicy
from simulation.arrays import Bools
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.regions import measured_part, measured_part_of
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import NodeCost
from simulation.latency.roofline import Roofline
from simulation.workloads.workload import Workload
from tests.unit.simulation.engine.builders import Arithmetic, configuration, workload


@dataclass(frozen=True, eq=False)
class MeasuredTo(Arithmetic):
    """Measured to ``most`` tokens, on one core."""

    most: int = 10

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        return np.asarray((np.asarray(tokens) <= self.most) & (np.asarray(cpu_cores) == 1))


def simulated(found: Workload, requests: Requests, cores: float) -> list[Step]:
    simulation = Simulation(found, requests, found.initial(configuration(2, cpu_cores=cores)), seed=1)
    return simulate_policy(simulation, StaticPolicy(), LimitSettings(), window_s=2.0, until_s=8.0)


def test_calls_within_the_measured_tokens_are_counted_call_by_call() -> None:
    """Four requests of 4, 8, 12 and 30 tokens in the windows that are counted; the first two windows are not."""
    small_workload = workload((3, 2), MeasuredTo(), segment_configuration=configuration(2, concurrency=8))
    requests = draw_requests(small_workload, [0.5, 1.5, 4.5, 5.0, 6.5, 7.5], seed=3, tokens=[4, 4, 4, 8, 12, 30])
    steps = simulated(small_workload, requests, 1.0)[2:]
    own = requests.counts[:, 2:]
    counted = np.concatenate([np.repeat(own[0], 3), own[1:].ravel()])  # three segments see every token
    expected = (counted[counted > 0] <= 10).mean()
    assert 0 < expected < 1
    assert measured_part(small_workload, requests, steps) == expected


def test_a_deployment_that_nothing_changes_has_the_part_that_playing_it_has() -> None:
    small_workload = workload((3, 2), MeasuredTo(), segment_configuration=configuration(2, concurrency=8))
    requests = draw_requests(small_workload, [0.5, 1.5, 4.5, 5.0, 6.5, 7.5], seed=3, tokens=[4, 4, 4, 8, 12, 30])
    deployment = {node.function: configuration(2, cpu_cores=1.0) for node in small_workload.experts}
    steps = simulated(small_workload, requests, 1.0)
    for first, start_s in ((0, 0.0), (2, 4.0)):
        part = measured_part_of(small_workload, requests, deployment, start_s)
        assert part == measured_part(small_workload, requests, steps[first:]) and 0 < part < 1
    other = {function: configuration(2, cpu_cores=2.0) for function in deployment}
    assert measured_part_of(small_workload, requests, other) == measured_part(
        small_workload, requests, simulated(small_workload, requests, 2.0)
    )
    assert measured_part_of(small_workload, requests, deployment, 9.0) is None


def test_resources_outside_the_measured_ones_do_not_count() -> None:
    small_workload = workload((3, 2), MeasuredTo(most=1000), segment_configuration=configuration(2, concurrency=8))
    requests = draw_requests(small_workload, [0.5, 3.5, 5.0], seed=3)
    calls = 3 * 3 + int((requests.counts[1:] > 0).sum())
    assert measured_part(small_workload, requests, simulated(small_workload, requests, 1.0)) == 1
    assert measured_part(small_workload, requests, simulated(small_workload, requests, 2.0)) == 9 / calls


def test_a_modelled_cluster_has_nothing_measured_and_no_call_no_part() -> None:
    small_workload = workload((3, 2), Roofline())
    requests = draw_requests(small_workload, [0.5, 3.5], seed=3)
    steps = simulated(small_workload, requests, 1.0)
    assert measured_part(small_workload, requests, steps) == 0
    assert measured_part(small_workload, requests, steps[2:]) is None

"""Every policy is a function of observation, time and memory alone, on windows of the simulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoscaler.contract import Observation, Policy, Proposal
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import limits_of, policy_of
from simulation.engine.controlled import simulate_policy
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import configuration, poisson

POLICIES = (
    "static",
    "hpa",
    "openfaas",
    "vpa",
    "kpa",
    "keda",
    "apa",
    "slo-aware",
    "elasticmoe",
    "janus",
    "last-window",
    "faasconf",
    "smoe",
)
GROUP = Group("bert-4", "bursty", 0, 1)


class Thrice:
    """Asks a policy twice with the same memory, and a new one of the same making once; notes where they differ."""

    def __init__(self, make: Callable[[], Policy]) -> None:
        self._make = make
        self._policy = make()
        self.name = self._policy.name
        self.asked = 0
        self.differences: list[tuple[Proposal, Proposal]] = []

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        first = self._policy.propose(observation, now_s, memory)
        for other in (self._policy, self._make()):
            again = other.propose(observation, now_s, memory)
            if (again.desired, again.reasons) != (first.desired, first.reasons):
                self.differences.append((first, again))
        self.asked += 1
        return first


def made(name: str) -> Policy:
    grid = Grid(("bert-4",), ("bursty",), (0,), (name,), (1,), window_s=5.0, seconds=60.0)
    return policy_of(name, paper_workload("bert-4"), grid, GROUP)


@pytest.mark.parametrize("name", some_fast(POLICIES, 4))
def test_the_same_window_and_memory_give_the_same_proposals_whoever_is_asked(name: str) -> None:
    workload = paper_workload("bert-4")
    requests = draw_requests(workload, poisson(10.0, 250), seed=1)
    start = workload.initial(configuration(1, memory_mb=1024, cpu_cores=4.0))
    policy = Thrice(lambda: made(name))
    simulate_policy(Simulation(workload, requests, start), policy, limits_of(workload), window_s=5.0, until_s=25.0)
    assert policy.asked == 5
    assert policy.differences == []


def test_a_policy_that_remembers_by_itself_would_be_noticed() -> None:
    class Counting:
        name = "counting"

        def __init__(self) -> None:
            self.calls = 0

        def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
            self.calls += 1
            return Proposal({}, {"f": str(self.calls)}, memory)

    workload = paper_workload("bert-4")
    requests = draw_requests(workload, poisson(10.0, 60), seed=1)
    policy = Thrice(Counting)
    start = workload.initial(configuration(1, memory_mb=1024, cpu_cores=4.0))
    simulate_policy(Simulation(workload, requests, start), policy, limits_of(workload), window_s=5.0, until_s=5.0)
    assert len(policy.differences) == 1

"""Replicas on machines: costs worked out by hand, rules against brute force, and an event-driven model of it all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import Configuration
from simulation.engine.errors import SimulationError
from simulation.engine.machines import Machines
from simulation.engine.replicas import COUNT, SITE
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from simulation.workloads.workload import Host
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import Arithmetic, Order, configuration, initial, poisson, simulate, workload
from tests.unit.simulation.engine.machines_oracle import MachineModel

SPAN_S, WINDOW_S = 8.0, 1.0
BYTES = 2 * 4096.0
"""A token's, both ways."""


def simulated(
    machines: Machines | None, arrivals: Sequence[float], expert: Configuration | None = None, experts: Any = (2,)
) -> tuple[np.ndarray, Simulation]:
    small_workload = workload(experts, Arithmetic(power=0.5))
    requests = draw_requests(small_workload, arrivals, seed=3)
    simulation = Simulation(small_workload, requests, initial(small_workload, expert), seed=3, machines=machines)
    latency, _ = simulate(simulation, [1000.0])
    return latency, simulation


def everything_on(machine: int, count: int = 2, experts: Any = (2,)) -> dict[str, list[int]]:
    return {node.function: [machine] for node in workload(experts).topology.nodes if node.kind != "ingress"}


def test_machines_without_costs_change_nothing() -> None:
    arrivals = poisson(40.0, 300)
    bare, _ = simulated(None, arrivals)
    found, _ = simulated(Machines(3), arrivals)
    assert found.tobytes() == bare.tobytes()


def test_a_call_to_another_machine_takes_a_hop_and_its_bytes_longer() -> None:
    """Calls that meet nobody: two segments and the slower of two experts are away, one after the other."""
    arrivals = np.arange(20) * 10.0
    near, simulation = simulated(Machines(2, placement=everything_on(0)), arrivals)
    away = {function: [1] for function in everything_on(0)}
    far, _ = simulated(Machines(2, hop_s=0.003, bytes_per_s=1e6, placement=away), arrivals)
    tokens = simulation.requests.counts.astype(np.float64)
    most = tokens[1:].max(axis=0)  # the expert with most tokens takes longest, there and on its way
    assert far - near == pytest.approx(3 * 0.003 + (2 * tokens[0] + most) * BYTES / 1e6)


def test_ingresses_take_requests_in_turn() -> None:
    arrivals = np.arange(6) * 10.0
    near, _ = simulated(Machines(2, placement=everything_on(0)), arrivals)
    found, _ = simulated(Machines(2, hop_s=0.5, ingresses=2, placement=everything_on(0)), arrivals)
    assert (found - near).round(6).tolist() == [0.0, 1.5] * 3


def test_local_first_leaves_the_machine_only_when_it_is_full() -> None:
    """A replica on each machine and eight calls close together: the least loaded is now here, now there; local-first
    keeps all that fit, with eight slots every call, with two slots only some."""
    arrivals = np.zeros(8)
    spread = {**everything_on(0, experts=(1,)), "m-expert-0-0": [0, 1]}

    def away(rule: Any, slots: int) -> int:
        machines = Machines(2, rule, hop_s=100.0, placement=spread)
        latency, _ = simulated(machines, arrivals, configuration(2, concurrency=slots), (1,))
        return int((latency > 100.0).sum())

    assert away("least-loaded", 8) > 0 and away("local-first", 8) == 0
    assert 0 < away("local-first", 2) < 8


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_aebs_chooses_the_machines_with_the_least_activated_experts_on_the_fullest(count: int) -> None:
    """Against all choices of replicas, for every request that activates some of five experts."""
    generator = np.random.default_rng(count)
    placement = {f"m-expert-0-{j}": generator.permutation(count)[: 1 + j % count].tolist() for j in range(5)}
    machines = Machines(count, "aebs", placement=placement)
    small_workload = workload((5,))
    start = {f: configuration(len(placement.get(f, [0]))) for f in initial(small_workload)}
    requests = draw_requests(small_workload, np.arange(40) * 10.0, seed=1, tokens=generator.integers(1, 4, 40))
    simulation = Simulation(small_workload, requests, start, seed=1, machines=machines)
    simulation.advance(500.0)
    assert simulation._sited is not None
    desired, met = simulation._sited.desired[2:], simulation._sited.met[2:]
    for request in range(40):
        active = np.flatnonzero(requests.counts[1:, request])
        loads = [np.bincount(sites) for sites in product(*(placement[f"m-expert-0-{j}"] for j in active))]
        chosen = np.bincount(desired[active, request], minlength=count)
        assert chosen.max() == min(load.max() for load in loads)
        assert all(desired[j, request] in placement[f"m-expert-0-{j}"] for j in active)
        assert met[active, request].tolist() == chosen[desired[active, request]].tolist()


def test_ties_of_aebs_turn_so_that_no_machine_is_always_first() -> None:
    small_workload = workload((1, 2))
    requests = draw_requests(small_workload, np.arange(8) * 10.0, seed=1)
    machines = Machines(4, "aebs", placement={"m-expert-1-0": [0, 1, 2, 3], "m-expert-1-1": [0, 1, 2, 3]})
    simulation = Simulation(
        small_workload, requests, initial(small_workload, configuration(4)), seed=1, machines=machines
    )
    simulation.advance(100.0)
    assert simulation._sited is not None
    assert set(simulation._sited.desired[4].tolist()) == {0, 1, 2, 3}


def test_random_uses_every_replica_about_as_often() -> None:
    small_workload = workload((1,))
    requests = draw_requests(small_workload, np.arange(900) * 1.0, seed=1)
    machines = Machines(3, "random", placement={"m-expert-0-0": [0, 1, 2]})
    simulation = Simulation(
        small_workload, requests, initial(small_workload, configuration(3)), seed=1, machines=machines
    )
    simulation.advance(1000.0)
    assert simulation._sited is not None
    assert np.abs(np.bincount(simulation._sited.desired[2], minlength=3) - 300).max() < 60


def test_experts_that_meet_on_a_machine_take_turns() -> None:
    """Both experts on one machine take twice their seconds with meeting 1, half as much again with 0.5."""
    arrivals, on_one = np.arange(20) * 10.0, everything_on(0)
    apart, simulation = simulated(Machines(2, "aebs", meeting=1.0, placement={**on_one, "m-expert-0-1": [1]}), arrivals)
    tokens = simulation.requests.counts.astype(np.float64)
    both = (tokens[1:] > 0).all(axis=0)
    alone_s = 0.001 + 0.001 * tokens[1:].max(axis=0)
    for meeting in (1.0, 0.5):
        together, _ = simulated(Machines(2, "aebs", meeting=meeting, placement=on_one), arrivals)
        assert both.any() and together - apart == pytest.approx(np.where(both, meeting * alone_s, 0.0))


@pytest.mark.parametrize("rule", ["least-loaded", "local-first", "aebs", "random"])
@pytest.mark.parametrize("seed", some_fast(range(3), 1))
def test_agrees_with_the_event_driven_model_under_random_orders(rule: Any, seed: int) -> None:
    generator = np.random.default_rng(seed)
    meeting = 0.7 if rule in ("aebs", "random") else 0.0
    machines = Machines(3, rule, hop_s=0.004, bytes_per_s=4e6, meeting=meeting, ingresses=2)
    small_workload = workload((3, 2), Arithmetic(power=generator.uniform(0, 1), scatter=Noise.lognormal(0.3)))
    requests = draw_requests(small_workload, np.cumsum(generator.gamma(0.3, 1 / (0.3 * 40), 250)), seed=seed)
    functions = [node.function for node in (*small_workload.segments, *small_workload.experts)]
    orders: list[Order] = [
        (float(moment), function, _random_configuration(generator))
        for moment in np.arange(WINDOW_S, SPAN_S, WINDOW_S)
        for function in functions
        if generator.random() < 0.4
    ]
    orders += [(SPAN_S, function, configuration(4, cpu_cores=6.0)) for function in functions]
    simulation = Simulation(small_workload, requests, initial(small_workload), seed=seed, machines=machines)
    moments = [float(moment) for moment in np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S)]
    latency, _ = simulate(simulation, [*moments, SPAN_S + 500.0], orders)
    sited = simulation._sited
    assert sited is not None
    oracle = MachineModel(
        small_workload, requests, initial(small_workload), machines, sited.desired, sited.met, orders, seed
    )
    oracle.run(SPAN_S + 500.0)
    expected = oracle.answered_s - requests.arrival_s
    assert not np.isnan(latency).any() and np.abs(latency - expected).max() <= 1e-9


def _random_configuration(generator: np.random.Generator) -> Configuration:
    on_gpu = bool(generator.random() < 0.3)
    return Configuration(
        memory_mb=256,
        cpu_cores=0.0 if on_gpu else float(generator.integers(1, 5)),
        gpu_share=0.2 if on_gpu else 0.0,
        replicas=int(generator.integers(1, 5)),
        concurrency=int(generator.integers(1, 6)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("window_s", [0.05, 0.7])
@pytest.mark.parametrize("rule", some_fast(["aebs", "local-first"], 1))
def test_how_time_is_cut_into_windows_changes_no_latency(rule: Any, window_s: float) -> None:
    machines = Machines(3, rule, hop_s=0.02, bytes_per_s=1e6, ingresses=3)
    small_workload = workload((3, 2), Arithmetic(power=0.5))
    requests = draw_requests(small_workload, poisson(30.0, 200), seed=5)
    whole, _ = simulate(Simulation(small_workload, requests, initial(small_workload), machines=machines), [100.0])
    cuts = [float(moment) for moment in np.arange(window_s, 100.0 + window_s, window_s)]
    parts, _ = simulate(Simulation(small_workload, requests, initial(small_workload), machines=machines), cuts)
    assert not np.isnan(whole).any() and np.abs(whole - parts).max() <= 1e-9


def test_new_replicas_go_where_the_placement_says() -> None:
    small_workload = workload((1,))
    requests = draw_requests(small_workload, [0.5], seed=0)
    machines = Machines(4, placement={"m-expert-0-0": [2, 0]})
    simulation = Simulation(small_workload, requests, initial(small_workload), machines=machines)

    def sites() -> list[int]:
        return simulation.fleet.slot[2, SITE, : simulation.fleet.orders[2, COUNT]].tolist()

    assert sites() == [2]
    simulation.order("m-expert-0-0", configuration(3))
    assert sites() == [2, 0, 2]


def test_a_fork_keeps_its_machines() -> None:
    small_workload = workload((3, 2))
    requests = draw_requests(small_workload, poisson(40.0, 200), seed=5)
    machines = Machines(3, "random", hop_s=0.01, meeting=0.5)
    simulation = Simulation(small_workload, requests, initial(small_workload), machines=machines)
    simulation.advance(1.0)
    fork = simulation.fork()
    assert fork.advance(50.0).latency_s.tobytes() == simulation.advance(50.0).latency_s.tobytes()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"count": 0}, "there are 1 to 127 machines, not 0"),
        ({"count": 2, "dispatch": "nearest"}, "dispatch is one of least-loaded"),
        ({"count": 2, "hop_s": -1.0}, "hop_s is -1.0"),
        ({"count": 2, "bytes_per_s": 0.0}, "bytes_per_s is 0.0"),
        ({"count": 2, "meeting": 0.5}, "meeting above 0 needs the dispatch aebs or random"),
        ({"count": 2, "ingresses": 3}, "3 ingresses do not fit 2 machines"),
        ({"count": 2, "placement": {"f": [2]}}, "f is placed on [2]; machines are 0 to 1"),
    ],
)
def test_machines_that_cannot_be_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SimulationError) as caught:
        Machines(**given)
    assert sentence in str(caught.value)


def test_one_shared_machine_has_no_others() -> None:
    small_workload = workload((1,), hop_s=0.0, host=Host(2.0, 0.001, 0.001, 0.001, 0.001))
    with pytest.raises(SimulationError, match="machines need a workload without a host"):
        Simulation(
            small_workload, draw_requests(small_workload, [0.5], seed=0), initial(small_workload), machines=Machines(2)
        )

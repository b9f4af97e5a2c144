"""What an order does and when, told as stories on one expert."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.contract import Configuration
from simulation.engine import kernel
from simulation.engine.errors import SimulationError
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from tests.unit.simulation.engine.builders import Arithmetic, configuration, initial, one_expert, simulate

EXPERT = "m-expert-0-0"
FAST = Arithmetic(base_s=1e-9, token_s=0.01)
"""100 tokens take a second on one core."""


def story(arrival_s: list[float], expert: Configuration, tokens: int = 100) -> Simulation:
    found, requests = one_expert(arrival_s, [tokens] * len(arrival_s), FAST)
    fast = configuration(60, cpu_cores=1e6, concurrency=1)
    return Simulation(found, requests, {**dict.fromkeys(initial(found), fast), EXPERT: expert})


def states(simulation: Simulation, until_s: float) -> tuple[int, int, int]:
    window = simulation.advance(until_s)
    node = simulation.index[EXPERT]
    return tuple(int(window.replicas[state][node]) for state in ("starting", "ready", "draining"))  # type: ignore[return-value]


def test_new_replicas_serve_from_the_end_of_their_cold_start() -> None:
    simulation = story([0.0, 0.0], configuration(1, concurrency=1))
    simulation.order(EXPERT, configuration(2, concurrency=1))
    assert states(simulation, 0.5) == (1, 1, 0)
    latency, _ = simulate(simulation, [5.0])
    assert latency.tolist() == pytest.approx([1.0, 2.0], abs=1e-3)  # the second waited: ready only at 1.5 s

    late = story([0.0, 0.0], configuration(1, concurrency=1), tokens=400)
    late.order(EXPERT, configuration(2, concurrency=1))
    latency, _ = simulate(late, [9.0])
    assert latency.tolist() == pytest.approx([4.0, 5.5], abs=1e-3)  # cold 1.5 s, then 4 s


def test_a_draining_replica_ends_what_it_has_and_gets_nothing_new() -> None:
    simulation = story([0.0, 0.0, 0.5], configuration(2, concurrency=2), tokens=100)
    simulation.order(EXPERT, configuration(1, concurrency=2))
    assert states(simulation, 0.75) == (0, 1, 1)
    assert states(simulation, 5.0) == (0, 1, 0)
    assert simulation._left[1] == pytest.approx(1.0, abs=1e-3)  # the youngest drains; its call is not disturbed
    assert simulation._left[2] > 1.9  # shares the one that stays


def test_replicas_still_starting_are_the_first_to_go() -> None:
    simulation = story([0.0], configuration(1))
    simulation.order(EXPERT, configuration(4))
    assert states(simulation, 0.2) == (3, 1, 0)
    simulation.order(EXPERT, configuration(2))
    assert states(simulation, 0.4) == (1, 1, 0)
    assert states(simulation, 4.0) == (0, 2, 0)


def test_live_resize_speeds_up_what_is_left_after_its_delay() -> None:
    simulation = story([0.0], configuration(1))
    simulation.order(EXPERT, configuration(1, cpu_cores=4.0))
    latency, _ = simulate(simulation, [9.0])
    assert latency[0] == pytest.approx(0.25 + 0.75 / 4, abs=1e-3)


def test_lower_concurrency_lets_running_calls_end_and_keeps_new_ones_waiting() -> None:
    simulation = story([0.0, 0.0, 0.3], configuration(1, concurrency=3))
    simulation.order(EXPERT, configuration(1, concurrency=1))
    simulate(simulation, [9.0])
    assert simulation._left[:3].tolist() == pytest.approx([2.0, 2.0, 3.0], abs=1e-3)


def test_a_new_gpu_share_means_new_workers_and_no_moment_without_one() -> None:
    simulation = story([0.0, 2.0, 3.0], configuration(2, concurrency=1), tokens=50)
    simulation.order(EXPERT, configuration(2, cpu_cores=0.0, gpu_share=0.5, concurrency=1))
    assert states(simulation, 2.4) == (2, 2, 0)
    assert states(simulation, 2.6) == (0, 2, 0)
    assert states(simulation, 9.0) == (0, 2, 0)
    latency = simulation._left[:3] - simulation.requests.arrival_s
    assert latency.tolist() == pytest.approx([0.5, 0.5, 0.1], abs=1e-3)  # the third is served on the GPU


def test_a_call_that_began_on_the_old_worker_ends_there() -> None:
    simulation = story([2.4], configuration(1), tokens=100)
    simulation.order(EXPERT, configuration(1, cpu_cores=0.0, gpu_share=1.0))
    assert states(simulation, 2.6) == (0, 1, 1)
    simulate(simulation, [9.0])
    assert simulation._left[0] == pytest.approx(3.4, abs=1e-3)


def test_ordering_the_same_again_starts_nothing() -> None:
    simulation = story([0.0], configuration(1))
    for _ in range(3):
        simulation.order(EXPERT, configuration(3))
    assert states(simulation, 0.5) == (2, 1, 0) and simulation.fleet.cold_starts == 2


def test_backlog_is_carried_over_until_there_is_a_replica() -> None:
    simulation = story([0.1, 0.2], configuration(0))
    first = simulation.advance(1.0)
    assert first.in_flight == 2 and first.meter[2, kernel.WAITED_S] == pytest.approx(1.7, abs=1e-3)
    simulation.order(EXPERT, configuration(1))
    latency, _ = simulate(simulation, [2.0, 3.0, 20.0])
    assert latency.tolist() == pytest.approx([1.0 + 1.5 + 2.0 - 0.1, 1.0 + 1.5 + 2.0 - 0.2], abs=1e-3)


def test_more_replicas_than_there_was_room_for() -> None:
    simulation = story([0.0], configuration(1))
    simulation.order(EXPERT, configuration(300))
    assert states(simulation, 5.0) == (0, 300, 0)


def test_layers_can_be_ordered_while_their_window_is_open_but_not_after_their_stage() -> None:
    simulation = story([0.0], configuration(1))
    simulation.open(5.0)
    assert [simulation.run_stage()] == [0]
    simulation.order(EXPERT, configuration(1, cpu_cores=4.0))
    with pytest.raises(SimulationError, match="order before its stage"):
        simulation.order("m-segment-0", configuration(2))
    assert [simulation.run_stage() for _ in range(2)] == [1, 2]
    assert simulation.close().latency_s[0] == pytest.approx(0.25 + 0.75 / 4, abs=1e-3)


@pytest.mark.parametrize("concurrency", [0, 99])
def test_a_concurrency_that_cannot_be_simulated_is_refused(concurrency: int) -> None:
    simulation = story([0.0], configuration(1))
    with pytest.raises(SimulationError, match="1 to 10 calls at once"):
        simulation.order(EXPERT, configuration(1, concurrency=concurrency))


def test_windows_go_forward_only() -> None:
    simulation = story([0.0], configuration(1))
    simulation.advance(1.0)
    with pytest.raises(SimulationError, match="cannot be opened"):
        simulation.advance(1.0)
    with pytest.raises(SimulationError, match="stage 0"):
        simulation.open(2.0)
        simulation.close()


def test_requests_of_another_pipeline_are_refused() -> None:
    found, _ = one_expert([0.0], [1])
    others = Requests(np.zeros(1), np.ones((4, 1), dtype=np.uint16), "")
    with pytest.raises(SimulationError, match="routed over 3 experts, m has 1"):
        Simulation(found, others, initial(found))

"""How fast the machine is at the moment: in the simulator, and found again from single requests."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import click
import numpy as np
import pytest

from benchmarks.fidelity.machine import Singles, Usage, near, pace_of
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from simulation.profiles.measure.machine import cpu_s
from simulation.workloads.workload import Host, Workload
from tests.unit.simulation.engine.builders import Limited, configuration, initial, one_expert, simulate, workload

HOST = Host(2.0, 0.002, 0.001, 0.001, 0.002, 1e-5, Noise.lognormal(0.1))


def lone_latencies(found: Workload, pace: float, count: int) -> tuple[np.ndarray, list[list[int]]]:
    """Seconds of requests that never meet, of two texts in turn, and these texts' tokens."""
    texts = np.array([[12, 5, 4, 3, 7, 5], [40, 9, 20, 11, 22, 18]], dtype=np.uint16).T
    counts = np.ascontiguousarray(texts[:, np.arange(count) % 2])  # the kernel is compiled for each memory layout
    requests = Requests(2.0 * np.arange(count, dtype=np.float64), counts, "lone requests")
    slower = replace(found, host=replace(HOST, pace=pace))
    latency, _ = simulate(Simulation(slower, requests, initial(slower), seed=3), [2.0 * count + 9.0])
    return latency, texts.tolist()


def test_at_half_the_pace_of_the_machine_a_request_takes_twice_as_long() -> None:
    host = Host(4.0, 0.01, 0.002, 0.003, 0.04, 0.0001)
    found, requests = one_expert([0.0], [10], Limited(base_s=0.1, token_s=0.0, alone_use=1.0), host=host)
    slower = replace(found, host=replace(host, pace=2.0))
    once, twice = (simulate(Simulation(one, requests, initial(one)), [9.0])[0][0] for one in (found, slower))
    assert twice == pytest.approx(2 * once, rel=1e-12)


@pytest.mark.parametrize("pace", [0.8, 1.3])
def test_the_pace_is_found_again_from_single_requests(pace: float) -> None:
    """They are measured at the client, so what the ingress does not see lies on top of each."""
    small_workload = workload((3, 2), Limited(scatter=Noise.lognormal(0.1)), hop_s=0.0, request_s=0.003, host=HOST)
    latency, counts = lone_latencies(small_workload, pace, 400)
    singles = Singles(latency.tolist(), counts, 0.003)
    assert pace_of([singles], small_workload, configuration()) == pytest.approx(pace, rel=0.02)


def test_single_requests_count_that_were_sent_near_a_replay() -> None:
    sets = [Singles([], [], 0.0, at_s=1000.0 + at_s) for at_s in (-301.0, -299.0, 30.0, 359.0, 361.0)]
    assert [one.at_s - 1000.0 for one in near(sets, 1000.0, 1060.0)] == [-299.0, 30.0, 359.0]


def test_several_looks_at_single_requests_are_one() -> None:
    small_workload = workload((3, 2), Limited(scatter=Noise.lognormal(0.1)), hop_s=0.0, request_s=0.003, host=HOST)
    sets = [
        Singles(latency.tolist(), counts, 0.003)
        for latency, counts in (lone_latencies(small_workload, pace, 200) for pace in (0.8, 1.0, 1.2))
    ]
    assert pace_of(sets, small_workload, configuration()) == pytest.approx(1.0, rel=0.03)


def test_what_client_and_gateway_compute_is_no_part_of_the_pace() -> None:
    """Single requests are compared without what the ingress does not see, whether that is work or waiting."""
    small_workload = workload((3, 2), Limited(scatter=Noise.lognormal(0.1)), hop_s=0.0, request_s=0.003, host=HOST)
    latency, counts = lone_latencies(small_workload, 1.0, 400)
    singles = Singles(latency.tolist(), counts, 0.003, front_cpu_s=0.002)
    working = replace(small_workload, request_s=0.001, host=replace(HOST, front_s=0.002))
    assert pace_of([singles], working, configuration()) == pace_of([singles], small_workload, configuration())


def test_cpu_seconds_of_a_process_are_those_that_it_used() -> None:
    before_s, begun_s = cpu_s([os.getpid()]), time.process_time()
    while time.process_time() < begun_s + 0.2:
        pass
    # User's and system's time are each told in hundredths of a second, rounded, before and after.
    assert cpu_s([os.getpid()]) - before_s == pytest.approx(time.process_time() - begun_s, abs=0.04)


def test_a_machine_in_use_is_not_compared_with() -> None:
    small_workload = workload((3, 2), Limited(), hop_s=0.0, request_s=0.003, host=HOST)
    latency, counts = lone_latencies(small_workload, 2.5, 20)
    with pytest.raises(click.ClickException, match="times as long as in the profile"):
        pace_of([Singles(latency.tolist(), counts, 0.003)], small_workload, configuration())


def test_cores_in_use_are_of_the_whole_machine_and_of_others() -> None:
    machine, others = Usage().cores()
    assert 0 <= others <= machine + 1e-9

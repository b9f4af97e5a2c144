"""One machine for everything: by hand, against the event-driven model, and against the stages where it has room."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from functions.dispatch.activation import Burst
from simulation.engine import kernel
from simulation.engine.bursts import BurstSettings
from simulation.engine.errors import SimulationError
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.engine.tables import ResourceTables
from simulation.latency.contract import Noise
from simulation.workloads.workload import Host
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import (
    EXPERT,
    SPAN_S,
    WINDOW_S,
    Arithmetic,
    Limited,
    configuration,
    initial,
    limited_orders,
    one_expert,
    poisson,
    random_bursts,
    random_limited,
    simulate,
    with_standbys,
    workload,
)
from tests.unit.simulation.engine.host_oracle import HostModel

NOTHING = Host(cores=1e6, start_s=1e-300, send_s=1e-300, receive_s=1e-300, answer_s=1e-300)
"""As good as a machine of one's own for everyone."""


def test_a_pass_takes_its_calls_and_every_bit_of_the_ingress() -> None:
    host = Host(cores=4, start_s=0.01, send_s=0.002, receive_s=0.003, answer_s=0.04, token_s=0.0001)
    found, requests = one_expert([0.0], [10], Limited(base_s=0.1, token_s=0.0, alone_use=1.0), host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [9.0])
    assert latency[0] == pytest.approx(0.01 + 3 * (0.1 + 0.002 + 0.003 + 20 * 0.0001) + 0.04, abs=1e-12)


def test_the_ingress_serves_in_line() -> None:
    """The second request comes while the first is begun, so the first's call is sent after the second was begun."""
    host = Host(cores=4, start_s=1.0, send_s=1e-9, receive_s=1e-9, answer_s=1e-9)
    found, requests = one_expert([0.0, 0.5], [1, 1], Arithmetic(1e-9, 1e-9), host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [9.0])
    assert latency == pytest.approx([2.0, 1.5], abs=1e-6)


def test_calls_that_wait_at_a_replica_are_computed_as_one_when_its_batch_ends() -> None:
    """Calls of 1 + tokens / 10 seconds, 0.9 of it right after another; each request has a replica of the segments. The
    expert computes the first's call from 2 to 4; those of the others come at 2.5 and 3.7, and their 30 tokens take 3.6
    seconds together, not 1.8 and 2.7."""
    model = Limited(base_s=1.0, token_s=0.1, alone_use=1.0, warm=0.9)
    found, requests = one_expert([0.0, 0.5, 0.7], [10, 10, 20], model, host=NOTHING)
    start = {node.function: configuration(3, concurrency=1) for node in found.segments}
    start |= {EXPERT: configuration(concurrency=4)}
    for tables in (None, ResourceTables(found, requests.most_tokens, 4)):  # a batch has more tokens than any request
        latency, _ = simulate(Simulation(found, requests, start, tables=tables), [60.0])
        assert latency == pytest.approx([6.0, 9.1, 9.9], abs=1e-6)


def overrun(cores: float, seed: int) -> tuple[float, float, float]:
    """When three requests are answered whose expert has 0.1 s in each second. Its first call takes 0.25, which no tick
    notices, and ends at 0.5; the others come to it at 1 and 1.25, and it takes 0.25 for both."""
    model = Limited(base_s=0.25, token_s=1e-9, alone_use=1.0, period_s=1.0, tick_s=100.0)
    found, requests = one_expert([0.0, 0.75, 1.0], [1, 1, 1], model, host=replace(NOTHING, cores=cores))
    start = {node.function: configuration(3, concurrency=1) for node in found.segments}
    start |= {EXPERT: configuration(concurrency=4, cpu_cores=0.1)}
    latency, _ = simulate(Simulation(found, requests, start, seed=seed), [60.0])
    first, second, third = (latency + requests.arrival_s).tolist()
    return first, second, third


def test_calls_that_come_while_a_limit_stops_a_replica_are_computed_as_one() -> None:
    """Two periods have to pay for the first call, the second of which ends at 1.25 at the earliest. Both others are
    there by then, and their last segments share the one core."""
    for seed in range(8):
        first, second, third = overrun(1.0, seed)
        assert first == pytest.approx(0.75, abs=1e-6) and second == pytest.approx(third, abs=1e-6)
        assert second + 1e-6 >= 1.25 + 0.75 and second <= 2.25 + 0.75


def test_a_replica_that_overran_on_one_core_may_run_on_another_before_that_is_paid() -> None:
    """With two cores the second call is woken on either: on the one that owes nothing it begins as soon as one period
    has ended, and with luck at once."""
    ends = [overrun(2.0, seed)[1] for seed in range(16)]
    soonest, latest = min(ends), max(ends)
    assert soonest < 1.25 + 0.25 + 0.25 - 1e-6 and latest > 1.25 + 0.25 + 0.25
    assert all(end >= 1.0 + 0.25 + 0.25 - 1e-6 for end in ends)


def test_a_call_pays_for_its_caches_each_time_that_it_is_stopped() -> None:
    """A call of 1 s with 0.2 s in each second, noticed at once, and 0.1 s more after each stop: n stops let it have
    0.2 (n + 1), and it needs 1 + 0.1 n, so n is 9 (8 where a period ends in its first 0.2 s)."""
    model = Limited(base_s=1.0, token_s=1e-9, alone_use=1.0, period_s=1.0)
    busy_s = []
    for stop_s in (0.0, 0.1):
        found, requests = one_expert([0.0], [1], replace(model, stop_s=stop_s), host=NOTHING)
        start = {node.function: configuration() for node in found.segments} | {EXPERT: configuration(cpu_cores=0.2)}
        _, (window,) = simulate(Simulation(found, requests, start), [60.0])
        busy_s.append(window.meter[2, kernel.CPU_S])
    stops = (busy_s[1] - 1.0) / 0.1
    assert busy_s[0] == pytest.approx(1.0, abs=1e-6)
    assert stops == pytest.approx(round(stops), abs=1e-6) and round(stops) in (8, 9)


def test_what_lies_before_the_ingress_is_a_line_too_and_uses_a_core() -> None:
    """The second request waits behind the first's way there; each way is half a second, at one core for everything."""
    host = replace(NOTHING, front_s=1.0)
    found, requests = one_expert([0.0, 0.2], [1, 1], Arithmetic(1e-9, 1e-9), host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [9.0])
    assert latency == pytest.approx([1.5, 1.8], abs=1e-6)


def test_the_front_of_one_request_slows_down_the_calls_of_another() -> None:
    """One core, three calls of a second, half a second each way. The second request comes when the first has 0.3 s left
    of its last call, which so ends at 3.8; its way back waits for the second's way there, until 4.0, and then shares
    the core with the second's first call."""
    host = replace(NOTHING, cores=1.0, front_s=1.0)
    found, requests = one_expert([0.0, 3.2], [1, 1], Limited(base_s=1.0, token_s=1e-9, alone_use=1.0), host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [60.0])
    assert latency[0] == pytest.approx(5.0, abs=1e-6)


def test_calls_take_longer_while_requests_meet() -> None:
    """Three calls of a second; the second request comes when the first is done with two of them and leaves alone."""
    host = replace(NOTHING, overlap=(1.5,))
    model = Limited(base_s=1.0, token_s=1e-9, alone_use=1.0)
    found, requests = one_expert([0.0, 2.0], [1, 1], model, host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [60.0])
    assert latency == pytest.approx([3.5, 3.5], abs=1e-6)


def test_requests_take_longer_the_longer_ago_the_last_answer_is() -> None:
    """Three calls of a second. The first request comes after nothing, the second half a second after the first's answer
    (halfway between the points), the third long after the second's, the fourth 0.1 s after the third's."""
    host = replace(NOTHING, idle=((0.0, 1.0), (1.0, 2.0)))
    model = Limited(base_s=1.0, token_s=1e-9, alone_use=1.0)
    found, requests = one_expert([0.0, 6.5, 20.0, 26.1], [1, 1, 1, 1], model, host=host)
    latency, _ = simulate(Simulation(found, requests, initial(found)), [60.0])
    assert latency == pytest.approx([6.0, 4.5, 6.0, 3.3], abs=1e-6)


@pytest.mark.parametrize(
    "idle", [((0.2, 1.0), (0.1, 1.0)), ((0.1, 1.0), (0.1, 1.1)), ((0.1, 0.0),), ((0.1, math.inf),)]
)
def test_the_effect_of_an_idle_gap_is_given_by_ascending_seconds_and_times_above_nothing(
    idle: tuple[tuple[float, float], ...],
) -> None:
    with pytest.raises(ValueError, match="its seconds ascend and its times are above 0"):
        replace(NOTHING, idle=idle)


def test_replicas_share_the_cores_and_who_wants_less_gets_it_all() -> None:
    """Three calls of 1 s of which one is stopped at 0.2 cores: the others have 0.9 of 2 cores each, not 0.67."""
    host = Host(cores=2.0, start_s=1e-9, send_s=1e-9, receive_s=1e-9, answer_s=1e-9)
    model = Limited(base_s=1.0, token_s=1e-9, burst_s=0.0, alone_use=1.0, period_s=1e-3)
    small_workload = workload((3,), model, hop_s=0.0, request_s=0.0, top_k=3, host=host)
    requests = draw_requests(small_workload, [0.0], seed=0, tokens=[4])
    start = {**initial(small_workload), EXPERT: configuration(1, cpu_cores=0.2)}
    _, windows = simulate(Simulation(small_workload, requests, start), [40.0])
    meter = windows[0].meter[2:]
    assert meter[:, kernel.BUSY_S] == pytest.approx([5.0, 1 / 0.9, 1 / 0.9], abs=1e-3)
    assert meter[:, kernel.CPU_S] == pytest.approx([1.0] * 3, abs=1e-6)


def test_cold_starts_want_a_core_each() -> None:
    """Three at once, 1.5 CPU seconds each, on two cores, and one that is called off after a second."""
    small_workload = workload((1,), Limited(), hop_s=0.0, host=replace(NOTHING, cores=2.0))
    simulation = Simulation(small_workload, draw_requests(small_workload, [90.0], seed=0), initial(small_workload))
    simulation.order(EXPERT, configuration(5))
    place = simulation.index[EXPERT]
    assert simulation.advance(1.0).replicas["starting"][place] == 4
    simulation.order(EXPERT, configuration(4))
    ready = [int(simulation.advance(moment).replicas["ready"][place]) for moment in (2.4, 2.6)]
    assert ready == [1, 4]


@pytest.mark.parametrize("window_s", [0.7, 5.0])
def test_a_machine_with_room_and_an_ingress_without_work_is_what_the_stages_are(window_s: float) -> None:
    """With one call at a time, as several are a batch here and share a replica there; limits differ, too."""
    model = Arithmetic(power=0.4, scatter=Noise.lognormal(0.4))
    small_workload = workload((3, 2), model, hop_s=0.0)
    requests = draw_requests(small_workload, poisson(25, 400, 3), seed=3)
    start = dict.fromkeys(initial(small_workload), configuration(2, cpu_cores=0.3, concurrency=1))
    moments = [float(moment) for moment in [*np.arange(window_s, 20, window_s), 500.0]]
    orders = [
        (moments[0], "m-expert-0-1", configuration(3, cpu_cores=0.6, concurrency=1)),
        (moments[2], EXPERT, configuration(1, concurrency=1)),
    ]
    apart, by_stage = simulate(Simulation(small_workload, requests, start), moments, orders)
    together, at_once = simulate(Simulation(replace(small_workload, host=NOTHING), requests, start), moments, orders)
    assert np.abs(apart - together).max() <= 1e-9
    columns = [kernel.CALLS, kernel.TOKENS, kernel.SERVED_S, kernel.WAITED_S, kernel.BUSY_S, kernel.PEAK, kernel.FLIGHT]
    for one, other in zip(by_stage, at_once, strict=True):
        assert one.meter[:, columns] == pytest.approx(other.meter[:, columns], abs=1e-6)
        assert np.array_equal(one.histogram, other.histogram) and np.array_equal(one.barrier, other.barrier)


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_fast((*range(8), 11), 2))
def test_agrees_with_the_event_driven_model_under_random_orders(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rate = generator.uniform(4, 12)
    model = random_limited(generator)
    start_s, send_s, receive_s, answer_s = generator.uniform(1e-4, 3e-3, 4)
    host = Host(generator.uniform(0.5, 3.0), start_s, send_s, receive_s, answer_s, 1e-5, Noise.lognormal(0.2), 1.2)
    if seed:  # the first has neither a front nor calls that cost more or less when requests meet
        host = replace(
            host,
            front_s=generator.uniform(1e-3, 1e-2),
            start_cores=generator.uniform(0.2, 1.0),
            overlap=tuple(generator.uniform(0.8, 1.3, generator.integers(0, 4))),
            idle=tuple(zip((0.01, 0.1, 0.4)[: seed - 1], generator.uniform(0.8, 1.4, min(3, seed - 1)), strict=True)),
        )
    small_workload = workload((3, 2), model, hop_s=0.0, host=host)
    arrivals = np.cumsum(generator.gamma(0.3, 1 / (0.3 * rate), int(rate * SPAN_S)))
    requests = draw_requests(small_workload, arrivals, seed=seed)
    functions = [node.function for node in (*small_workload.segments, *small_workload.experts)]
    orders = limited_orders(generator, functions, gpu=0.0)
    windows = [*np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S), SPAN_S + 4000.0]
    start = initial(small_workload, configuration(cpu_cores=0.5))
    bursts, settings = random_bursts(generator, functions) if seed % 2 else ({}, BurstSettings())
    orders = [(when, name, replace(target, burst=bursts.get(name))) for when, name, target in orders]
    start = with_standbys(start, bursts)
    settings = replace(settings, stays=False)  # the model knows no window before
    simulation = Simulation(small_workload, requests, start, seed=seed, bursts=settings)
    latency, _ = simulate(simulation, [float(moment) for moment in windows], orders)
    oracle = HostModel(small_workload, requests, start, orders, seed, settings)
    oracle.run(SPAN_S + 4000.0)
    expected = oracle.answered_s - arrivals
    late = np.isnan(latency)  # nobody may be awake for who comes late
    assert np.array_equal(late, np.isnan(expected))
    assert not late.any() or any(burst.sleep_s is not None for burst in bursts.values())
    # Rounding of 1e-12 CPU seconds is 1e-9 s of a replica at a thousandth of a core; in two draws stops repeat it.
    assert np.nanmax(np.abs(latency - expected)) <= {2: 1e-8, 7: 1e-7}.get(seed, 1e-9)


def test_how_time_is_cut_into_windows_changes_nothing() -> None:
    small_workload = workload(
        (3, 2), Limited(scatter=Noise.lognormal(0.5)), hop_s=0.0, host=Host(1.5, 0.001, 0.001, 0.001, 0.001)
    )
    requests = draw_requests(small_workload, poisson(20, 300, 5), seed=5)
    start = initial(small_workload, configuration(2, cpu_cores=0.4))
    whole, _ = simulate(Simulation(small_workload, requests, start), [400.0])
    parts, _ = simulate(
        Simulation(small_workload, requests, start), [float(moment) for moment in np.arange(0.3, 400.0, 0.3)]
    )
    assert not np.isnan(whole).any() and np.abs(whole - parts).max() <= 1e-9


@pytest.mark.slow
def test_a_quota_is_taken_when_what_a_core_holds_is_used_up_whatever_else_happens() -> None:
    """Few requests, so that periods end in the midst of calls with nothing in between; windows are such a thing."""
    model = Limited(scatter=Noise.lognormal(0.5), tick_s=0.002)
    rare = workload((3, 2), model, hop_s=0.0, host=Host(1.5, 0.001, 0.001, 0.001, 0.001))
    requests = draw_requests(rare, poisson(1.5, 60, 5), seed=5)
    start = initial(rare, configuration(cpu_cores=0.4))
    whole, _ = simulate(Simulation(rare, requests, start), [100.0])
    parts, _ = simulate(Simulation(rare, requests, start), [float(moment) for moment in np.arange(0.003, 100.0, 0.003)])
    assert np.abs(whole - parts).max() <= 1e-9


def test_stages_are_ordered_in_turn_on_a_shared_machine_too() -> None:
    small_workload = workload((1,), Arithmetic(0.001, 0.01), hop_s=0.0, host=NOTHING)
    simulation = Simulation(
        small_workload, draw_requests(small_workload, [0.5], seed=0, tokens=[10]), initial(small_workload)
    )
    simulation.open(5.0)
    assert [simulation.run_stage() for _ in range(2)] == [0, 1]
    with pytest.raises(SimulationError, match="order before its stage"):
        simulation.order(EXPERT, configuration(2))
    simulation.run_stage()
    assert simulation.close().finished.tolist() == [0]


def test_a_constant_hop_and_a_shared_machine_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="with a host it must be 0"):
        workload((1,), hop_s=0.001, host=NOTHING)


@pytest.mark.parametrize("stays", [True, False])
def test_nothing_falls_asleep_while_requests_are_under_way(stays: bool) -> None:
    """One a second that takes a third of it: asleep 0.4 s after its arrival, or after its answer."""
    host = Host(2.0, 1e-4, 1e-4, 1e-4, 1e-4)
    pipeline, requests = one_expert(np.arange(0.5, 20), [5] * 20, Arithmetic(token_s=0.02))
    pipeline = replace(pipeline, host=host, hop_s=0.0)
    burst = Burst(0, sleep_s=0.4, token_s=0.02)
    start = with_standbys(initial(pipeline), {EXPERT: burst})
    simulation = Simulation(pipeline, requests, start, bursts=BurstSettings(activation_s=0.01, stays=stays))
    first, second = simulation.advance(10.0), simulation.advance(20.0)
    awake_s = second.activated_s[simulation.index[EXPERT]] / 10
    took_s = float(np.median(first.latency_s))
    assert 0.2 < took_s < 0.4
    assert awake_s == pytest.approx(0.39 + (first.latency_s.max() if stays else 0.0), abs=0.02)

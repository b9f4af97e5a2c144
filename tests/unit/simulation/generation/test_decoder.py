"""A decoder whose instances and experts are scaled: against SimPy processes, the plain simulation, and by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import ArrayLike

from autoscaler.contract import Burst, Memory, Observation, Proposal
from autoscaler.decision.limits import LimitSettings
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.policy.instances import InstancesPolicy
from functions.generation.run import MAX_RUNNING
from functions.scheduling.peers import Colocated
from functions.scheduling.settings import Targets
from moe import cache
from simulation.arrays import Floats
from simulation.engine import kernel
from simulation.engine.controlled import simulate_policy
from simulation.engine.errors import SimulationError
from simulation.generation import batching
from simulation.generation.decoder import DecoderSimulation
from simulation.generation.engine import GenerationSimulation, Request
from simulation.generation.experts import drawn_tokens
from simulation.generation.hardware import Hardware
from simulation.generation.observed import DecoderMetrics
from simulation.latency.contract import NodeCost
from simulation.workloads.routing import zipf_routing
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import (
    EXPERT,
    LIFECYCLE,
    Arithmetic,
    Limited,
    configuration,
    initial,
    workload,
)
from tests.unit.simulation.generation.decoder_oracle import DecoderModel

TIMES = Hardware(0.05, 0.004, 1e-7, 1e-6, 64, 4000, 1, 1.0, front_s=0.01)
"""An iteration takes 50 ms and 4 ms a token."""
WINDOW_S = 2.5


@dataclass(frozen=True, eq=False)
class Uneven(Arithmetic):
    """Experts differ, so that no two calls end at one time."""

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return super().seconds(node, tokens, cpu_cores, gpu_share) * node.flops_per_token


def decoder(experts: tuple[int, ...] = (3, 2), top_k: int = 3, cold_s: float = 1.0):
    made = workload(experts, Uneven(0.004, 0.0004), lifecycle=replace(LIFECYCLE, cold_start_s=cold_s), top_k=top_k)
    costs = {name: replace(cost, flops_per_token=1 + 0.07 * n) for n, (name, cost) in enumerate(made.costs.items())}
    return replace(made, costs=costs, topology=replace(made.topology, generates=True))


def drawn_requests(seed: int, count: int, rate: float) -> list[Request]:
    drawn = np.random.default_rng(seed)
    arrivals = np.cumsum(drawn.exponential(1 / rate, count))
    lengths = drawn.integers(1, 150, (count, 2))
    return [Request(float(at), int(a), 1 + int(b) // 4) for at, (a, b) in zip(arrivals, lengths, strict=True)]


@pytest.mark.parametrize("seed", some_fast(range(10)))
@pytest.mark.parametrize("room", [pytest.param(4000, id="pages-for-all"), pytest.param(500, id="few-pages")])
def test_agrees_with_processes_under_random_orders(seed: int, room: int) -> None:
    """Cold starts that are taken back, ended instances, preemption, calls held back, batches of several instances."""
    drawn, made = np.random.default_rng(100 + seed), decoder(cold_s=1.0 + 0.0173 * seed)
    requests, times = drawn_requests(seed, 60, drawn.uniform(1, 6)), replace(TIMES, kv_tokens=room)
    start = initial(made, configuration(1, concurrency=2))
    simulation, oracle = DecoderSimulation(made, times, requests, start), DecoderModel(made, times, requests, start)
    preemptions = 0
    for number in range(1, 80):
        if number < 16:
            for function in simulation.index:
                if drawn.random() < 0.4:
                    target = configuration(int(drawn.integers(1, 4)), concurrency=int(drawn.integers(1, 4)))
                    simulation.order(function, target)
                    oracle.order(function, target)
        preemptions += simulation.advance(number * WINDOW_S + 1e-4 * seed).preemptions
        oracle.env.run(until=number * WINDOW_S + 1e-4 * seed)
    expected = [(text.written_s[0], text.written_s[-1]) for text in oracle.texts]
    assert [(text.first_s, text.last_s) for text in simulation.texts] == pytest.approx(np.array(expected), abs=1e-9)
    assert preemptions == oracle.preempted and (room > 1000 or preemptions > 0)


def test_one_instance_takes_what_its_profile_has() -> None:
    """The experts' part of an iteration is taken out and put back, so nothing changes while nobody shares them."""
    requests = [Request(0.1 * n, 10 + 7 * n, 5 + n) for n in range(12)]
    simulation = DecoderSimulation(decoder(), TIMES, requests, decoder().initial(configuration()) | one_instance())
    simulation.advance(1000.0)
    scheduler = Colocated({}, Targets(1.0, 1.0), 1)
    scheduler.add(0, TIMES.profile(10))
    plain = GenerationSimulation(requests, scheduler, TIMES).run()
    scaled = simulation.outcome()
    assert scaled.ttft_s == pytest.approx(plain.ttft_s) and scaled.tpot_s == pytest.approx(plain.tpot_s)


def one_instance() -> dict:
    return {node.function: configuration() for node in decoder().segments}


def test_instances_share_an_expert_until_it_has_two_replicas() -> None:
    """Two instances begin at once; the only expert, 0.104 s for one text's ten tokens, serves the second call after the
    first, by hand; with two replicas at the same time."""
    made = workload((1,), Arithmetic(0.1, 0.0004), top_k=1)
    requests, times = [Request(0.0, 10, 1), Request(0.0, 10, 1)], replace(TIMES, iteration_s=1.0, token_s=0.0)
    times = replace(times, attention_s=0.0)
    for replicas, last_s in ((1, 1.0 + 0.104), (2, 1.0)):
        start = made.initial(configuration(replicas))
        simulation = DecoderSimulation(made, times, requests, start)
        simulation.advance(10.0)
        assert sorted(text.first_s or 0.0 for text in simulation.texts) == pytest.approx([1.0, last_s])


def test_a_busy_replica_gets_its_cpu_limit_and_no_more() -> None:
    """One text, a pass a token, by hand: 0.1 s of work each time, 0.08 s of it on the core, after 0.05 s of segments.
    Replicas have a tenth of a core from the second pass on, so from then on the bucket, which is empty at first, gets
    what the core spends: a batch has 0.1 of a core's seconds, those of the segments before it included."""
    made = workload((1,), Limited(0.1, 0.0, burst_s=0.02, alone_use=0.8), top_k=1)
    times = replace(TIMES, iteration_s=0.15, token_s=0.0, attention_s=0.0)
    simulation = DecoderSimulation(made, times, [Request(0.0, 1, 400)], made.initial(configuration()))
    simulation.advance(0.1)
    simulation.order(EXPERT, configuration(cpu_cores=0.1))
    window = simulation.advance(200.1)
    expert = window.meter[simulation.index[EXPERT]]
    assert expert[kernel.CPU_S] == pytest.approx(0.1 * 200, rel=0.01)
    level_s = 0.1 * 0.05  # the bucket after the segments of a pass
    full_s = level_s / (0.8 - 0.1)
    assert window.tpot_s[5:] == pytest.approx(0.05 + full_s + (0.1 - full_s) * 0.8 / 0.1)


def test_a_replica_that_was_idle_has_its_burst() -> None:
    """Two texts far apart: the second one's pass finds a full bucket again."""
    made = workload((1,), Limited(0.1, 0.0, burst_s=0.02, alone_use=0.8), top_k=1)
    times = replace(TIMES, iteration_s=1.0, token_s=0.0, attention_s=0.0)
    start = made.initial(configuration(cpu_cores=0.1))
    simulation = DecoderSimulation(made, times, [Request(0.0, 1, 1), Request(30.0, 1, 1)], start)
    simulation.advance(60.0)
    full_s = 0.02 * 0.9 / (0.8 - 0.1)
    alone_s = float(made.latency.seconds(made.costs["expert-0-0"], 1, 0.1, 0.0))
    expected = 1.0 - alone_s + full_s + (0.1 - full_s) * 0.8 / 0.1
    assert [(text.first_s or 0.0) - text.arrival_s for text in simulation.texts] == pytest.approx(
        [expected] * 2, abs=1e-5
    )


def test_constants_are_the_loops() -> None:
    assert (batching.PAGE_TOKENS, batching.MOST_TEXTS) == (cache.PAGE_TOKENS, MAX_RUNNING)


def test_tokens_choose_distinct_experts_by_popularity() -> None:
    routing, random = zipf_routing([4, 3], seed=1), np.random.default_rng(0)
    counts = sum(drawn_tokens(routing, 2, 50, 0.0, random) for _ in range(200))
    assert counts.sum(axis=1).tolist() == [20_000, 20_000] and counts.max() <= 10_000 and counts[1, 3] == 0
    one = sum(drawn_tokens(routing, 1, 50, 0.0, random) for _ in range(400)) / 20_000
    assert one == pytest.approx(routing.popularity[0], abs=0.015)
    assert drawn_tokens(routing, 4, 9, 0.0, random)[0].tolist() == [9, 9, 9, 9]
    with_one = drawn_tokens(routing, 1, 50, 0.0, random, [range(3, 4), range(2, 3)])
    assert (with_one[0, 3], with_one[1, 2], with_one.sum()) == (50, 50, 200)


class Recorder:
    """A policy that keeps what it sees, and asks for what another one does."""

    name = "recorder"

    def __init__(self, policy) -> None:
        self.policy, self.seen = policy, list[Observation]()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        self.seen.append(observation)
        return self.policy.propose(observation, now_s, memory)


def test_a_policy_sees_what_a_decoders_ingress_reports_and_scales_instances() -> None:
    made = decoder()
    requests = drawn_requests(0, 120, 8.0)
    recorder = Recorder(InstancesPolicy(HpaPolicy()))
    start = made.initial(configuration()) | one_instance()
    simulation = DecoderSimulation(made, TIMES, requests, start)
    steps = simulate_policy(
        simulation, recorder, LimitSettings(space=made.space), window_s=WINDOW_S, until_s=80.0,
        metrics_of=DecoderMetrics,
    )  # fmt: skip
    texts = [one.generation for one in recorder.seen]
    windows = [step.window for step in steps]
    assert all(one is not None for one in texts)
    written = sum((one.written_tokens_per_s or 0.0) * WINDOW_S for one in texts)
    assert written == pytest.approx(sum(text.written for text in simulation.texts))
    first = windows[0]
    assert texts[0].ttft_p95_s == pytest.approx(np.quantile(first.ttft_s, 0.95), rel=0.3)  # the buckets' width
    assert texts[0].tpot_p50_s == pytest.approx(np.quantile(first.tpot_s, 0.5), rel=0.3)
    assert (texts[0].running, texts[0].waiting, texts[0].kv_usage) == (first.running, first.waiting, first.kv_usage)
    assert first.running > 0 and 0 < first.kv_usage < 1
    counts = {one.ready_replicas for one in recorder.seen[-1].nodes if one.kind == "segment"}
    assert len(counts) == 1 and max(window.instances for window in windows) > 1
    # Every pass calls every expert of both layers once, and every segment.
    calls = [window.meter[:, kernel.CALLS].sum() for window in windows]
    rows = np.sum([window.meter[:, kernel.CALLS] for window in windows], axis=0)
    assert sum(calls) > 0 and rows[3:].max() == pytest.approx(rows[3:].min(), abs=4)
    assert [text.written for text in simulation.texts] == [request.output for request in requests]
    costs = [step.report.cost.provisioned for step in steps]
    assert all(costs) and max(costs) > min(costs)


def test_what_is_not_simulated_is_refused() -> None:
    made = decoder()
    simulation = DecoderSimulation(made, TIMES, drawn_requests(0, 3, 1.0), initial(made))
    with pytest.raises(SimulationError, match="standbys"):
        simulation.order("m-expert-0-0", configuration(2, burst=Burst(1)))


def test_a_text_that_no_instance_has_room_for_is_lost() -> None:
    simulation = DecoderSimulation(decoder(), TIMES, [Request(0.0, 3999, 10), Request(1.0, 5, 2)], initial(decoder()))
    simulation.advance(60.0)
    assert simulation.lost == [0] and simulation.outcome().lost == 1 and simulation.outcome().tpot_s[1] is not None

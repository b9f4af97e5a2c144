"""The state features of the paper's section 4.2, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import MIB, GenerationObservation, Observation
from autoscaler.state.features import complete, observe
from autoscaler.state.readings import SHAPES, Readings, Series
from autoscaler.state.shares import layer_shares, routing_entropy, variance
from tests.unit.autoscaler.builders import NOW_S, configuration, topology

INF = math.inf
EXPERT = "m-expert-0-0.openfaas-fn"


def readings() -> Readings:
    """A window of 10 s. Layer 0: expert 0 got 300 tokens in 20 calls, expert 1 100 in 5; layer 1: only expert 2 ran."""

    def each(**values: float) -> dict[tuple[str, ...], float]:
        return {("m", name.replace("_", "-")): value for name, value in values.items()}

    return Readings(
        start_s=NOW_S - 10,
        end_s=NOW_S,
        values={
            Series.REQUESTS: {("m", "200"): 18.0, ("m", "500"): 1.0, ("m", "429"): 1.0, ("other", "200"): 99.0},
            Series.REQUEST_TOKENS: {("m",): 400.0},
            Series.REQUEST_SECONDS_SUM: {("m",): 30.0},
            Series.REQUESTS_IN_FLIGHT: {("m",): 3.0},
            Series.NODE_CALLS: {
                ("m", "expert-0-0", "200"): 19.0,
                ("m", "expert-0-0", "error"): 1.0,
                ("m", "expert-0-1", "200"): 5.0,
                ("m", "expert-1-2", "200"): 10.0,
            },
            Series.NODE_TOKENS: each(expert_0_0=300, expert_0_1=100, expert_1_2=50),
            Series.NODE_BUSY_SECONDS: each(expert_0_0=16, expert_0_1=1, expert_1_2=2),
            Series.NODE_WAIT_SECONDS: each(expert_0_0=4, expert_0_1=0, expert_1_2=0),
            Series.NODE_TOKENS_PEAK: each(expert_0_0=60),
            Series.REPLICAS_WANTED: {(EXPERT,): 3.0},
            Series.REPLICAS_BY_STATE: {(EXPERT, "ready"): 2.0, (EXPERT, "starting"): 1.0},
            Series.REPLICA_CPU_SECONDS: {(EXPERT,): 8.0},
            Series.REPLICA_MEMORY_BYTES: {(EXPERT,): 300.0 * MIB},
            Series.CPU_LIMIT_CORES: {(EXPERT,): 2.0},
            Series.MEMORY_LIMIT_BYTES: {(EXPERT,): 256.0 * MIB},
            Series.MAX_INFLIGHT: {(EXPERT,): 4.0},
            Series.CPU_SCALE: {(): 0.5},
        },
        counts={Series.REPLICA_CPU_SECONDS: {(EXPERT,): 2.0}, Series.REPLICA_MEMORY_BYTES: {(EXPERT,): 3.0}},
        measured={Series.REPLICA_CPU_SECONDS: {(EXPERT,): 6.0}},
        histograms={
            Series.REQUEST_SECONDS: {("m",): ((1.0, 10), (2.0, 20), (INF, 20))},
            Series.NODE_CALL_SECONDS: {
                ("m", "expert-0-0"): ((0.1, 0), (0.2, 20), (INF, 20)),
                ("m", "expert-0-1"): ((0.1, 5), (0.2, 5), (INF, 5)),
            },
            Series.LAYER_BARRIER_SECONDS: {("m", "0"): ((0.2, 20), (INF, 20))},
        },
        ages_s={"gateway": 1.0, "ingress": 2.0},
    )


@pytest.fixture
def seen() -> Observation:
    return observe(topology(), readings())


@pytest.mark.parametrize(("ingresses", "p50"), [(None, 50.0), (1, 50.0), (3, 150.0)])
def test_arrivals_are_the_pipeline_s_whichever_ingress_counted_them(ingresses: int | None, p50: float) -> None:
    window, name = readings(), next(node.function for node in topology().nodes if node.kind == "ingress")
    rates = {("m", "0.25"): ((100.0, 20), (200.0, 20), (INF, 20))}
    states = dict(window.values[Series.REPLICAS_BY_STATE])
    states |= {} if ingresses is None else {(f"{name}.openfaas-fn", "ready"): float(ingresses)}
    window = replace(
        window,
        values={**window.values, Series.REPLICAS_BY_STATE: states},
        histograms={**window.histograms, Series.ARRIVAL_RATES: rates},
    )
    arrivals = observe(topology(), window).arrivals
    assert [(one.look_back_s, one.p50) for one in arrivals] == [(0.25, p50)]


def test_the_pipeline_s_numbers(seen: Observation) -> None:
    assert (seen.requests, seen.failed, seen.requests_per_s, seen.tokens_per_s) == (20, 2, 2, 40)
    assert (seen.latency_p50_s, seen.latency_p95_s) == (1.0, pytest.approx(1.9))
    assert seen.in_flight == 3 and seen.window_s == 10 and not seen.stale


def test_a_decoder_s_texts_have_their_quantiles_rates_and_queue(seen: Observation) -> None:
    assert seen.generation is None
    full = readings()
    first, following = ((0.2, 0), (0.4, 20), (INF, 20)), ((0.05, 10), (0.1, 20), (INF, 20))
    of_texts = {
        Series.TEXTS_RUNNING: {("m",): 3.0, ("other",): 7.0},
        Series.TEXTS_WAITING: {("m",): 2.0},
        Series.KV_USAGE: {("m",): 0.25},
        Series.PROMPT_TOKENS: {("m",): 400.0},
        Series.WRITTEN_TOKENS: {("m",): 80.0},
        Series.PREEMPTIONS: {("m",): 1.0},
    }
    histograms = {Series.TTFT_SECONDS: {("m",): first}, Series.TPOT_SECONDS: {("m",): following}}
    decoder = replace(full, values={**full.values, **of_texts}, histograms={**full.histograms, **histograms})
    texts = observe(topology(), decoder).generation
    assert texts is not None
    assert (texts.ttft_p50_s, texts.ttft_p95_s) == (pytest.approx(0.3), pytest.approx(0.39))
    assert (texts.tpot_p50_s, texts.tpot_p95_s) == (pytest.approx(0.05), pytest.approx(0.095))
    assert (texts.running, texts.waiting, texts.kv_usage, texts.preemptions) == (3, 2, 0.25, 1)
    assert (texts.prompt_tokens_per_s, texts.written_tokens_per_s) == (40, 8)
    at_rest = observe(topology(), replace(full, values={**full.values, Series.TEXTS_RUNNING: {("m",): 0.0}}))
    assert at_rest.generation == GenerationObservation(running=0.0)


def test_the_features_of_an_expert(seen: Observation) -> None:
    expert = seen.node("expert-0-0")
    assert expert is not None
    assert expert.configuration == configuration(3, cpu_cores=2.0)
    # 6 of 8 s of CPU are of the 2 measured replicas: 10 s · 2 · 2 cores · half a real core for each configured one
    assert expert.cpu_utilisation == pytest.approx(6 / (10 * 2 * 2 * 0.5)) and expert.cpu_s == 8
    assert expert.memory_utilisation == pytest.approx(300 / (3 * 256))
    # 1.6 calls in flight on average over 2 ready replicas of 4 slots
    assert expert.concurrency_utilisation == pytest.approx(1.6 / 8)
    assert (expert.in_flight, expert.waiting, expert.busy_s) == (1.6, 0.4, 16)
    assert expert.latency_p95_s == pytest.approx(0.195)
    assert expert.latency_mean_s == pytest.approx((16 + 4) / 20)
    assert (expert.tokens_per_s, expert.requests_per_s, expert.peak_tokens) == (30, 2, 60)
    assert (expert.ready_replicas, expert.measured_replicas, expert.age_s) == (2, 2, 2.0)


def test_the_features_of_a_layer(seen: Observation) -> None:
    first, second = (seen.node(f"expert-0-{j}") for j in range(2))
    assert first is not None and second is not None
    assert (first.token_share, second.token_share) == (0.75, 0.25)
    assert (first.request_share, second.request_share) == (0.8, 0.2)
    assert (first.straggler_ratio, second.straggler_ratio) == (1.0, pytest.approx(0.095 / 0.195))
    layer = seen.layers[0]
    assert layer.token_routing_entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert layer.latency_variance_s2 == pytest.approx(((0.195 - 0.095) / 2) ** 2)
    assert layer.flops_per_s == pytest.approx(40 * 1000)
    assert layer.barrier_p95_s == pytest.approx(0.19)


def test_an_expert_that_was_not_called_has_a_share_of_zero_and_no_latency(seen: Observation) -> None:
    idle = seen.node("expert-1-0")
    assert idle is not None
    assert (idle.token_share, idle.request_share, idle.tokens_per_s) == (0.0, 0.0, 0.0)
    assert idle.latency_p95_s is None and idle.straggler_ratio is None
    assert seen.layers[1].token_routing_entropy == 0.0


def test_without_the_ingress_numbers_are_missing_and_not_zero() -> None:
    full = readings()
    values = {series: found for series, found in full.values.items() if SHAPES[series].job == "gateway"}
    seen = observe(topology(), replace(full, values=values, histograms={}, ages_s={"gateway": 1.0}))
    assert seen.stale and seen.requests is None and seen.failed is None
    for node in seen.nodes:
        assert (node.tokens_per_s, node.requests_per_s, node.busy_s, node.token_share, node.age_s) == (None,) * 5
    assert all(layer.flops_per_s is None and layer.token_routing_entropy is None for layer in seen.layers)


def test_a_layer_without_work_has_no_shares() -> None:
    full = readings()
    idle = dict(full.values) | {Series.NODE_TOKENS: {}, Series.NODE_CALLS: {}}
    seen = observe(topology(), replace(full, values=idle))
    assert [node.token_share for node in seen.nodes if node.kind == "expert"] == [None] * 5
    assert seen.layers[0].tokens_per_s == 0 and seen.layers[0].token_routing_entropy is None


def test_a_share_of_an_unknown_whole_is_unknown() -> None:
    tokens, calls, stragglers = layer_shares([5.0, None], [2.0, 6.0], [None, 0.5])
    assert (tokens, calls, stragglers) == ([None, None], [0.25, 0.75], [None, 1.0])


def test_the_ingress_is_a_node_too(seen: Observation) -> None:
    ingress = seen.node("ingress")
    assert ingress is not None
    assert (ingress.requests_per_s, ingress.tokens_per_s, ingress.busy_s, ingress.in_flight) == (2, 40, 30, 3)
    assert ingress.latency_p95_s == pytest.approx(1.9) and ingress.token_share is None


def test_the_platform_s_list_is_younger_than_any_metric(seen: Observation) -> None:
    gpu = configuration(2, cpu_cores=0.0, gpu_share=0.5)
    full = complete(seen, {"m-segment-0": gpu, "m-expert-0-0": configuration(8)})
    segment, expert = full.node("segment-0"), full.node("expert-0-0")
    assert segment is not None and segment.configuration == gpu
    assert expert is not None and expert.configuration == configuration(8)
    assert expert.concurrency_utilisation == pytest.approx(0.2)
    assert any("no configuration is known of 7 of 9 nodes" in problem for problem in full.problems)


def test_a_function_with_a_gpu_share_has_its_memory_and_slots_in_use_and_no_cpu() -> None:
    """The gateway tells no CPU limit of it, so its configuration is the platform's."""
    found = readings()
    values = {series: rows for series, rows in found.values.items() if series != Series.CPU_LIMIT_CORES}
    gpu = configuration(3, cpu_cores=0.0, gpu_share=0.3)
    expert = complete(observe(topology(), replace(found, values=values)), {"m-expert-0-0": gpu}).node("expert-0-0")
    assert expert is not None and expert.configuration == gpu
    assert expert.memory_utilisation == pytest.approx(300 / (3 * 256))
    assert expert.concurrency_utilisation is not None and expert.cpu_utilisation is None


def test_without_a_list_the_metrics_are_all_there_is(seen: Observation) -> None:
    expert = complete(seen, {}).node("expert-0-0")
    assert expert is not None and expert.configuration == configuration(3, cpu_cores=2.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=64))
def test_shares_add_up_to_one_and_entropy_lies_between_0_and_that_of_an_even_load(tokens: list[float]) -> None:
    shares, _, _ = layer_shares(tokens, tokens, tokens)
    if sum(tokens) == 0:
        assert shares == [None] * len(tokens)
        return
    known = [share for share in shares if share is not None]
    assert math.fsum(known) == pytest.approx(1)
    assert -1e-12 <= routing_entropy(known) <= math.log(len(tokens)) + 1e-9


def test_entropy_and_variance_of_simple_cases() -> None:
    assert routing_entropy([0.25] * 4) == pytest.approx(math.log(4))
    assert routing_entropy([1.0, 0.0]) == 0.0
    assert variance([]) is None and variance([3.0]) == 0 and variance([1.0, 3.0]) == 1

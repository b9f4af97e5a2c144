"""What the ingress and the gateway really expose, read by the monitor: names, labels and numbers fit together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from autoscaler.contract import MIB, Configuration, Observation
from autoscaler.monitor.catalogue import SAMPLES
from autoscaler.monitor.growth import TargetHistory, readings_of
from autoscaler.monitor.scrape import parse_exposition
from autoscaler.state.features import observe
from autoscaler.state.readings import SHAPES
from functions.dispatch.dispatcher import CallRecord
from functions.generation.measures import Measures
from functions.generation.metrics import GenerationMetrics
from functions.generation.texts import Waiting
from functions.serving.instruments import IngressInstruments
from gateway.contract import FunctionSpec, FunctionState, Replica, Usage
from gateway.metrics import GatewayMetrics
from tests.unit.autoscaler.builders import NOW_S, topology

WINDOW_S = 10.0
NODE = "expert-0-0"


class Backend:
    """One expert: 3 replicas wanted, 2 ready, each with ``cpu_s`` of CPU time used and 64 MiB; half a core, 256 MiB."""

    def __init__(self) -> None:
        self.cpu_s = 5.0

    def list(self, namespace: str | None = None) -> list[FunctionState]:
        limits = {"cpu": "500m", "memory": "256Mi"}
        spec = FunctionSpec(f"m-{NODE}", "smoe/function", env_vars={"max_inflight": "4"}, limits=limits)
        replicas = (
            Replica("a", "127.0.0.1:1", "ready"),
            Replica("b", "127.0.0.1:2", "ready"),
            Replica("c", "", "starting"),
        )
        return [FunctionState(spec, 3, replicas, 4, 0.0, standbys=1)]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        used = Usage(self.cpu_s, None, 64 * MIB)
        return {"a": used, "b": used, "c": Usage(None, None, None)}

    def start_seconds(self) -> tuple[float, ...]:
        return ()


class Texts:
    """A decoder's loop: two texts in iterations on 6 of 24 pages, one waits."""

    def __init__(self) -> None:
        self.measures = Measures()
        self.waiting = Waiting(deque([None]))  # type: ignore[list-item]
        self.runs = [SimpleNamespace(texts=[None] * 2, pages=6, instance=SimpleNamespace(pages=24))]
        self.phases = None  # every instance does both

    @property
    def unscheduled(self) -> int:
        return len(self.waiting.texts)

    def document(self) -> dict[str, list[object]]:
        return {"instances": []}

    def write(self, tokens: int, first_s: float, next_s: float) -> None:
        """``tokens`` of a text with a prompt of 5."""
        self.measures.first_token.observe(first_s)
        self.measures.prompt_tokens += 5
        self.measures.written_tokens += tokens
        for _ in range(tokens - 1):
            self.measures.next_token.observe(next_s)


def call(instruments: IngressInstruments, node: str, tokens: int, wait_s: float, busy_s: float) -> None:
    record = CallRecord()
    record.wait_s, record.busy_s, record.status, record.repeats = wait_s, busy_s, "200", ["busy"]
    instruments.nodes[node].begin(tokens, 0.0)
    instruments.nodes[node].end(tokens, 0.0, wait_s + busy_s, record)


def simulated() -> dict[str, TargetHistory]:
    """Two scrapes of both, 10 s apart; between them 20 requests, one of them refused, and calls of two experts."""
    backend = Backend()
    gateway = GatewayMetrics(backend, 0.5)  # type: ignore[arg-type]
    nodes = [node.id for node in topology().nodes if node.kind != "ingress"]
    ingress = IngressInstruments("m", nodes, 2, lambda: 0.0)
    call(ingress, NODE, 1000, 0.0, 9.0)
    texts = Texts()
    ingress.expose(GenerationMetrics("m", texts))  # type: ignore[arg-type]
    targets = {"g": TargetHistory("gateway"), "i": TargetHistory("ingress")}
    for time_s in (NOW_S - WINDOW_S, NOW_S):
        targets["g"].scrapes.append((time_s, parse_exposition(gateway.text().decode())))
        targets["i"].scrapes.append((time_s, parse_exposition(ingress.text().decode())))
        for _ in range(19):
            ingress.finished(200, 0.2, 10)
        ingress.finished(429, 0.001, 0)
        ingress.barriers[0].observe(0.05)
        for _ in range(12):
            call(ingress, NODE, 25, 0.1, 0.4)
        call(ingress, "expert-0-1", 100, 0.0, 0.1)
        ingress.in_flight = 3
        texts.write(3, 0.4, 0.05)
        backend.cpu_s += 2.0
    return targets


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observe(topology(), readings_of(simulated(), NOW_S, WINDOW_S))


def test_the_pipeline_is_seen_as_it_was_recorded(seen: Observation) -> None:
    assert not seen.stale and not seen.problems
    assert (seen.requests, seen.failed, seen.in_flight) == (20, 1, 3)
    assert seen.tokens_per_s == pytest.approx(19 * 10 / WINDOW_S)
    # 0.2 s lies in one bucket, and bounds are 1.3 apart.
    assert seen.latency_p95_s is not None and 0.2 / 1.3 < seen.latency_p95_s < 0.2 * 1.3


def test_an_expert_is_seen_as_it_was_recorded(seen: Observation) -> None:
    expert = seen.node(NODE)
    assert expert is not None
    assert expert.configuration == Configuration(256, 0.5, 0.0, 3, 4)
    assert (expert.ready_replicas, expert.measured_replicas) == (2, 2)
    assert expert.requests_per_s == pytest.approx(1.2) and expert.tokens_per_s == pytest.approx(30)
    assert expert.in_flight == pytest.approx(12 * 0.4 / WINDOW_S)
    assert expert.waiting == pytest.approx(12 * 0.1 / WINDOW_S)
    assert expert.latency_mean_s == pytest.approx(0.5)
    assert expert.token_share == pytest.approx(300 / 400)
    assert expert.peak_tokens == 1000
    # 2 replicas used 2 s each, of 10 s · half a core · half a real core for each configured one.
    assert expert.cpu_utilisation == pytest.approx(4 / (2 * WINDOW_S * 0.5 * 0.5))
    assert expert.memory_utilisation == pytest.approx(64 / 256)


def test_a_decoder_s_texts_are_seen_as_they_were_recorded(seen: Observation) -> None:
    texts = seen.generation
    assert texts is not None and texts.ttft_p95_s is not None and texts.tpot_p95_s is not None
    assert 0.4 / 1.3 < texts.ttft_p95_s < 0.4 * 1.3 and 0.05 / 1.3 < texts.tpot_p95_s < 0.05 * 1.3
    assert (texts.running, texts.waiting, texts.kv_usage, texts.preemptions) == (2, 1, 0.25, 0)
    assert (texts.prompt_tokens_per_s, texts.written_tokens_per_s) == (5 / WINDOW_S, 3 / WINDOW_S)


def test_a_layer_is_seen_as_it_was_recorded(seen: Observation) -> None:
    layer = seen.layers[0]
    assert layer.token_routing_entropy == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    assert layer.barrier_p95_s is not None and 0.05 / 1.3 < layer.barrier_p95_s < 0.05 * 1.3


def test_every_series_of_the_monitor_is_exposed_under_its_name_with_its_labels() -> None:
    samples = {key for history in simulated().values() for _, scrape in history.scrapes for key in scrape}
    assert {name for name, _ in samples} == set(SAMPLES)
    for name, labels in samples:
        assert set(SHAPES[SAMPLES[name]].labels) <= {label for label, _ in labels}, name

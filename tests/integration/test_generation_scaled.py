"""A decoder under the controller: texts are read meanwhile, and are the whole model's whatever is scaled."""

from __future__ import annotations

import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from autoscaler.build import build_controller
from autoscaler.contract import TickReport
from autoscaler.logger import read_pipeline
from autoscaler.loop import Controller
from autoscaler.settings import ControllerSettings
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from functions.serving.generation_metric_names import RECOMPUTED_TOKENS
from gateway.client.state import read_password
from moe.preset import byte_tokenizer
from moe.reference import WholeModel
from moe.split import split
from simulation.profiles.model.storage import save
from smoe import prometheus
from smoe.deployment import DeploymentSettings
from tests.doubles.generation import generate
from tests.unit.moe import tiny
from tests.unit.simulation.profiles import truth

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
READERS, TOKENS = 16, 40
DEADLINE_S = 240.0
REST = {"down_stabilisation_s": 0.0, "period_s": 1.0, "down_pods": 8}
"""HPA that takes replicas away at once."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    folder = tmp_path_factory.mktemp("scaled")
    settings = local_gateway(folder / "state")
    few = {"num_hidden_layers": 2, "num_local_experts": 3}
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=512, eos_token_id=299, **few)
    checkpoint = tiny.store(model, folder / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, settings.pipelines / "tiny", "tiny", 4, None)
    with running_pipeline(settings, DeploymentSettings(kv_mib=8), "tiny") as one:
        yield one


@dataclass
class Readers:
    """Streams without end, each compared with what the whole model writes."""

    client: openai.OpenAI
    wanted: dict[str, str]
    over: threading.Event = field(default_factory=threading.Event)
    read: int = 0
    wrong: list[str] = field(default_factory=list)

    def go(self, number: int) -> None:
        prompts = list(self.wanted)
        while not self.over.is_set():
            prompt = prompts[number % len(prompts)]
            try:
                stream = self.client.completions.create(
                    model="tiny", prompt=prompt, max_tokens=TOKENS, temperature=0, stream=True
                )
                text = "".join(piece.choices[0].text for piece in stream)
            except Exception as error:  # the thread has to name it
                text = repr(error)
            if text != self.wanted[prompt]:
                self.wrong.append(f"{prompt}: {text!r}")
            self.read += 1
            number += 1


@cache
def texts_of(directory: Path) -> dict[str, str]:
    """Six prompts, and what the whole model writes."""
    model = WholeModel(directory)
    prompts = [f"text {number}" for number in range(6)]
    return {prompt: generate(model, [prompt], TOKENS)[0].text for prompt in prompts}


@contextmanager
def reading(running: RunningPipeline, count: int = READERS) -> Iterator[Readers]:
    client = openai.OpenAI(base_url=f"{running.client.url}/v1", api_key="none", max_retries=0, timeout=300)
    readers = Readers(client, texts_of(running.directory))
    threads = [threading.Thread(target=readers.go, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield readers
    finally:
        readers.over.set()
        for thread in threads:
            thread.join()
    assert readers.wrong == [] and readers.read > 0


def controller_of(running: RunningPipeline, policy: str, **more: Any) -> Controller:
    settings = ControllerSettings(
        gateway_url=running.client.url,
        manifest_dir=running.directory,
        policy=policy,
        interval_s=1.0,
        password=read_password(running.gateway.state),
        **{"max_replicas": 3, **more},
    )
    return build_controller(settings)[0]


def ticks_until(controller: Controller, holds: Callable[[TickReport], bool]) -> TickReport:
    """One tick a second until ``holds``; nothing may fail on the way."""
    end_s = time.monotonic() + DEADLINE_S
    controller.prime(time.time())
    while True:
        time.sleep(1.0)
        report = controller.tick(time.time())
        assert not report.failures and time.monotonic() < end_s, (report.failures, report.observation.problems)
        if holds(report):
            return report


def ready(report: TickReport, kind: str) -> set[int | None]:
    return {node.ready_replicas for node in report.observation.nodes if node.kind == kind}


def at_rest(running: RunningPipeline) -> None:
    """Without load, HPA takes everything back to one replica."""
    hpa = controller_of(running, "hpa", policy_settings=REST)
    ticks_until(hpa, lambda report: ready(report, "segment") | ready(report, "expert") == {1})


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        pytest.param("hpa", {}, id="hpa"),
        pytest.param("kpa", {}, id="kpa"),
        pytest.param(
            "slo-aware",
            {"ttft_s": 1e-3, "tpot_s": 1e-3, "policy_settings": {"up_stabilisation_s": 0.0}},
            id="slo-aware",
        ),
        pytest.param("autoscaler.policy.attainment:make", {"ttft_s": 1e-3}, id="attainment"),
    ],
)
def test_a_policy_adds_instances_while_texts_are_read(
    running: RunningPipeline, tmp_path: Path, policy: str, more: dict[str, Any]
) -> None:
    controller = controller_of(running, policy, log_dir=tmp_path, **more)
    with reading(running) as readers:
        report = ticks_until(controller, lambda report: min(map(int, filter(None, ready(report, "segment")))) >= 2)
        before = readers.read
        ticks_until(controller, lambda report: readers.read > before + READERS)
    controller.close()
    segments = {one.target.replicas for one in report.decisions if one.node.startswith("segment")}
    assert len(segments) == 1  # of every segment as many, whatever each was asked for by itself
    (logged, *_) = [row for row in read_pipeline(tmp_path).to_pylist() if row["generation_ttft_p95_s"] is not None]
    assert logged["generation_running"] + logged["generation_waiting"] > 0 and logged["generation_kv_usage"] > 0
    assert 0 < logged["generation_tpot_p50_s"] <= logged["generation_tpot_p95_s"]
    at_rest(running)


@pytest.mark.prometheus
def test_staffing_plans_a_decoders_experts_by_its_tpot_as_a_prometheus_shows_it(
    running: RunningPipeline, tmp_path: Path
) -> None:
    if shutil.which(prometheus.BINARY) is None:
        pytest.skip("no Prometheus server on PATH")
    profile = tmp_path / "nodes.parquet"
    save(truth.of_folder(running.directory, more=truth.PASSES), profile)
    with prometheus.prometheus(running.client.url, running.gateway.state, 1.0) as url, reading(running) as readers:
        controller = controller_of(
            running, "staffing", ttft_s=2.0, tpot_s=0.1, prometheus_url=url,
            policy_settings={"profile": str(profile), "other_machine": True, "standbys": 1.0}, max_replicas=2,
        )  # fmt: skip
        waiting = ticks_until(controller, staffed)
        before = readers.read
        ticks_until(controller, lambda report: readers.read > before + READERS)
    texts = waiting.observation.generation
    assert texts is not None and texts.running and texts.kv_usage and texts.tpot_p95_s and texts.ttft_p95_s
    assert len({one.target.replicas for one in waiting.decisions if one.node.startswith("segment")}) == 1
    at_rest(running)


def staffed(report: TickReport) -> bool:
    """Every expert has been given standbys, and texts have been read in the window."""
    texts = report.observation.generation
    experts = [one.present for one in report.decisions if one.node.startswith("expert")]
    given = all(one is not None and one.burst is not None for one in experts)
    return given and bool(experts) and texts is not None and texts.ttft_p95_s is not None


def test_experts_are_scaled_apart_from_instances(running: RunningPipeline) -> None:
    classes = [{"cpu_cores": 1, "tokens_per_s": 1e-3}] * 3
    controller = controller_of(running, "elasticmoe", policy_settings={"classes": classes}, max_replicas=2)
    with reading(running):
        report = ticks_until(controller, lambda report: 2 in ready(report, "expert"))
    assert ready(report, "segment") == {1}
    at_rest(running)


def test_janus_orders_instances_and_experts_for_a_load_and_takes_them_back_after_it(running: RunningPipeline) -> None:
    """λ lies between what an iteration takes with one reader and with all of them, as measured here."""
    static = controller_of(running, "static")
    with reading(running, 1):
        alone_s = tpot_p95_s(static)
    with reading(running, READERS):
        crowded_s = tpot_p95_s(static)
    quick = {"down_windows": 2, "load_smoothing": 1.0}
    target_s = max((alone_s * crowded_s) ** 0.5, crowded_s / 2)
    janus = controller_of(running, "janus", tpot_s=target_s, policy_settings=quick)
    with reading(running, READERS) as readers:
        report = ticks_until(janus, lambda report: min(map(int, filter(None, ready(report, "segment")))) >= 2)
        before = readers.read
        ticks_until(janus, lambda report: readers.read > before + READERS)
    assert len({one.target.replicas for one in report.decisions if one.node.startswith("segment")}) == 1
    assert all("predicted TPOT P95" in one.reason for one in report.decisions if one.valid and one.node != "ingress")
    ticks_until(janus, lambda report: ready(report, "segment") | ready(report, "expert") == {1})
    at_rest(running)


def tpot_p95_s(controller: Controller) -> float:
    """The median of five windows in which tokens were written."""
    measured: list[float] = []

    def enough(report: TickReport) -> bool:
        texts = report.observation.generation
        if texts is not None and texts.tpot_p95_s is not None:
            measured.append(texts.tpot_p95_s)
        return len(measured) >= 5

    ticks_until(controller, enough)
    return statistics.median(measured)


def counter(running: RunningPipeline, name: str) -> float:
    """A counter of the only ingress, summed over its labels."""
    (ingress,) = running.client.replicas()[running.functions[0]]
    reply = requests.get(f"http://{ingress['address']}/metrics", timeout=60)
    return sum(float(line.split()[-1]) for line in reply.text.splitlines() if line.startswith(name + "{"))


def test_no_token_is_computed_again_when_instances_go(running: RunningPipeline) -> None:
    at_rest(running)
    up = controller_of(running, "hpa", max_replicas=2)
    down = controller_of(running, "hpa", policy_settings=REST, max_replicas=1)
    with reading(running) as readers:
        ticks_until(up, lambda report: ready(report, "segment") == {2})
        before = counter(running, RECOMPUTED_TOKENS)
        ticks_until(down, lambda report: ready(report, "segment") == {1})
        read = readers.read
        ticks_until(down, lambda report: readers.read > read + READERS)
        assert counter(running, RECOMPUTED_TOKENS) == before

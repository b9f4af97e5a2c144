"""The committed stack on a running gateway: answers, scaling under load, live limits, and nothing left behind."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from autoscaler.build import build_controller
from autoscaler.monitor.catalogue import METRICS
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.settings import ControllerSettings
from autoscaler.state.features import observe
from autoscaler.state.readings import Series
from autoscaler.topology import load_topology
from gateway.backends.process.settings import ProcessSettings
from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway, read_password
from smoe import lifecycle
from smoe.parity import compare_with_whole_model
from tests.integration import scrape_error
from tests.unit.autoscaler.test_prometheus import prometheus

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
TEXTS = ["The cat sat on the mat.", "Prices fell sharply in the third quarter.", "How do I reset my password?"]


class Running:
    """A gateway with the committed stack deployed."""

    def __init__(self, state: Path, pipeline: Path) -> None:
        self.settings = lifecycle.GatewaySettings(
            state, port=0, metrics_port=0, cpu_scale=0.25, pipelines_dir=pipeline.parent
        )
        self.pipeline = pipeline
        self.process = lifecycle.start_gateway(self.settings, detach=False)
        self.client = GatewayClient.from_state(state)
        for deployment in stack_deployments():
            self.client.deploy(deployment)
        self.names = [deployment["service"] for deployment in stack_deployments()]
        self.client.wait_ready(self.names, 120)

    def function(self, name: str) -> dict[str, Any]:
        return next(status for status in self.client.functions() if status["name"] == name)

    def until(self, condition: Any, timeout_s: float = 60.0) -> bool:
        end_s = time.monotonic() + timeout_s
        wait = threading.Event()
        while time.monotonic() < end_s:
            if condition():
                return True
            wait.wait(0.1)
        return False


def stack_deployments() -> list[dict[str, Any]]:
    """What faas-cli sends for each function of stack.yml."""
    stack = yaml.safe_load((ROOT / "stack.yml").read_text())
    return [
        {
            "service": name,
            "image": function["image"],
            "envVars": function["environment"],
            "labels": function["labels"],
            "annotations": function["annotations"],
            "limits": function["limits"],
            "requests": function["requests"],
        }
        for name, function in reversed(stack["functions"].items())
    ]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, minilm_pipeline: Path) -> Iterator[Running]:
    started = Running(tmp_path_factory.mktemp("state"), minilm_pipeline)
    yield started
    lifecycle.stop_process(started.process)


def test_the_functions_answer_as_the_whole_model_does(running: Running) -> None:
    parity = compare_with_whole_model(running.client, "minilm", running.pipeline, TEXTS)
    assert parity.max_rel_err <= 1e-5


PROMETHEUS = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - job_name: smoe
    http_sd_configs:
      - url: {url}/system/targets
        refresh_interval: 1s
        basic_auth: {{username: admin, password_file: {password_file}}}
"""
SCRAPED = (METRICS[Series.REQUESTS_IN_FLIGHT], METRICS[Series.CPU_SCALE])
"""A metric of each target: ingress and gateway."""


@pytest.mark.prometheus
def test_a_real_prometheus_gives_the_direct_scrape_s_numbers_within_its_scrape_error(
    running: Running, tmp_path: Path
) -> None:
    """All requests of the window lie between a sample at its begin and one at its end (:mod:`scrape_error`)."""
    secret = running.settings.state.resolve() / "secrets" / "basic-auth-password"
    topology = load_topology(running.pipeline)
    settings = PROMETHEUS.format(url=running.client.url, password_file=secret)
    with prometheus(tmp_path, settings) as url:

        def sampled_since(time_s: float) -> bool:
            return all(ask(url, f"min(timestamp({name}))") > time_s for name in SCRAPED)

        def settled() -> bool:
            """A sample of both targets that holds all that was done until now."""
            now_s = time.time()
            return running.until(lambda: sampled_since(now_s + MEASURED_S))

        direct = ScrapeSource(running.client.url, ("admin", read_password(running.settings.state)))
        assert send_while(running, lambda: not sampled_since(0.0), 10) == {200}  # series are born before the window
        assert settled()
        begin_s = time.time()
        direct.read(begin_s, 1.0)
        assert running.until(lambda: sampled_since(begin_s))
        assert send_while(running, lambda: not sampled_since(begin_s + LOAD_S)) == {200}
        assert settled()
        end_s = time.time()
        window_s = end_s - begin_s
        scraped, served = direct.read(end_s, window_s), PrometheusSource(url, topology.pipeline).read(end_s, window_s)
        span = f"[{round(1000 * window_s)}ms]"
        samples = min(ask(url, f"min(count_over_time({name}{span}))", end_s) for name in SCRAPED)
    seen, found = observe(topology, scraped), observe(topology, served)
    assert seen.requests is not None and seen.requests >= 20
    scrape_error.assert_within(seen, found, scraped, samples)


LOAD_S = 10.0
MEASURED_S = ProcessSettings(Path()).usage_interval_s
"""After this long, the gateway's measured CPU times hold all that was used until now."""


def ask(url: str, query: str, time_s: float | None = None) -> float:
    """The one number that Prometheus answers; 0 where it has none."""
    params = {"query": query} | ({} if time_s is None else {"time": str(time_s)})
    rows = requests.get(f"{url}/api/v1/query", params=params, timeout=100).json()["data"]["result"]
    return float(rows[0]["value"][1]) if rows else 0.0


def test_limits_change_live_without_a_new_process(running: Running) -> None:
    before = replica_ids(running, "minilm-expert-0-0")
    deployment = next(one for one in stack_deployments() if one["service"] == "minilm-expert-0-0")
    changed = {
        **deployment,
        "limits": {"memory": "320Mi", "cpu": "2000m"},
        "envVars": {**deployment["envVars"], "max_inflight": "3"},
    }
    assert running.client.deploy(changed) == "updated"
    assert running.function("minilm-expert-0-0")["limits"] == {"memory": "320Mi", "cpu": "2000m"}
    assert feed(running)["minilm-expert-0-0.openfaas-fn"]["max_inflight"] == 3
    assert replica_ids(running, "minilm-expert-0-0") == before


def test_the_controller_scales_up_under_load_and_down_after_it(running: Running) -> None:
    controller, _ = build_controller(
        ControllerSettings(
            gateway_url=running.client.url,
            manifest_dir=running.pipeline,
            password=read_password(running.settings.state),
            policy="hpa",
            policy_settings={
                "concurrency_target": 0.05,
                "cpu_target": 0.2,
                "down_stabilisation_s": 0.0,
                "period_s": 0.5,
            },
            max_replicas=3,
        )
    )
    controller.tick(time.time(), 2.0)
    statuses: list[int] = []
    load = [threading.Thread(target=send, args=(running, 20, statuses)) for _ in range(8)]
    for thread in load:
        thread.start()
    grown: set[str] = set()
    wait = threading.Event()
    while any(thread.is_alive() for thread in load):
        wait.wait(1.0)
        report = controller.tick(time.time(), 2.0)
        grown |= {d.function for d in report.decisions if d.changes and d.target.replicas > d.present.replicas}
    assert statuses == [200] * 160
    assert grown
    assert running.until(lambda: all(controller_idle(controller)), 60)
    total = sum(status.get("replicas", 0) for status in running.client.functions())
    assert total == len(running.names)


def controller_idle(controller: Any) -> list[bool]:
    """One more tick; whether each function is back at one replica."""
    report = controller.tick(time.time(), 2.0)
    return [decision.target.replicas == 1 for decision in report.decisions]


def test_bad_input_gets_a_sentence_through_the_gateway(running: Running) -> None:
    reply = running.client.invoke("minilm", b"\xff\xfe", "application/json", 10)
    assert reply.status_code == 400
    assert "UTF-8" in reply.json()["error"]["message"]


def test_killing_the_gateway_ends_every_process(running: Running) -> None:
    state = running.settings.state
    pid = int(read_gateway(state)["pid"])
    family = descendants(pid)
    assert len(family) > len(running.names)
    os.kill(pid, 9)
    running.process.wait(10)
    assert running.until(lambda: not any(alive(child) for child in family), 15)


def send(running: Running, count: int, statuses: list[int]) -> None:
    session = requests.Session()
    session.trust_env = False
    for index in range(count):
        body = {"inputs": TEXTS[index % len(TEXTS)]}
        reply = session.post(f"{running.client.url}/function/minilm", json=body, timeout=100)
        statuses.append(reply.status_code)


def send_while(running: Running, wanted: Callable[[], bool], least: int = 0) -> set[int]:
    """Four clients send while ``wanted``, and each at least so many; the statuses of the answers."""
    stop, statuses = threading.Event(), list[int]()

    def client() -> None:
        send(running, least, statuses)
        while not stop.is_set():
            send(running, len(TEXTS), statuses)

    load = [threading.Thread(target=client) for _ in range(4)]
    for thread in load:
        thread.start()
    enough = running.until(lambda: not wanted())
    stop.set()
    for thread in load:
        thread.join()
    assert enough
    return set(statuses)


def feed(running: Running) -> dict[str, Any]:
    auth = ("admin", read_password(running.settings.state))
    reply = requests.get(f"{running.client.url}/system/replicas", auth=auth, timeout=100)
    found: dict[str, Any] = json.loads(reply.text)["functions"]
    return found


def replica_ids(running: Running, name: str) -> list[str]:
    return [replica["id"] for replica in feed(running)[f"{name}.openfaas-fn"]["replicas"]]


def descendants(pid: int) -> set[int]:
    """Process ids of all children, and theirs."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found |= {int(child)} | descendants(int(child))
    return found


def alive(pid: int) -> bool:
    """False for a process that is gone or a zombie waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False

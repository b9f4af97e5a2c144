"""Prometheus' settings, rules, alerts and the Grafana board against what is exported, on a real Prometheus too."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from autoscaler.contract import Cost, Decision, TickReport
from autoscaler.exposition import ControllerMetrics
from autoscaler.platforms.kubernetes.conditions import Condition
from autoscaler.platforms.kubernetes.metrics import PlatformMetrics
from autoscaler.platforms.shadow import ShadowBill, ShadowPlatform
from autoscaler.prices import load_prices
from autoscaler.state.targets import Targets
from functions.dispatch.dispatcher import CallRecord
from functions.generation.measures import Measures
from functions.generation.metrics import GenerationMetrics
from functions.serving.instruments import IngressInstruments
from gateway.contract import FunctionSpec, FunctionState, Replica, Usage
from gateway.metrics import GatewayMetrics
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import configuration, observation
from tests.unit.autoscaler.servers import serve
from tests.unit.autoscaler.test_prometheus import poll_prometheus, prometheus

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
SETTINGS = DEPLOY / "prometheus" / "prometheus.yml"
BOARD = json.loads((DEPLOY / "grafana" / "smoe.json").read_text())
CADVISOR = {"container_cpu_usage_seconds_total", "container_memory_working_set_bytes"}
"""Kubernetes' own; the rest has to be exported by this project."""
WORDS = [
    "sum",
    "max",
    "min",
    "avg",
    "topk",
    "rate",
    "increase",
    "by",
    "on",
    "vector",
    "time",
    "absent",
    "absent_over_time",
    "last_over_time",
    "unless",
    "clamp_min",
    "or",
    "and",
    "without",
    "histogram_quantile",
    "label_replace",
    "label_join",
    "timestamp",
    "offset",
]
EXPERT = "m-expert-0-0"


class Backend:
    """Three functions with limits, each with one replica."""

    def list(self, namespace: str | None = None) -> list[FunctionState]:
        limits, share = {"cpu": "500m", "memory": "64Mi"}, {"nvidia.com/gpu": "3", "memory": "64Mi"}
        names = ("m", "m-segment-0", EXPERT)
        specs = [
            FunctionSpec(
                name, "image", env_vars={"max_inflight": "4"}, limits=share if name == "m-segment-0" else limits
            )
            for name in names
        ]
        return [FunctionState(one, 1, (Replica(f"{one.name}-1", "127.0.0.1:1", "ready"),), 1, 0.0) for one in specs]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        return {f"{name}-1": Usage(None, 2.0**20, 3)}

    def start_seconds(self) -> list[float]:
        return [0.05]


class Live:
    """The exporters of an installation at work: each scrape finds more than the one before."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._gateway = GatewayMetrics(Backend(), 1.0)  # type: ignore[arg-type]
        self._ingress = IngressInstruments("m", ["segment-0", "expert-0-0"], 1, lambda: self._seconds)
        self._measures = Measures()
        run = SimpleNamespace(texts=[1], pages=3, instance=SimpleNamespace(pages=8))
        generator = SimpleNamespace(
            runs=[run], unscheduled=2, phases=None, measures=self._measures, document=lambda: {"instances": []}
        )
        self._texts = CollectorRegistry()
        self._texts.register(GenerationMetrics("m", generator))  # type: ignore[arg-type]
        bill = ShadowBill(ShadowPlatform(FakePlatform({})), load_prices(), "hpa")
        self._controller = ControllerMetrics("m", Targets(0.5, 1.0, 0.1), bill)
        self._registry = CollectorRegistry()
        self._registry.register(self._controller)
        conditions = (Condition(EXPERT, "deferred", "p", "no room"),)
        self._calls = {("LIST", "pods", 200): 1}
        self._registry.register(
            PlatformMetrics("m", lambda: conditions, self._calls, lambda: True, {(EXPERT, "quota"): 1})
        )

    def gateway(self) -> bytes:
        key = f"{EXPERT}.openfaas-fn"
        self._gateway.begin(key)
        self._gateway.end(key, 200, 0.1)
        self._gateway.repeated(key, "connect")
        return self._gateway.text()

    def ingress(self) -> bytes:
        self._seconds += 1.0
        for status in ("200", "503"):
            for node in self._ingress.nodes.values():
                record = CallRecord()
                record.status, record.repeats = status, ["busy"]
                node.begin(3, self._seconds)
                node.end(3, self._seconds, self._seconds + 0.2, record)
            self._ingress.finished(int(status), 0.3, 20)
        self._ingress.barriers[0].observe(0.1)
        self._measures.first_token.observe(0.2)
        self._measures.next_token.observe(0.02)
        self._measures.prompt_tokens += 8
        self._measures.written_tokens += 2
        return self._ingress.text() + generate_latest(self._texts)

    def controller(self) -> bytes:
        more = Decision(EXPERT, "expert-0-0", configuration(), configuration(2), configuration(2), "busy")
        seen = replace(observation(), end_s=time.time(), start_s=time.time() - 5)
        self._controller.add(TickReport(seen, (more,), (EXPERT,), cost=Cost(0.01, 0.02)))
        self._calls["LIST", "pods", 200] += 1
        return generate_latest(self._registry)

    def cadvisor(self) -> bytes:
        self._seconds += 0.5
        registry = CollectorRegistry()
        seconds = self._seconds

        class Containers:
            def collect(self) -> Iterator[Metric]:
                labels = ["namespace", "pod", "container"]
                cpu = CounterMetricFamily("container_cpu_usage_seconds_total", "", labels=labels)
                memory = GaugeMetricFamily("container_memory_working_set_bytes", "", labels=labels)
                for name in ("m", "m-segment-0", EXPERT):
                    for container in (name, "POD", ""):
                        cpu.add_metric(["openfaas-fn", f"{name}-1", container], seconds)
                        memory.add_metric(["openfaas-fn", f"{name}-1", container], 2.0**24)
                memory.add_metric(["kube-system", "dns-1", "dns"], 1.0)
                yield from (cpu, memory)

        registry.register(Containers())  # type: ignore[arg-type]
        return generate_latest(registry)


def exported() -> set[str]:
    """Names of all samples that gateway, ingress and controller really expose, once everything has happened once."""
    live = Live()
    text = b"".join((live.gateway(), live.ingress(), live.controller())).decode()
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line and not line.startswith("#")}


def names_in(expression: str) -> set[str]:
    """Metrics of an expression: what is neither label, text, duration, function nor number."""
    bare = re.sub(r'"(\\.|[^"\\])*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|ignoring)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"[a-zA-Z_:][\w:]*", bare)) - set(WORDS)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    """(title, expression) of everything that the board asks for."""
    return [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]


def test_everything_that_a_panel_rule_or_alert_asks_for_is_exported_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = exported() | recorded | CADVISOR
    asked = {rule.get("alert") or rule["record"]: names_in(rule["expr"]) for rule in rules()}
    asked |= {title: names_in(expression) for title, expression in panels()}
    assert all(asked.values())
    assert {what: names - known for what, names in asked.items() if names - known} == {}
    assert set().union(*(names_in(rule["expr"]) for rule in rules() if "record" in rule)) == CADVISOR


def test_names_are_found_in_an_expression() -> None:
    names = names_in('topk(3, sum by (a, le) (rate(x_bucket{y="z"}[5m]))) / on (b) max(w{c=~"d|e"}) or vector(0) > 1e3')
    assert names - {"e3"} == {"x_bucket", "w"}


def test_recorded_names_are_those_that_the_controller_reads() -> None:
    assert {rule["record"] for rule in rules() if "record" in rule} == {
        "smoe_replica_cpu_seconds_total",
        "smoe_replica_memory_bytes",
    }


def test_the_board_is_one_that_grafana_takes() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    assert [one["name"] for one in BOARD["templating"]["list"]] == ["datasource", "pipeline", "namespace"]
    used = {name for _, expression in panels() for name in re.findall(r"\$(\w+)", expression) if not name.isdigit()}
    assert used == {"pipeline", "namespace", "__rate_interval"}


def test_every_axis_of_a_configuration_is_shown_of_every_kind_of_function() -> None:
    (panel,) = [panel for panel in BOARD["panels"] if panel["title"] == "Live configuration"]
    shown = {name for target in panel["targets"] for name in names_in(target["expr"])}
    assert shown == {
        "gateway_service_count",
        "smoe_function_replicas",
        "smoe_function_memory_limit_bytes",
        "smoe_function_cpu_limit_cores",
        "smoe_function_gpu_share",
        "smoe_function_max_inflight",
    }


def test_the_gateway_exposes_a_share_of_a_gpu_as_a_part_of_one() -> None:
    text = Live().gateway().decode()
    lines = [line for line in text.splitlines() if line.startswith("smoe_function_gpu_share{")]
    assert lines == ['smoe_function_gpu_share{function_name="m-segment-0.openfaas-fn"} 0.3']


def test_no_panel_takes_functions_of_a_pipeline_with_the_same_prefix() -> None:
    own = ("m", "m-segment-0", "m-expert-0-1", "m-segments-0", "m-experts-1", "m-stages")
    for title, expression in panels():
        for text in re.findall(r'function_name=~"([^"]+)"', expression):
            pattern = re.compile(text.replace("$pipeline", "m").replace("$namespace", "openfaas-fn"))
            taken = {name for name in own if pattern.fullmatch(f"{name}.openfaas-fn")}
            assert taken in (set(own), {"m-expert-0-1"}), title
            for other in ("m-large", "m-large-expert-0-1", "m-large-stages", "n"):
                assert not pattern.fullmatch(f"{other}.openfaas-fn"), title


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False, timeout=100
    )
    assert checked.returncode == 0, checked.stderr


SEEN_IN_A_CLUSTER = {
    "gateway": {"__meta_kubernetes_pod_label_app": "gateway", "__meta_kubernetes_pod_container_port_name": "metrics"},
    "ingress": {
        "__meta_kubernetes_pod_label_smoe_metrics": "true",
        "__meta_kubernetes_pod_container_port_name": "http",
        "__meta_kubernetes_pod_label_faas_function": "m",
        "__meta_kubernetes_pod_name": "m-1",
        "__meta_kubernetes_namespace": "openfaas-fn",
    },
    "controller": {
        "__meta_kubernetes_pod_label_app": "smoe-controller",
        "__meta_kubernetes_pod_container_port_name": "metrics",
    },
    "cadvisor": {},
}
"""Labels that Kubernetes' service discovery gives to the targets of each job; nothing else of it is left out below."""


def chosen(expression: str) -> str:
    """A panel's expression with the board's choices made."""
    for variable, value in (("$pipeline", "m"), ("$namespace", "openfaas-fn"), ("$__rate_interval", "10s")):
        expression = expression.replace(variable, value)
    return expression


def settings_for(addresses: Mapping[str, str], rules_file: Path) -> str:
    """``prometheus.yml`` with the cluster's service discovery replaced by what it finds; Debian's build has none."""
    document = yaml.safe_load(SETTINGS.read_text())
    document["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    document["rule_files"] = [str(rules_file)]
    assert [job["job_name"] for job in document["scrape_configs"]] == list(SEEN_IN_A_CLUSTER)
    for job in document["scrape_configs"]:
        name = job["job_name"]
        settings_for = job.pop("kubernetes_sd_configs")
        assert len(settings_for) == 1 and settings_for[0]["role"] == ("node" if name == "cadvisor" else "pod")
        stranger = dict.fromkeys(SEEN_IN_A_CLUSTER[name], "other")
        job["static_configs"] = [{"targets": [addresses[name]], "labels": SEEN_IN_A_CLUSTER[name]}]
        if stranger:  # a pod that the relabelling must leave out
            job["static_configs"].append({"targets": ["127.0.0.1:9"], "labels": stranger})
        for key in ("scheme", "tls_config", "authorization"):
            job.pop(key, None)
    text: str = yaml.safe_dump(document, sort_keys=False)
    return text


@pytest.mark.prometheus
@pytest.mark.slow
def test_every_panel_shows_something_and_recorded_numbers_are_right_on_a_real_prometheus(tmp_path: Path) -> None:
    live = Live()
    pages: dict[str, Callable[[], bytes]] = {name: getattr(live, name) for name in SEEN_IN_A_CLUSTER}
    fast = yaml.safe_load(RULES.read_text())
    for group in fast["groups"]:
        group.pop("interval", None)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(fast))
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(serve(lambda *_, page=page: (200, page()))).address
            for name, page in pages.items()
        }
        url = stack.enter_context(prometheus(tmp_path, settings_for(addresses, tmp_path / "rules.yaml")))

        def ask(expression: str) -> list[dict[str, Any]]:
            reply = requests.get(f"{url}/api/v1/query", params={"query": expression}, timeout=100).json()
            assert reply["status"] == "success", (expression, reply)
            return list(reply["data"]["result"])

        def empty() -> list[str]:
            return [title for title, expression in panels() if not ask(chosen(expression))]

        poll_prometheus(lambda: not empty(), 40)
        assert empty() == []
        targets = requests.get(f"{url}/api/v1/targets?state=active", timeout=100).json()["data"]["activeTargets"]
        assert sorted(one["labels"]["job"] for one in targets) == sorted(SEEN_IN_A_CLUSTER)
        memory = {one["metric"]["function_name"]: float(one["value"][1]) for one in ask("smoe_replica_memory_bytes")}
        assert memory == dict.fromkeys(("m.openfaas-fn", "m-segment-0.openfaas-fn", f"{EXPERT}.openfaas-fn"), 2.0**24)
        (matrix,) = ask(chosen(next(e for t, e in panels() if t.startswith("Replicas wanted, layers"))))
        assert matrix["metric"] == {"layer": "0", "expert": "0"}

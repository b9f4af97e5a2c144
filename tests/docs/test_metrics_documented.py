"""The tables of ``docs/metrics.md``, made from docstrings of names, against what is really exposed and written: names,
types, labels, columns, nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from prometheus_client.core import Metric

from autoscaler import exposition
from autoscaler.contract import Cost, Decision, TickReport
from autoscaler.exposition import ControllerMetrics
from autoscaler.logger import DECISIONS, PIPELINE, WINDOWS
from autoscaler.platforms.kubernetes.conditions import Condition
from autoscaler.platforms.kubernetes.metrics import PlatformMetrics
from autoscaler.platforms.shadow import ShadowBill, ShadowPlatform
from autoscaler.prices import load_prices
from autoscaler.state.targets import Targets
from docs.tables import TABLES
from functions.device.tensors import HostDevice
from functions.dispatch.dispatcher import CallRecord
from functions.generation.measures import Measures
from functions.generation.metrics import GenerationMetrics
from functions.serving import generation_metric_names as generation_names
from functions.serving import metric_names as ingress_names
from functions.serving.instruments import IngressInstruments
from functions.serving.kept_pages import KeptPages
from functions.serving.node_host import NodeHost
from functions.serving.traffic import Link
from functions.wire.messages import Request
from gateway import metric_names as gateway_names
from gateway.contract import FunctionSpec, FunctionState, Replica, Usage
from gateway.metrics import GatewayMetrics
from moe.cache import KvShape, PageCache
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import configuration, observation

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
Row = list[str]
WORKERS = re.compile(r"^\| `(smoe_worker\w+)` \| (.*) \|$", re.MULTILINE)
"""A row of the one table that the page has itself."""


def rows(table: str) -> dict[str, Row]:
    """First cell → the other cells of a table."""
    _, listed = TABLES[table]()
    rows = {first: list(rest) for first, *rest in listed}
    assert len(rows) == len(listed)
    return rows


def names_in(module: object) -> set[str]:
    return {value for key, value in vars(module).items() if key.isupper() and isinstance(value, str)}


def labels_of(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


class Backend:
    """A function with all limits, one replica, a standby to have and one start."""

    def list(self, namespace: str | None = None) -> list[FunctionState]:
        spec = FunctionSpec("f", "image", limits={"cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": "3"})
        return [FunctionState(spec, 1, (Replica("r", "127.0.0.1:1", "ready"),), 1, 0.0, standbys=1)]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        return {"r": Usage(1.0, 2.0, 3)}

    def start_seconds(self) -> Iterable[float]:
        return [0.05]


def ingress_families() -> dict[str, Metric]:
    instruments = IngressInstruments("m", ["expert-0-0"], 1, lambda: 0.0)
    node = instruments.nodes["expert-0-0"]
    record = CallRecord()
    record.status, record.repeats = "200", ["busy"]
    node.begin(3, 0.0)
    node.end(3, 0.0, 1.0, record)
    instruments.traffic.message("a", 1, 2)
    instruments.traffic.links = {"a": Link(1e-4, 1e-4, 1e-4, 1e9)}
    return named(instruments.collect())


def generation_families() -> dict[str, Metric]:
    one = {"instance": 0, "role": "both", "running": 0, "queue": 0, "arriving": 0}
    generator = SimpleNamespace(
        measures=Measures(), unscheduled=0, runs=[], phases=None, document=lambda: {"instances": [one]}
    )
    return named(GenerationMetrics("m", generator).collect())  # type: ignore[arg-type]


def gateway_families() -> dict[str, Metric]:
    metrics = GatewayMetrics(Backend(), 1.0)  # type: ignore[arg-type]
    metrics.begin("f.openfaas-fn")
    metrics.end("f.openfaas-fn", 200, 0.1)
    metrics.repeated("f.openfaas-fn", "connect")
    metrics.text()
    return named(metrics.registry.collect())


def worker_families() -> dict[str, Metric]:
    loop = asyncio.new_event_loop()
    cache = PageCache([KvShape((1, 2), (1, 2), torch.float32)], 1 << 20)
    segment = SimpleNamespace(rules=SimpleNamespace(caches=True), cache=cache)
    kept = KeptPages({"segment-0": segment}, 1 << 20, loop)  # type: ignore[dict-item]
    host = NodeHost({"expert-0-0": object()}, loop, HostDevice(), kept=kept)  # type: ignore[dict-item]
    host.submit(Request("POST", "/", {}, bytearray(b"no tensors"), 0.0), lambda reply: None)
    loop.close()
    return named(host.collect())


def controller_families() -> dict[str, Metric]:
    own = ControllerMetrics(
        "m", Targets(0.1, 1.0, 0.05), ShadowBill(ShadowPlatform(FakePlatform({})), load_prices(), "hpa")
    )
    decision = Decision("m-expert-0-0", "expert-0-0", configuration(), configuration(2), configuration(2), "busy")
    own.add(TickReport(observation(), (decision,), ("m-expert-0-0",), cost=Cost(0.01, 0.02)))
    obstacle = Condition("m-expert-0-0", "quota", "", "exceeded quota")
    cluster = PlatformMetrics("m", lambda: (obstacle,), {("list", "pods", 200): 1}, lambda: True, {("f", "quota"): 1})
    return named([*own.collect(), *cluster.collect()])


def named(families: Iterable[Metric]) -> dict[str, Metric]:
    """As on the wire: the counters' names end in ``_total``."""
    return {family.name + ("_total" if family.type == "counter" else ""): family for family in families}


@pytest.mark.parametrize(
    ("table", "module"),
    [
        ("metrics-ingress", ingress_names),
        ("metrics-gateway", gateway_names),
        ("metrics-generation", generation_names),
        ("metrics-controller", exposition),
    ],
)
def test_every_name_of_a_metric_states_its_type_labels_and_meaning(table: str, module: object) -> None:
    assert names_in(module) - {exposition.EVERYWHERE} <= set(rows(table))


EXPOSED = {
    "metrics-ingress": ingress_families,
    "metrics-generation": generation_families,
    "metrics-gateway": gateway_families,
    "metrics-controller": controller_families,
    "workers": worker_families,
}


@pytest.mark.parametrize("table", EXPOSED)
def test_types_and_labels_are_those_exposed(table: str) -> None:
    exposed = EXPOSED[table]()
    of_page = {name: cells.split(" | ") for name, cells in WORKERS.findall(PAGE)}
    documented = of_page if table == "workers" else rows(table)
    assert set(exposed) == set(documented)
    for name, family in exposed.items():
        kind, labels, meaning = documented[name]
        assert kind == {"unknown": "untyped"}.get(family.type, family.type), name
        assert family.samples, f"{name} shows no sample here"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels_of(labels), name
        assert meaning.endswith("."), name


@pytest.mark.parametrize(
    ("table", "schema"), [("log-windows", WINDOWS), ("log-pipeline", PIPELINE), ("log-decisions", DECISIONS)]
)
def test_every_column_of_the_logger_is_described(table: str, schema: pa.Schema) -> None:
    documented = rows(table)
    assert list(documented) == schema.names
    assert [name for name, (_, meaning) in documented.items() if not meaning.endswith(".")] == []


def test_the_buckets_are_those_documented() -> None:
    bounds = [0.0005 * 1.3**i for i in range(45)]
    assert list(ingress_names.BUCKETS_S) == pytest.approx(bounds)
    assert "`0.0005 · 1.3^i` seconds, i = 0 … 44" in PAGE
    assert f"last {ingress_names.PEAK_WINDOW_S:g} s" in rows("metrics-ingress")[ingress_names.NODE_TOKENS_PEAK][2]

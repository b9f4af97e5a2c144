"""The document of the last window, the controller's own metrics, and the port that serves both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import requests
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.contract import Cost, Decision, TickReport
from autoscaler.errors import LogError, SettingsError
from autoscaler.exposition import LAST_DECISION, REPORTED, TEXT, ControllerMetrics, Exposition
from autoscaler.progress import Progress
from autoscaler.state.targets import Targets
from autoscaler.view import DECISIONS, HISTORY, View, result_of
from tests.unit.autoscaler.builders import configuration, observation, topology

MORE = Decision("m-expert-0-0", "expert-0-0", configuration(), configuration(3), configuration(2), "busy", ("step",))
SAME = Decision("m-segment-0", "segment-0", configuration(), configuration(), configuration(), "calm")


def report(*decisions: Decision, end_s: float = 100.0, **changes: object) -> TickReport:
    seen = replace(observation(), start_s=end_s - 5.0, end_s=end_s, latency_p95_s=0.2)
    report = TickReport(seen, decisions, ("m-expert-0-0",), cost=Cost(0.01, 0.02), policy="hpa")
    return replace(report, **changes)  # type: ignore[arg-type]


def view(folder: Path | None = None) -> View:
    return View(topology(), 0.5, "USD", folder)


def test_the_document_has_the_window_the_slo_costs_an_hour_and_what_was_decided_and_why() -> None:
    shown = view()
    shown.add(report(MORE, SAME))
    document = json.loads(shown.document())
    assert (document["pipeline"], document["namespace"]) == ("m", "openfaas-fn")
    assert (document["slo_s"], document["latency_p95_s"]) == (0.5, 0.2)
    assert document["cost"] == {"busy_per_hour": pytest.approx(7.2), "provisioned_per_hour": pytest.approx(14.4)}
    (decision,) = document["decisions"]
    assert (decision["function"], decision["reason"], decision["limits_hit"]) == ("m-expert-0-0", "busy", ["step"])
    assert (decision["present"]["replicas"], decision["wish"]["replicas"], decision["target"]["replicas"]) == (1, 3, 2)
    assert {node["node"] for node in document["nodes"]} == {node.node for node in observation().nodes}


def test_what_is_kept_is_bounded_and_the_newest_stays() -> None:
    shown = view()
    for i in range(HISTORY + 10):
        shown.add(report(MORE, end_s=100.0 + i))
    document = json.loads(shown.document())
    assert len(document["history"]) == HISTORY and len(document["decisions"]) == DECISIONS
    assert document["history"][-1]["in_flight"] == observation().in_flight
    assert document["history"][-1]["end_s"] == document["decisions"][-1]["time_s"] == 100.0 + HISTORY + 9


def test_the_file_is_whole_in_a_folder_of_its_owner_and_nothing_else_is_left(tmp_path: Path) -> None:
    shown = view(tmp_path / "view")
    shown.add(report(MORE))
    assert json.loads((tmp_path / "view" / "m.json").read_text())["policy"] == "hpa"
    assert [path.name for path in (tmp_path / "view").iterdir()] == ["m.json"]
    assert (tmp_path / "view").stat().st_mode & 0o777 == 0o700


def test_a_view_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"m\.json was not written"):
        view(tmp_path / "file").add(report())


@pytest.mark.parametrize(
    ("decision", "changes", "expected"),
    [
        (SAME, {}, "kept"),
        (MORE, {}, "applied"),
        (MORE, {"applied": ()}, "failed"),
        (MORE, {"failures": {"m-expert-0-0": "quota"}}, "failed"),
        (MORE, {"dry_run": True, "applied": ()}, "dry run"),
        (SAME._replace(valid=False), {}, "held"),
    ],
)
def test_what_became_of_a_decision(decision: Decision, changes: dict[str, object], expected: str) -> None:
    assert result_of(decision, report(decision, **changes)) == expected


@pytest.mark.slow
def test_a_port_that_is_taken_is_named() -> None:
    served = Exposition(0, CollectorRegistry(), lambda: b"{}", host="127.0.0.1")
    try:
        with pytest.raises(SettingsError, match=f"metrics_port is {served.port}, which cannot be listened on: Address"):
            Exposition(served.port, CollectorRegistry(), lambda: b"{}", host="127.0.0.1")
    finally:
        served.close()


@pytest.mark.slow
def test_metrics_and_view_are_served_side_by_side() -> None:
    found, metrics, registry = view(), ControllerMetrics("m", Targets(0.5)), CollectorRegistry()
    registry.register(metrics)
    for keeper in (found, metrics):
        keeper.add(report(MORE, SAME))
    served = Exposition(0, registry, lambda: found.document(leads=False), host="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{served.port}"
        text = requests.get(f"{url}/metrics", timeout=100).text
        document = requests.get(f"{url}/view", timeout=100).json()
    finally:
        served.close()
    samples = {
        (one.name, *(one.labels[key] for key in ("pipeline", "meter", "result") if key in one.labels)): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert samples["smoe_controller_slo_seconds", "m"] == 0.5
    assert samples["smoe_controller_cost_per_hour", "m", "provisioned"] == pytest.approx(14.4)
    assert samples["smoe_controller_decisions_total", "m", "applied"] == 1
    assert samples["smoe_controller_last_tick_timestamp_seconds", "m"] == 100.0
    assert document["leads"] is False and document["pipeline"] == "m"


def reported(metrics: ControllerMetrics) -> list[tuple[dict[str, str], float]]:
    """Labels and time of every last decision, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(metrics)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [(one.labels, one.value) for family in families for one in family.samples if one.name == LAST_DECISION]


def test_the_last_decision_of_a_function_is_reported_with_its_reason_and_limits_and_what_became_of_it() -> None:
    metrics = ControllerMetrics("m", Targets(0.5))
    metrics.add(report(MORE, SAME))
    metrics.add(report(MORE._replace(desired=configuration(5), reason="busier"), SAME, end_s=105.0, applied=()))
    expected = {
        "pipeline": "m",
        "function": "m-expert-0-0",
        "result": "failed",
        "present": "256MiB/1cpu/1x4",
        "wish": "256MiB/1cpu/5x4",
        "target": "256MiB/1cpu/2x4",
        "limits": "step",
        "reason": "busier",
    }
    assert reported(metrics) == [(expected, 105.0)]


def test_no_more_than_the_last_decisions_are_reported_however_many_functions_and_words_there_are() -> None:
    metrics = ControllerMetrics("m", Targets())
    many = [MORE._replace(function=f"m-{i}", reason=f"{i} " * 300) for i in range(3 * REPORTED)]
    metrics.add(report(*many))
    metrics.add(report(many[0], end_s=105.0))
    printed = reported(metrics)
    assert [labels["function"] for labels, _ in printed] == [
        f"m-{i}" for i in range(2 * REPORTED + 1, 3 * REPORTED)
    ] + ["m-0"]
    assert all(len(labels["reason"]) == TEXT and labels["reason"].endswith("…") for labels, _ in printed)


@pytest.mark.slow
def test_health_is_200_while_ticks_go_on_and_503_with_what_is_wrong_when_one_hangs() -> None:
    now_s = 0.0
    progress = Progress(30.0, lambda: now_s)
    served = Exposition(0, CollectorRegistry(), lambda: b"{}", progress.trouble, "127.0.0.1")
    url = f"http://127.0.0.1:{served.port}/healthz"
    try:
        now_s = 29.0
        answers = [requests.get(url, timeout=100)]
        now_s = 31.0
        answers.append(requests.get(url, timeout=100))
    finally:
        served.close()
    assert [(one.status_code, one.text) for one in answers] == [
        (200, "OK\n"),
        (503, "the tick has stood still for 31 s; 30 s are allowed\n"),
    ]

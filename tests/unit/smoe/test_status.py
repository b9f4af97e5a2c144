"""What ``smoe status`` makes of the metrics of two ingress replicas."""

from __future__ import annotations

import re
from io import StringIO
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from smoe.commands import status as module
from smoe.commands.status import Work, functions_table, status, work_of


def function(name: str, nodes: str = "") -> dict[str, object]:
    return {"name": name, "labels": {"smoe.pipeline": "m"}, "envVars": {"smoe_nodes": nodes} if nodes else {}}


def sample(name: str, value: float, **labels: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {(name, tuple(sorted({"pipeline": "m", **labels}.items()))): value}


def test_calls_of_nodes_are_those_of_their_functions_summed_over_ingresses() -> None:
    functions = [function("m"), function("m-expert-0-0", "expert-0-0"), function("m-rest", "segment-0, expert-0-1")]
    one = {
        **sample("smoe_requests_total", 4, code="200"),
        **sample("smoe_node_calls_total", 3, node="expert-0-0", code="200"),
        **sample("smoe_node_calls_total", 1, node="expert-0-0", code="429"),
        **sample("smoe_node_tokens_total", 30, node="expert-0-0"),
        **sample("smoe_node_calls_total", 4, node="segment-0", code="200"),
    }
    two = {
        **sample("smoe_node_calls_total", 6, node="expert-0-0", code="200"),
        **sample("smoe_node_calls_total", 2, node="expert-0-1", code="200"),
    }
    work = work_of(functions, one, two)
    assert {name: done.calls for name, done in work.items()} == {"m": 4, "m-expert-0-0": 10, "m-rest": 6}
    assert work["m-expert-0-0"].tokens == 30


def test_latency_is_the_histograms_quantile() -> None:
    buckets = {**sample("smoe_node_call_seconds_bucket", 90, node="expert-0-0", le="0.1")}
    buckets |= sample("smoe_node_call_seconds_bucket", 100, node="expert-0-0", le="0.2")
    buckets |= sample("smoe_node_call_seconds_bucket", 100, node="expert-0-0", le="+Inf")
    work = work_of([function("m-expert-0-0", "expert-0-0")], buckets)
    assert work["m-expert-0-0"].p95_s == pytest.approx(0.15)


def test_functions_that_no_ingress_counts_are_left_out() -> None:
    assert work_of([function("m"), function("other")]) == {}


def test_status_has_a_row_for_each_function_and_fails_where_one_has_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = [
        {"name": "b", "availableReplicas": 2, "replicas": 3, "limits": {"memory": "512Mi", "cpu": "2"}},
        {"name": "a", "invocationCount": 7.0, "envVars": {"max_inflight": "4"}},
    ]
    client = SimpleNamespace(url="http://g", functions=lambda: functions, info=lambda: {"notes": ["no limits"]})
    monkeypatch.setattr(module, "connect", lambda *_: client)
    monkeypatch.setattr(module, "_samples", lambda _: [])
    result = CliRunner().invoke(status, ["--verbose"])
    rows = [re.findall(r"[\w:/]+", line) for line in result.output.splitlines()]
    assert ["a", "0/0", "7", "4"] in rows and ["b", "2/3", "0", "512Mi", "2"] in rows
    assert "note: no limits" in result.output and "1 functions have no ready replica: a" in result.output
    assert result.exit_code == 1


def test_status_of_one_pipeline_has_its_functions_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = {"availableReplicas": 1, "replicas": 1}
    functions = [
        {**function("m"), **ready},
        {**function("n"), "labels": {"smoe.pipeline": "n"}},
        {"name": "figlet", **ready},
    ]
    client = SimpleNamespace(url="http://g", functions=lambda: functions)
    monkeypatch.setattr(module, "connect", lambda *_: client)
    monkeypatch.setattr(module, "_samples", lambda _: [])
    whole = CliRunner().invoke(status, [])
    assert whole.exit_code == 1 and "figlet" in whole.stdout
    one = CliRunner().invoke(status, ["m"])
    rows = [line.split() for line in one.stdout.splitlines()]
    assert one.exit_code == 0 and [row[:2] for row in rows if "1/1" in row or "0/0" in row] == [["m", "1/1"]]
    for missing in ("figlet", ""):
        none = CliRunner().invoke(status, [missing])
        assert none.exit_code == 1 and "deployed at http://g; there: m, n" in str(none.exception)


def test_what_an_ingress_that_does_not_answer_counted_is_unknown_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    ready = {"availableReplicas": 1, "replicas": 1}
    functions = [
        {**function("m"), **ready, "invocationCount": 7.0},
        {**function("m-expert-0-0", "expert-0-0"), **ready},
        {**function("n"), **ready, "labels": {"smoe.pipeline": "n"}},
        {**function("n-expert-0-0", "expert-0-0"), **ready, "labels": {"smoe.pipeline": "n"}},
    ]
    client = SimpleNamespace(url="http://g", functions=lambda: functions)
    monkeypatch.setattr(module, "connect", lambda *_: client)
    monkeypatch.setattr(module, "_samples", lambda _: [])
    result = CliRunner().invoke(status, [])
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:3] for row in rows if row and row[0][:2] in ("m", "m-", "n", "n-")] == [
        ["m", "1/1", "7"], ["m-expert-0-0", "1/1", "–"], ["n", "1/1", "0"], ["n-expert-0-0", "1/1", "0"]
    ]  # fmt: skip
    assert result.stderr.startswith("the ingress of m did not answer with its metrics") and result.exit_code == 0
    monkeypatch.setattr(module, "_samples", lambda _: [sample("smoe_requests_total", 7, code="200")])
    assert "–" not in CliRunner().invoke(status, []).output


def test_a_row_of_the_default_decoder_is_whole_at_80_columns() -> None:
    row = {
        **function("smollm2-segment-10", "segment-10"), "availableReplicas": 1, "replicas": 1,
        "limits": {"memory": "3776Mi", "cpu": "1000m"},
    }  # fmt: skip
    expert = {**function("smollm2-expert-10-3", "expert-10-3"), "availableReplicas": 1, "replicas": 1}
    work = {"smollm2-expert-10-3": Work(123456, 9, {1.0: 9, float("inf"): 9}), "smollm2-segment-10": Work(1234567, 9)}
    screen = StringIO()
    Console(width=80, file=screen).print(functions_table("http://127.0.0.1:8080", [row, expert], work))
    shown = screen.getvalue()
    assert "3776Mi" in shown and "1234567" in shown and "…" not in shown

"""The closing report from made rows: numbers by hand, files that open, nothing invented."""

from __future__ import annotations

import base64
import html as html_text
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoscaler.contract import Configuration, Cost, Decision, Observation, TickReport
from autoscaler.logger import FunctionLogger
from autoscaler.prices import load_prices
from smoe.report import ReportError, build, closing
from smoe.report.closing import verdict
from smoe.report.explained import explained
from smoe.report.log import LogError, read_log
from smoe.report.measures import client_windows, compute, expert_shares
from smoe.report.model import Action, NodeWindow, PipelineWindow, Run
from smoe.report.page import origin, subtitle
from tests.parameters import examples
from tests.unit.smoe.view.test_view import node
from traces.results import CsvSink, RequestRecord

T0 = 1_700_000_000.0


def record(index: int, sent_s: float, latency_s: float, outcome: str = "ok") -> RequestRecord:
    status = {"ok": 200, "rejected": 429}.get(outcome)
    return RequestRecord(index, sent_s, sent_s, latency_s, outcome, status, 10, 5, 1, f"r{index}", T0 + sent_s)  # type: ignore[arg-type]


def configuration(replicas: int, memory_mb: int = 512) -> Configuration:
    return Configuration(memory_mb, 1.0, 0.0, replicas, 4)


def tick(number: int, p95_s: float | None, tokens: tuple[float | None, ...], *, applied: bool = True) -> TickReport:
    """Window ``number`` of 5 s; expert e of layer 0 has ``tokens[e]`` per second; one decision per tick."""
    end_s = T0 + 5.0 * (number + 1)
    nodes = (
        node("ingress", "ingress", None, None, None, 2),
        *(node(f"expert-0-{e}", "expert", 0, e, value, 1 + e) for e, value in enumerate(tokens)),
    )
    seen = Observation(
        start_s=end_s - 5,
        end_s=end_s,
        pipeline="m",
        requests=3,
        failed=0,
        requests_per_s=0.6,
        tokens_per_s=12.0,
        in_flight=0.5,
        latency_p50_s=None,
        latency_p95_s=p95_s,
        latency_p99_s=None,
        nodes=nodes,
        layers=(),
    )
    decision = Decision(
        "m-expert-0-1", "expert-0-1", configuration(1), configuration(2), configuration(2), "busy <0.9>"
    )
    same = Decision("m", "ingress", configuration(2), configuration(2), configuration(2), "within tolerance")
    return TickReport(seen, (decision, same), ("m-expert-0-1",) if applied else (), cost=Cost(0.001, 0.004))


UNIT = 3600 * load_prices().unit_per_s(configuration(1))
"""What a replica costs in an hour."""
TICKS = [tick(0, 0.1, (30.0, 10.0)), tick(1, 0.5, (10.0, 30.0)), tick(2, None, (None, None), applied=False)]
REQUESTS = [
    record(0, 0.0, 0.1),
    record(1, 1.0, 0.1),
    record(2, 4.95, 0.2),
    record(3, 6.0, 0.3),
    record(4, 7.0, 0.0, "rejected"),
]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    logger = FunctionLogger(tmp_path / "log", {"seed": 1}, slo_s=0.15, windows_per_file=2)
    for report in TICKS:
        logger.add(report)
    logger.flush()
    return tmp_path / "log"


@pytest.fixture
def requests_csv(tmp_path: Path) -> Path:
    path = tmp_path / "requests.csv"
    with CsvSink(path) as sink:
        for one in reversed(REQUESTS):
            sink.add(one)
    return path


def test_the_log_read_back_equals_the_ticks_it_was_written_from(log_dir: Path) -> None:
    windows, nodes, actions = read_log(log_dir)
    assert windows == tuple(
        PipelineWindow(T0 + 5 * number, 5.0, 0.6, p95_s, 0.004, 0.001)
        for number, p95_s in ((1, 0.1), (2, 0.5), (3, None))
    )
    assert nodes[:3] == (
        NodeWindow(T0 + 5, "ingress", "ingress", None, None, None, 2),
        NodeWindow(T0 + 5, "expert-0-0", "expert", 0, 0, 30.0, 1),
        NodeWindow(T0 + 5, "expert-0-1", "expert", 0, 1, 10.0, 2),
    )
    assert len(nodes) == 9
    assert actions == tuple(
        Action(
            T0 + 5 * number,
            "m-expert-0-1",
            "up",
            "replicas 1 → 2",
            "busy <0.9>",
            number < 3,
            pytest.approx(UNIT),
            "expert-0-1",
        )
        for number in (1, 2, 3)
    )


def action(function: str, more: float, reason: str = "busy", at_s: float = 1.0, applied: bool = True) -> Action:
    return Action(at_s, function, "up", "replicas 1 → 2", reason, applied, more)


def test_the_three_dearest_decisions_are_explained_one_a_function_in_order_of_time() -> None:
    actions = [
        action("a", 1.0, at_s=9.0), action("a", 3.0, at_s=8.0), action("b", -2.0, at_s=7.0), action("c", 0.5),
        action("d", 0.1), action("e", 9.0, applied=False),
    ]  # fmt: skip
    sentences = explained(actions, 1.0, "USD")
    assert [sentence.split(",")[0] for sentence in sentences] == ["0 s: c", "6 s: b", "7 s: a"]
    assert "$3.00 an hour more than leaving it as it was. Reason: busy." in sentences[2]
    assert "$2.00 an hour less" in sentences[1]


def test_decisions_of_a_policy_that_compared_come_first() -> None:
    actions = [action(name, 5.0) for name in "abc"] + [action("d", 0.1, "few; the second best, 3 × 1 cores, would …")]
    assert any(sentence.startswith("0 s: d") for sentence in explained(actions, 1.0, "USD"))


def test_rows_before_the_run_are_left_out(log_dir: Path) -> None:
    windows, nodes, actions = read_log(log_dir, since_s=T0 + 5.0)
    assert [window.end_s for window in windows] == [T0 + 10, T0 + 15] and len(actions) == 2
    assert {row.end_s for row in nodes} == {T0 + 10, T0 + 15}


def test_a_damaged_log_is_reported(log_dir: Path) -> None:
    next(log_dir.glob("windows-*")).write_bytes(b"not parquet")
    with pytest.raises(LogError, match="windows-"):
        read_log(log_dir)


def test_numbers_are_those_counted_by_hand(log_dir: Path) -> None:
    numbers = compute(Run(*read_log(log_dir), tuple(REQUESTS)), 0.15, {"planned": 6})
    requests = numbers["requests"]
    assert (requests["ok"], requests["failed"], requests["planned"], requests["complete"]) == (4, 1, 6, False)
    assert requests["slo_attainment"] == pytest.approx(2 / 5)
    windows = numbers["windows"]
    # answers at 0.1, 1.1 | 5.15, 6.3 | none: the second window is above 150 ms
    assert (windows["count"], windows["judged"], windows["violated"]) == (3, 2, 1)
    assert windows["violations"][0]["start_s"] == 5.0 and windows["violations"][0]["p95_s"] == pytest.approx(0.295)
    assert windows["violated_as_controller_saw"] == 1
    cost = numbers["cost"]
    assert cost["provisioned_total"] == pytest.approx(0.012) and cost["provisioned_per_hour"] == pytest.approx(2.88)
    assert cost["busy_per_1000_answers"] == pytest.approx(0.75)
    assert numbers["experts"]["shares"]["0"] == {"0": pytest.approx(0.5), "1": pytest.approx(0.5)}
    assert numbers["replicas"] == {
        "experts_scaled": 0,
        "different_at_once": 2,
        "mean": 5.0,
        "least": 5,
        "most": 5,
    }
    assert numbers["actions"] == {
        "count": 3,
        "applied": 2,
        "by_kind": {"up": 3},
        "by_function": {"m-expert-0-1": 3},
        "by_reason": {"busy <0.9>": 3},
    }


def test_a_window_in_which_requests_wait_or_fail_without_an_answer_is_above_the_slo() -> None:
    # [0, 5): an answer; [5, 10): two wait; [10, 15): one is refused; [15, 20): nothing is sent; [20, 25): an answer.
    requests = (record(0, 0.0, 0.1), record(1, 6.0, 8.0, "rejected"), record(2, 7.0, 5.0, "timeout"),
                record(3, 20.0, 0.1))  # fmt: skip
    numbers = compute(Run((), (), (), requests), 0.15, {})
    windows = numbers["windows"]
    assert (windows["count"], windows["judged"], windows["violated"]) == (5, 4, 2)
    assert [(one["start_s"], one["p95_s"]) for one in windows["violations"]] == [(5.0, None), (10.0, None)]
    assert windows["worst_p95_s"] == pytest.approx(0.1) and windows["violated_share"] == 0.5
    assert closing(numbers, 0.15)[2] == (
        "windows     2 of 4 had a P95 above the SLO, 2 of them without any answer, the worst at 100 ms"
    )


@pytest.mark.slow
def test_the_page_lists_a_window_without_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    with CsvSink(path) as sink:
        sink.add(record(0, 1.0, 12.0))
    page = build(tmp_path / "out", tmp_path / "nolog", path, 0.15, {}).html.read_text()
    assert page.count('<td class="n">none</td><td class="n">0</td>') == 2 and "<b>3 of 3</b>" in page


def test_an_origin_names_what_a_run_states_of_itself_and_no_more() -> None:
    assert origin({"pipeline": "minilm", "machine": {"cpus": 2}}) == ""
    assert origin({"command": "smoe run", "version": "0.2.0", "commit": None}) == "smoe run · sMoE 0.2.0"
    of_checkout = {"version": "0.2.0", "commit": "0123456789abcdef"}
    assert origin(of_checkout) == "sMoE 0.2.0 (commit 0123456789ab)"
    assert origin({**of_checkout, "commit": "0123456789abcdef+changes"}).endswith("(commit 0123456789ab, with changes)")


def test_a_subtitle_states_the_load_in_words() -> None:
    trace = {"requests": 1500, "duration_s": 120.0, "iat_cv": 3.456, "pattern": "bursty"}
    assert subtitle(trace) == "1,500 requests in 120 s, bursty arrivals (CV 3.5)"
    assert subtitle({**trace, "iat_cv": None}) == "1,500 requests in 120 s" and subtitle({"source": "made"}) == ""


@pytest.mark.slow
def test_the_report_is_written_whole_and_the_page_holds_the_numbers(
    tmp_path: Path, log_dir: Path, requests_csv: Path
) -> None:
    meta = {
        "pipeline": "minilm",
        "policy": "hpa",
        "seeds": {"replay": 42},
        "trace": {"source": "made here", "sha256": "abc123"},
        "command": "smoe run --seconds 15",
        "begun": "2026-11-28T00:03+00:00",
        "version": "0.2.0",
        "machine": {"cpu_cores": 2, "cpu_model": "A CPU"},
    }
    paths = build(tmp_path / "out", log_dir, requests_csv, 0.15, meta)
    numbers = json.loads(paths.json.read_text())
    assert numbers["meta"] == meta and numbers["requests"]["ok"] == 4
    page = html_text.unescape(paths.html.read_text())
    p95_ms = 1000 * numbers["requests"]["latency_s"]["p95"]
    for wanted in (
        f"<b>{p95_ms:.0f} ms</b>",
        "<p>smoe run --seconds 15 · 2026-11-28T00:03+00:00 · sMoE 0.2.0 · 2 cores, A CPU</p>",
        "SLO 150 ms",
        "40.0 %",
        "1 of 2",
        "$2.88/h",
        "abc123",
        '"replay": 42',
        "busy <0.9>",
        "replicas 1 → 2",
        "not applied",
    ):
        assert wanted in page, wanted
    assert "<0.9>" not in paths.html.read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', paths.html.read_text())
    assert [base64.b64decode(data) for data in pictures] == [path.read_bytes() for path in paths.pictures]
    assert all(path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 3000 for path in paths.pictures)
    assert "http://" not in page and "https://" not in page


@pytest.mark.slow
def test_without_log_and_requests_the_report_says_no_data(tmp_path: Path) -> None:
    paths = build(tmp_path / "out", tmp_path / "nolog", None, 0.1, {})
    numbers = json.loads(paths.json.read_text())
    assert numbers["cost"]["provisioned_total"] is None and numbers["requests"]["latency_s"] is None
    assert numbers["windows"]["violated_share"] is None and "no data" in paths.html.read_text()


def test_input_that_cannot_be_used_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="SLO must be a positive number"):
        build(tmp_path, tmp_path, None, 0.0, {})
    with pytest.raises(ReportError, match="not JSON"):
        build(tmp_path / "out", tmp_path, None, 1.0, {"settings": object()})


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 20), st.sampled_from(("ok", "rejected"))), max_size=60),
    st.floats(-7, 40),
    st.integers(0, 8),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_answer_is_in_exactly_one_window(
    requests: list[tuple[float, float, str]], shift: float, logged: int
) -> None:
    records = tuple(record(i, sent, latency, outcome) for i, (sent, latency, outcome) in enumerate(requests))
    windows = tuple(PipelineWindow(T0 + shift + 5.0 * (k + 1), 5.0) for k in range(logged))
    of_client = client_windows(Run(windows, (), (), records))
    assert sum(window.answers for window in of_client) == sum(1 for r in records if r.outcome == "ok")
    assert sum(window.failed for window in of_client) == sum(1 for r in records if r.outcome != "ok")


@example({(0, 0): 5e-324, (0, 1): 0.0})
@given(st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, 5)), st.floats(0, 1e6), max_size=20))
def test_a_layers_shares_add_up_to_one(tokens: dict[tuple[int, int], float]) -> None:
    nodes = [NodeWindow(T0, f"expert-{la}-{e}", "expert", la, e, value, 1) for (la, e), value in tokens.items()]
    for layer, shares in expert_shares(nodes)["shares"].items():
        assert sum(shares.values()) == pytest.approx(1.0)
        assert set(shares) == {str(e) for la, e in tokens if str(la) == layer}


def many(numbers: dict[str, Any]) -> dict[str, Any]:
    """The same run, had so many more requests been answered that one that failed is none in twenty."""
    return {**numbers, "requests": {**numbers["requests"], "ok": 19}}


def test_the_closing_lines_say_plainly_whether_the_slo_was_kept(log_dir: Path) -> None:
    run = Run(*read_log(log_dir), tuple(REQUESTS))
    assert closing(compute(run, 0.15, {}), 0.15) == [
        "requests    4 answered, 1 failed (1 rejected)",
        "P95         285 ms, 90% above the SLO of 150 ms: MISSED; 40.0% of all requests were answered within it "
        "(P50 150 ms, P99 297 ms)",
        "windows     1 of 2 had a P95 above the SLO, the worst at 295 ms",
        "controller  3 changes (more replicas 3), 2 of them applied; 5 replicas; $2.88 an hour provisioned, "
        "$0.720 of it busy",
        "verdict     the policy missed the SLO: P95 285 ms of 150 ms, at $2.88 an hour. 0 experts were scaled, up to 2 "
        "different numbers of replicas at once.",
    ]
    few = compute(run, 0.4, {})
    assert "below the SLO of 400 ms of what was answered, and 1 of 5 requests failed: MISSED" in closing(few, 0.4)[1]
    assert "P95 285 ms of 400 ms of what was answered, and 1 of 5 requests failed" in verdict(few, 0.4)
    assert "below the SLO of 400 ms: kept" in closing(many(few), 0.4)[1]


@pytest.mark.parametrize(("baseline_p95_s", "says"), [(3.0, "3000 ms, at $2.00 an hour: missed."), (0.1, "kept too")])
def test_the_verdict_stands_beside_what_happens_without_scaling(
    log_dir: Path, baseline_p95_s: float, says: str
) -> None:
    baseline = {"p95_s": baseline_p95_s, "provisioned_per_hour": 2.0}
    numbers = compute(Run(*read_log(log_dir), tuple(REQUESTS)), 0.4, {"policy": "hpa", "baseline": baseline})
    sentence = verdict(many(numbers), 0.4)
    assert sentence.startswith("hpa kept the SLO: P95 285 ms of 400 ms, at $2.88 an hour.")
    assert says in sentence


def test_the_cost_after_the_first_minute_is_that_of_later_windows_alone() -> None:
    windows = tuple(PipelineWindow(1000.0 + end_s, 30.0, provisioned_cost=cost) for end_s, cost in
                    ((30.0, 5.0), (60.0, 3.0), (90.0, 1.0), (120.0, 1.0)))  # fmt: skip
    numbers = compute(Run(windows, (), (), ()), 0.15, {})
    assert numbers["cost"]["provisioned_per_hour"] == pytest.approx(10.0 / 120 * 3600)
    assert numbers["steady_cost"]["provisioned_per_hour"] == pytest.approx(2.0 / 60 * 3600)


@pytest.mark.slow
def test_amounts_are_in_the_currency_and_by_the_prices_that_the_run_was_made_with(tmp_path: Path) -> None:
    sheet = replace(load_prices(), currency="EUR", cpu_core_s=0.001, memory_gib_s=0.0)
    with FunctionLogger(tmp_path / "log", {"prices": asdict(sheet)}, slo_s=0.15) as logger:
        for report in TICKS:
            logger.add(report)
    paths = build(tmp_path / "out", tmp_path / "log", None, 0.15, {})
    assert "which costs EUR 3.60 an hour more" in paths.numbers["explained"][0]  # a replica more, of one core
    assert "EUR 2.88 an hour provisioned" in closing(paths.numbers, 0.15)[3]
    assert "<b>EUR 2.88/h</b>" in paths.html.read_text() and "$" not in paths.html.read_text().split("<img")[0]


def test_the_closing_lines_of_a_run_without_answers_invent_nothing() -> None:
    lines = closing(compute(Run((), (), (), ()), 0.15, {"planned": 7}), 0.15)
    assert lines[0] == "requests    0 of 7 planned answered, 0 failed"
    assert lines[1] == "P95         nothing was answered; the SLO was 150 ms"
    assert lines[2:] == [
        "windows     0 of 0 had a P95 above the SLO",
        "controller  0 changes; cost not measured",
        "verdict     nothing was answered.",
    ]

"""The live view, rendered to a recorded console and read as text."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from autoscaler.changes import describe_change
from autoscaler.contract import Configuration, Cost, Decision, NodeObservation, Observation, TickReport
from smoe.commands.top import with_controller
from smoe.view.build import ViewBuilder
from smoe.view.instances import rows_of, words_of
from smoe.view.live import View
from smoe.view.model import DecisionLine, ExpertCell, NodeRow, ViewState
from smoe.view.render import plain_line, render
from tests.parameters import examples
from traces.replay import Progress
from traces.results import RequestRecord


def grid(layers: int, experts: int, **more: object) -> ViewState:
    """Expert e of every layer gets e + 1 parts of the tokens and e + 1 replicas."""
    cells = tuple(
        ExpertCell(layer, expert, 10.0 * (expert + 1), expert + 1, expert + 1)
        for layer in range(layers)
        for expert in range(experts)
    )
    state = ViewState(
        "minilm", "hpa", elapsed_s=83.0, window_s=5.0, slo_s=0.25, p95_s=0.231, requests_per_s=42.3, experts=cells
    )
    return replace(state, **more)  # type: ignore[arg-type]


def text_of(state: ViewState, width: int, height: int | None = None, colour: bool = False) -> str:
    console = Console(
        width=width,
        file=io.StringIO(),
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        record=True,
    )
    console.print(render(state, width, height))
    return console.export_text(styles=colour)


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize(("layers", "experts"), [(6, 4), (12, 8)])
def test_every_expert_shows_its_share_and_replicas_within_the_width(width: int, layers: int, experts: int) -> None:
    lines = text_of(grid(layers, experts), width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    rows = [line for line in lines if "×1" in line and "×2" in line]
    assert len(rows) == layers
    for row in rows:
        for expert in range(experts):
            share = 100 * (expert + 1) / (experts * (experts + 1) / 2)
            assert f"{share:.0f}" in row and f"×{expert + 1}" in row


def test_latency_stands_against_the_slo_in_words_and_in_colour() -> None:
    assert "231 ms of 250 ms ok" in text_of(grid(2, 2), 100)
    over = grid(2, 2, p95_s=0.4)
    assert "400 ms of 250 ms OVER" in text_of(over, 100)
    assert "\x1b[1;31m400 ms" in text_of(over, 100, colour=True)
    assert "\x1b[" not in text_of(over, 100)


def test_a_missing_number_is_a_dash_and_not_a_zero() -> None:
    text = text_of(
        ViewState("p", "static", 0.0, 5.0, experts=(ExpertCell(0, 0, None, None), ExpertCell(0, 1, 5.0, 1))), 100
    )
    assert "P95         –" in text and "··  – " in text and "–%" not in text and "100%" in text


def test_an_empty_view_renders() -> None:
    assert "no expert has been observed yet" in text_of(ViewState("p", "static", 0.0, 5.0), 80)


def test_decisions_give_way_to_the_heat_map_on_a_low_terminal() -> None:
    decisions = tuple(DecisionLine(float(i), f"f{i}", "replicas 1 → 2", "why") for i in range(9))
    state = grid(12, 8, decisions=decisions)
    assert "f8" in text_of(state, 160, 60) and "f2" not in text_of(state, 160, 60)
    low = text_of(state, 80, 26)
    assert "f8" not in low and "   11 " in low
    assert len(low.splitlines()) <= 26


def test_replicas_on_the_way_and_full_experts_are_marked() -> None:
    cells = (ExpertCell(0, 0, 5.0, 3, 1, 1.4), ExpertCell(0, 1, 5.0, 1, 1, 0.2))
    text = text_of(ViewState("p", "hpa", 0.0, 5.0, experts=cells), 100)
    assert "×1/3!" in text and "50% ×1 " in text


@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 7), st.one_of(st.none(), st.floats(0, 1e9))), max_size=60),
    st.integers(20, 200),
)
@settings(max_examples=examples(40), deadline=None)
def test_any_state_renders_within_its_width(cells: list[tuple[int, int, float | None]], width: int) -> None:
    state = ViewState(
        "p", "hpa", 1.0, 5.0, experts=tuple(ExpertCell(layer, e, tokens, 2) for layer, e, tokens in cells)
    )
    console = Console(width=max(40, width), file=io.StringIO())
    console.print(render(state, width))
    assert plain_line(state).count("\n") == 0


def test_without_a_terminal_there_is_one_plain_line_per_window() -> None:
    stream = io.StringIO()
    with View(Console(file=stream, width=80)) as view:
        view.show(ViewState("minilm", "hpa", elapsed_s=0.5, window_s=0.0))
        for elapsed in (5.0, 6.0, 7.0, 10.0):
            view.show(grid(2, 2, elapsed_s=elapsed))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["t=5s", "t=10s"]
    assert "p95=231 ms/250 ms ok" in lines[0] and "expert_replicas=6" in lines[0] and "\x1b" not in stream.getvalue()


def test_no_color_keeps_the_live_view_free_of_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    with View(Console(file=stream, width=100, height=50, force_terminal=True)) as view:
        assert view.interactive
        view.show(grid(2, 2, p95_s=0.9))
    assert "900 ms" in stream.getvalue() and "\x1b[1;31m" not in stream.getvalue() and "38;2" not in stream.getvalue()


def configuration(replicas: int) -> Configuration:
    return Configuration(512, 1.0, 0.0, replicas, 4)


def node(
    node_id: str, kind: str, layer: int | None, expert: int | None, tokens: float | None, replicas: int
) -> NodeObservation:
    unknown = dict.fromkeys(
        (
            "cpu_utilisation",
            "memory_utilisation",
            "gpu_utilisation",
            "latency_p95_s",
            "latency_mean_s",
            "requests_per_s",
            "in_flight",
            "waiting",
            "busy_s",
            "cpu_s",
            "peak_tokens",
        )
    )
    return NodeObservation(
        node=node_id,
        function=f"m-{node_id}",
        kind=kind,
        layer=layer,
        expert=expert,
        configuration=configuration(replicas),  # type: ignore[arg-type]
        ready_replicas=replicas,
        concurrency_utilisation=0.5,
        tokens_per_s=tokens,
        **unknown,
    )


def report(end_s: float, p95_s: float | None = 0.1, **more: object) -> TickReport:
    nodes = (node("ingress", "ingress", None, None, 9.0, 2), node("expert-0-0", "expert", 0, 0, 9.0, 1))
    seen = Observation(
        start_s=end_s - 5,
        end_s=end_s,
        pipeline="m",
        requests=10,
        failed=0,
        requests_per_s=2.0,
        tokens_per_s=40.0,
        in_flight=1.0,
        latency_p50_s=0.05,
        latency_p95_s=p95_s,
        latency_p99_s=None,
        nodes=nodes,
        layers=(),
        problems=("a scrape failed",),
    )
    decision = Decision("m-expert-0-0", "expert-0-0", configuration(1), configuration(3), configuration(3), "busy")
    same = Decision("m", "ingress", configuration(2), configuration(2), configuration(2), "within tolerance")
    fields = {"applied": ("m-expert-0-0",), "cost": Cost(0.001, 0.005), **more}
    return TickReport(seen, (decision, same), **fields)  # type: ignore[arg-type]


def test_a_tick_becomes_what_is_shown() -> None:
    builder = ViewBuilder("m", "hpa", started_s=1000.0, slo_s=0.2)
    builder.tick(report(1005.0, 0.1))
    state = builder.tick(report(1010.0, None))
    assert (state.elapsed_s, state.window_s, state.p95_history_s) == (10.0, 5.0, (0.1, None))
    assert state.provisioned_per_hour == pytest.approx(3.6) and state.busy_per_hour == pytest.approx(0.72)
    assert [cell.replicas for cell in state.experts] == [1] and state.segments == (("ingress", 2),)
    assert [(line.function, line.change) for line in state.decisions] == [("m-expert-0-0", "replicas 1 → 3")] * 2
    assert state.problems == ("a scrape failed",)
    assert "m-expert-0-0: replicas 1 → 3 (busy)" in plain_line(state)


def test_a_plain_line_names_functions_with_the_same_change_once() -> None:
    builder = ViewBuilder("m", "hpa", started_s=1000.0, slo_s=0.2)
    builder.tick(report(1005.0, 0.1))
    tick = report(1010.0, 0.1)
    names = tuple(f"m-expert-0-{number}" for number in range(3))
    more = tuple(tick.decisions[0]._replace(function=name) for name in names)
    line = plain_line(builder.tick(replace(tick, decisions=more, applied=names)))
    assert "m-expert-0-0 and 2 more: replicas 1 → 3 (busy)" in line and "m-expert-0-1" not in line


def test_a_plain_line_shows_the_changes_of_most_functions_and_counts_the_others() -> None:
    changes = [4, 5, 5, 2, 2, 2, 6, 3, 3]
    lines = [
        DecisionLine(83.0, f"m-expert-0-{number}", f"replicas 1 → {to}", f"work for {number}")
        for number, to in enumerate(changes)
    ]
    shown = plain_line(grid(2, 2, decisions=tuple(lines))).split("  ")[-4:]
    assert shown[:2] == [
        "m-expert-0-3 and 2 more: replicas 1 → 2 (work for 3)", "m-expert-0-1 and 1 more: replicas 1 → 5 (work for 1)"
    ]  # fmt: skip
    assert shown[-1] == "and 2 other changes"


def test_a_change_that_did_not_happen_is_not_shown_as_done() -> None:
    failed = ViewBuilder("m", "hpa", 0.0, None).tick(
        report(5.0, applied=(), failures={"m-expert-0-0": "500 from the gateway"})
    )
    assert failed.decisions[-1].change.endswith("(not applied)")
    assert "m-expert-0-0: change failed, 500 from the gateway" in failed.problems
    dry = ViewBuilder("m", "hpa", 0.0, None).tick(report(5.0, applied=(), dry_run=True))
    assert dry.decisions[-1].change.endswith("(dry run)")


def test_what_is_held_is_reported_once_with_its_reason() -> None:
    def held(reason: str) -> Decision:
        present = configuration(1)
        return Decision("m-expert-0-0", "expert-0-0", present, present, present, reason, valid=False)

    builder = ViewBuilder("m", "hpa", 0.0, None)
    seen = report(5.0)
    known = replace(seen, decisions=(held("present scale held: a scrape failed"),) * 24)
    assert builder.tick(known).problems == ("a scrape failed",)
    other = replace(seen, decisions=(held("present scale held: no data of cpu"),))
    assert builder.tick(other).problems == ("a scrape failed", "m-expert-0-0: present scale held: no data of cpu")


def test_before_the_first_window_there_is_no_line_of_one() -> None:
    builder, stream = ViewBuilder("m", "hpa", 100.0, None), io.StringIO()
    assert builder.state.elapsed_s == 0.0
    with View(Console(file=stream, width=80)) as view:
        view.show(builder.progress(Progress(planned=7), now_s=103.0))
    assert stream.getvalue() == ""


def test_replay_progress_is_taken_over_between_windows() -> None:
    progress = Progress(planned=7)
    for outcome in ("ok", "ok", "rejected", "cancelled"):
        progress.add(RequestRecord(0, 0.0, 0.0, 0.1, outcome, None, None, 1, 1, "r", None))  # type: ignore[arg-type]
    state = ViewBuilder("m", "hpa", 100.0, None).progress(progress, now_s=103.0)
    assert (state.requests, state.failed, state.planned, state.elapsed_s) == (2, 1, 7, 3.0)


def test_a_change_names_only_what_differs() -> None:
    assert describe_change(configuration(1), configuration(1)) == ""
    assert (
        describe_change(configuration(1), Configuration(256, 0.5, 0.0, 1, 8))
        == "concurrency 4 → 8, cpu 1 → 0.5 cores, memory 512 → 256 MB"
    )


NODES = (
    NodeRow("a", 32, 0, 1, 90_300_000, 200_000_000, 0, 0, 0),
    NodeRow("b", 4, 2, 0, 12_000_000, 0, 3, 1_500_000, 1),
    NodeRow("c", 1),
)


@pytest.mark.parametrize("width", [100, 160])
def test_every_node_shows_replicas_weights_and_transfers_and_dashes_where_nothing_is_known(width: int) -> None:
    lines = text_of(grid(2, 2, nodes=NODES), width).splitlines()
    reported = [" ".join(line.strip("│ ").split()) for line in lines]
    rows = {name: line for name in "abc" for line in reported if line.startswith(f"{name} ")}
    assert rows == {
        "a": "a 32 ready, 1 draining 90.3 MB of 200.0 MB none",
        "b": "b 4 ready, 2 starting 12.0 MB 3 arriving, 1.5 MB there, 1 broken off",
        "c": "c 1 ready – –",
    }
    assert max(cell_len(line) for line in lines) <= width
    assert not any("transfers" in line for line in text_of(grid(2, 2), width).splitlines())


def test_nodes_fit_into_a_narrow_terminal() -> None:
    lines = text_of(grid(2, 2, nodes=NODES), 80).splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert sum(any(f"{count} ready" in line for line in lines) for count in (32, 4, 1)) == 3


def test_nodes_stay_and_decisions_give_way_on_a_low_terminal() -> None:
    decisions = tuple(DecisionLine(float(i), f"f{i}", "replicas 1 → 2", "why") for i in range(9))
    text = text_of(grid(6, 4, decisions=decisions, nodes=NODES), 100, 26)
    assert "c " in text and "transfers" in text and "f8" not in text and len(text.splitlines()) <= 26


def test_a_plain_line_names_nodes_in_short() -> None:
    line = plain_line(grid(2, 2, nodes=NODES))
    assert line.endswith("nodes=a:32/90.3MB,b:4/12.0MB(3 arriving),c:1")
    assert "nodes=" not in plain_line(grid(2, 2))


def test_a_running_controllers_policy_slo_and_decisions_are_shown() -> None:
    phi = {"memory_mb": 128, "cpu_cores": 1.0, "gpu_share": 0.0, "concurrency": 8, "burst": None}
    document = {
        "policy": "hpa",
        "slo_s": 0.2,
        "decisions": [
            {"time_s": 105.0, "function": "m-expert-0-0", "present": {**phi, "replicas": 1},
             "target": {**phi, "replicas": 3}, "reason": "busy", "result": "applied"},
            {"time_s": 106.0, "function": "m-expert-0-1", "present": {**phi, "replicas": 1},
             "target": {**phi, "replicas": 1}, "reason": "no data", "result": "held"},
        ],
    }  # fmt: skip
    state = with_controller(ViewState("m", "watching", 10.0, 5.0), document, started_s=100.0)
    assert (state.policy, state.slo_s) == ("hpa", 0.2)
    assert state.decisions == (DecisionLine(5.0, "m-expert-0-0", "replicas 1 → 3 (applied)", "busy"),)


def test_without_a_controller_the_view_says_how_to_start_one() -> None:
    assert "smoe autoscale" in with_controller(ViewState("m", "watching", 10.0, 5.0), None, 100.0).notes[0]


def test_a_decoder_s_instances_show_role_queue_and_pages() -> None:
    one = {"role": "prefill", "running": 2, "queue": 7, "arriving": 0, "pages_used": 30, "pages": 40, "interval_s": 0}
    other = {**one, "role": "decode", "running": 5, "queue": 0, "arriving": 3, "interval_s": 0.041}
    moved = {"texts": 9, "took_ms": 4.06}
    targets = {"schedule": "arrow", "ttft_s": 2.0, "tpot_s": 0.15, "chunk_tokens": 64, "flips": 3, "moved": moved}
    document = {**targets, "instances": [{**other, "instance": 1}, {**one, "instance": 0}]}
    rows = rows_of(document)
    lines = text_of(grid(2, 2, instances=rows, instances_words=words_of(document)), 100).splitlines()
    assert any(
        "instances by arrow, TTFT 2000 ms, TPOT 150 ms, parts of 64 tokens: 3 flips, 9 texts moved" in one
        for one in lines
    )
    shown = [line.split()[1:8] for line in lines if "prefill" in line or "decode" in line]
    assert shown[0][:6] == ["0", "prefill", "2", "7", "0", "75%"]
    assert shown[1] == ["1", "decode", "5", "0", "3", "75%", "41"]

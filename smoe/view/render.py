"""From a :class:`ViewState` to something rich can print. No clock, no terminal, no state.

Load is shown twice, as a colour and as a bar character with the share in percent, so the picture survives without
colour. A cell's share is of its layer's tokens: an even layer of E experts shows 100/E % in every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from autoscaler.prices import money
from platform_words.durations import duration
from smoe.view.instances import instances_table
from smoe.view.model import DecisionLine, ExpertCell, NodeRow, ViewState

BARS = "▁▂▃▄▅▆▇█"
UNKNOWN = "\u2013"  # en dash
TIMES = "\u00d7"  # multiplication sign
HEAT = (
    (0.5, "#3b6ea5"),
    (0.9, "#4aa3a2"),
    (1.2, "#8fb84a"),
    (1.7, "#e0a526"),
    (2.5, "#e2702b"),
    (float("inf"), "#d03b3b"),
)
"""Colour up to a load relative to the layer's mean."""
WIDE_COLUMNS = 140
NARROW_DECISIONS, WIDE_DECISIONS = 4, 6
PLAIN_DECISIONS = 3
"""Different changes that a plain line shows."""


def render(state: ViewState, width: int = 100, height: int | None = None) -> RenderableType:
    """The whole screen for a terminal of ``width`` columns (40 at least is assumed).

    With ``height`` lines given, decisions give way first: the heat map stays whole as long as the terminal holds it.
    """
    width = max(40, width)
    parts: list[RenderableType] = [_headline(state, width), _heat_map(state, width)]
    if state.segments:
        parts.append(_segments(state.segments))
    if state.nodes:
        parts.append(_nodes(state.nodes))
    if state.instances:
        parts.append(Panel(instances_table(state.instances), title=state.instances_words, title_align="left"))
    most = WIDE_DECISIONS if width >= WIDE_COLUMNS else NARROW_DECISIONS
    if height is not None:
        layers = len({cell.layer for cell in state.experts})
        taken = 12 + layers + bool(state.segments) + (2 + min(4, len(state.problems)) if state.problems else 0)
        taken += 3 + len(state.nodes) if state.nodes else 0
        taken += 3 + len(state.instances) if state.instances else 0
        most = min(most, max(0, height - taken - 3))
    if most:
        parts.append(_decisions(state.decisions, most))
    if state.problems:
        problems = Text("\n".join(state.problems[-4:]), style="yellow", no_wrap=True, overflow="ellipsis")
        parts.append(Panel(problems, title="problems", title_align="left", border_style="yellow"))
    parts.extend(Text(note, style="dim") for note in state.notes)
    return Group(*parts)


def plain_line(state: ViewState) -> str:
    """One window as one line without colour: for pipes, files and CI logs."""
    replicas = [cell.replicas for cell in state.experts if cell.replicas is not None]
    busiest = _busiest(state.experts)
    parts = [
        f"t={state.elapsed_s:.0f}s",
        f"rps={_number(state.requests_per_s)}",
        f"p95={duration(state.p95_s, UNKNOWN)}"
        + (f"/{duration(state.slo_s, UNKNOWN)}" if state.slo_s is not None else "")
        + _verdict_word(state),
        f"in_flight={_number(state.in_flight)}",
        f"expert_replicas={sum(replicas) if replicas else UNKNOWN}",
        f"cost={_money(state.provisioned_per_hour, state.currency)}/h",
        f"busy_cost={_money(state.busy_per_hour, state.currency)}/h",
    ]
    if state.requests is not None:
        parts.append(f"requests={state.requests}" + (f"/{state.planned}" if state.planned is not None else ""))
    if state.failed:
        parts.append(f"failed={state.failed}")
    if busiest is not None:
        parts.append(f"busiest={busiest}")
    if state.nodes:
        parts.append("nodes=" + ",".join(_node_words(row) for row in state.nodes))
    parts.extend(_plain_decisions([line for line in state.decisions if _fresh(line, state)]))
    parts.extend(f"problem: {problem}" for problem in state.problems)
    return "  ".join(parts)


def _plain_decisions(lines: Sequence[DecisionLine]) -> list[str]:
    """The changes that most functions got, each with the reason of one of them, and how many are left out."""
    functions: dict[str, list[DecisionLine]] = {}
    for line in lines:
        functions.setdefault(line.change, []).append(line)
    largest = sorted(functions.items(), key=lambda item: -len(item[1]))
    words = []
    for change, (first, *others) in largest[:PLAIN_DECISIONS]:
        more = f" and {len(others)} more" if others else ""
        words.append(f"{first.function}{more}: {change} ({first.reason})")
    left = sum(len(same) for _, same in largest[PLAIN_DECISIONS:])
    return [*words, f"and {left} other change{'s' * (left > 1)}"] if left else words


def _fresh(line: DecisionLine, state: ViewState) -> bool:
    return line.time_s > state.elapsed_s - state.window_s


def _headline(state: ViewState, width: int) -> RenderableType:
    grid = Table.grid(padding=(0, 3 if width >= WIDE_COLUMNS else 2))
    pairs = [
        ("P95", _p95(state)),
        ("P50", Text(duration(state.p50_s, UNKNOWN))),
        ("requests/s", Text(_number(state.requests_per_s))),
        ("tokens/s", Text(_number(state.tokens_per_s))),
        ("in flight", Text(_number(state.in_flight))),
        ("provisioned", Text(f"{_money(state.provisioned_per_hour, state.currency)}/h")),
        ("busy", Text(f"{_money(state.busy_per_hour, state.currency)}/h")),
        ("answered", _answered(state)),
    ]
    per_line = 4 if width >= WIDE_COLUMNS else 2
    for begin in range(0, len(pairs), per_line):
        cells: list[RenderableType] = []
        for name, value in pairs[begin : begin + per_line]:
            cells += [Text(name, style="dim"), value]
        grid.add_row(*cells)
    body: list[RenderableType] = [grid]
    if state.p95_history_s:
        body.append(_history(state, width - 4))
    title = f"{state.pipeline} · {state.policy} · {_clock(state.elapsed_s)}"
    return Panel(Group(*body), title=title, title_align="left", border_style=_verdict_style(state))


def _heat_map(state: ViewState, width: int) -> RenderableType:
    """Rows are layers, columns experts; each cell: bar, share of the layer's tokens in percent, replicas."""
    if not state.experts:
        return Panel(Text("no expert has been observed yet", style="dim"), title="load", title_align="left")
    cells = {(cell.layer, cell.expert): cell for cell in state.experts}
    layers = sorted({cell.layer for cell in state.experts})
    experts = sorted({cell.expert for cell in state.experts})
    room = (width - 4 - 9) // len(experts)
    form = 2 if room >= 11 else 1 if room >= 7 else 0
    table = Table(box=None, padding=(0, 1 if form else 0, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("layer", justify="right", no_wrap=True)
    for expert in experts:
        table.add_column(f"e{expert}", justify="left", no_wrap=True)
    for layer in layers:
        row = [cells.get((layer, expert)) for expert in experts]
        values = [cell.tokens_per_s for cell in row if cell is not None and cell.tokens_per_s is not None]
        total = sum(values)
        table.add_row(str(layer), *(_cell(cell, total, len(experts), form) for cell in row))
    key = Text(no_wrap=True)
    key.append("% of the layer's tokens" + (f" {TIMES}replicas" if form else "") + " ", style="dim")
    for index, (limit, colour) in enumerate(HEAT):
        key.append(f"█<{limit:g} " if index + 1 < len(HEAT) else f"█≥{HEAT[index - 1][0]:g} ", style=colour)
    key.append(f"{TIMES} even", style="dim")
    if width >= 110:
        marks = f"   {TIMES}1/3: 1 of 3 ready, !: calls wait" if form == 2 else "   *: not all ready"
        key.append(marks, style="dim")
    return Panel(Group(table, key), title="load by layer and expert", title_align="left")


def _cell(cell: ExpertCell | None, total: float, experts: int, form: int) -> Text:
    """``form`` 2: bar, percent, replicas with waiting mark; 1: bar, percent, replicas tight; 0: bar and replicas."""
    if cell is None:
        return Text("")
    replicas = UNKNOWN if cell.replicas is None else str(cell.replicas)
    starting = cell.replicas is not None and cell.ready_replicas is not None and cell.ready_replicas < cell.replicas
    if starting:
        replicas = f"{cell.ready_replicas}/{replicas}" if form == 2 else f"{replicas}*"
    if cell.tokens_per_s is None or total <= 0:
        bar, percent, style = "·", UNKNOWN if cell.tokens_per_s is None else "0", "dim"
    else:
        share = cell.tokens_per_s / total
        relative = share * experts
        bar = BARS[min(len(BARS) - 1, int(relative / 2.5 * len(BARS)))]
        percent = f"{100 * share:.0f}"
        style = next(colour for limit, colour in HEAT if relative < limit)
    text = Text()
    if form == 2:
        text.append(f"{bar}{bar} {percent:>2}{' ' if percent == UNKNOWN else '%'}", style=style).append(
            f" {TIMES}{replicas}", style="bold" if starting else ""
        )
        if cell.concurrency_utilisation is not None and cell.concurrency_utilisation > 1:
            text.append("!", style="bold red")
    elif form == 1:
        text.append(f"{bar}{percent:>2}", style=style).append(f"{TIMES}{replicas}", style="bold" if starting else "")
    else:
        text.append(bar, style=style).append(replicas)
    return text


def _segments(segments: Sequence[tuple[str, int | None]]) -> RenderableType:
    """The commonest count once, then each function that differs from it."""
    common = Counter(replicas for _, replicas in segments).most_common(1)[0][0]
    text = Text().append("other replicas  ", style="dim")
    text.append(f"{TIMES}{UNKNOWN if common is None else common}", style="bold").append(" each")
    for name, replicas in segments:
        if replicas != common:
            text.append(f"  {name} ", style="dim").append(
                f"{TIMES}{UNKNOWN if replicas is None else replicas}", style="bold"
            )
    return text


def _nodes(rows: Sequence[NodeRow]) -> RenderableType:
    """A line a machine: replicas there, weights in its memory, weights on their way."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for name in ("node", "replicas", "weights"):
        table.add_column(name, no_wrap=True)
    table.add_column("transfers")
    for row in rows:
        states = (row.ready, "ready"), (row.starting, "starting"), (row.draining, "draining")
        replicas = ", ".join(f"{count} {state}" for count, state in states if count or state == "ready")
        table.add_row(row.node, replicas, _weights(row), _transfers(row))
    return Panel(table, title="nodes", title_align="left")


def _weights(row: NodeRow) -> str:
    if row.weights_bytes is None:
        return UNKNOWN
    return _mb(row.weights_bytes) + (f" of {_mb(row.limit_bytes)}" if row.limit_bytes else "")


def _transfers(row: NodeRow) -> Text:
    if row.arriving is None:
        return Text(UNKNOWN)
    text = Text()
    if row.arriving:
        text.append(f"{row.arriving} arriving, {_mb(row.arriving_bytes or 0)} there", style="bold")
    if row.broken_off:
        text.append(f"{', ' if row.arriving else ''}{row.broken_off} broken off", style="yellow")
    return text if text else Text("none", style="dim")


def _node_words(row: NodeRow) -> str:
    """``a:33``, ``b:4/12.0MB(3 arriving)``: ready replicas, weights, transfers."""
    weights = "" if row.weights_bytes is None else f"/{_mb(row.weights_bytes).replace(' ', '')}"
    return f"{row.node}:{row.ready}{weights}" + (f"({row.arriving} arriving)" if row.arriving else "")


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f} MB"


def _decisions(decisions: Sequence[DecisionLine], most: int) -> RenderableType:
    """Newest first, one line each; what does not fit is cut at the end of the reason."""
    if not decisions:
        return Text("no decision yet", style="dim")
    lines = []
    for line in reversed(decisions[-most:]):
        text = Text(no_wrap=True, overflow="ellipsis").append(f"{_clock(line.time_s):>5}  ", style="dim")
        text.append(f"{line.function}  ").append(f"{line.change}  ", style="bold").append(line.reason, style="dim")
        lines.append(text)
    return Panel(Group(*lines), title="last decisions", title_align="left")


def _history(state: ViewState, width: int) -> Text:
    """P95 of past windows as bars; the SLO lies at five eighths of the height."""
    past = state.p95_history_s[-max(10, width - 14) :]
    values = [value for value in past if value is not None]
    top = state.slo_s * 8 / 5 if state.slo_s else max(values, default=1.0) or 1.0
    text = Text().append("P95 history  ", style="dim")
    for value in past:
        if value is None:
            text.append(" ")
            continue
        bar = BARS[min(len(BARS) - 1, int(value / top * len(BARS)))]
        text.append(bar, style=_style_of(value, state.slo_s))
    return text


def _p95(state: ViewState) -> Text:
    text = Text(duration(state.p95_s, UNKNOWN), style="bold " + _style_of(state.p95_s, state.slo_s))
    if state.slo_s is not None:
        text.append(f" of {duration(state.slo_s, UNKNOWN)}{_verdict_word(state)}", style="dim")
    return text


def _verdict_word(state: ViewState) -> str:
    if state.p95_s is None or state.slo_s is None:
        return ""
    return " ok" if state.p95_s <= state.slo_s else " OVER"


def _verdict_style(state: ViewState) -> str:
    return _style_of(state.p95_s, state.slo_s) or "none"


def _style_of(value: float | None, slo_s: float | None) -> str:
    if value is None or slo_s is None:
        return ""
    if value > slo_s:
        return "red"
    return "yellow" if value > 0.85 * slo_s else "green"


def _answered(state: ViewState) -> Text:
    if state.requests is None:
        return Text(UNKNOWN)
    text = Text(str(state.requests) + (f" of {state.planned}" if state.planned is not None else ""))
    if state.failed:
        text.append(f", {state.failed} failed", style="bold red")
    return text


def _busiest(cells: Sequence[ExpertCell]) -> str | None:
    """``L2e1 41%``: the expert with the largest share of its layer."""
    totals: dict[int, float] = {}
    for cell in cells:
        totals[cell.layer] = totals.get(cell.layer, 0.0) + (cell.tokens_per_s or 0.0)
    best = max(
        (cell for cell in cells if cell.tokens_per_s and totals[cell.layer] > 0),
        key=lambda cell: (cell.tokens_per_s or 0.0) / totals[cell.layer],
        default=None,
    )
    if best is None or best.tokens_per_s is None:
        return None
    return f"L{best.layer}e{best.expert} {100 * best.tokens_per_s / totals[best.layer]:.0f}%"


def _number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _money(value: float | None, currency: str) -> str:
    return UNKNOWN if value is None else money(value, currency)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes:d}:{rest:02d}"

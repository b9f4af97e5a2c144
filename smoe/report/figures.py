"""The report's four figures as PNG bytes. Pure: values in, bytes out; no global matplotlib state."""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from smoe.report.folding import folded, plural
from smoe.report.measures import client_windows, replica_totals
from smoe.report.model import NodeWindow, Run

FloatArray = NDArray[np.float64]

INK = "#24323d"
BLUE, GREEN, ORANGE, RED, GREY = "#2a6f97", "#3a8f5c", "#d98324", "#c23b3b", "#9aa5ad"
KIND_COLOURS = {"expert": BLUE, "segment": GREEN, "ingress": ORANGE}
MAX_ROWS = 28
MANY = 4
"""From so many functions with the same change at the same time on they share a row."""
DPI = 130


def latency(run: Run, slo_s: float) -> bytes:
    """Every answer's latency, the windows' P95, the SLO; failures stand on the upper edge."""
    figure, axes = _figure(10, 4.2)
    start = run.start_s
    unit, word = _time_unit(run)
    done = [r for r in run.requests if r.latency_s is not None and r.sent_unix_s is not None]
    ok = [
        ((r.sent_unix_s or 0) + (r.latency_s or 0) - start, 1000 * (r.latency_s or 0))
        for r in done
        if r.outcome == "ok"
    ]
    bad = [(r.sent_unix_s or 0) + (r.latency_s or 0) - start for r in done if r.outcome not in ("ok", "cancelled")]
    if ok:
        times, values = np.array(ok).T
        alpha = float(np.clip(400 / len(ok), 0.08, 0.6))
        axes.scatter(times / unit, values, s=7, color=BLUE, alpha=alpha, linewidths=0, label="one answer")
        if values.max() > 12 * max(np.median(values), 1e-9):
            axes.set_yscale("log")
    windows = [w for w in client_windows(run) if w.p95_s is not None]
    for window in windows:
        over = (window.p95_s or 0) > slo_s
        axes.plot(
            [window.start_s / unit, window.end_s / unit], [1000 * (window.p95_s or 0)] * 2,
            color=RED if over else INK, linewidth=2.2, solid_capstyle="butt",
        )  # fmt: skip
    axes.plot([], [], color=INK, linewidth=2.2, label="P95 of a window")
    if any((w.p95_s or 0) > slo_s for w in windows):
        axes.plot([], [], color=RED, linewidth=2.2, label="P95 above the SLO")
    axes.axhline(1000 * slo_s, color=RED, linestyle="--", linewidth=1.2, label=f"SLO {1000 * slo_s:.0f} ms")
    if bad:
        axes.plot(
            np.array(bad) / unit, np.full(len(bad), 0.985), "x", color=RED, markersize=5, clip_on=False,
            transform=axes.get_xaxis_transform(), label=f"failed ({len(bad)})",
        )  # fmt: skip
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_ylabel("latency (ms)" + (", log scale" if axes.get_yscale() == "log" else ""))
    axes.set_xlabel(f"time since start ({word})")
    _legend(axes)
    return _png(figure)


def scale(run: Run) -> bytes:
    """Requests, replicas and cost over time, one above the other."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, 1, sharex=True)
    start = run.start_s
    unit, word = _time_unit(run)
    window_s = run.windows[0].window_s if run.windows else 0.0
    _arrivals_panel(panels[0], run, start, unit)
    _replicas_panel(panels[1], run, start, unit, window_s)
    _cost_panel(panels[2], run, start, unit, window_s)
    panels[2].set_xlabel(f"time since start ({word})")
    panels[2].set_xlim(left=0)
    for panel in panels:
        _dress(panel)
    return _png(figure)


def _replicas_panel(axes: Axes, run: Run, start: float, unit: float, window_s: float) -> None:
    """Replicas by kind of function, stacked."""
    totals = replica_totals(run.nodes)
    kinds = [kind for kind in KIND_COLOURS if any(kind in counts for _, counts in totals)]
    if totals:
        # A count holds from its window's begin, so the first window needs an edge before its end.
        ends = np.array([totals[0][0] - window_s - start, *(end - start for end, _ in totals)]) / unit
        counts_by_window = [totals[0][1], *(counts for _, counts in totals)]
        stacks = [np.array([counts.get(kind, 0) for counts in counts_by_window]) for kind in kinds]
        colours = [KIND_COLOURS[kind] for kind in kinds]
        axes.stackplot(
            ends,
            *stacks,
            step="pre",
            labels=[f"{k}s" if k != "ingress" else k for k in kinds],
            colors=colours,
            alpha=0.75,
        )
        _legend(axes)
    else:
        _empty(axes, "no replica counts in the log")
    axes.set_ylabel("replicas")
    axes.set_ylim(bottom=0)


def _cost_panel(axes: Axes, run: Run, start: float, unit: float, window_s: float) -> None:
    """Both meters' cost of an hour."""
    for name, colour in (("provisioned", INK), ("busy", ORANGE)):
        points = [
            (w.end_s - start, getattr(w, f"{name}_cost") / w.window_s * 3600)
            for w in run.windows
            if getattr(w, f"{name}_cost") is not None and w.window_s > 0
        ]
        if points:
            times, values = _steps(points, window_s)
            axes.step(times / unit, values, where="pre", color=colour, linewidth=1.6, label=name)
    if axes.lines:
        _legend(axes)
    else:
        _empty(axes, "no cost in the log")
    axes.set_ylabel(f"cost ({'$' if run.currency == 'USD' else run.currency} per hour)")
    axes.set_ylim(bottom=0)


def _arrivals_panel(axes: Axes, run: Run, start: float, unit: float) -> None:
    due = np.array([record.scheduled_s for record in run.requests])
    if due.size:
        edges = np.arange(0, due.max() + 2, 1.0)
        counts, _ = np.histogram(due, edges)
        axes.fill_between(
            edges[:-1] / unit, counts, step="post", color=GREY, alpha=0.55, linewidth=0, label="due (per second)"
        )
    points = [(w.end_s - start, w.requests_per_s) for w in run.windows if w.requests_per_s is not None]
    if points:
        times, values = _steps(points, run.windows[0].window_s)
        axes.step(times / unit, values, where="pre", color=BLUE, linewidth=1.4, label="answered (window mean)")
    if due.size or points:
        _legend(axes)
    axes.set_ylabel("requests / s")
    axes.set_ylim(bottom=0)


def experts(run: Run) -> bytes:
    """Left: share of each layer's tokens over the run. Right: the same over time, one row per expert."""
    keys, ends, grid = _share_grid(run.nodes)
    unit, word = _time_unit(run)
    if not keys:
        figure, axes = _figure(10, 2.4)
        _empty(axes, "no expert's tokens are in the log")
        return _png(figure)
    layers = sorted({layer for layer, _ in keys})
    columns = sorted({expert for _, expert in keys})
    figure = Figure(figsize=(12, float(np.clip(1.6 + 0.085 * len(keys), 4.2, 10))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2.2))
    overall = _overall(run.nodes, layers, columns)
    # Both pictures share one scale of share / even share; below 2 an even layer would look like a skewed one.
    top = max(2.0, float(np.nanmax(overall)) * len(columns)) if np.isfinite(overall).any() else 2.0
    style: dict[str, Any] = {"cmap": "viridis", "vmin": 0, "vmax": top, "aspect": "auto", "interpolation": "nearest"}
    image = _layers_panel(left, overall, top, layers, columns, style)
    times = (np.array(ends) - run.start_s) / unit
    width = float(np.median(np.diff(times))) if len(ends) > 1 else 1.0
    right.imshow(grid * len(columns), extent=(times[0] - width, times[-1], len(keys) - 0.5, -0.5), **style)
    bounds = [index for index in range(1, len(keys)) if keys[index][0] != keys[index - 1][0]]
    for bound in bounds:
        right.axhline(bound - 0.5, color="white", linewidth=1.0)
    middles = [float(np.mean([i for i, key in enumerate(keys) if key[0] == layer])) for layer in layers]
    right.set_yticks(middles, [f"layer {layer}" for layer in layers])
    right.set_facecolor("#e6e9eb")
    right.set_xlabel(f"time since start ({word}); grey: no tokens in the window")
    right.set_title("the same by window, one row per expert (0 on top)", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=right, pad=0.01)
    bar.set_label("share / even share")
    return _png(figure)


def _layers_panel(
    axes: Axes, overall: FloatArray, top: float, layers: list[int], columns: list[int], style: dict[str, Any]
) -> AxesImage:
    """Shares of the whole run, ``overall [layers, experts]``, each with its number; the picture for the colour bar."""
    image = axes.imshow(overall * len(columns), **style)
    for (row, column), share in np.ndenumerate(overall):
        if np.isfinite(share):
            bright = share * len(columns) > 0.65 * top
            axes.text(
                column,
                row,
                f"{100 * share:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color=INK if bright else "white",
            )
    axes.set_xticks(range(len(columns)), [str(c) for c in columns])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.set_title("share of the layer's tokens, whole run (%)", fontsize=10, loc="left")
    return image


def _share_grid(nodes: tuple[NodeWindow, ...]) -> tuple[list[tuple[int, int]], list[float], FloatArray]:
    """((layer, expert) rows, window ends, [rows, windows] share of the layer's tokens, NaN where there were none)."""
    tokens = {
        (n.layer, n.expert, n.end_s): n.tokens_per_s
        for n in nodes
        if n.layer is not None and n.expert is not None and n.tokens_per_s is not None
    }
    keys = sorted({(layer, expert) for layer, expert, _ in tokens})
    ends = sorted({end for _, _, end in tokens})
    totals: dict[tuple[int, float], float] = defaultdict(float)
    for (layer, _, end), value in tokens.items():
        totals[layer, end] += value
    grid = np.full((len(keys), len(ends)), np.nan)
    for row, (layer, expert) in enumerate(keys):
        for column, end in enumerate(ends):
            expert_tokens = tokens.get((layer, expert, end))
            if expert_tokens is not None and totals[layer, end] > 0:
                grid[row, column] = expert_tokens / totals[layer, end]
    return keys, ends, grid


def _overall(nodes: tuple[NodeWindow, ...], layers: list[int], columns: list[int]) -> FloatArray:
    """[layers, experts] share over the whole run; NaN where an expert does not exist or its layer had no tokens."""
    sums: dict[tuple[int, int], float] = defaultdict(float)
    for node in nodes:
        if node.layer is not None and node.expert is not None and node.tokens_per_s is not None:
            sums[node.layer, node.expert] += node.tokens_per_s
    grid = np.array([[sums.get((layer, column), np.nan) for column in columns] for layer in layers])
    totals = np.nansum(grid, axis=1, keepdims=True)
    shares: FloatArray = np.divide(grid, totals, out=np.full_like(grid, np.nan), where=totals > 0)
    return shares


def actions(run: Run) -> bytes:
    """What was changed when: a row a function, and one for the changes that many functions had in common; those with
    most marks, at most 28 of them."""
    marks = _marks(run)
    counts = Counter(row for _, row, *_ in marks)
    if not counts:
        figure, axes = _figure(10, 2.2)
        _empty(axes, "the controller changed nothing")
        return _png(figure)
    unit, word = _time_unit(run)
    most = [name for name, _ in counts.most_common(MAX_ROWS)]
    rows = sorted(most, key=lambda name: (" " not in name, _natural(name)))
    figure, axes = _figure(10, 1.6 + 0.24 * len(rows))
    for kind, marker, colour, label, number_at in KINDS:
        for applied in (True, False):
            points = [
                ((time_s - run.start_s) / unit, rows.index(row), count)
                for (time_s, row, *of), count in marks.items()
                if of == [kind, applied] and row in rows
            ]
            if points:
                axes.plot(
                    [x for x, _, _ in points], [y for _, y, _ in points], marker,
                    color=colour, fillstyle="full" if applied else "none", markersize=7, alpha=0.85,
                    label=label if applied else f"{label}, not applied",
                )  # fmt: skip
            for x, y, count in points:
                if count > 1:
                    _number(axes, count, (x, y), number_at)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    last = max([w.end_s for w in run.windows] + [a.time_s for a in run.actions]) - run.start_s
    axes.set_xlim(min(0.0, min(a.time_s for a in run.actions) - run.start_s) / unit, last / unit * 1.02)
    axes.set_xlabel(f"time since start ({word})")
    if len(counts) > len(rows):
        # the padding is above the legend
        axes.set_title(f"{len(rows)} of {len(counts)} rows (those with most marks)", fontsize=9, loc="left", pad=22)
    _legend(axes)
    return _png(figure)


KINDS = (
    ("up", "^", GREEN, "more replicas", (0, 8)), ("down", "v", RED, "fewer replicas", (0, -8)),
    ("limits", "D", ORANGE, "limits or concurrency", (9, 0)),
)  # fmt: skip
"""Kind of an action, its mark, colour and words, and where the number of functions stands."""


def _marks(run: Run) -> Counter[tuple[float, str, str, bool]]:
    """(time, row, kind, applied) → functions that were changed so."""
    marks: Counter[tuple[float, str, str, bool]] = Counter()
    for fold in folded(run.actions, MANY):
        action, count = fold.actions[0], len(fold.actions)
        row = action.function if count == 1 else f"many {plural(action)}"
        marks[action.time_s, row, action.kind, action.applied] += count
    return marks


def _number(axes: Axes, count: int, place: tuple[float, float], offset: tuple[int, int]) -> None:
    axes.annotate(
        str(count), place, offset, textcoords="offset points", ha="center", va="center", fontsize=7, color=INK
    )


def _time_unit(run: Run) -> tuple[float, str]:
    """Seconds per unit of the time axes, and its name: minutes from five minutes on."""
    last = max([window.end_s for window in run.windows] + [r.sent_unix_s or 0.0 for r in run.requests], default=0.0)
    return (60.0, "min") if last - run.start_s > 300 else (1.0, "s")


def _steps(ends: list[tuple[float, float]], window_s: float) -> tuple[FloatArray, FloatArray]:
    """[n+1] times and values to draw with ``where="pre"``: the first window gets its left edge."""
    points = np.array([(ends[0][0] - window_s, ends[0][1]), *ends])
    return points[:, 0], points[:, 1]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts 2 before 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split("-")]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _dress(axes)
    return figure, axes


def _dress(axes: Axes) -> None:
    axes.grid(alpha=0.22)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, fontsize=8, frameon=False, borderaxespad=0.2)


def _empty(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=GREY)


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


__all__ = ["actions", "experts", "latency", "scale"]

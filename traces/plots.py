"""Small pictures of traces: arrivals per second over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from traces.errors import TraceError
from traces.model import Trace

COLOUR = "#2a6f97"


def plot_arrivals(trace: Trace, path: Path, title: str) -> None:
    """PNG with requests per second in bins of about 1/600 of the span (at least a second). Raises TraceError."""
    plot_clips([(title, trace)], path, named=False)


def plot_clips(traces: Sequence[tuple[str, Trace]], path: Path, named: bool = True) -> None:
    """One panel a trace; ``named`` adds rate, CV and pattern to the names. Raises TraceError."""
    figure = Figure(figsize=(9, 0.6 + 2.2 * len(traces)), layout="constrained")
    FigureCanvasAgg(figure)
    for index, (name, trace) in enumerate(traces):
        axes = figure.add_subplot(len(traces), 1, index + 1)
        _panel(axes, trace)
        axes.set_title(f"{name}   {_numbers(trace)}" if named else name, fontsize=8.5, loc="left", wrap=True)
        if index == len(traces) - 1:
            axes.set_xlabel("time (min)")
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: the picture cannot be written ({error})") from error


def title_of(trace: Trace) -> str:
    return f"{trace.source}\n{_numbers(trace)}"


def _numbers(trace: Trace) -> str:
    cv = trace.iat_cv
    about = f"CV {cv:.2f}, {trace.pattern}" if cv is not None else "too few requests for a CV"
    return f"{trace.requests} requests, {trace.mean_rps:.3g}/s, {about}"


def _panel(axes: Any, trace: Trace) -> None:
    bin_s = max(1.0, round(trace.duration_s / 600))
    edges = np.arange(0.0, trace.duration_s + bin_s, bin_s)
    counts, _ = np.histogram(trace.arrival_s, bins=edges if edges.size > 1 else 1)
    minutes = edges[:-1] / 60 if edges.size > 1 else np.zeros(1)
    axes.fill_between(minutes, counts / bin_s, step="post", color=COLOUR, alpha=0.35, linewidth=0)
    axes.step(minutes, counts / bin_s, where="post", color=COLOUR, linewidth=0.9)
    axes.set_ylabel("requests / s")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(trace.duration_s / 60, 1e-9))
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

"""A small picture of a trace: arrivals per second over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from traces.trace import Trace


def plot_arrivals(trace: Trace, path: Path, title: str) -> None:
    """PNG with requests per second in bins of about 1/600 of the span (at least a second)."""
    bin_s = max(1.0, round(trace.duration_s / 600))
    edges = np.arange(0.0, trace.duration_s + bin_s, bin_s)
    counts, _ = np.histogram(trace.arrival_s, bins=edges if edges.size > 1 else 1)
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    minutes = edges[:-1] / 60 if edges.size > 1 else np.zeros(1)
    axes.fill_between(minutes, counts / bin_s, step="post", color="#2a6f97", alpha=0.35, linewidth=0)
    axes.step(minutes, counts / bin_s, where="post", color="#2a6f97", linewidth=0.9)
    axes.set_xlabel("time (min)")
    axes.set_ylabel("requests / s")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(trace.duration_s / 60, 1e-9))
    axes.set_title(title, fontsize=8.5, loc="left", wrap=True)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=130)

"""A profile as a picture: the surface, its lines with their spread, and what a CPU limit does to single calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulation.profiles.fit.fitting import Fit, predict
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.surface import Surface

COLORS = mpl.colormaps["viridis"]


def draw(path: Path, title: str, surface: Surface | None, rows: Sequence[Row], fitted: Fit | None) -> None:
    """Write the PNG."""
    figure = Figure(figsize=(15, 5.2), layout="constrained")
    figure.suptitle(title, fontsize=10)
    if surface is not None:
        _surface(figure.add_subplot(1, 3, 1, projection="3d"), surface)
        _lines(figure.add_subplot(1, 3, 2), surface)
    if fitted is not None:
        node = surface.node if surface is not None else next(iter(fitted.nodes))
        _limits(figure.add_subplot(1, 3, 3), [row for row in rows if row.node == node], fitted, node)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _surface(axes: Axes, surface: Surface) -> None:
    memory, calls = np.meshgrid(np.log2(surface.memory_mib), surface.concurrency, indexing="ij")
    height = np.log10(surface.median_s * 1e3)
    axes.plot_surface(memory, calls, height, cmap="viridis", edgecolor="black", linewidth=0.3)  # type: ignore[attr-defined]
    axes.set_xticks(np.log2(surface.memory_mib), [str(size) for size in surface.memory_mib], fontsize=7)
    axes.set_xlabel("memory limit, MiB (brings CPU)")
    axes.set_ylabel("calls at once")
    ticks = np.arange(np.floor(np.nanmin(height)), np.ceil(np.nanmax(height)) + 1)
    axes.set_zticks(ticks, [f"{10**tick:g}" for tick in ticks])  # type: ignore[attr-defined]
    axes.set_zlabel("P95, ms")  # type: ignore[attr-defined]
    axes.set_title(f"P95 of {surface.node} at {surface.rate_rps:.0f} calls/s, {surface.tokens} tokens", fontsize=9)


def _lines(axes: Axes, surface: Surface) -> None:
    low, high = surface.range_s
    for row, (memory, share) in enumerate(zip(surface.memory_mib, surface.shares, strict=True)):
        color = COLORS(row / max(1, len(surface.memory_mib) - 1))
        axes.plot(
            surface.concurrency, surface.median_s[row] * 1e3, "o-", color=color, label=f"{memory} MiB, {share:g} cores"
        )
        axes.fill_between(surface.concurrency, low[row] * 1e3, high[row] * 1e3, color=color, alpha=0.2)
    axes.set_yscale("log")
    axes.set_xlabel("calls at once")
    axes.set_ylabel("P95, ms (line: median of repeats, band: their range)")
    axes.legend(fontsize=7)
    axes.set_title("Along concurrency", fontsize=9)


def _limits(axes: Axes, rows: Sequence[Row], fitted: Fit, node: str) -> None:
    """Measured (points) and fitted (lines) mean seconds of single calls and of calls one after the other."""
    tokens = sorted({row.tokens for row in rows if row.family == "alone"})
    for family, style in (("alone", "o"), ("busy", "^")):
        for place, count in enumerate(tokens):
            points: dict[float, list[Row]] = {}
            for row in rows:
                if row.family == family and row.tokens == count and row.feasible:
                    points.setdefault(row.share, []).append(row)
            color = COLORS(place / max(1, len(tokens) - 1))
            shares = sorted(points)
            medians_ms = [median(row.mean_s or 0.0 for row in points[share]) * 1e3 for share in shares]
            said = [predict(fitted.nodes[node], points[share][0], fitted.tick_s).mean_s * 1e3 for share in shares]
            axes.plot(shares, medians_ms, style, color=color, markersize=4)
            axes.plot(
                shares,
                said,
                "-" if family == "alone" else ":",
                color=color,
                label=f"{count} tokens" if family == "alone" else None,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("CPU limit, real cores")
    axes.set_ylabel("mean, ms")
    axes.legend(fontsize=7)
    axes.set_title("● and —: idle replica; ▲ and ···: one call always in flight (fit)", fontsize=9)

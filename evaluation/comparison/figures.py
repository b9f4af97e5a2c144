"""The paper's Figures 7 and 8 from an evaluation's runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from evaluation.comparison.tables import runs_of

Run = Mapping[str, Any]
WIDTH = 0.8
DECADE = 10.0


def figure_7(path: Path, summaries: Sequence[Run], windows: Mapping[tuple[Any, ...], Sequence[float]]) -> None:
    """Cost over the costliest policy, and P95 of the windows over the SLO, by workload; the burstiest pattern that is
    there. ``windows``: (workload, pattern, tokens, seed, policy) → P95 of each window with an answer in seconds.
    """
    runs = runs_of(summaries)
    patterns = _values(runs, "pattern")
    pattern = "bursty" if "bursty" in patterns else patterns[-1]
    runs = [run for run in runs if run["pattern"] == pattern]
    workloads, policies = _values(runs, "workload"), _values(runs, "policy")
    figure, (costs, tails) = plt.subplots(2, 1, figsize=(max(7.0, 1.8 * len(workloads)), 6.4), layout="constrained")
    for place, policy in enumerate(policies):
        at = np.arange(len(workloads)) + WIDTH * ((place + 0.5) / len(policies) - 0.5)
        color = f"C{place}"
        means = [[run["provisioned_experts"] for run in runs if _is(run, workload, policy)] for workload in workloads]
        tops = [_costliest(runs, workload) for workload in workloads]
        heights = [float(np.mean(mean)) / top for mean, top in zip(means, tops, strict=True)]
        costs.bar(at, heights, WIDTH / len(policies), label=policy, color=color)
        for x, workload in zip(at, workloads, strict=True):
            samples = [
                value / run["slo_s"]
                for run in runs
                if _is(run, workload, policy)
                for value in windows.get(_key(run), ())
            ]
            if samples:
                _box(tails, float(x), samples, WIDTH / len(policies), color)
    for axes in (costs, tails):
        axes.set_xlim(-0.5, len(workloads) - 0.5)
        axes.set_xticks(np.arange(len(workloads)), workloads)
        axes.grid(axis="y", alpha=0.3)
    costs.set_ylabel("provisioned cost / costliest")
    costs.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.25), frameon=False)
    tails.axhline(1.0, color="crimson", linestyle="--", linewidth=1)
    _scale(tails)
    tails.set_ylabel("P95 of a window / SLO")
    figure.suptitle(f"Simulated, pattern {pattern} (the paper's Figure 7)", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def figure_8(path: Path, summaries: Sequence[Run]) -> None:
    """Cost and P95 over patterns and over input sizes, one line a policy; means over workloads and seeds."""
    runs = runs_of(summaries)
    figure, grid = plt.subplots(2, 2, figsize=(9.5, 6.4), layout="constrained")
    for column, axis in enumerate(("pattern", "tokens")):
        values = _values(runs, axis)
        for place, policy in enumerate(_values(runs, "policy")):
            by_value = [[run for run in runs if run["policy"] == policy and run[axis] == value] for value in values]
            cost = [
                np.mean([run["provisioned_experts"] / _costliest(runs, run["workload"]) for run in some])
                for some in by_value
            ]
            tails = [[run["p95_over_slo"] for run in some if run["p95_over_slo"] is not None] for some in by_value]
            tail = [np.mean(sample) if sample else np.nan for sample in tails]
            for row, line in enumerate((cost, tail)):
                grid[row, column].plot(range(len(values)), line, marker="o", color=f"C{place}", label=policy)
        for row in (0, 1):
            grid[row, column].set_xticks(range(len(values)), [str(value or "workload's own") for value in values])
            grid[row, column].grid(alpha=0.3)
        grid[1, column].set_xlabel({"pattern": "request pattern", "tokens": "mean tokens of a request"}[axis])
        grid[1, column].axhline(1.0, color="crimson", linestyle="--", linewidth=1)
        _scale(grid[1, column])
    grid[0, 0].set_ylabel("provisioned cost / costliest")
    grid[1, 0].set_ylabel("P95 / SLO")
    drawn = grid[0, 0].get_legend_handles_labels()
    figure.legend(*drawn, ncols=5, fontsize=8, loc="outside lower center", frameon=False)
    figure.suptitle("Simulated (the paper's Figure 8)", fontsize=10)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _scale(axes: Axes) -> None:
    """Linear where what is drawn spans less than a decade, else logarithmic, with plain numbers at the ticks."""
    low, high = axes.dataLim.intervaly
    if 0 < low <= high / DECADE:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter("{x:g}")


def _box(axes: Axes, x: float, values: Sequence[float], width: float, color: str) -> None:
    box = axes.boxplot([values], positions=[x], widths=width * 0.9, showfliers=False, patch_artist=True)
    for patch in box["boxes"]:
        patch.set_facecolor(color)
    for line in box["medians"]:
        line.set_color("black")


def _values(runs: Sequence[Run], name: str) -> list[Any]:
    return list(dict.fromkeys(run[name] for run in runs))


def _is(run: Run, workload: str, policy: str) -> bool:
    return bool(run["workload"] == workload and run["policy"] == policy)


def _costliest(runs: Sequence[Run], workload: str) -> float:
    return float(max(run["provisioned_experts"] for run in runs if run["workload"] == workload))


def _key(run: Run) -> tuple[Any, ...]:
    return run["workload"], run["pattern"], run["tokens"], run["seed"], run["policy"]

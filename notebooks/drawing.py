"""How the notebooks' pictures look: one style, one colour for each policy and variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

STAFFING = "rl.staffing.policy:make_rule"
"""What this project scales by."""
POLICIES: Mapping[str, tuple[str, str]] = {
    "smoe": ("sMoE (learnt)", "#d62728"),
    "serverlessmoe": ("ServerlessMoE", "#4c78a8"),
    "elasticmoe": ("ElasticMoE (scaler)", "#f2a03d"),
    "faasconf": ("FaaSConf", "#59a14f"),
    "openfaas": ("OpenFaaS, HPA", "#9467bd"),
    "constant": ("constant", "#c7d9e8"),
    "constant-per-layer": ("constant a layer", "#9ebcd6"),
    "constant-per-expert": ("constant an expert", "#6f9bc2"),
    "constant+burst": ("constant, standbys", "#4d7ea8"),
    "constant-per-layer+burst": ("constant a layer, standbys", "#3c6c99"),
    "constant-per-expert+burst": ("constant an expert, standbys", "#2c5f8a"),
    "hpa": ("HPA, profiled start", "#b39ac9"),
    "hpa+burst": ("HPA, standbys", "#5e4b8b"),
    "tuned-hpa": ("HPA, tuned plan", "#7f6aa0"),
    "vpa": ("VPA", "#a3a830"),
    "kpa": ("KPA", "#8c8c8c"),
    "keda": ("KEDA", "#bdbdbd"),
    "apa": ("AIBrix APA", "#9c755f"),
    "slo-aware": ("llm-d SLO-aware", "#76b7b2"),
    "last-window": ("last window's optimum", "#17a2b8"),
    "last-window+burst": ("last window's optimum, standbys", "#0f7080"),
    STAFFING: ("staffing rule, not tuned", "#e377c2"),
}
"""Name → label and colour, in the order in which they are drawn; the paper's five first."""
PAPER = ("smoe", "serverlessmoe", "elasticmoe", "faasconf", "openfaas")
VARIANTS: Mapping[str, tuple[str, str]] = {
    "full": ("sMoE", "#d62728"),
    "no-dagnn": ("w/o DAGNN", "#4c78a8"),
    "no-pointer": ("w/o pointer", "#f2a03d"),
    "ddpg-only": ("DDPG only", "#59a14f"),
    "no-concurrency": ("w/o concurrency control", "#9467bd"),
    "full-joint": ("literal full joint", "#8c8c8c"),
}
"""Variant of the ablation → label and colour."""
SLO = {"color": "crimson", "linestyle": "--", "linewidth": 1.2}
"""Style of the line at λ."""


def style() -> None:
    """Fonts, grid and resolution of all pictures."""
    plt.rcdefaults()
    plt.rcParams.update(
        {
            "figure.dpi": 110,
            "figure.constrained_layout.use": True,
            "font.size": 9.5,
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "image.cmap": "viridis",
        }
    )


def labelled(names: Sequence[str], among: Mapping[str, tuple[str, str]] = POLICIES) -> list[str]:
    """``names`` that have a label, in drawing order, without repeats."""
    return [name for name in among if name in set(names)]


def places(count: int, width: float = 0.8) -> np.ndarray:
    """Offsets [count] of bars next to each other around 0; their distance is how wide each is."""
    return width * ((np.arange(count) + 0.5) / count - 0.5)


def boxes(axes: Axes, at: float, values: Sequence[float], width: float, color: str) -> None:
    """One box of quartiles with whiskers at the 5th and 95th percentile and the median in black."""
    axes.boxplot(
        [list(values)], positions=[at], widths=width, whis=(5, 95), showfliers=False, patch_artist=True,
        manage_ticks=False, boxprops={"facecolor": color, "linewidth": 0.6}, medianprops={"color": "black"},
        whiskerprops={"linewidth": 0.8}, capprops={"linewidth": 0.8},
    )  # fmt: skip


def triangles(axes: Axes, left: Any, right: Any, cmap: str, limit: float) -> PolyCollection:
    """A map of two numbers a cell, ``left`` and ``right`` [rows, columns]: two triangles a cell, 0 to ``limit``."""
    corners, colours = [], []
    for (row, column), value in np.ndenumerate(np.asarray(left)):
        x, y = column - 0.5, row - 0.5
        corners += [[(x, y), (x, y + 1), (x + 1, y + 1)], [(x, y), (x + 1, y + 1), (x + 1, y)]]
        colours += [value, np.asarray(right)[row, column]]
    drawn = PolyCollection(corners, array=np.array(colours), cmap=cmap, edgecolors="white", linewidths=0.25)
    drawn.set_clim(0, limit)
    axes.add_collection(drawn)
    rows, columns = np.shape(left)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(-0.5, rows - 0.5))
    return drawn


def plain_log(axes: Axes, ticks: Sequence[float]) -> None:
    """A logarithmic y axis with numbers at ``ticks`` (those that lie in it) instead of powers of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.minorticks_off()

"""Picture of searches: the best so far over the trials, which shows whether more trials would still help."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt


def best_so_far(path: Path) -> list[float | None]:
    """From a search's CSV: after each trial the least cost of those that met the SLO; None while there is none."""
    curve: list[float | None] = []
    best: float | None = None
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["meets"] == "True":
                best = min(float(row["cost"]), best if best is not None else float("inf"))
            curve.append(best)
    return curve


def picture(path: Path, curves: Mapping[str, Sequence[float | None]], columns: int = 3) -> None:
    """One panel a policy; a line a search, cost over its last best. ``curves``: ``POLICY.…`` → :func:`best_so_far`."""
    policies = list(dict.fromkeys(name.split(".", 1)[0] for name in curves))
    columns = min(columns, max(1, len(policies)))
    figure, grid = plt.subplots(1, columns, figsize=(5.2 * columns, 3.6), layout="constrained", squeeze=False)
    for axes, policy in zip(grid[0], policies, strict=False):
        for name, curve in curves.items():
            points = [(number, value) for number, value in enumerate(curve, 1) if value is not None]
            if name.split(".", 1)[0] == policy and points:
                axes.step(*zip(*[(n, v / points[-1][1]) for n, v in points], strict=True), where="post", alpha=0.6)
        axes.set_title(f"{policy}: {sum(name.startswith(policy + '.') for name in curves)} searches", fontsize=10)
        axes.set_xlabel("trial")
        axes.set_ylabel("best cost so far / last best")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    plt.close(figure)

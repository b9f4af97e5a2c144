"""What a policy remembers: load and latency of up to 30 windows, and the experts' load of up to 5."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rl.features.catalogue import SPANS
from simulation.arrays import Floats

WINDOWS = SPANS[-1]
NODE_WINDOWS = 5


def _empty() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class History:
    """Oldest first; the present window is the last one. NaN: no data of that window."""

    load: Floats = field(default_factory=_empty)
    """[≤ 30] requests per second."""
    p95: Floats = field(default_factory=_empty)
    """[≤ 30] P95 over λ."""
    nodes: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """[≤ 5, nodes] calls per second."""

    def after(self, load: float, p95: float, nodes: Floats) -> History:
        """With one more window; NaN where a number is not known. ``nodes [nodes]``."""
        past = self.nodes if self.nodes.shape[1:] == nodes.shape else np.zeros((0, nodes.size))
        return History(
            np.append(self.load, load)[-WINDOWS:],
            np.append(self.p95, p95)[-WINDOWS:],
            np.concatenate([past, nodes[None]])[-NODE_WINDOWS:],
        )

    def row(self) -> dict[str, float]:
        """Pipeline features by name, in requests per second and λ; NaN where nothing is known of a span."""
        means = {f"load_mean_{span}": _mean(self.load[-span:]) for span in SPANS}
        means |= {f"load_peak_{span}": _peak(self.load[-span:]) for span in SPANS[1:]}
        for span in SPANS[2:]:
            p95 = self.p95[-span:]
            p95 = p95[~np.isnan(p95)]
            means[f"p95_peak_{span}"] = _peak(p95)
            means[f"over_{span}"] = float((p95 > 1).mean()) if p95.size else np.nan
        return means | {"remembered": self.load.size / WINDOWS}

    def node_load(self) -> tuple[Floats, Floats]:
        """[nodes] mean and largest calls per second of the last windows; NaN where nothing is known."""
        is_known = ~np.isnan(self.nodes)
        count = is_known.sum(axis=0)
        total = np.where(is_known, self.nodes, 0.0).sum(axis=0)
        mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        peak = np.where(count > 0, np.where(is_known, self.nodes, -np.inf).max(axis=0, initial=-np.inf), np.nan)
        return mean, peak


def _mean(values: Floats) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else np.nan


def _peak(values: Floats) -> float:
    values = values[~np.isnan(values)]
    return float(values.max()) if values.size else np.nan

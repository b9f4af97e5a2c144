"""What every layout owes those who serve from it."""

from __future__ import annotations

import numpy as np

from placement.errors import PlacementError
from placement.layout import Held, copies


def check(held: Held, experts: int) -> None:
    """Raises PlacementError: an expert without replica, twice on a node, or unknown; names layer and node."""
    if held.ndim != 3 or held.size == 0:
        raise PlacementError(f"held must be [layers, nodes, slots] and not empty, got shape {held.shape}")
    if held.min() < -1 or held.max() >= experts:
        raise PlacementError(f"slots must hold experts 0 to {experts - 1} or -1, got {held.min()} to {held.max()}")
    counts = copies(held, experts)
    missing = np.argwhere(counts.sum(axis=1) == 0)
    if missing.size:
        raise PlacementError(f"layer {missing[0][0]}: expert {missing[0][1]} has no replica on any node")
    twice = np.argwhere(counts > 1)
    if twice.size:
        layer, node, expert = twice[0]
        raise PlacementError(
            f"layer {layer}: expert {expert} stands {counts[layer, node, expert]} times on node {node}"
        )

"""The latency surface over coupled memory × concurrency, as in the paper's Fig. 3(a): has it ridges and valleys?

Decided by data: along one memory size, a concurrency is a *valley* when P95 is higher at some smaller and some larger
concurrency, a *ridge* when it is lower at both, by more than ``MARGIN`` and by more than the scatter of the repeats
brings about by chance. Repeats measured next to other work count only where there is no quieter one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from simulation.arrays import Floats
from simulation.profiles.fit.fitting import least_disturbed
from simulation.profiles.fit.rows import Row

MARGIN = 0.05
"""Smallest difference of P95 that counts, as a part."""
FEWEST_REPEATS = 2


@dataclass(frozen=True, eq=False)
class Surface:
    """P95 of one node's open loop. ``p95_s [memory, concurrency, repeat]``, NaN where a point gave no number."""

    node: str
    memory_mib: tuple[int, ...]
    shares: tuple[float, ...]
    """Real cores that come with each memory size."""
    concurrency: tuple[int, ...]
    rate_rps: float
    tokens: int
    p95_s: Floats

    @property
    def median_s(self) -> Floats:
        """[memory, concurrency]; NaN where no repeat gave a number."""
        return self._over_repeats(np.median)

    @property
    def range_s(self) -> tuple[Floats, Floats]:
        """Least and largest repeat, each [memory, concurrency]."""
        return self._over_repeats(np.min), self._over_repeats(np.max)

    def _over_repeats(self, reduce: Callable[[Floats], float]) -> Floats:
        medians_s = np.full(self.p95_s.shape[:2], np.nan)
        for place in np.ndindex(medians_s.shape):
            finite_s = self.p95_s[place][np.isfinite(self.p95_s[place])]
            if finite_s.size:
                medians_s[place] = reduce(finite_s)
        return medians_s


@dataclass(frozen=True)
class Feature:
    """A ridge or valley: P95 at ``concurrency`` against the two it is compared with."""

    kind: Literal["ridge", "valley"]
    memory_mib: int
    concurrency: int
    left: int
    right: int
    depth: float
    """The smaller of the two differences, as a part of P95 there."""


def surface_of(rows: Sequence[Row]) -> Surface | None:
    """The surface of the first node that has one, or None."""
    surface_rows = [row for row in rows if row.family == "surface" and row.p95_s is not None]
    if not surface_rows:
        return None
    surface_rows = [row for row in surface_rows if row.node == surface_rows[0].node]
    memory = sorted({row.memory_mib for row in surface_rows})
    concurrency = sorted({row.concurrency for row in surface_rows})
    repeats = max(row.repeat for row in surface_rows) + 1
    p95_s = np.full((len(memory), len(concurrency), repeats), np.nan)
    for row in least_disturbed(surface_rows):
        p95_s[memory.index(row.memory_mib), concurrency.index(row.concurrency), row.repeat] = row.p95_s
    share = {row.memory_mib: row.share for row in surface_rows}
    return Surface(
        surface_rows[0].node,
        tuple(memory),
        tuple(share[size] for size in memory),
        tuple(concurrency),
        surface_rows[0].rate_rps,
        surface_rows[0].tokens,
        p95_s,
    )


def features(surface: Surface) -> list[Feature]:
    """Ridges and valleys beyond chance, the deepest of each kind for each memory size."""
    features = []
    for row, memory in enumerate(surface.memory_mib):
        logs = np.log(surface.p95_s[row])  # [concurrency, repeat]
        least = _least_difference(logs)
        kinds: tuple[tuple[float, Literal["valley", "ridge"]], ...] = ((1.0, "valley"), (-1.0, "ridge"))
        for sign, kind in kinds:
            best = _deepest(sign * logs, surface.concurrency, least)
            if best is not None:
                features.append(Feature(kind, memory, *best))
    return features


def _least_difference(logs: Floats) -> float:
    """Difference of two means of repeats that chance alone reaches in one line of twenty, over all its pairs.

    From the repeats' own scatter, pooled over the line; Student's quantile by its expansion around the normal's.
    Infinite where no point has two repeats.
    """
    lines = [line[np.isfinite(line)] for line in logs]
    freedom = sum(len(line) - 1 for line in lines if len(line) >= FEWEST_REPEATS)
    if freedom < 1:
        return float("inf")
    variance = sum(float(((line - line.mean()) ** 2).sum()) for line in lines if len(line)) / freedom
    pairs = len(lines) * (len(lines) - 1)
    z = NormalDist().inv_cdf(1 - 0.05 / max(1, pairs))
    student = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    repeats = min(len(line) for line in lines if len(line) >= FEWEST_REPEATS)
    return max(float(np.log1p(MARGIN)), student * float(np.sqrt(2 * variance / repeats)))


def _deepest(logs: Floats, concurrency: Sequence[int], least: float) -> tuple[int, int, int, float] | None:
    """The deepest valley of one line [concurrency, repeat] of logarithms: (where, left, right, depth)."""
    means = [float(line[np.isfinite(line)].mean()) if _enough(line) else None for line in logs]
    best: tuple[int, int, int, float] | None = None
    for middle in range(1, len(concurrency) - 1):
        here = means[middle]
        left = [(mean, place) for place, mean in enumerate(means[:middle]) if mean is not None]
        right = [(mean, place) for place, mean in enumerate(means) if place > middle and mean is not None]
        if here is None or not left or not right:
            continue
        highest = max(left), max(right)
        depth = min(highest[0][0], highest[1][0]) - here
        if depth > least and (best is None or depth > best[3]):
            best = (concurrency[middle], concurrency[highest[0][1]], concurrency[highest[1][1]], depth)
    return None if best is None else (*best[:3], float(np.expm1(best[3])))


def _enough(line: Floats) -> bool:
    return int(np.isfinite(line).sum()) >= FEWEST_REPEATS


def sentence(surface: Surface) -> str:
    """What the surface shows."""
    where = (
        f"{surface.node}, {surface.tokens} tokens, {surface.rate_rps:.0f} calls/s, memory that brings CPU with it "
        f"({surface.memory_mib[0]} to {surface.memory_mib[-1]} MiB), {surface.concurrency[0]} to "
        f"{surface.concurrency[-1]} calls at once"
    )
    repeated = sum(bool(np.isfinite(_least_difference(np.log(line)))) for line in surface.p95_s)
    if not repeated:
        return (
            f"Surface ({where}): one undisturbed repeat only, so ridges and valleys cannot be distinguished from noise."
        )
    shown = features(surface)
    if not shown:
        return (
            f"Surface ({where}): no ridge or valley stands out of the scatter of up to {surface.p95_s.shape[2]} "
            f"repeats on this machine."
        )
    parts = [
        f"a {one.kind} at {one.memory_mib} MiB and {one.concurrency} at once ({one.depth:.0%} against {one.left} and "
        f"{one.right})"
        for one in shown
    ]
    return f"Surface ({where}): {'; '.join(parts)}."

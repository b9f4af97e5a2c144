"""What a metrics source has read for one window, before it means anything: numbers by metric and label values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Key = tuple[str, ...]
Buckets = tuple[tuple[float, float], ...]
"""(upper bound in seconds, increase of the cumulative count), ascending, the last bound infinite."""


@dataclass(frozen=True)
class Wanted:
    """A metric that is read: its kind, and the labels that make up the key of its readings."""

    kind: Literal["counter", "gauge", "max", "histogram"]
    labels: tuple[str, ...]
    of: Literal["ingress", "gateway"]


@dataclass(frozen=True)
class Readings:
    """One window. Counters and histogram counts are increases over the window; gauges are the latest values, summed
    (``max``: the largest) over the series that share a key."""

    start_s: float
    end_s: float
    counters: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    gauges: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    histograms: Mapping[str, Mapping[Key, Buckets]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    stale: bool = False

    def counter(self, name: str, *key: str) -> float | None:
        return self.counters.get(name, {}).get(key)

    def gauge(self, name: str, *key: str) -> float | None:
        return self.gauges.get(name, {}).get(key)

    def histogram(self, name: str, *key: str) -> Buckets | None:
        return self.histograms.get(name, {}).get(key)

"""Growth of counters over a window of scrapes, for installations without a Prometheus server. Pure.

As PromQL's ``increase``, a counter that falls has restarted from zero. Two departures, because scrapes are made once a
tick and windows are as short as one tick: the window begins at a scrape (as PromQL's ``anchored`` range selector would
have it) and nothing is extrapolated, so that the windows of a run add up to exactly what the
counters counted; and a series that appears while its target was known began at zero, where PromQL needs two samples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from autoscaler.monitor.catalogue import SAMPLES
from autoscaler.state.readings import SHAPES, Buckets, Job, Key, Readings, Series, Shape

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[tuple[str, Labels], float]
"""One scrape: sample name and sorted labels → value."""
Scrape = tuple[float, Samples]
"""(Unix time, samples)."""

_K = TypeVar("_K")
KEPT = 256
JOBS: tuple[Job, ...] = ("gateway", "ingress")


@dataclass
class TargetHistory:
    """Scrapes of one target, oldest first, at most ``KEPT`` whatever the window."""

    job: str
    scrapes: deque[Scrape] = field(default_factory=lambda: deque(maxlen=KEPT))
    listed: bool = True
    """Named in the last list of targets; one that is not has gone, and only what it counted before still matters."""

    def forget(self, before_s: float) -> None:
        """Drop scrapes that no window which begins at ``before_s`` or later needs."""
        while len(self.scrapes) > 1 and self.scrapes[1][0] <= before_s:
            self.scrapes.popleft()

    def window(self, start_s: float, end_s: float) -> list[Scrape]:
        """The last scrape at or before ``start_s``, and those after it up to ``end_s``."""
        before = [scrape for scrape in self.scrapes if scrape[0] <= start_s]
        return before[-1:] + [scrape for scrape in self.scrapes if start_s < scrape[0] <= end_s]


def increases(scrapes: Sequence[Scrape]) -> dict[tuple[str, Labels], float]:
    """Growth of every series from the first to the last scrape; a fall is a restart from zero."""
    grown: dict[tuple[str, Labels], float] = {}
    last: dict[tuple[str, Labels], float] = dict(scrapes[0][1]) if scrapes else {}
    for _, samples in scrapes[1:]:
        for key, value in samples.items():
            previous = last.get(key, 0.0)
            grown[key] = grown.get(key, 0.0) + (value - previous if value >= previous else value)
            last[key] = value
    return grown


def readings_of(
    targets: Mapping[str, TargetHistory],
    now_s: float,
    window_s: float,
    problems: Iterable[str] = (),
    stale_s: float = 15.0,
) -> Readings:
    """Readings of the window that ends at ``now_s``, from the scrapes of all targets.

    The window is as long as the scrapes reach: it begins at the scrape nearest to ``window_s`` ago. Stale when the
    gateway or every ingress has no two scrapes, or no scrape younger than ``stale_s``.
    """
    sentences = list(problems)
    ages: dict[Job, float] = {}
    start_s = _start(targets, now_s, window_s)
    gathered = _Gathered()
    for address, history in targets.items():
        scrapes = history.window(start_s, now_s)
        if scrapes and scrapes[0][0] < start_s - stale_s:
            del scrapes[0]  # it was away: what it counted meanwhile, or before it started again, is not of this window
        age_s = now_s - history.scrapes[-1][0] if history.scrapes else None
        if history.listed and (age_s is None or age_s > stale_s):
            sentences.append(f"target {address} ({history.job}) has no scrape younger than {stale_s:g} s")
            continue
        if len(scrapes) > 1:
            for job in JOBS:
                if history.job == job and history.listed and age_s is not None:
                    ages[job] = min(age_s, ages.get(job, age_s))
            gathered.growth(increases(scrapes), scrapes)
        if history.listed and scrapes:
            gathered.latest(scrapes[-1][1])
    lacking = [job for job in JOBS if job not in ages]
    if lacking:
        sentences.append(f"no window yet: two scrapes are needed, and there are none of {' and '.join(lacking)}")
    return Readings(
        start_s=start_s,
        end_s=now_s,
        values=gathered.values,
        histograms=gathered.histograms(),
        counts=gathered.counts,
        measured=gathered.measured,
        ages_s=ages,
        problems=tuple(sentences),
        stale=bool(lacking),
    )


def _start(targets: Mapping[str, TargetHistory], now_s: float, window_s: float) -> float:
    """Time of the scrape that the window begins at: the nearest to ``window_s`` ago.

    Not the last one before that moment: ticks come a little early or late, and a tick that came early would get a
    window of twice the length, in which calls are counted that the window before has counted already.
    """
    times = {time_s for history in targets.values() for time_s, _ in history.scrapes if time_s < now_s}
    return min(times, key=lambda time_s: (abs(time_s - (now_s - window_s)), time_s), default=now_s - window_s)


class _Gathered:
    """Sums over series that share a key."""

    def __init__(self) -> None:
        self.values: dict[Series, dict[Key, float]] = {}
        self.counts: dict[Series, dict[Key, float]] = {}
        self.measured: dict[Series, dict[Key, float]] = {}
        self._buckets: dict[Series, dict[Key, dict[float, float]]] = {}

    def growth(self, grown: Mapping[tuple[str, Labels], float], scrapes: Sequence[Scrape]) -> None:
        first, last = scrapes[0][1], scrapes[-1][1]
        for (name, labels), value in grown.items():
            series = SAMPLES[name]
            shape = SHAPES[series]
            values = dict(labels)
            key = _key(shape, values)
            if shape.kind == "counter":
                _add(self.values.setdefault(series, {}), key, value)
                if shape.counted and (name, labels) in first and (name, labels) in last:
                    _add(self.counts.setdefault(series, {}), key, 1)
                    _add(self.measured.setdefault(series, {}), key, value)
            elif shape.kind == "histogram":
                _add(self._buckets.setdefault(series, {}).setdefault(key, {}), float(values["le"]), value)

    def latest(self, samples: Samples) -> None:
        for (name, labels), value in samples.items():
            series = SAMPLES[name]
            shape = SHAPES[series]
            if shape.kind not in ("gauge", "max"):
                continue
            group = self.values.setdefault(series, {})
            key = _key(shape, dict(labels))
            if shape.kind == "max":
                group[key] = max(group.get(key, value), value)
                continue
            _add(group, key, value)
            if shape.counted:
                _add(self.counts.setdefault(series, {}), key, 1)

    def histograms(self) -> dict[Series, dict[Key, Buckets]]:
        return {
            series: {key: tuple(sorted(buckets.items())) for key, buckets in by_key.items()}
            for series, by_key in self._buckets.items()
        }


def _key(shape: Shape, labels: Mapping[str, str]) -> Key:
    return tuple(labels.get(label, "") for label in shape.labels)


def _add(group: dict[_K, float], key: _K, value: float) -> None:
    group[key] = group.get(key, 0.0) + value

"""Direct scrapes with PromQL's meaning of increase: for installations without a Prometheus server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.errors import MetricsError
from autoscaler.monitor.catalogue import CATALOGUE
from autoscaler.state.readings import Key, Readings, Wanted

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Samples of one scrape by sample name and sorted labels."""
STALE_S = 15.0


def parse_exposition(text: str) -> Series:
    """The samples of the catalogue in a Prometheus text exposition; others are passed over."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if _base(sample.name) in CATALOGUE:
                found[sample.name, tuple(sorted(sample.labels.items()))] = float(sample.value)
    return found


def _base(name: str) -> str:
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and name.removesuffix(suffix) in CATALOGUE:
            return name.removesuffix(suffix)
    return name


@dataclass
class TargetHistory:
    """Scrapes of one target, oldest first."""

    job: str
    scrapes: deque[tuple[float, Series]] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, time_s: float, series: Series) -> None:
        self.scrapes.append((time_s, series))

    def window(self, start_s: float, end_s: float) -> list[tuple[float, Series]]:
        """Scrapes in the window, and the last one before it."""
        inside = [scrape for scrape in self.scrapes if start_s < scrape[0] <= end_s]
        before = [scrape for scrape in self.scrapes if scrape[0] <= start_s]
        return before[-1:] + inside


def increases(scrapes: list[tuple[float, Series]]) -> Series:
    """Growth of every series from the first to the last scrape; a fall is a restart from zero.

    A series that appears while its target was already known began at zero.
    """
    grown: Series = {}
    for (_, before), (_, after) in pairwise(scrapes):
        for key, value in after.items():
            previous = before.get(key, 0.0)
            grown[key] = grown.get(key, 0.0) + (value - previous if value >= previous else value)
    return grown


class ScrapeSource:
    """Reads the targets that the gateway names in ``/system/targets`` at every call."""

    def __init__(self, gateway_url: str, auth: tuple[str, str] | None, timeout_s: float = 3.0) -> None:
        self._url = gateway_url.rstrip("/") + "/system/targets"
        self._auth = auth
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.trust_env = False
        self._targets: dict[str, TargetHistory] = {}

    def read(self, now_s: float, window_s: float) -> Readings:
        """Scrape all targets now and compare with the scrapes of ``window_s`` ago. Never raises."""
        problems: list[str] = []
        try:
            self._scrape_all(now_s, problems)
        except MetricsError as error:
            return Readings(now_s - window_s, now_s, problems=(str(error),), stale=True)
        return readings_of(self._targets, now_s, window_s, problems)

    def _scrape_all(self, now_s: float, problems: list[str]) -> None:
        named = self._target_list()
        for address in [known for known in self._targets if known not in named]:
            if not any(time_s > now_s - 120 for time_s, _ in self._targets[address].scrapes):
                del self._targets[address]
        for address, job in named.items():
            try:
                reply = self._session.get(f"http://{address}/metrics", timeout=self._timeout_s)
                reply.raise_for_status()
                series = parse_exposition(reply.text)
            except (requests.RequestException, ValueError) as error:
                problems.append(f"target {address} ({job}) could not be scraped: {type(error).__name__}")
                continue
            self._targets.setdefault(address, TargetHistory(job)).add(now_s, series)

    def _target_list(self) -> dict[str, str]:
        last = ""
        for _ in range(2):
            try:
                reply = self._session.get(self._url, auth=self._auth, timeout=self._timeout_s)
                reply.raise_for_status()
                return {
                    str(address): str(entry.get("labels", {}).get("job", ""))
                    for entry in reply.json()
                    for address in entry["targets"]
                }
            except (requests.RequestException, ValueError, KeyError, TypeError, AttributeError) as error:
                last = f"{type(error).__name__}: {error}"
        raise MetricsError(f"the list of scrape targets at {self._url} could not be read ({last})")


def readings_of(
    targets: Mapping[str, TargetHistory], now_s: float, window_s: float, problems: Iterable[str] = ()
) -> Readings:
    """Readings of the window that ends at ``now_s`` from scrapes of all targets."""
    counters: dict[str, dict[Key, float]] = {}
    gauges: dict[str, dict[Key, float]] = {}
    buckets: dict[str, dict[Key, dict[float, float]]] = {}
    sentences = list(problems)
    seen_jobs: set[str] = set()
    for address, history in targets.items():
        scrapes = history.window(now_s - window_s, now_s)
        if not scrapes or now_s - scrapes[-1][0] > STALE_S:
            sentences.append(f"target {address} ({history.job}) has no scrape younger than {STALE_S:.0f} s")
            continue
        if len(scrapes) > 1:
            seen_jobs.add(history.job)
            scale = window_s / (scrapes[-1][0] - scrapes[0][0])
            _add_growth(increases(scrapes), scale, counters, buckets)
        _add_gauges(scrapes[-1][1], gauges)
    stale = not {"gateway", "ingress"} <= seen_jobs
    if stale:
        sentences.append("two scrapes of the gateway and of an ingress are needed for a window")
    histograms = {
        name: {key: tuple(sorted(found.items())) for key, found in by_key.items()} for name, by_key in buckets.items()
    }
    return Readings(now_s - window_s, now_s, counters, gauges, histograms, tuple(sentences), stale)


def _add_growth(
    grown: Series,
    scale: float,
    counters: dict[str, dict[Key, float]],
    buckets: dict[str, dict[Key, dict[float, float]]],
) -> None:
    for (name, labels), value in grown.items():
        base = _base(name)
        wanted = CATALOGUE[base]
        if wanted.kind == "counter":
            _sum(counters.setdefault(base, {}), _key(wanted, labels), value * scale)
        elif wanted.kind == "histogram" and name.endswith("_bucket"):
            found = buckets.setdefault(base, {}).setdefault(_key(wanted, labels), {})
            bound = float(dict(labels)["le"])
            found[bound] = found.get(bound, 0.0) + value * scale


def _add_gauges(series: Series, gauges: dict[str, dict[Key, float]]) -> None:
    for (name, labels), value in series.items():
        wanted = CATALOGUE.get(name)
        if wanted is None or wanted.kind not in ("gauge", "max") or math.isnan(value):
            continue
        group = gauges.setdefault(name, {})
        key = _key(wanted, labels)
        if wanted.kind == "gauge":
            _sum(group, key, value)
        else:
            group[key] = max(group.get(key, value), value)


def _key(wanted: Wanted, labels: Iterable[tuple[str, str]]) -> Key:
    found: Mapping[str, Any] = dict(labels)
    return tuple(str(found.get(label, "")) for label in wanted.labels)


def _sum(group: dict[Key, float], key: Key, value: float) -> None:
    group[key] = group.get(key, 0.0) + value

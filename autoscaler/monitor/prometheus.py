"""Reads a Prometheus server through prometheus-api-client: one instant query for each metric of the catalogue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from autoscaler.monitor.catalogue import CATALOGUE
from autoscaler.state.readings import Buckets, Key, Readings, Wanted
from functions.shared.metric_names import REQUESTS
from gateway.metric_names import SERVICE_COUNT

TRIES = 2


def promql(name: str, wanted: Wanted, window_s: float) -> str:
    """The query of one metric over a window."""
    by = ", ".join(wanted.labels)
    span = f"[{max(1, math.ceil(window_s))}s]"
    if wanted.kind == "counter":
        return f"sum by ({by}) (increase({name}{span}))"
    if wanted.kind == "histogram":
        return f"sum by ({by}, le) (increase({name}_bucket{span}))"
    return f"{'sum' if wanted.kind == 'gauge' else 'max'} by ({by}) ({name})"


class PrometheusSource:
    """``url`` of the server; ``window_s`` must hold at least two of its scrapes."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> None:
        retry = Retry(total=TRIES, backoff_factor=0.1, status_forcelist=(502, 503, 504), allowed_methods=None)
        session = requests.Session()
        session.trust_env = False
        session.mount("http://", HTTPAdapter(max_retries=retry))
        session.mount("https://", HTTPAdapter(max_retries=retry))
        self._url = url
        self._client = PrometheusConnect(
            url=url, headers=dict(headers or {}), session=session, timeout=math.ceil(timeout_s)
        )

    def read(self, now_s: float, window_s: float) -> Readings:
        """The window that ends at ``now_s``. Never raises; an unreachable server makes the readings stale."""
        counters: dict[str, Mapping[Key, float]] = {}
        gauges: dict[str, Mapping[Key, float]] = {}
        histograms: dict[str, Mapping[Key, Buckets]] = {}
        for name, wanted in CATALOGUE.items():
            try:
                rows = self._client.custom_query(promql(name, wanted, window_s), params={"time": now_s})
            except (PrometheusApiClientException, requests.RequestException, ValueError) as error:
                sentence = f"Prometheus at {self._url} did not answer ({type(error).__name__}: {str(error)[:160]})"
                return Readings(now_s - window_s, now_s, problems=(sentence,), stale=True)
            if wanted.kind == "histogram":
                histograms[name] = _histograms(rows, wanted)
            elif wanted.kind == "counter":
                counters[name] = _values(rows, wanted)
            else:
                gauges[name] = _values(rows, wanted)
        both = {**counters, **gauges}
        missing = [name for name in (REQUESTS, SERVICE_COUNT) if not both[name]]
        problems = tuple(f"Prometheus has no recent samples of {name}" for name in missing)
        return Readings(now_s - window_s, now_s, counters, gauges, histograms, problems, stale=bool(missing))


def _values(rows: list[dict[str, Any]], wanted: Wanted) -> dict[Key, float]:
    found = {}
    for row in rows:
        value = float(row["value"][1])
        if math.isfinite(value):
            found[tuple(str(row["metric"].get(label, "")) for label in wanted.labels)] = value
    return found


def _histograms(rows: list[dict[str, Any]], wanted: Wanted) -> dict[Key, Buckets]:
    found: dict[Key, dict[float, float]] = {}
    for row in rows:
        key = tuple(str(row["metric"].get(label, "")) for label in wanted.labels)
        value = float(row["value"][1])
        if math.isfinite(value):
            found.setdefault(key, {})[float(row["metric"]["le"])] = value
    return {key: tuple(sorted(buckets.items())) for key, buckets in found.items()}

"""Reads a Prometheus server through prometheus-api-client: one instant query for each series, all at one moment."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Literal

import orjson
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from autoscaler.errors import MetricsError
from autoscaler.monitor.catalogue import METRICS
from autoscaler.state.readings import LARGEST, SHAPES, Buckets, Job, Key, Readings, Series, Shape

TRIES = 2
AT_ONCE = 4
"""Queries that the server works on while another's answer is read."""
NAMESPACE = "openfaas-fn"
TAIL = 0.95
TAILS = (Series.NODE_CALL_SECONDS,)
"""Histograms of which Prometheus tells the P95 alone: of a node nothing else is asked, and the 46 buckets of each of
5,000 nodes would be 30 MB in every tick."""
ONLY = {Series.REPLICAS_BY_STATE: 'state="ready"'}
"""Matchers of what alone is used of a series: the other states of 5,000 functions would be 10,000 rows."""
_AGE_OF: dict[Job, Series] = {"gateway": Series.REPLICAS_WANTED, "ingress": Series.REQUESTS_IN_FLIGHT}
Row = tuple[Mapping[str, str], float]
"""Labels and value."""


def selector(series: Series, pipeline: str) -> str:
    """The metric's name with matchers that leave out other pipelines."""
    shape, name = SHAPES[series], METRICS[series]
    if shape.kind == "histogram":
        name += "_bucket"
    if "pipeline" in shape.labels:
        return f'{name}{{pipeline="{pipeline}"}}'
    if "function_name" in shape.labels:
        own = f"{re.escape(pipeline)}(-.+)?[.]{re.escape(NAMESPACE)}".replace("\\", "\\\\")
        more = f",{ONLY[series]}" if series in ONLY else ""
        return f'{name}{{function_name=~"{own}"{more}}}'
    return name


def promql(series: Series, pipeline: str, window_s: float) -> str:
    """The query of one series over a window. Durations are whole milliseconds, as PromQL takes them."""
    shape = SHAPES[series]
    found = selector(series, pipeline)
    grown = f"increase({found}[{round(window_s * 1000)}ms])"
    if shape.kind == "counter":
        return f"sum by ({', '.join(shape.labels)}) ({grown})"
    if shape.kind == "histogram":
        buckets = f"sum by ({', '.join((*shape.labels, 'le'))}) ({grown})"
        return f"histogram_quantile({TAIL}, {buckets})" if series in TAILS else buckets
    return f"{'sum' if shape.kind == 'gauge' else 'max'} by ({', '.join(shape.labels)}) ({found})"


def promql_measured(series: Series, pipeline: str, window_s: float, aggregate: Literal["sum", "count"]) -> str:
    """Of a ``counted`` series, the increase or number of those that are there now and have two samples."""
    shape = SHAPES[series]
    found = selector(series, pipeline)
    if shape.kind == "counter":
        found = f"increase({found}[{round(window_s * 1000)}ms]) and {found}"
    return f"{aggregate} by ({', '.join(shape.labels)}) ({found})"


def _questions(pipeline: str, window_s: float) -> Iterator[tuple[str, Series, str]]:
    """Part of the readings, series and query of all that a window is made of."""
    for series, shape in SHAPES.items():
        yield "values", series, promql(series, pipeline, window_s)
        if shape.counted:
            yield "counts", series, promql_measured(series, pipeline, window_s, "count")
        if shape.counted and shape.kind == "counter":
            yield "measured", series, promql_measured(series, pipeline, window_s, "sum")


class PrometheusSource:
    """``url`` of the server; the window must hold at least two of its scrapes. Samples older than ``stale_s`` make a
    window stale."""

    def __init__(self, url: str, pipeline: str, timeout_s: float = 5.0, stale_s: float = 60.0) -> None:
        self._url = url.rstrip("/")
        self._pipeline = pipeline
        self._timeout_s = timeout_s
        self._stale_s = stale_s
        self._clients = threading.local()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="prometheus")

    @property
    def _client(self) -> PrometheusConnect:
        """This thread's own: sessions are not made for several."""
        if not hasattr(self._clients, "own"):
            session = requests.Session()
            session.trust_env = False
            # packing 8 MB costs both sides more than sending them within a cluster
            session.headers["Accept-Encoding"] = "identity"
            session.hooks["response"].append(_read_by_orjson)
            retry = Retry(
                total=TRIES,
                backoff_factor=0.1,
                status_forcelist=(502, 503, 504),
                allowed_methods=None,
                raise_on_status=False,
            )
            self._clients.own = PrometheusConnect(
                url=self._url, session=session, retry=retry, timeout=math.ceil(self._timeout_s)
            )
        return self._clients.own

    def read(self, now_s: float, window_s: float) -> Readings:
        """The window that ends at ``now_s``. Never raises; an unreachable server makes the readings stale."""
        try:
            return self._read(now_s, window_s)
        except MetricsError as error:
            return Readings(now_s - window_s, now_s, problems=(str(error),), stale=True)

    def _read(self, now_s: float, window_s: float) -> Readings:
        asked = list(_questions(self._pipeline, window_s))
        first = self._query(asked[0][2], now_s)  # a server that is away is found out by one query
        rest = self._pool.map(partial(self._query, time_s=now_s), [query for _, _, query in asked[1:]])
        values: dict[Series, dict[Key, float]] = {}
        counts: dict[Series, dict[Key, float]] = {}
        measured: dict[Series, dict[Key, float]] = {}
        histograms: dict[Series, dict[Key, Buckets]] = {}
        kinds = {"values": values, "counts": counts, "measured": measured}
        for (kind, series, _), rows in zip(asked, chain((first,), rest), strict=True):
            shape = SHAPES[series]
            if shape.kind == "histogram":
                histograms[series] = (_tails if series in TAILS else _histograms)(rows, shape)
            else:
                kinds[kind][series] = _values(rows, shape)
        ages, problems = self._ages(now_s)
        if not values[Series.REQUESTS]:
            problems.append(f"Prometheus holds no two samples of {METRICS[Series.REQUESTS]} in {window_s:g} s")
        return Readings(
            now_s - window_s, now_s, values, histograms, counts, measured, ages, tuple(problems), stale=bool(problems)
        )

    def _ages(self, now_s: float) -> tuple[dict[Job, float], list[str]]:
        """Seconds since the youngest sample of each kind of target, and sentences for those too old or absent."""
        ages: dict[Job, float] = {}
        problems = []
        for job, series in _AGE_OF.items():
            rows = self._query(f"max(timestamp({selector(series, self._pipeline)}))", now_s)
            if not rows:
                problems.append(f"Prometheus has no sample of {METRICS[series]}: is the {job} scraped?")
                continue
            ages[job] = max(0.0, now_s - rows[0][1])
            if ages[job] > self._stale_s:
                problems.append(
                    f"the last sample of the {job} in Prometheus is {ages[job]:.0f} s old; allowed: {self._stale_s:g} s"
                )
        return ages, problems

    def _query(self, query: str, time_s: float) -> list[Row]:
        """Rows with a number. Raises MetricsError."""
        try:
            rows = self._client.custom_query(query, params={"time": time_s})
            return [(row["metric"], x) for row in rows if 0.0 <= (x := float(row["value"][1])) < LARGEST]
        except (PrometheusApiClientException, requests.RequestException, ValueError, LookupError, TypeError) as error:
            raise MetricsError(
                f"Prometheus at {self._url} did not answer {query[:80]!r} ({type(error).__name__}: {str(error)[:160]})"
            ) from error


def _read_by_orjson(reply: requests.Response, *_: object, **__: object) -> None:
    """Thousands of rows in every answer, five times as fast as by the standard library."""
    reply.json = partial(orjson.loads, reply.content)  # type: ignore[method-assign]


def _key(metric: Mapping[str, str], shape: Shape) -> Key:
    return tuple([metric.get(label, "") for label in shape.labels])


def _values(rows: list[Row], shape: Shape) -> dict[Key, float]:
    if len(shape.labels) == 1:  # thousands of functions, in most series
        (label,) = shape.labels
        return {(metric.get(label, ""),): value for metric, value in rows}
    return {_key(metric, shape): value for metric, value in rows}


def _tails(rows: list[Row], shape: Shape) -> dict[Key, Buckets]:
    """Histograms with the P95 that was told, and no other promise."""
    return {_key(metric, shape): ((value, TAIL), (math.inf, 1.0)) for metric, value in rows}


def _histograms(rows: list[Row], shape: Shape) -> dict[Key, Buckets]:
    found: dict[Key, dict[float, float]] = {}
    for metric, value in rows:
        found.setdefault(_key(metric, shape), {})[float(metric["le"])] = value
    return {key: tuple(sorted(buckets.items())) for key, buckets in found.items()}

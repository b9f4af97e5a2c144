"""Reads a Prometheus server through prometheus-api-client: one instant query for each series, all at one moment."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from autoscaler.contract import NAMESPACE, SLO_QUANTILE
from autoscaler.errors import MetricsError, without_password
from autoscaler.monitor.answers import Rows, untimed
from autoscaler.monitor.catalogue import METRICS
from autoscaler.monitor.failures import in_few_words
from autoscaler.state.readings import SHAPES, Buckets, Job, Key, Readings, Series

TRIES = 2
TIMEOUT_S = 5
AT_ONCE = 4
"""Queries that the server works on while another's answer is read."""
TAILS = (Series.NODE_CALL_SECONDS,)
"""Histograms of which Prometheus is asked for the P95 alone: of a node nothing else is asked, and the 46 buckets of
each of 5,000 nodes would be 30 MB in every tick."""
ONLY = {Series.REPLICAS_BY_STATE: 'state=~"ready|standby"'}
"""Matchers of what alone is used of a series: the other states of 5,000 functions would be 10,000 rows."""
_AGE_OF: dict[Job, Series] = {"gateway": Series.REPLICAS_WANTED, "ingress": Series.REQUESTS_IN_FLIGHT}
Part = Literal["values", "counts", "measured", "histograms", "tails"]
_T = TypeVar("_T")


class Question(NamedTuple):
    """A query, and where in the readings its answer goes."""

    part: Part
    series: Series
    query: str


def selector(series: Series, pipeline: str, namespace: str = NAMESPACE, in_cluster: str = "") -> str:
    """The metric's name with matchers that leave out other pipelines, and functions of other namespaces.

    An ingress does not know its namespace: whoever scrapes it adds ``function_name`` (with the namespace's name, or the
    one it has ``in_cluster``), or watches one namespace alone.
    """
    shape, name = SHAPES[series], METRICS[series]
    if shape.kind == "histogram":
        name += "_bucket"
    for label in ("pipeline", "model_name"):
        if label in shape.labels:
            names = "|".join(re.escape(name) for name in dict.fromkeys((namespace, in_cluster or namespace)))
            here = f"|.+[.]({names})".replace("\\", "\\\\")
            return f'{name}{{{label}="{pipeline}",function_name=~"{here}"}}'
    if "function_name" in shape.labels:
        functions = f"{re.escape(pipeline)}(-.+)?[.]{re.escape(namespace)}".replace("\\", "\\\\")
        more = f",{ONLY[series]}" if series in ONLY else ""
        return f'{name}{{function_name=~"{functions}"{more}}}'
    return name


def promql(series: Series, pipeline: str, window_s: float, namespace: str = NAMESPACE, in_cluster: str = "") -> str:
    """The query of one series over a window. Durations are whole milliseconds, as PromQL takes them."""
    shape = SHAPES[series]
    selected = selector(series, pipeline, namespace, in_cluster)
    grown = f"increase({selected}[{round(window_s * 1000)}ms])"
    if shape.kind == "counter":
        return f"sum by ({', '.join(shape.labels)}) ({grown})"
    if shape.kind == "histogram":
        buckets = f"sum by ({', '.join((*shape.labels, 'le'))}) ({grown})"
        return f"histogram_quantile({SLO_QUANTILE}, {buckets})" if series in TAILS else buckets
    return f"{'sum' if shape.kind == 'gauge' else 'max'} by ({', '.join(shape.labels)}) ({selected})"


def promql_measured(
    series: Series, pipeline: str, window_s: float, aggregate: Literal["sum", "count"], namespace: str = NAMESPACE
) -> str:
    """The query of a ``counted`` series: the increase or number of those that are there now; of a counter, of those
    that were there when the window began, too: a replica that is younger did not have the whole window for its work."""
    shape = SHAPES[series]
    selected = selector(series, pipeline, namespace)
    if shape.kind == "counter":
        window = f"{round(window_s * 1000)}ms"
        selected = f"increase({selected}[{window}]) and {selected} and {selected} offset {window}"
    return f"{aggregate} by ({', '.join(shape.labels)}) ({selected})"


def _questions(pipeline: str, window_s: float, namespace: str, in_cluster: str = "") -> Iterator[Question]:
    """All that a window is made of."""
    for series, shape in SHAPES.items():
        part: Part = "tails" if series in TAILS else "histograms" if shape.kind == "histogram" else "values"
        yield Question(part, series, promql(series, pipeline, window_s, namespace, in_cluster))
        if shape.counted:
            yield Question("counts", series, promql_measured(series, pipeline, window_s, "count", namespace))
        if shape.counted and shape.kind == "counter":
            yield Question("measured", series, promql_measured(series, pipeline, window_s, "sum", namespace))


class PrometheusSource:
    """``url`` of the server; the window must hold at least two of its scrapes. Samples older than ``stale_s`` make a
    window stale. ``namespace``: what the gateway calls the one that the functions are in;
    ``in_cluster``: its name there, where that is another."""

    def __init__(
        self, url: str, pipeline: str, stale_s: float = 60.0, namespace: str = NAMESPACE, in_cluster: str = ""
    ) -> None:
        self._url = url.rstrip("/")
        self._pipeline = pipeline
        self._namespace = namespace
        self._in_cluster = in_cluster
        self._stale_s = stale_s
        self._clients = threading.local()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="prometheus")
        self._answers: dict[Series, tuple[str, bytes, dict[Key, Any]]] = {}
        """The last answers about settings: what was asked, the answer without its time, and what it meant."""
        self._rows: dict[tuple[Part, Series], Rows] = {}

    @property
    def _client(self) -> PrometheusConnect:
        """This thread's own: sessions are not made for several."""
        if not hasattr(self._clients, "client"):
            session = requests.Session()
            session.trust_env = False
            # packing 8 MB costs both sides more than sending them within a cluster
            session.headers["Accept-Encoding"] = "identity"
            session.hooks["response"].append(_left_unread)
            retry = Retry(
                total=TRIES,
                backoff_factor=0.1,
                status_forcelist=(502, 503, 504),
                allowed_methods=None,
                raise_on_status=False,
                respect_retry_after_header=False,  # a proxy could hold up the tick for hours
            )
            self._clients.client = PrometheusConnect(url=self._url, session=session, retry=retry, timeout=TIMEOUT_S)
        return self._clients.client

    def read(self, now_s: float, window_s: float) -> Readings:
        """The window that ends at ``now_s``. Never raises; an unreachable server makes the readings stale."""
        try:
            return self._read(now_s, window_s)
        except MetricsError as error:
            return Readings(now_s - window_s, now_s, problems=(str(error),), stale=True)

    def _read(self, now_s: float, window_s: float) -> Readings:
        asked = list(_questions(self._pipeline, window_s, self._namespace, self._in_cluster))
        first = self._answer(asked[0], now_s)  # a server that is away is found out by one query
        rest = self._pool.map(partial(self._answer, time_s=now_s), asked[1:])
        parts: dict[Part, dict[Series, dict[Key, Any]]] = {part: {} for part in get_args(Part)}
        for question, answer in zip(asked, chain((first,), rest), strict=True):
            parts[question.part][question.series] = answer
        ages, problems = self._ages(now_s)
        if not parts["values"][Series.REQUESTS]:
            problems.append(f"Prometheus holds no two samples of {METRICS[Series.REQUESTS]} in {window_s:g} s")
        return Readings(
            now_s - window_s,
            now_s,
            parts["values"],
            parts["histograms"],
            parts["counts"],
            parts["measured"],
            ages,
            tuple(problems),
            stale=bool(problems),
            tails=parts["tails"],
        )

    def _ages(self, now_s: float) -> tuple[dict[Job, float], list[str]]:
        """Seconds since the youngest sample of each kind of target, and sentences for those too old or absent."""
        ages: dict[Job, float] = {}
        problems = []
        for job, series in _AGE_OF.items():
            query = f"max(timestamp({selector(series, self._pipeline, self._namespace, self._in_cluster)}))"
            youngest_s = self._query(query, now_s, Rows(()).read).get(())
            if youngest_s is None:
                problems.append(f"Prometheus has no sample of {METRICS[series]}: is the {job} scraped?")
                continue
            ages[job] = max(0.0, now_s - youngest_s)
            if ages[job] > self._stale_s:
                problems.append(
                    f"the last sample of the {job} in Prometheus is {ages[job]:.0f} s old; allowed: {self._stale_s:g} s"
                )
        return ages, problems

    def _answer(self, question: Question, time_s: float) -> dict[Key, Any]:
        """The values of a query's answer, by label values. Raises MetricsError.

        Settings of functions seldom change: an answer that is the last one but for its time is not read again.
        """
        part, series, query = question
        rows = self._rows_of(question)
        if part == "histograms":
            return self._query(query, time_s, lambda body: _histograms(rows.read(body)))
        if SHAPES[series].kind != "max":
            return self._query(query, time_s, rows.read)

        def understand(body: bytes) -> dict[Key, Any]:
            written = untimed(body)
            before = self._answers.get(series)
            if before is None or before[:2] != (query, written):
                before = self._answers[series] = (query, written, rows.read(body))
            return before[2]

        return self._query(query, time_s, understand)

    def _rows_of(self, question: Question) -> Rows:
        """What reads the answers to this question; nobody else asks it at the same time."""
        part, series, _ = question
        if (part, series) not in self._rows:
            labels = SHAPES[series].labels
            self._rows[part, series] = Rows((*labels, "le") if part == "histograms" else labels)
        return self._rows[part, series]

    def _query(self, query: str, time_s: float, read: Callable[[bytes], _T]) -> _T:
        """What ``read`` makes of the answer's body. Raises MetricsError."""
        try:
            return read(self._client.custom_query(query, params={"time": time_s}))
        except _FAILURES as error:
            asked = f"Prometheus at {without_password(self._url)} did not answer {query[:80]!r}"
            raise MetricsError(f"{asked} ({in_few_words(error)})") from error


_FAILURES = (
    PrometheusApiClientException,
    requests.RequestException,
    urllib3.exceptions.HTTPError,
    ValueError,
    LookupError,
    TypeError,
)


def _left_unread(reply: requests.Response, *_: object, **__: object) -> None:
    """Hands the body of an answer on as it came, and in one piece; ``requests`` joins it from pieces of 10 KB."""
    if reply.status_code == 200:
        body = reply.raw.read(decode_content=True)
        reply.json = lambda: {"data": {"result": body}}  # type: ignore[assignment, misc]


def _histograms(values: dict[Key, float]) -> dict[Key, Buckets]:
    """From numbers whose keys end with the bucket's bound."""
    buckets: dict[Key, dict[float, float]] = {}
    for (*key, bound), value in values.items():
        buckets.setdefault(tuple(key), {})[float(bound)] = value
    return {key: tuple(sorted(one.items())) for key, one in buckets.items()}

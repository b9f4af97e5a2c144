"""Failure stories of what the controller reads: a Prometheus that lies or whose clock is off, an ingress and a gateway
that start again. The sources are the real ones, over HTTP; so is the platform, on the API double."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from autoscaler.monitor.catalogue import METRICS
from autoscaler.monitor.prometheus import PrometheusSource
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.state.readings import SHAPES, Series
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import NAMESPACE, put, spec
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import topology
from tests.unit.autoscaler.platforms.test_stories import FUNCTIONS, NODES, TICK_S, Story
from tests.unit.autoscaler.servers import Reply, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BUSY = 8.4
"""Calls in flight at each expert: three replicas of four slots at 70 %."""
Row = dict[str, Any]


class Exporter:
    """What ingress and gateway tell of two experts under a steady load, for replicas as they are."""

    def __init__(self, double: Running, namespace: str = NAMESPACE) -> None:
        self._double = double
        self._namespace = namespace
        self._replicas: dict[str, float] = {}
        self.calls = BUSY

    def look(self) -> None:
        """See how many replicas there are."""
        found = {name: self._double.deployment(name, self._namespace) for name in FUNCTIONS}
        self._replicas = {name: float(one["spec"]["replicas"]) for name, one in found.items()}

    def replicas(self, labels: dict[str, str]) -> int:
        """Of the function that a sample is of."""
        return int(self._replicas[labels["function_name"].removesuffix(f".{self._namespace}")])

    def values(self, series: Series, counted_s: float, busy_s: float) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of every sample; of counters what they grow in ``counted_s`` (calls' time: ``busy_s``)."""
        labels = SHAPES[series].labels
        amounts = {
            Series.NODE_BUSY_SECONDS: busy_s,
            Series.NODE_CALLS: 10.0 * counted_s,
            Series.NODE_TOKENS: 100.0 * counted_s,
            Series.NODE_TOKENS_PEAK: 40.0,
            Series.REPLICA_CPU_SECONDS: 0.1 * counted_s,
            Series.REPLICA_MEMORY_BYTES: 1e6,
            Series.CPU_LIMIT_CORES: 1.0,
            Series.MEMORY_LIMIT_BYTES: 256.0 * 2**20,
            Series.MAX_INFLIGHT: 4.0,
            Series.CPU_SCALE: 1.0,
        }
        if "node" in labels:
            yield from (({"pipeline": "m", "node": node, "code": "200"}, amounts.get(series, 0.0)) for node in NODES)
        elif "function_name" in labels:
            for function, replicas in self._replicas.items():
                yield (
                    {"function_name": f"{function}.{self._namespace}", "state": "ready"},
                    amounts.get(series, replicas),
                )
        elif SHAPES[series].kind != "histogram" and "pipeline" in labels:  # not those of a decoder's texts
            yield {"pipeline": "m", "code": "200"}, amounts.get(series, 10.0 * counted_s)

    def counted(self) -> Iterator[tuple[dict[str, str], float]]:
        """How many replicas are measured."""
        return (({"function_name": f"{name}.{self._namespace}"}, count) for name, count in self._replicas.items())


class Prometheus:
    """A server that answers instant queries from the exporter, all of it through ``lie``."""

    def __init__(self, exporter: Exporter, window_s: float) -> None:
        self.exporter = exporter
        self._window_s = window_s
        self.lie: Callable[[list[Row]], list[Row] | None] = list
        self.ahead_s = 0.0
        """How far the server's clock, and with it the time of every sample, is ahead of the controller's."""

    def reply(self, method: str, path: str, body: bytes, authorization: str) -> Reply:
        asked = parse_qs(urlsplit(path).query)
        query, time_s = asked["query"][0], float(asked["time"][0])
        series = max((one for one in Series if METRICS[one] in query), key=lambda one: len(METRICS[one]))
        if series is Series.REQUESTS:  # the first query of a tick
            self.exporter.look()
        found = self.exporter.values(series, self._window_s, self.exporter.calls * self._window_s)
        if query.startswith("max(timestamp"):
            found = iter([({}, time_s + self.ahead_s)])
        elif query.startswith("count"):
            found = self.exporter.counted()
        rows = [{"metric": labels, "value": [time_s, repr(value)]} for labels, value in found]
        if self.ahead_s < -300.0:  # older than what an instant query looks back for
            rows = []
        document = {"status": "success", "data": {"resultType": "vector", "result": self.lie(rows)}}
        return 200, json.dumps(document).encode()


@pytest.fixture
def functions(double: Running) -> None:
    for function in FUNCTIONS:
        put(double, spec(function))


@pytest.fixture
def reported(double: Running, platforms: Platforms, functions: None) -> Iterator[tuple[Prometheus, Story]]:
    """Two experts under load, four ticks in, whose metrics come from a Prometheus."""
    server = Prometheus(Exporter(double), TICK_S)
    with serve(server.reply) as running:
        story = Story(double, platforms(), Monitor(topology(), PrometheusSource(running.url, "m")))
        story.simulate(4)
        assert story.seen[-1] == (3, 3)
        yield server, story


def valued(text: str) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [{**row, "value": [row["value"][0], text]} for row in rows]


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(valued("NaN"), id="NaN everywhere"),
        pytest.param(valued("+Inf"), id="infinite everywhere"),
        pytest.param(lambda rows: [], id="nothing"),
        pytest.param(lambda rows: [row for row in rows if "pipeline" not in row["metric"]], id="no ingress"),
        pytest.param(lambda rows: [row for row in rows if "function_name" not in row["metric"]], id="no gateway"),
        pytest.param(lambda rows: None, id="null for rows"),
        pytest.param(valued("-7"), id="less than nothing"),
        pytest.param(valued("1e300"), id="more than can be"),
    ],
)
def test_while_prometheus_has_nothing_true_to_say_the_scale_is_held(
    reported: tuple[Prometheus, Story], lie: Callable[[list[Row]], list[Row]]
) -> None:
    server, story = reported
    server.lie = lie
    story.simulate(6)
    assert set(story.seen[3:]) == {(3, 3)}
    server.lie = list
    server.exporter.calls = 2.8
    story.simulate(6)
    assert story.seen[-1] == (1, 1)


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(valued("123456789"), id="far too much"),
        pytest.param(valued("0"), id="nothing at all"),
        pytest.param(lambda rows: rows[:1], id="one of two experts"),
        pytest.param(lambda rows: rows + rows, id="everything twice"),
    ],
)
def test_a_lie_that_cannot_be_seen_stays_within_the_bounds_and_is_forgotten(
    reported: tuple[Prometheus, Story], lie: Callable[[list[Row]], list[Row]]
) -> None:
    server, story = reported
    server.lie = lie
    story.simulate(12)
    assert all(1 <= replicas <= 8 for row in story.seen for replicas in row)
    server.lie = list
    story.simulate(8)
    assert story.seen[-1] == (3, 3)
    for column in zip(*story.seen, strict=True):
        turns = [after - before for before, after in itertools.pairwise(column) if after != before]
        assert sum(one * other < 0 for one, other in itertools.pairwise(turns)) <= 2


def test_a_prometheus_whose_clock_is_behind_is_old_and_one_ahead_is_believed(
    reported: tuple[Prometheus, Story],
) -> None:
    server, story = reported
    server.exporter.calls = 2.8
    for behind_s in (-90.0, -600.0):
        server.ahead_s = behind_s
        story.simulate(6)
    assert set(story.seen[3:]) == {(3, 3)}
    server.ahead_s = 600.0
    story.simulate(6)
    assert story.seen[-1] == (1, 1)


class Scraped:
    """Gateway and ingress that are scraped; each may be away for a while and come back with counters at zero."""

    def __init__(self, double: Running) -> None:
        self.exporter = Exporter(double)
        self.away: set[str] = set()
        self.addresses: dict[str, str] = {}
        self._counted = {"ingress": (0.0, 0.0), "gateway": (0.0, 0.0)}
        """Seconds, and seconds of calls, that each has counted since it started."""

    def pass_tick(self) -> None:
        for job, (counted_s, busy_s) in self._counted.items():
            self._counted[job] = counted_s + TICK_S, busy_s + TICK_S * self.exporter.calls

    def restart(self, job: str) -> None:
        self.away.discard(job)
        self._counted[job] = 0.0, 0.0

    def reply(self, method: str, path: str, body: bytes, authorization: str) -> Reply:
        if "gateway" in self.away:
            return 503, b"starting"
        targets = [{"targets": [address], "labels": {"job": job}} for job, address in self.addresses.items()]
        return 200, json.dumps(targets).encode()

    def expose(self, job: str) -> Reply:
        if job in self.away:
            return 503, b"starting"
        self.exporter.look()
        lines = []
        for series, shape in SHAPES.items():
            for labels, value in self.exporter.values(series, *self._counted[job]) if shape.job == job else ():
                known = [f'{key}="{labels[key]}"' for key in shape.labels]
                for i in range(self.exporter.replicas(labels) if shape.counted else 1):
                    reported = ",".join([*known, f'replica="{i}"'] if shape.counted else known)
                    lines.append(f"{METRICS[series]}{{{reported}}} {value}")
        return 200, "\n".join([*lines, ""]).encode()


@pytest.fixture
def scraped(double: Running, platforms: Platforms, functions: None) -> Iterator[tuple[Scraped, Story]]:
    """Two experts under load, five ticks in, scraped directly."""
    scraped = Scraped(double)
    with (
        serve(scraped.reply) as front,
        serve(lambda *_: scraped.expose("gateway")) as gateway,
        serve(lambda *_: scraped.expose("ingress")) as ingress,
    ):
        scraped.addresses = {"gateway": gateway.address, "ingress": ingress.address}
        story = Story(double, platforms(), Monitor(topology(), ScrapeSource(front.url, None)))
        simulate(scraped, story, 5)
        assert story.seen[-1] == (3, 3)
        yield scraped, story


def simulate(found: Scraped, story: Story, ticks: int) -> None:
    for _ in range(ticks):
        story.simulate(1)
        found.pass_tick()


@pytest.mark.parametrize("job", ["gateway", "ingress"])
@pytest.mark.parametrize("ticks", [0, 2, 12], ids=["at once", "after 10 s", "after a minute"])
def test_what_starts_again_with_its_counters_at_zero_moves_no_replica(
    scraped: tuple[Scraped, Story], job: str, ticks: int
) -> None:
    found, story = scraped
    found.away.add(job)
    simulate(found, story, ticks)
    found.restart(job)
    simulate(found, story, 12)
    assert set(story.seen[4:]) == {(3, 3)}
    found.exporter.calls = 2.8
    simulate(found, story, 8)
    assert story.seen[-1] == (1, 1)

"""Direct scrapes over HTTP: list of targets, targets that fail, come and go, and a clock that the test moves."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.state.readings import Series
from tests.unit.autoscaler import exporter
from tests.unit.autoscaler.builders import topology
from tests.unit.autoscaler.servers import Reply, Server, serve

AUTH = ("admin", "secret")
EXPECTED = "Basic " + base64.b64encode(b"admin:secret").decode()


class World:
    """A gateway and one ingress at one address; the test moves ``passed_s`` and breaks what it likes."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.status = 200
        self.jobs = ["gateway", "ingress"]
        self.addresses: dict[str, str] = {}
        self.labels: dict[str, str] = {}

    def reply(self, method: str, path: str, body: bytes, authorization: str) -> Reply:
        if path == "/system/targets":
            if authorization != EXPECTED:
                return 401, b"invalid credentials"
            targets = [{"targets": [self.addresses[job]], "labels": {"job": job, **self.labels}} for job in self.jobs]
            return 200, json.dumps(targets).encode()
        return 404, b""

    def expose(self, job: str) -> Reply:
        lines = exporter.lines_of_gateway if job == "gateway" else exporter.lines_of_ingress
        return self.status, exporter.text(lines(self.passed_s)).encode()


@pytest.fixture
def world() -> Iterator[tuple[World, Server]]:
    world = World()
    with (
        serve(world.reply) as front,
        serve(lambda *_: world.expose("gateway")) as gateway,
        serve(lambda *_: world.expose("ingress")) as ingress,
    ):
        world.addresses = {"gateway": gateway.address, "ingress": ingress.address}
        yield world, front


@pytest.mark.slow
def test_after_a_clock_was_set_back_windows_are_those_of_the_new_time(world: tuple[World, Server]) -> None:
    state, front = world
    source, counts = ScrapeSource(front.url, AUTH), []
    for passed_s, time_s in enumerate([*range(100, 130), *range(40, 110)]):
        state.passed_s = 1000.0 + passed_s
        counts.append(sum(source.read(float(time_s), 5.0).values.get(Series.REQUESTS, {}).values()))
    assert max(counts) == pytest.approx(counts[20])


def test_ingresses_of_other_namespaces_are_left_out(world: tuple[World, Server]) -> None:
    """A pipeline of the same name there counts its requests under the same labels."""
    state, front = world
    state.labels = {"function_name": "m.team-a"}
    here, there = (ScrapeSource(front.url, AUTH, namespace=name) for name in ("openfaas-fn", "team-a"))
    for passed_s in (0.0, 5.0):
        state.passed_s = passed_s
        here.read(100.0 + passed_s, 5.0), there.read(100.0 + passed_s, 5.0)
    assert Series.REQUESTS not in here.read(105.0, 5.0).values
    assert sum(there.read(105.0, 5.0).values[Series.REQUESTS].values()) > 0


def test_two_scrapes_make_a_window_with_the_rates_that_were_exposed(world: tuple[World, Server]) -> None:
    found, front = world
    monitor = Monitor(topology(), ScrapeSource(front.url, AUTH))
    assert monitor.observe(100.0, 5.0).stale
    found.passed_s = 5.0
    seen = monitor.observe(105.0, 5.0)
    expert = seen.node(exporter.EXPERT)
    assert expert is not None and not seen.stale and seen.window_s == 5
    assert (seen.requests_per_s, seen.failed) == (pytest.approx(4), pytest.approx(5))
    assert expert.tokens_per_s == pytest.approx(exporter.TOKENS_PER_S)
    assert expert.cpu_utilisation == pytest.approx(exporter.CPU_PER_S / (2 * 0.5))
    assert expert.latency_p95_s == pytest.approx(0.4)
    assert expert.token_share == pytest.approx(2 / 3)


def test_a_wrong_password_is_reported_and_the_window_is_stale(world: tuple[World, Server]) -> None:
    _, front = world
    readings = ScrapeSource(front.url, ("admin", "wrong")).read(100.0, 5.0)
    assert readings.stale and "wrong password" in readings.problems[0]


def test_a_gateway_that_is_not_there_is_reported_and_the_window_is_stale() -> None:
    readings = ScrapeSource("http://127.0.0.1:9", AUTH, timeout_s=0.5).read(100.0, 5.0)
    assert readings.stale and "http://127.0.0.1:9/system/targets could not be read" in readings.problems[0]


def test_targets_that_answer_with_errors_leave_the_last_scrapes_until_they_are_too_old(
    world: tuple[World, Server],
) -> None:
    found, front = world
    source = ScrapeSource(front.url, AUTH)
    for now_s in (100.0, 105.0):
        source.read(now_s, 5.0)
    found.status = 503
    young = source.read(110.0, 10.0)
    assert not young.stale and any("could not be scraped: HTTPError" in problem for problem in young.problems)
    assert young.ages_s == {"gateway": 5.0, "ingress": 5.0}
    assert source.read(125.0, 10.0).stale


def test_an_ingress_that_was_unready_when_the_controller_began_counts_from_its_first_scrape(
    world: tuple[World, Server],
) -> None:
    found, front = world
    found.jobs = ["gateway"]
    source = ScrapeSource(front.url, AUTH)
    assert source.read(100.0, 5.0).stale
    found.jobs, found.passed_s = ["gateway", "ingress"], 1000.0
    assert source.read(105.0, 5.0).stale
    found.passed_s = 1005.0
    seen = source.read(110.0, 5.0)
    assert not seen.stale
    assert seen.value(Series.NODE_TOKENS, "m", exporter.EXPERT) == pytest.approx(5.0 * exporter.TOKENS_PER_S)


def test_a_target_whose_first_scrape_failed_counts_from_the_first_that_did_not(world: tuple[World, Server]) -> None:
    found, front = world
    source = ScrapeSource(front.url, AUTH)
    found.status = 503
    source.read(100.0, 5.0)
    found.status, found.passed_s = 200, 1000.0
    assert source.read(105.0, 5.0).stale
    found.passed_s = 1005.0
    seen = source.read(110.0, 5.0)
    assert seen.value(Series.NODE_TOKENS, "m", exporter.EXPERT) == pytest.approx(5.0 * exporter.TOKENS_PER_S)


def without_ingress(world: tuple[World, Server]) -> tuple[World, ScrapeSource]:
    """A source that had the ingress once, at 100 s, and then not for longer than its longest window, until 115 s."""
    found, front = world
    source = ScrapeSource(front.url, AUTH)
    source.read(100.0, 5.0)
    found.jobs = ["gateway"]
    for now_s in (105.0, 110.0, 115.0):
        source.read(now_s, 5.0)
    return found, source


def test_an_ingress_that_comes_back_counts_from_its_first_scrape_since(world: tuple[World, Server]) -> None:
    found, source = without_ingress(world)
    found.jobs, found.passed_s = ["gateway", "ingress"], 1000.0
    assert source.read(120.0, 5.0).stale
    found.passed_s = 1005.0
    seen = source.read(125.0, 5.0)
    assert not seen.stale
    assert seen.value(Series.NODE_TOKENS, "m", exporter.EXPERT) == pytest.approx(5.0 * exporter.TOKENS_PER_S)


def test_no_more_scrapes_are_kept_than_the_longest_window_needs(world: tuple[World, Server]) -> None:
    found, front = world
    source = ScrapeSource(front.url, AUTH)
    for tick in range(8):
        found.passed_s = 5.0 * tick
        seen = source.read(100.0 + 5.0 * tick, 12.0)
    assert {len(history.scrapes) for history in source._targets.values()} == {4}
    assert seen.window_s == 10.0
    assert seen.value(Series.NODE_TOKENS, "m", exporter.EXPERT) == pytest.approx(10.0 * exporter.TOKENS_PER_S)


def test_old_targets_are_forgotten(world: tuple[World, Server]) -> None:
    found, source = without_ingress(world)
    assert list(source._targets) == [found.addresses["gateway"]]


@pytest.mark.parametrize("body", [b"no json", b'[{"labels": {}}]', b"[1]", b"5"])
def test_a_list_of_targets_that_is_none_is_reported(body: bytes) -> None:
    with serve(lambda *_: (200, body)) as front:
        readings = ScrapeSource(front.url, AUTH).read(100.0, 5.0)
    assert readings.stale and "could not be read" in readings.problems[0]

"""Overloaded servers are left alone for as long as they ask, within bounds; on scripted clocks, over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kubernetes import client

from autoscaler.errors import UnreachableError
from autoscaler.platforms.kubernetes import KubernetesClient
from autoscaler.platforms.kubernetes.client import api_client
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.retry_after import LONGEST_S, RetryAfter, seconds_of
from tests.unit.autoscaler.servers import Reply, serve

NOON_S = 1_774_008_000.0
"""2026-03-20 12:00:00 UTC."""


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Fri, 20 Mar 2026 12:00:30 GMT", 30.0),
        ("Fri, 20 Mar 2026 11:59:00 GMT", 0.0),
        (None, 0.0),
        ("", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("٣", 0.0),
        ("9" * 5000, 999_999_999.0),
        ("Fri, 99 Mar 2026 12:00:30 GMT", 0.0),
    ],
)
def test_a_header_is_whole_seconds_or_a_date_and_nonsense_is_none(header: str | None, expected: float) -> None:
    assert seconds_of(header, NOON_S) == expected


class World:
    """A server that answers as scripted, and its callers' clock, which waiting moves on."""

    def __init__(self, body: bytes) -> None:
        self.now_s = 0.0
        self.asked_s: list[float] = []
        """When it was asked."""
        self.answers: list[tuple[int, str]] = []
        """Status and ``Retry-After`` of the next answers; after them all is well."""
        self.ask: Callable[[], object] = lambda: None
        """List all functions once."""
        self._body = body

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def reply(self, *_: object) -> Reply:
        self.asked_s.append(self.now_s)
        if not self.answers:
            return 200, self._body
        status, after = self.answers.pop(0)
        return status, b"{}", {"Retry-After": after}

    def retry_after(self) -> RetryAfter:
        return RetryAfter(lambda: self.now_s, lambda: NOON_S + self.now_s)


@pytest.fixture(params=["gateway", "API server"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """What is asked by the adapter of that platform."""
    if request.param == "gateway":
        world = World(b"[]")
        with serve(world.reply) as server:
            gateway = OpenFaasPlatform(server.url, "m", None, wait=world.wait, retry_after=world.retry_after())
            world.ask = gateway.configurations
            yield world
        return
    world = World(b'{"items": [], "metadata": {"resourceVersion": "1"}}')
    with serve(world.reply) as server:
        api = api_client(client.Configuration(host=server.url))
        asking = KubernetesClient(api, "openfaas-fn", wait=world.wait, retry_after=world.retry_after())
        world.ask = lambda: list(asking.deployments("l"))
        yield world
        api.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_short_time_is_waited_for_before_the_next_try(world: World, status: int) -> None:
    world.answers = [(status, "3"), (status, "Fri, 20 Mar 2026 12:00:05 GMT")]
    world.ask()
    first, second, third = world.asked_s
    assert second - first >= 3.0 and third >= 5.0
    assert third < 6.0


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_long_is_not_asked_again_before(world: World, status: int) -> None:
    world.answers = [(status, "40")]
    with pytest.raises(UnreachableError, match=r"was not sent: .* is overloaded and asks for 40 s more"):
        world.ask()
    begun_s = world.now_s
    for world.now_s in (10.0, 20.0, 30.0):
        with pytest.raises(UnreachableError, match="overloaded"):
            world.ask()
    assert world.asked_s == [0.0] and begun_s < 1.0
    world.now_s = 41.0
    world.ask()
    assert world.asked_s == [0.0, 41.0]


def test_nobody_is_believed_for_longer_than_a_minute(world: World) -> None:
    world.answers = [(503, "86400")]
    with pytest.raises(UnreachableError):
        world.ask()
    world.now_s = LONGEST_S + 1.0
    world.ask()
    assert world.asked_s == [0.0, LONGEST_S + 1.0]


def test_a_header_of_another_answer_or_one_that_is_nonsense_holds_up_nothing(world: World) -> None:
    world.answers = [(503, "soon"), (502, "40")]
    world.ask()
    assert len(world.asked_s) == 3 and world.now_s < 1.0


def test_a_watch_is_not_opened_before_the_time_that_the_api_server_named() -> None:
    world = World(b"")
    world.answers = [(429, "40")]
    with serve(world.reply) as server:
        api = api_client(client.Configuration(host=server.url))
        asking = KubernetesClient(api, "openfaas-fn", wait=world.wait, retry_after=world.retry_after())
        for said in ("answered 429", "asks for 40 s more"):
            with pytest.raises(UnreachableError, match=said):
                list(asking.watch("pods", "l", "1", 30, lambda cut: None))
        world.now_s = 41.0
        assert list(asking.watch("pods", "l", "1", 30, lambda cut: None)) == []
        api.close()
    assert world.asked_s == [0.0, 41.0]

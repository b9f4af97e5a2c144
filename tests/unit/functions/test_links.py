"""The measured line and the rule that follows from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.ingress import links
from functions.ingress.links import LARGE_BYTES, LinkMeter, two_phase_pays
from functions.serving.relay import Relay
from functions.serving.traffic import Link, Traffic
from tests.unit.functions.conftest import Running, echo


def link(message_s: float = 1e-4, spread_s: float = 1e-4, bytes_per_s: float = 1e9) -> Link:
    return Link(2e-4, message_s, spread_s, bytes_per_s)


def test_one_message_pays_where_messages_are_dear_or_the_line_is_thin() -> None:
    assert two_phase_pays(link(message_s=1e-3), 4, 1000, 1000)
    assert not two_phase_pays(link(spread_s=1e-3), 4, 1000, 1000)
    assert two_phase_pays(link(spread_s=1e-3, bytes_per_s=1e6), 4, 20_000, 5_000)
    assert not two_phase_pays(link(spread_s=1e-3, bytes_per_s=1e9), 4, 20_000, 5_000)


seconds = st.floats(1e-6, 1e-2)


@given(seconds, seconds, st.floats(1e5, 1e10), st.integers(2, 8), st.integers(0, 10**6), st.floats(0, 1))
def test_the_rule_is_the_lesser_sum(
    message_s: float, spread_s: float, bytes_per_s: float, groups: int, size: int, part: float
) -> None:
    once = int(size * part)
    direct_s = sum(message_s for _ in range(groups)) + size / bytes_per_s
    shared_s = message_s + once / bytes_per_s + sum(spread_s for _ in range(groups - 1))
    if abs(direct_s - shared_s) > 1e-9:
        assert two_phase_pays(link(message_s, spread_s, bytes_per_s), groups, size, once) == (shared_s < direct_s)


def table(**running: list[Running]) -> dict[str, FunctionReplicas]:
    """Node → workers, as functions of one replica each."""
    return {
        f"{node}{i}": FunctionReplicas(1, (ReplicaAddress(f"{node}{i}", one.address, node=node),))
        for node, workers in running.items()
        for i, one in enumerate(workers)
    }


async def until(meter: LinkMeter, done: Any) -> None:
    running = asyncio.ensure_future(meter.run())
    async with asyncio.timeout(100):
        while not done() and not running.done():
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await asyncio.sleep(0)


async def relays(start: Any, count: int, key: str = "") -> list[Running]:
    loop = asyncio.get_running_loop()
    return [await start(Relay(echo(), loop, key), caller_key=key) for _ in range(count)]


async def test_lines_to_other_nodes_with_siblings_are_measured(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FIRST_PERIOD_S", 0.0)
    dispatcher, traffic = Dispatcher(asyncio.get_running_loop()), Traffic(1, "here")
    rows = table(here=await relays(start, 2), there=await relays(start, 3), alone=await relays(start, 1))
    dispatcher.update(rows)
    meter = LinkMeter(list(rows), dispatcher, traffic, "")
    await until(meter, lambda: "there" in traffic.links)
    assert set(traffic.links) == {"there"}
    measured = traffic.links["there"]
    assert 0 < measured.hop_s < 5
    assert measured.message_s >= 0 <= measured.spread_s
    assert measured.bytes_per_s > LARGE_BYTES / 5


async def test_a_node_that_is_gone_has_no_line_any_more(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FIRST_PERIOD_S", 0.0)
    dispatcher, traffic = Dispatcher(asyncio.get_running_loop()), Traffic(1)
    rows = table(there=await relays(start, 2))
    dispatcher.update(rows)
    meter = LinkMeter(list(rows), dispatcher, traffic, "")
    await until(meter, lambda: traffic.links)
    assert set(traffic.links) == {"there"}
    dispatcher.update({})
    await until(meter, lambda: not traffic.links)


async def test_workers_that_do_not_relay_have_no_line(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "FIRST_PERIOD_S", 0.0)
    dispatcher, traffic = Dispatcher(asyncio.get_running_loop()), Traffic(1)
    rows = table(there=await relays(start, 2, key="other"))
    dispatcher.update(rows)
    meter = LinkMeter(list(rows), dispatcher, traffic, "mine")
    tried = meter._try_round
    rounds = 0

    async def count(*arguments: Any) -> None:
        nonlocal rounds
        await tried(*arguments)
        rounds += 1

    monkeypatch.setattr(meter, "_try_round", count)
    await until(meter, lambda: rounds == 3)
    assert traffic.links == {}

"""Where callbacks may go, and what slow receivers cost."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gateway.callbacks import AT_ONCE_PER_OWNER, Callback, Callbacks, CallbackTargets
from gateway.contract import Replica
from gateway.held import HeldBytes
from gateway.main import main
from gateway.names import Infos, Names
from tests.doubles.fake_replica import FakeConnection, FakeReplica, FakeRequest, Program, echo
from tests.unit.gateway.client import WAIT_S
from tests.unit.gateway.gateways import Running, Starter


async def silent(seen: FakeRequest, connection: FakeConnection) -> None:
    await asyncio.Event().wait()


async def receiver(name: str = "silent", program: Program = silent) -> FakeReplica:
    """One that takes callbacks; without a ``program`` it never answers."""
    made = FakeReplica(name, program, lambda instance, text: None, 0, Replica(name, "", "ready"))
    await made.listen()
    return made


def everything_is_here(host: str, family: int) -> Infos:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


def callback_to(address: str) -> Callback:
    return Callback("id", f"http://{address}", {}, b"x")


async def delivered(pool: Callbacks, callback: Callback) -> None:
    """Ends when the callback is over."""
    task = pool.send(callback)
    assert task is not None
    await asyncio.wait_for(task, WAIT_S)


def requests_of(receivers: list[FakeReplica]) -> int:
    return sum(len(one.requests) for one in receivers)


async def test_slow_receivers_do_not_hold_up_calls_other_receivers_or_the_shutdown(start: Starter) -> None:
    slow = await receiver()
    async with start(async_workers=1, callback_timeout_s=1000.0, drain_s=0.1) as running:
        await running.deploy()
        for _ in range(3 * AT_ONCE_PER_OWNER):
            await running.call("POST", "/async-function/f", X_Callback_Url=f"http://{slow.state.address}/")
        await running.until(lambda: len(slow.requests) == AT_ONCE_PER_OWNER // 2)
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
        assert len(running.replicas()[0].requests) == 3 * AT_ONCE_PER_OWNER
        other = await receiver("other")
        await running.call("POST", "/async-function/f", X_Callback_Url=f"http://{other.state.address}/")
        await running.until(lambda: len(other.requests) == 1)
        assert len(slow.requests) == AT_ONCE_PER_OWNER // 2
    slow.end()
    other.end()


async def test_callbacks_that_wait_have_a_common_limit(running: Running) -> None:
    slow = await receiver()
    metrics = running.gateway.metrics
    pool = Callbacks(metrics, timeout_s=1000.0, held=HeldBytes(100))
    callback = Callback("id", f"http://{slow.state.address}/", {}, b"x" * 40)
    assert [pool.send(callback) is None for _ in range(3)] == [False, False, True]
    assert metrics.callback_failures == 1
    await pool.close(0.0)
    assert pool.send(callback) is not None
    await pool.close(0.0)
    slow.end()


async def test_slow_receivers_at_many_ports_of_a_host_leave_places_to_one_that_answered_before(start: Starter) -> None:
    slow, good = [await receiver() for _ in range(20)], await receiver("good", echo)
    async with start(callback_timeout_s=1000.0, drain_s=0.1) as running:
        pool = running.gateway.queue.callbacks
        await delivered(pool, callback_to(good.state.address))
        for one in slow:
            for _ in range(8):
                pool.send(callback_to(one.state.address))
        await running.until(lambda: requests_of(slow) == AT_ONCE_PER_OWNER)
        for _ in range(3):
            await delivered(pool, callback_to(good.state.address))
        assert requests_of(slow) == AT_ONCE_PER_OWNER
    for one in (*slow, good):
        one.end()


@pytest.mark.slow
async def test_slow_receivers_of_many_hosts_leave_places_to_one_that_is_new(start: Starter) -> None:
    slow, good = await receiver(), await receiver("good", echo)
    async with start(callback_timeout_s=1000.0, drain_s=0.1) as running:
        pool = running.gateway.queue.callbacks
        pool.names = Names(everything_is_here)
        port = slow.state.address.rpartition(":")[2]
        for host in range(40):
            for _ in range(8):
                pool.send(callback_to(f"h.slow{host}.test:{port}"))
        await running.until(lambda: len({seen.headers["host"] for seen in slow.requests}) == 40)
        await delivered(pool, callback_to(good.state.address))
    slow.end()
    good.end()


async def test_a_receiver_that_answers_late_counts_with_its_host(running: Running) -> None:
    late, soon, slow = await receiver("late", echo), await receiver("soon", echo), [await receiver() for _ in range(20)]
    pool = Callbacks(running.gateway.metrics, timeout_s=1000.0, held=HeldBytes(10**6))
    times = iter((0.0, 500.0))
    pool.clock = lambda: next(times)
    await delivered(pool, callback_to(late.state.address))
    pool.clock = lambda: 0.0
    await delivered(pool, callback_to(soon.state.address))
    for one in slow:
        pool.send(callback_to(one.state.address))
    await running.until(lambda: requests_of(slow) == AT_ONCE_PER_OWNER)
    pool.send(callback_to(late.state.address))
    for _ in range(5):
        await delivered(pool, callback_to(soon.state.address))
    assert len(late.requests) == 1
    await pool.close(0.0)
    for one in (late, soon, *slow):
        one.end()


async def test_a_receiver_s_callbacks_that_wait_leave_room_to_others(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.callbacks.MAX_WAITING", 8)
    slow, good = await receiver(), await receiver("good", echo)
    pool = Callbacks(running.gateway.metrics, timeout_s=1000.0, held=HeldBytes(10**6))
    taken = [pool.send(callback_to(f"{slow.state.address}/{number}")) is not None for number in range(10)]
    assert taken == [True] * 4 + [False] * 6
    pool.names = Names(everything_is_here)
    await delivered(pool, callback_to(good.state.address.replace("127.0.0.1", "good.test")))
    await pool.close(0.0)
    slow.end()
    good.end()


async def test_names_that_nobody_answers_for_hold_up_no_address_and_no_name_that_is_answered(running: Running) -> None:
    over, good = threading.Event(), await receiver("good", echo)
    looked_up: list[str] = []

    def look_up(host: str, family: int) -> Infos:
        looked_up.append(host)
        if host.endswith("slow.test"):
            over.wait()
        return everything_is_here(host, family)

    pool = Callbacks(running.gateway.metrics, timeout_s=1000.0, held=HeldBytes(10**6))
    pool.names = Names(look_up)
    for number in range(40):
        pool.send(callback_to(f"h{number}.slow.test"))
    await running.until(lambda: len(looked_up) >= 4)
    port = good.state.address.rpartition(":")[2]
    await delivered(pool, callback_to(f"127.0.0.1:{port}"))
    await delivered(pool, callback_to(f"good.test:{port}"))
    assert [host for host in looked_up if not host.endswith("slow.test")] == ["good.test"]
    await pool.close(0.0)
    over.set()
    good.end()


async def test_the_deadline_of_a_callback_begins_before_its_name_is_looked_up(running: Running) -> None:
    over = threading.Event()

    def silent(host: str, family: int) -> Infos:
        over.wait()
        return everything_is_here(host, family)

    async def no_pause(seconds: float) -> None: ...

    pool = Callbacks(running.gateway.metrics, timeout_s=0.05, held=HeldBytes(10**6))
    pool.names, pool.pause = Names(silent), no_pause
    await delivered(pool, callback_to("slow.test"))
    assert running.gateway.metrics.callback_failures == 1
    over.set()


async def test_receivers_that_are_not_listed_are_refused(start: Starter) -> None:
    async with start(callback_targets=("hooks.example.org:8443", "*.internal")) as running:
        await running.deploy()
        for url in ("http://127.0.0.1:8080/", "https://hooks.example.org/", "http://hooks.example.org.evil.test:8443/"):
            answer = await running.call("POST", "/async-function/f", X_Callback_Url=url)
            assert (answer.status, "are not allowed here" in answer.text) == (400, True)
        assert running.replicas()[0].requests == []


@pytest.mark.parametrize(
    ("patterns", "url", "allowed"),
    [
        ((), "http://anywhere/", True),
        ((), "ftp://anywhere/", False),
        (("host",), "http://host/", True),
        (("host",), "https://HOST.:9/x", True),
        (("host",), "http://user:host@other/", False),
        (("host",), "http://host@other/", False),
        (("host",), "http://other/host", False),
        (("host:80",), "http://host/", True),
        (("host:80",), "https://host/", False),
        (("host:443",), "https://host/", True),
        (("*.example.org",), "http://a.b.example.org/", True),
        (("*.example.org",), "http://example.org/", False),
        (("*.example.org",), "http://aexample.org/", False),
        (("[::1]:9",), "http://[::1]:9/", True),
        (("[::1]",), "http://[::1]:9/", True),
        (("[::1]",), "http://[::2]/", False),
    ],
)
def test_which_receivers_a_list_allows(patterns: tuple[str, ...], url: str, allowed: bool) -> None:
    assert (CallbackTargets(patterns).refusal(url) == "") is allowed


@given(st.text(max_size=60))
def test_any_address_is_judged(url: str) -> None:
    assert CallbackTargets(("host",)).refusal(url)


@pytest.mark.parametrize("pattern", ["http://host", "host/x", "*", "a*.b", "host:", ""])
def test_a_pattern_that_is_none_ends_the_start(pattern: str) -> None:
    ended = CliRunner().invoke(main, ["--state", "s", "--callback-target", pattern])
    assert (ended.exit_code, "HOST:PORT" in ended.output) == (2, True)

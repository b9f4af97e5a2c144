"""Where callbacks may go, and what slow receivers cost."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gateway.callbacks import AT_ONCE_PER_TARGET, Callback, Callbacks, CallbackTargets
from gateway.contract import Replica
from gateway.held import HeldBytes
from gateway.main import main
from tests.doubles.fake_replica import FakeConnection, FakeReplica, FakeRequest
from tests.unit.gateway.gateways import Running, Starter


async def silent(seen: FakeRequest, connection: FakeConnection) -> None:
    await asyncio.Event().wait()


async def receiver(name: str = "silent") -> FakeReplica:
    """One that takes callbacks and never answers."""
    made = FakeReplica(name, silent, lambda instance, text: None, 0, Replica(name, "", "ready"))
    await made.listen()
    return made


async def test_slow_receivers_do_not_hold_up_calls_other_receivers_or_the_shutdown(start: Starter) -> None:
    slow = await receiver()
    async with start(async_workers=1, callback_timeout_s=1000.0, drain_s=0.1) as running:
        await running.deploy()
        for _ in range(3 * AT_ONCE_PER_TARGET):
            await running.call("POST", "/async-function/f", X_Callback_Url=f"http://{slow.state.address}/")
        await running.until(lambda: len(slow.requests) == AT_ONCE_PER_TARGET)
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
        assert len(running.replicas()[0].requests) == 3 * AT_ONCE_PER_TARGET
        other = await receiver("other")
        await running.call("POST", "/async-function/f", X_Callback_Url=f"http://{other.state.address}/")
        await running.until(lambda: len(other.requests) == 1)
        assert len(slow.requests) == AT_ONCE_PER_TARGET
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

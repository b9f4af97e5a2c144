"""Load generators: how many calls, how many at once, and from when a call's seconds count."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.profiles.measure.load import closed_loop, open_loop, paced, poisson_arrivals


class Server:
    """Answers after giving way to others a few times; counts what it has at once."""

    def __init__(self, turns: int = 3, fails_at: int | None = None) -> None:
        self.turns, self.fails_at = turns, fails_at
        self.now = self.most = self.calls = 0

    async def call(self) -> bool:
        self.calls += 1
        number = self.calls
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.now -= 1
        return number != self.fails_at


@pytest.mark.parametrize("callers", [1, 3, 8])
async def test_a_closed_loop_keeps_its_callers_in_flight(callers: int) -> None:
    server = Server()
    recorded = await closed_loop(server.call, callers, 100, 10.0)
    assert server.most == callers
    assert 100 <= server.calls <= 100 + 2 * callers
    assert len(recorded.latencies_s) == server.calls
    assert recorded.errors == 0


async def test_a_closed_loop_without_time_calls_twice_each() -> None:
    server = Server()
    recorded = await closed_loop(server.call, 4, 1000, 0.0)
    assert len(recorded.latencies_s) == 8


async def test_a_caller_that_fails_does_not_go_on() -> None:
    server = Server(fails_at=5)
    recorded = await closed_loop(server.call, 1, 100, 10.0)
    assert (server.calls, recorded.errors, len(recorded.latencies_s)) == (5, 1, 4)


async def test_single_calls_come_one_at_a_time() -> None:
    server = Server()
    recorded = await paced(server.call, 20, 10.0, np.zeros(1))
    assert server.most == 1
    assert len(recorded.latencies_s) == 20


@pytest.mark.parametrize("slots", [1, 2, 5])
async def test_an_open_loop_never_has_more_at_the_replica_than_slots(slots: int) -> None:
    server = Server(turns=10)
    recorded = await open_loop(server.call, np.zeros(40), slots, 10.0)
    assert server.most == slots
    assert len(recorded.latencies_s) == 40


async def test_waiting_counts_into_a_calls_seconds() -> None:
    server = Server(turns=200)
    recorded = await open_loop(server.call, np.zeros(5), 1, 10.0)
    assert recorded.latencies_s == sorted(recorded.latencies_s)
    assert recorded.latencies_s[-1] > recorded.latencies_s[0]


async def test_calls_that_do_not_begin_in_time_are_given_up_and_counted() -> None:
    server = Server(turns=100)
    recorded = await open_loop(server.call, np.zeros(50), 1, 0.0)
    assert recorded.errors >= 48
    assert recorded.errors + len(recorded.latencies_s) == 50


def test_the_same_seed_gives_the_same_arrivals_and_a_longer_run_the_same_beginning() -> None:
    short, long = poisson_arrivals(50, 2, 7), poisson_arrivals(50, 5, 7)
    assert (long[: len(short)] == short).all()
    assert (poisson_arrivals(50, 2, 8)[:3] != short[:3]).all()


@given(rate=st.floats(20, 500), seed=st.integers(0, 1000))
def test_arrivals_come_at_their_rate(rate: float, seed: int) -> None:
    times = poisson_arrivals(rate, 20.0, seed)
    assert (np.diff(times) > 0).all()
    assert times[-1] < 20
    assert abs(len(times) - 20 * rate) < 6 * np.sqrt(20 * rate)

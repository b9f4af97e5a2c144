"""Which replica gets a call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import FunctionSpec, FunctionState, Replica
from gateway.forwarding import Balancer
from tests.unit.gateway.gateways import Running


def function(*states: str, max_inflight: int = 0) -> FunctionState:
    replicas = tuple(Replica(str(index), f"h:{index}", state) for index, state in enumerate(states))  # type: ignore[arg-type]
    return FunctionState(FunctionSpec("f", "i"), len(replicas), replicas, max_inflight, 0.0)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=6), st.integers(0, 4), st.integers(0, 10))
def test_a_replica_with_the_fewest_calls_is_chosen_and_a_full_one_only_where_all_are(
    loads: list[int], limit: int, turns: int
) -> None:
    state = function(*["ready"] * len(loads), max_inflight=limit)
    balancer = Balancer()
    for index, load in enumerate(loads):
        for _ in range(load):
            balancer.begin(str(index))
    for _ in range(turns):
        balancer.choose(state, set())
    chosen = balancer.choose(state, set())
    assert chosen is not None
    free = [load for load in loads if not 0 < limit <= load]
    assert loads[int(chosen.id)] == min(free or loads)


def test_replicas_that_are_not_ready_or_to_be_avoided_are_never_chosen() -> None:
    balancer = Balancer()
    state = function("starting", "ready", "draining", "ready")
    assert {balancer.choose(state, set()).id for _ in range(8)} == {"1", "3"}  # type: ignore[union-attr]
    assert {balancer.choose(state, {"1"}).id for _ in range(8)} == {"3"}  # type: ignore[union-attr]
    assert balancer.choose(state, {"1", "3"}) is None
    assert balancer.choose(function(), set()) is None


def test_calls_that_ended_weigh_nothing() -> None:
    balancer = Balancer()
    state = function("ready", "ready")
    for _ in range(3):
        balancer.begin("0")
        balancer.end("0")
    balancer.begin("1")
    assert {balancer.choose(state, set()).id for _ in range(4)} == {"0"}  # type: ignore[union-attr]
    assert list(balancer.in_flight) == ["1"]


async def test_connections_to_replicas_that_are_gone_are_closed(running: Running) -> None:
    await running.deploy()
    await running.call("GET", "/function/f")
    (replica,) = running.replicas()
    forwarder = running.gateway.forwarder
    forwarder.forget_gone([replica.state.address])
    await running.call("GET", "/function/f")
    assert len(replica.connections) == 1
    forwarder.forget_gone([])
    await running.until(lambda: not replica.connections)

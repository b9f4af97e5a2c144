"""What the live view is told of nodes: replicas from the feed, weights and transfers from managers, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.client.errors import GatewayRefusedError, GatewayUnreachableError
from placement.moves.errors import ManagerGoneError
from smoe.commands.top import NodeWatch
from smoe.view.model import NodeRow

MB = 1_000_000


def replica(node: str, state: str = "ready") -> dict[str, Any]:
    return {"id": f"{node}-{state}", "address": "127.0.0.1:1", "state": state, "node": node}


class Gateway:
    def __init__(self, feed: dict[str, list[dict[str, Any]]], error: Exception | None = None) -> None:
        self.feed, self.error, self.asked = feed, error, 0

    def replicas(self) -> dict[str, list[dict[str, Any]]]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.feed


class Nodes:
    """Managers by node; a node that is left out has lost its manager."""

    def __init__(self, **accounts: dict[str, Any]) -> None:
        self.accounts = accounts

    def held(self, node: str) -> dict[str, Any]:
        if node not in self.accounts:
            raise ManagerGoneError(f"the weights manager of node {node} has no ready replica for 0 s")
        return self.accounts[node]


def account(held: dict[str, int], unfinished: dict[str, int] | None = None, limit: int = 0) -> dict[str, Any]:
    return {"held": held, "unfinished": unfinished or {}, "memory_bytes": limit}


FEED = {
    "m": [replica("a")],
    "m-expert-0-0": [replica("a"), replica("a", "draining"), replica("b", "starting")],
    "weights-a": [replica("a")],
    "weights-b": [replica("b")],
    "another": [replica("a")],
}


def test_replicas_of_the_pipeline_are_counted_by_node_and_state_with_the_node_s_memory() -> None:
    managers = Nodes(a=account({"m/one": 3 * MB, "m/two": 4 * MB}, limit=9 * MB), b=account({}))
    rows = NodeWatch(Gateway(FEED), managers, ["m", "m-expert-0-0"]).look()
    assert rows == (NodeRow("a", 2, 0, 1, 7 * MB, 9 * MB, 0, 0, 0), NodeRow("b", 0, 1, 0, 0, 0, 0, 0, 0))


def test_a_transfer_that_stopped_growing_is_broken_off() -> None:
    managers = Nodes(a=account({}), b=account({}, {"m/one": 1 * MB, "m/two": 2 * MB}))
    watch = NodeWatch(Gateway(FEED), managers, ["m"])
    assert [(row.arriving, row.arriving_bytes, row.broken_off) for row in watch.look()][1] == (2, 3 * MB, 0)
    managers.accounts["b"] = account({"m/two": 5 * MB}, {"m/one": 1 * MB, "m/three": 0})
    assert [(row.arriving, row.arriving_bytes, row.broken_off) for row in watch.look()][1] == (1, 0, 1)


@pytest.mark.parametrize("managers", [None, Nodes()])
def test_without_an_answer_of_a_manager_weights_are_not_known_which_is_not_none_there(managers: Nodes | None) -> None:
    rows = NodeWatch(Gateway(FEED), managers, ["m"]).look()
    assert [(row.node, row.ready, row.weights_bytes, row.arriving) for row in rows] == [
        ("a", 1, None, None),
        ("b", 0, None, None),
    ]


def test_replicas_without_nodes_make_no_rows() -> None:
    feed = {"m": [{"id": "1", "address": "127.0.0.1:1", "state": "ready"}]}
    assert NodeWatch(Gateway(feed), Nodes(), ["m"]).look() == ()


def test_a_gateway_that_has_no_feed_is_asked_once_and_one_that_is_away_again() -> None:
    other = Gateway(FEED, GatewayRefusedError("the gateway answered 404", 404))
    away = Gateway(FEED, GatewayUnreachableError("no gateway answers"))
    for gateway, asked in ((other, 1), (away, 2)):
        watch = NodeWatch(gateway, Nodes(a=account({}), b=account({})), ["m"])
        assert watch.look() == () and watch.look() == ()
        assert gateway.asked == asked
    away.error = None
    assert len(watch.look()) == 2

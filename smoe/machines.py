"""What is on which node now: replicas from the gateway's feed, weights from the nodes' managers. Only looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError, GatewayRefusedError, GatewayUnreachableError
from placement.errors import PlacementError
from placement.moves.managers import Managers
from smoe.view.model import NodeRow

PATIENCE_S = 0.0
"""Seconds to retry a manager that does not answer: none, as the next look comes soon."""


class NodeWatch:
    """Rows of all nodes, look by look. Of ``functions`` replicas are counted; managers None: weights are not known."""

    def __init__(self, feed: GatewayClient, managers: Managers | None, functions: Collection[str]) -> None:
        self._feed = feed
        self._managers = managers
        self._functions = frozenset(functions)
        self._unfinished: dict[str, dict[str, int]] = {}
        self._offered = True

    def look(self) -> tuple[NodeRow, ...]:
        """Rows by node name; none where replicas have no nodes, or the gateway offers no feed or does not answer."""
        if not self._offered:
            return ()
        try:
            feed = self._feed.replicas()
        except GatewayRefusedError as error:
            self._offered = error.status != 404
            return ()
        except GatewayUnreachableError:
            return ()
        names = sorted({str(one["node"]) for replicas in feed.values() for one in replicas if "node" in one})
        replicas_of_pipeline = [one for name, replicas in feed.items() if name in self._functions for one in replicas]
        return tuple(self._row(node, replicas_of_pipeline) for node in names)

    def _row(self, node: str, replicas: Sequence[Mapping[str, Any]]) -> NodeRow:
        states = Counter(str(one["state"]) for one in replicas if one.get("node") == node)
        row = NodeRow(node, states["ready"], states["starting"], states["draining"])
        if self._managers is None:
            return row
        try:
            memory = self._managers.held(node)
        except (GatewayClientError, PlacementError):
            return row
        now, before = dict(memory["unfinished"]), self._unfinished.get(node, {})
        self._unfinished[node] = now
        moving = [name for name, nbytes in now.items() if before.get(name) != nbytes]
        return NodeRow(
            node,
            row.ready,
            row.starting,
            row.draining,
            weights_bytes=sum(memory["held"].values()),
            limit_bytes=memory["memory_bytes"],
            arriving=len(moving),
            arriving_bytes=sum(now[name] for name in moving),
            broken_off=len(now) - len(moving),
        )

"""The replica feed: which replicas every function has, once or line by line as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Container
from typing import Any

import orjson

from gateway.contract import Backend, FunctionState, Replica
from platform_words.labels import BURST

FEED_PERIOD_S = 5.0
FEED_PAUSE_S = 0.05
"""Changes that come within this time are one snapshot: a change of a whole pipeline is a few, not a few hundred."""


class ReplicaFeed:
    """Snapshots of a backend's functions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._line: tuple[int, bytes] = (-1, b"")
        """The last line and the version it is of."""

    async def follow(self) -> AsyncGenerator[bytes]:
        """A snapshot a line (NDJSON), at each change and every ``FEED_PERIOD_S``; never ends."""
        while True:
            version = self._backend.version()
            if self._line[0] != version:  # made once for all who follow
                self._line = (version, orjson.dumps(self.snapshot()) + b"\n")
            yield self._line[1]
            await asyncio.sleep(FEED_PAUSE_S)
            await self._backend.wait_change(version, FEED_PERIOD_S)

    def snapshot(self) -> dict[str, Any]:
        """All functions with their replicas, and the version that this is."""
        functions = {state.spec.key: _entry(state) for state in self._backend.list()}
        return {"version": self._backend.version(), "functions": functions}

    def functions(self, names: Container[tuple[str, str]]) -> dict[str, Any]:
        """The part of these functions, by (name, namespace); one that is not there is left out."""
        present = (state for state in self._backend.list() if (state.spec.name, state.spec.namespace) in names)
        return {state.spec.key: _entry(state) for state in present}


def _entry(state: FunctionState) -> dict[str, Any]:
    """A function in the feed; where it may have standbys, with its desired replicas and the rule."""
    replicas = [_replica(replica) for replica in state.replicas]
    entry: dict[str, Any] = {"max_inflight": state.max_inflight, "replicas": replicas}
    if state.caller_key:
        entry["key"] = state.caller_key
    if state.standbys:
        entry |= {"desired": state.desired_replicas, "burst": state.spec.annotations.get(BURST, "")}
    return entry


def _replica(replica: Replica) -> dict[str, str]:
    """A replica in the feed; ``node``: its machine, where the backend reports any."""
    entry = {"id": replica.id, "address": replica.address, "state": replica.state}
    return {**entry, "node": replica.machine} if replica.machine else entry

"""The gateway as a profile needs it: the command line's client, and one function of the replica feed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

import requests

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError
from simulation.profiles.measure.target import LogLine, ReplicaSeen, Snapshot


class ProfileGateway:
    """Deploys, scales and reads replicas through ``client``."""

    def __init__(self, client: GatewayClient) -> None:
        self._client = client
        self.deploy, self.scale, self.remove = client.deploy, client.scale, client.remove

    def replicas(self, name: str) -> Sequence[ReplicaSeen]:
        """Raises GatewayClientError."""
        return _replicas_of(self._client.replicas(), name)

    @contextmanager
    def changes(self, name: str) -> Iterator[FollowedFeed]:
        """Follow the feed in a thread of its own, so that each change is timed when it arrives."""
        feed = FollowedFeed(self._client, name)
        try:
            yield feed
        finally:
            feed.close()

    def log_lines(self, name: str, tail: int) -> list[LogLine]:
        """The last lines of a function's log."""
        with self._client.logs(name, tail, follow=False) as reply:
            lines = [json.loads(line) for line in reply.iter_lines() if line.strip()]
        return [
            LogLine(datetime.fromisoformat(line["timestamp"]).timestamp(), str(line["text"]).strip()) for line in lines
        ]


class FollowedFeed:
    """Snapshots of one function from the replica feed."""

    def __init__(self, client: GatewayClient, name: str) -> None:
        self._client = client
        self._name = name
        self._found: queue.Queue[Snapshot | Exception] = queue.Queue()
        self._closing = False
        threading.Thread(target=self._read, daemon=True).start()

    def next(self, timeout_s: float) -> Snapshot:
        """The next snapshot. Raises TimeoutError, and what broke the feed."""
        try:
            snapshot = self._found.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the feed reported nothing of {self._name} within {timeout_s:.1f} s") from None
        if isinstance(snapshot, Exception):
            raise snapshot
        return snapshot

    def close(self) -> None:
        """The thread ends with the next line of the feed; closing the stream under it would wait for that too."""
        self._closing = True

    def _read(self) -> None:
        try:
            with closing(self._client.follow_replicas()) as feed:
                for replicas in feed:
                    at_s = time.perf_counter()
                    if self._closing:
                        return
                    self._found.put(Snapshot(at_s, tuple(_replicas_of(replicas, self._name))))
        except (GatewayClientError, requests.RequestException, ValueError) as error:
            self._found.put(error)


def _replicas_of(feed: Mapping[str, list[dict[str, Any]]], name: str) -> list[ReplicaSeen]:
    return [ReplicaSeen(entry["id"], entry["address"], entry["state"]) for entry in feed.get(name, [])]

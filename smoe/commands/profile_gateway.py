"""The gateway as a profile needs it: the command line's client, and the replica feed."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

import requests

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayUnreachableError
from simulation.profiles.measure.target import LogLine, ReplicaSeen, Snapshot

NAMESPACE = "openfaas-fn"
FEED_TIMEOUT_S = 15.0
"""The feed speaks at least every 5 s."""


class ProfileGateway:
    """Deploys, scales and reads replicas through ``client``; ``password`` opens the replica feed."""

    def __init__(self, client: GatewayClient, password: str) -> None:
        self._client = client
        self._feed_url = f"{client.url}/system/replicas"
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.auth = ("admin", password)

    def deploy(self, deployment: dict[str, Any]) -> str:
        return self._client.deploy(deployment)

    def scale(self, name: str, replicas: int) -> None:
        self._client.scale(name, replicas)

    def remove(self, name: str) -> None:
        self._client.remove(name)

    def replicas(self, name: str) -> Sequence[ReplicaSeen]:
        """Raises GatewayUnreachableError."""
        try:
            document = self._session.get(self._feed_url, timeout=FEED_TIMEOUT_S).json()
        except requests.RequestException as error:
            raise GatewayUnreachableError(f"the replica feed at {self._feed_url} does not answer: {error}") from error
        return _replicas_of(document, name)

    @contextmanager
    def changes(self, name: str) -> Iterator[FollowedFeed]:
        """Follow the feed in a thread of its own, so that each change is timed when it arrives."""
        try:
            stream = self._session.get(
                self._feed_url, params={"follow": "true"}, stream=True, timeout=(FEED_TIMEOUT_S, FEED_TIMEOUT_S)
            )
        except requests.RequestException as error:
            raise GatewayUnreachableError(f"the replica feed at {self._feed_url} does not answer: {error}") from error
        feed = FollowedFeed(stream, name)
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
    """Snapshots of one function from the feed's NDJSON stream."""

    def __init__(self, stream: requests.Response, name: str) -> None:
        self._stream = stream
        self._name = name
        self._found: queue.Queue[Snapshot] = queue.Queue()
        self._closing = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next(self, timeout_s: float) -> Snapshot:
        """The next snapshot. Raises TimeoutError."""
        try:
            return self._found.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"the feed reported nothing of {self._name} within {timeout_s:.1f} s") from None

    def close(self) -> None:
        """The thread ends with the next line of the feed; closing the stream under it would wait for that too."""
        self._closing = True

    def _read(self) -> None:
        """Until closed, or until the stream breaks: ``next`` then times out."""
        with self._stream, suppress(requests.RequestException, ValueError):
            for line in self._stream.iter_lines(chunk_size=None):
                at_s = time.perf_counter()
                if self._closing:
                    return
                if line:
                    self._found.put(Snapshot(at_s, tuple(_replicas_of(json.loads(line), self._name))))


def _replicas_of(document: dict[str, Any], name: str) -> list[ReplicaSeen]:
    feed_rows = document.get("functions", {}).get(f"{name}.{NAMESPACE}", {}).get("replicas", [])
    return [ReplicaSeen(entry["id"], entry["address"], entry["state"]) for entry in feed_rows]

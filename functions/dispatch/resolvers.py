"""Where the dispatcher learns of replicas: a gateway's feed, service names of a cluster, or a fixed table."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import httptools

from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress

log = logging.getLogger(__name__)

Update = Callable[[Mapping[str, FunctionReplicas]], None]
SILENCE_S = 15.0
"""The feed speaks at least every 5 s; after this long the connection is taken for dead."""
MAX_LINE_BYTES = 16 * 1024 * 1024


class Resolver(Protocol):
    """Keeps a dispatcher's table current until cancelled."""

    async def run(self, update: Update) -> None: ...


class TemplateResolver:
    """One address for each function, such as a Kubernetes service: ``http://{function}.openfaas-fn:8080``.

    The platform balances behind that address, so no limit of calls in flight is applied here.
    """

    def __init__(self, template: str, functions: Iterable[str], key: str = "") -> None:
        """``key``: what they take calls with. Raises ValueError."""
        self._table = {}
        for name in functions:
            parts = urlsplit(template.format(function=name))
            if parts.scheme != "http" or not parts.hostname:
                raise ValueError(
                    f"smoe_address_template is {template!r}; it takes http://HOST[:PORT] with {{function}}"
                )
            address = f"{parts.hostname}:{parts.port or 80}"
            self._table[name] = FunctionReplicas(0, (ReplicaAddress(name, address, balanced=True, key=key),))

    async def run(self, update: Update) -> None:
        update(self._table)


class FeedResolver:
    """Follows a gateway's ``/system/replicas?follow=true`` (NDJSON, full snapshots), reconnecting with growing waits.

    While the feed is down the last table stays in use: replicas do not vanish because their publisher did.
    """

    def __init__(self, url: str, token_file: Path | None, namespace: str = "openfaas-fn") -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme != "http" or not self._parts.hostname:
            raise ValueError(f"smoe_feed_url is {url!r}; it takes http://HOST:PORT/PATH")
        self._token_file = token_file
        self._namespace = namespace

    async def run(self, update: Update) -> None:
        wait_s = 0.05
        while True:
            try:
                async with aclosing(self._follow()) as snapshots:
                    async for snapshot in snapshots:
                        update(table_of(snapshot, self._namespace))
                        wait_s = 0.05
                log.warning("the replica feed ended; connecting again")
            except (
                OSError,
                TimeoutError,
                ValueError,
                KeyError,
                TypeError,
                httptools.HttpParserError,
            ) as error:
                log.warning("the replica feed failed (%s); trying again in %.2f s", error, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0, wait_s * 2)

    async def _follow(self) -> AsyncGenerator[dict[str, Any], None]:
        """Snapshots until the feed ends. Raises OSError, TimeoutError, ValueError, HttpParserError."""
        host, port = self._parts.hostname, self._parts.port or 80
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
        try:
            token = self._token_file.read_text().strip() if self._token_file else ""
            auth = f"authorization: Bearer {token}\r\n" if token else ""
            path = f"{self._parts.path or '/'}?follow=true"
            writer.write(f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\n{auth}\r\n".encode("latin-1"))
            lines = _Lines()
            parser = httptools.HttpResponseParser(lines)
            while not lines.ended:
                async with asyncio.timeout(SILENCE_S):
                    data = await reader.read(256 * 1024)
                if not data:
                    return
                parser.feed_data(data)
                if lines.begun and parser.get_status_code() != 200:
                    raise ValueError(f"the feed answered {parser.get_status_code()}")
                for line in lines.take():
                    snapshot = json.loads(line)
                    if "functions" in snapshot:
                        yield snapshot
        finally:
            writer.close()


def table_of(snapshot: Mapping[str, Any], namespace: str) -> dict[str, FunctionReplicas]:
    """Replicas of a namespace's functions, from a snapshot of the feed or a part of one. Raises ValueError,
    KeyError, TypeError where it is neither."""
    table, suffix, functions = {}, "." + namespace, snapshot["functions"]
    if not isinstance(functions, dict) or not all(isinstance(function, dict) for function in functions.values()):
        raise TypeError("its functions are no table of objects")
    for key, function in functions.items():
        caller_key = str(function.get("key", ""))
        ready, standbys, draining = (
            tuple(
                ReplicaAddress(
                    str(replica["id"]), str(replica["address"]), node=str(replica.get("node", "")), key=caller_key
                )
                for replica in function["replicas"]
                if replica["state"] == state
            )
            for state in ("ready", "standby", "draining")
        )
        rule = _whole(function, "desired", key, 0), str(function.get("burst", ""))
        replicas = FunctionReplicas(_whole(function, "max_inflight", key), ready, *rule, standbys, draining)
        if key.endswith(suffix):  # others are of other namespaces
            table[key.removesuffix(suffix)] = replicas
    return table


def _whole(function: Mapping[str, Any], name: str, key: str, default: int | None = None) -> int:
    """A count of a function's. Raises ValueError (JSON as Python reads it has Infinity and NaN, too)."""
    value = function.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} of {key} is {value!r}; it is a whole number, 0 or more")
    return value


class _Lines:
    """Collects whole lines of a (chunked) body."""

    def __init__(self) -> None:
        self.begun = False
        self.ended = False
        self._buffer = bytearray()

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > MAX_LINE_BYTES:
            raise ValueError("a line of the feed is too long")

    def on_message_complete(self) -> None:
        self.ended = True

    def take(self) -> list[bytes]:
        *whole, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        return [line for line in whole if line.strip()]

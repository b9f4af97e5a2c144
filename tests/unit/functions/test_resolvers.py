"""Where replicas are learnt from: the feed, with its failures, and service names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from functions.applications import resolver_for
from functions.dispatch import resolvers
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.dispatch.resolvers import FeedResolver, TemplateResolver
from functions.serving.settings import from_environment
from moe.manifest import load
from tests.unit.functions.conftest import turns


def snapshot(version: int, **states: str) -> bytes:
    replicas = [
        {"id": name, "address": f"127.0.0.1:{i + 1}", "state": state} for i, (name, state) in enumerate(states.items())
    ]
    document = {"version": version, "functions": {"f.openfaas-fn": {"max_inflight": 4, "replicas": replicas}}}
    return json.dumps(document).encode() + b"\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Feed:
    """A feed that answers each connection with the next script: pieces of bytes."""

    def __init__(self, *scripts: list[bytes]) -> None:
        self.scripts = list(scripts)
        self.heads: list[bytes] = []
        self.tables: list[Mapping[str, FunctionReplicas]] = []
        self.changed = asyncio.Event()
        self.done = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heads.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for piece in self.scripts.pop(0) if self.scripts else []:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if not self.scripts:
                await self.done.wait()
        finally:
            writer.close()

    def update(self, table: Mapping[str, FunctionReplicas]) -> None:
        self.tables.append(table)
        self.changed.set()

    async def follow(self, count: int, token: Path | None = None, **more: str) -> None:
        """Run a resolver until ``count`` tables have come."""
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/system/replicas"
        task = asyncio.ensure_future(FeedResolver(url, token, **more).run(self.update))
        async with asyncio.timeout(100):
            while len(self.tables) < count:
                self.changed.clear()
                await self.changed.wait()
        task.cancel()
        self.done.set()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
        await turns()


async def test_ready_replicas_and_those_that_drain_are_taken_from_a_snapshot(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    feed = Feed([HEAD, chunk(snapshot(1, a="starting", b="ready", c="draining"))])
    await feed.follow(1, token)
    ready, draining = ReplicaAddress("b", "127.0.0.1:2"), ReplicaAddress("c", "127.0.0.1:3")
    assert feed.tables == [{"f": FunctionReplicas(4, (ready,), draining=(draining,))}]
    assert feed.heads[0].startswith(b"GET /system/replicas?follow=true HTTP/1.1\r\n")
    assert b"authorization: Bearer secret\r\n" in feed.heads[0]


async def test_only_functions_of_the_pipelines_own_namespace_are_taken() -> None:
    there = snapshot(1, b="ready").replace(b"f.openfaas-fn", b"f.team-a")
    feed = Feed([HEAD, chunk(snapshot(1, a="ready")), chunk(there)])
    await feed.follow(2, namespace="team-a")
    assert feed.tables == [{}, {"f": FunctionReplicas(4, (ReplicaAddress("b", "127.0.0.1:1"),))}]


async def test_standbys_are_read_apart_from_ready_replicas_with_their_rule() -> None:
    there = json.loads(snapshot(1, a="standby", b="ready"))
    there["functions"]["f.openfaas-fn"] |= {"desired": 1, "burst": "standbys=1"}
    feed = Feed([HEAD, chunk(json.dumps(there).encode() + b"\n")])
    await feed.follow(1)
    expected = (ReplicaAddress("b", "127.0.0.1:2"),), 1, "standbys=1", (ReplicaAddress("a", "127.0.0.1:1"),)
    assert feed.tables == [{"f": FunctionReplicas(4, *expected)}]


async def test_snapshots_may_arrive_in_any_pieces() -> None:
    stream = (
        HEAD
        + chunk(snapshot(1, a="ready")[:20])
        + chunk(snapshot(1, a="ready")[20:] + snapshot(2, a="ready", b="ready"))
    )
    feed = Feed([stream[i : i + 7] for i in range(0, len(stream), 7)])
    await feed.follow(2)
    assert [len(table["f"].replicas) for table in feed.tables] == [1, 2]


@pytest.mark.parametrize(
    "broken",
    [
        [],
        [b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"],
        [b"nonsense\r\n\r\n"],
        [HEAD, chunk(b"not json\n")],
        [HEAD, chunk(b'{"functions": {"f": {}}}\n')],
        [HEAD, chunk(b"[1]\n")],
        [HEAD, chunk(b'{"functions": [1]}\n')],
        [HEAD, chunk(b'{"functions": {"f": [1]}}\n')],
        [HEAD, chunk(snapshot(1, a="ready")[:-5])],
    ],
)
async def test_a_feed_that_breaks_is_followed_again(broken: list[bytes]) -> None:
    feed = Feed(broken, [HEAD, chunk(snapshot(1, a="ready"))])
    await feed.follow(1)
    assert len(feed.heads) == 2
    assert feed.tables[0]["f"].replicas[0].id == "a"


@pytest.mark.parametrize("number", ["Infinity", "-Infinity", "NaN", "1e999", "0.5", "-1", "true", "null"])
@pytest.mark.parametrize("name", ["max_inflight", "desired"])
async def test_a_count_that_is_none_is_refused_by_name_and_the_feed_goes_on(
    name: str, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = json.loads(snapshot(1, a="ready"))
    there["functions"]["f.openfaas-fn"][name] = "NUMBER"
    broken = json.dumps(there).replace('"NUMBER"', number).encode() + b"\n"
    feed = Feed([HEAD, chunk(broken)], [HEAD, chunk(snapshot(1, a="ready"))])
    await feed.follow(1)
    assert feed.tables[0]["f"].max_inflight == 4
    assert f"{name} of f.openfaas-fn is" in caplog.text and "a whole number, 0 or more" in caplog.text


async def test_a_silent_feed_is_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolvers, "SILENCE_S", 0.02)
    feed = Feed([HEAD], [HEAD, chunk(snapshot(1, a="ready"))])
    feed.scripts[0] = [HEAD, *[b""] * 1000]
    await feed.follow(1)
    assert len(feed.heads) >= 2


async def test_a_template_names_one_balanced_address_for_each_function() -> None:
    tables: list[Any] = []
    await TemplateResolver("http://{function}.openfaas-fn:8080", ["m-a", "m-b"], "key").run(tables.append)
    address = ReplicaAddress("m-a", "m-a.openfaas-fn:8080", balanced=True, key="key")
    assert tables[0]["m-a"] == FunctionReplicas(0, (address,))
    assert set(tables[0]) == {"m-a", "m-b"}


@pytest.mark.parametrize("url", ["ftp://x/y", "127.0.0.1:80", "http://"])
def test_addresses_that_are_no_http_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http://"):
        FeedResolver(url, None)
    with pytest.raises(ValueError, match="http://"):
        TemplateResolver(url, ["a"])


def test_without_a_feed_the_ingress_finds_functions_by_the_address_template(bert: Path) -> None:
    given = {
        "smoe_pipeline": str(bert),
        "smoe_nodes": "ingress",
        "smoe_address_template": "http://{function}.here:8080",
    }
    resolver = resolver_for(from_environment(given), load(bert, verify=False))
    assert isinstance(resolver, TemplateResolver)

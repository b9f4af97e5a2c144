from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import xxhash

from functions.dispatch.client import ConnectionPool, request_head
from functions.memory.manager import Manager, ManagerSettings, from_environment
from functions.memory.regions import Region, RegionError, SourceError
from functions.memory.sources import DIGEST, PIECE, Line, from_peer
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import SettingsError
from functions.wire.messages import Reply, Request

CONTENT = bytes(range(256)) * (3 * PIECE // 256) + b"end"  # three pieces and a little
REGION = Region("p/one.bin", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@dataclass
class Node:
    manager: Manager
    address: str


@asynccontextmanager
async def node(tmp_path: Path, name: str, application: object = None, **settings: Any) -> AsyncIterator[Node]:
    """A manager that serves; ``application`` answers in its place where one is given."""
    pipelines = tmp_path / "disk"
    (pipelines / "p").mkdir(parents=True, exist_ok=True)
    (pipelines / REGION.name).write_bytes(CONTENT)
    manager = Manager(
        ManagerSettings(name, tmp_path / name, pipelines, "secret", **settings), asyncio.get_running_loop()
    )
    server = FunctionServer(application or manager, ServerSettings(settle_s=0.0))  # type: ignore[arg-type]
    listener = socket.create_server(("127.0.0.1", 0))
    await server.start(listener)
    try:
        yield Node(manager, f"127.0.0.1:{listener.getsockname()[1]}")
    finally:
        manager.close()
        await server.drain()


async def test_weights_come_from_disk_once_and_then_from_memory_to_memory(tmp_path: Path) -> None:
    slow = {"link_bytes_per_s": 1e9}  # so that a piece is there before the one ahead of it has passed the line
    async with node(tmp_path, "a") as first, node(tmp_path, "b", **slow) as second:
        assert (await first.manager.hold(REGION, None))["source"] == "disk"
        assert (await second.manager.hold(REGION, first.address))["source"] == "peer"
        assert (await second.manager.hold(REGION, first.address))["source"] == "reuse"
        assert second.manager.regions.path(REGION.name).read_bytes() == CONTENT
        assert (first.manager.held()["disk_reads"], second.manager.held()["disk_reads"]) == ({REGION.name: 1}, {})


async def test_a_region_wanted_twice_at_once_is_read_once(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as one:
        answers = await asyncio.gather(*(one.manager.hold(REGION, None) for _ in range(5)))
        assert {result["copied"] for result in answers} == {len(CONTENT)}
        assert one.manager.held()["disk_reads"] == {REGION.name: 1}


class Breaks:
    """A peer that sends so many pieces and then nothing but errors."""

    def __init__(self, pieces: int, digest: str = xxhash.xxh3_128_hexdigest(CONTENT)) -> None:
        self.pieces = pieces
        self._headers = {DIGEST: digest}

    def submit(self, request: Request, answer: Any) -> None:
        self.pieces -= 1
        offset = int(request.headers["x-smoe-offset"])
        piece = CONTENT[offset : offset + PIECE]
        sent = Reply(200, (piece,), headers=self._headers)
        answer(sent if self.pieces >= 0 else Reply(500, (b"broken",)))

    def metrics(self) -> bytes:
        return b""

    def close(self) -> None:
        return


async def test_a_copy_that_stops_half_way_goes_on_from_elsewhere(tmp_path: Path) -> None:
    async with node(tmp_path, "a", Breaks(2)) as broken, node(tmp_path, "b") as target:
        with pytest.raises(SourceError, match="answered 500"):
            await target.manager.hold(REGION, broken.address)
        assert target.manager.regions.unfinished() == {REGION.name: 2 * PIECE}
        held = await target.manager.hold(REGION, None)
        assert (held["resumed_at"], held["copied"]) == (2 * PIECE, len(CONTENT) - 2 * PIECE)
        assert target.manager.regions.path(REGION.name).read_bytes() == CONTENT


async def test_a_peer_that_is_gone_is_an_error_with_its_address(tmp_path: Path) -> None:
    async with node(tmp_path, "b") as target:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(SourceError, match=address):
            await target.manager.hold(REGION, address)


async def test_content_that_is_not_the_manifests_is_refused(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as one:
        with pytest.raises(RegionError, match="sha256"):
            await one.manager.hold(Region(REGION.name, len(CONTENT), "0" * 64), None)
        assert one.manager.held()["held"] == {}


async def test_bytes_of_a_peer_that_are_not_what_it_has_proved_are_thrown_away(tmp_path: Path) -> None:
    async with node(tmp_path, "a", Breaks(9, "0" * 32)) as peer, node(tmp_path, "b") as target:
        with pytest.raises(RegionError, match="digest"):
            await target.manager.hold(REGION, peer.address)
        assert (target.manager.held()["held"], target.manager.held()["unfinished"]) == ({}, {})


async def test_a_manager_that_starts_again_proves_what_it_finds_to_its_peers(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as first:
        await first.manager.hold(REGION, None)
    async with node(tmp_path, "a") as again, node(tmp_path, "b") as second:
        assert (await second.manager.hold(REGION, again.address))["copied"] == len(CONTENT)
        assert second.manager.regions.path(REGION.name).read_bytes() == CONTENT


async def test_a_region_all_of_whose_bytes_are_there_is_proved_without_copying(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as first, node(tmp_path, "b") as second:
        await first.manager.hold(REGION, None)
        filling = second.manager.regions.fill(REGION, from_peer=True)  # broken off before its end was noted
        filling.append(CONTENT)
        filling.close()
        held = await second.manager.hold(REGION, first.address)
        assert (held["resumed_at"], held["copied"]) == (len(CONTENT), 0)
        assert second.manager.held()["held"] == {REGION.name: len(CONTENT)}


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param(b"", "ended before", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nfive!", "ended before", id="too-few"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", "only", id="empty"),
        pytest.param(b"what is this\r\n\r\n", "not HTTP", id="no-http"),
        pytest.param(b"x" * 100_000, "not HTTP", id="endless-head"),
    ],
)
async def test_a_peer_that_sends_something_else_is_a_lost_source(sent: bytes, words: str) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(sent)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        taken = bytearray()
        with pytest.raises(SourceError, match=words):
            await from_peer(address, REGION.name, 0, 20, "secret", Line(), taken.extend)
    assert len(asked) == (1 if words == "only" else 3)
    assert b"x-smoe-offset: 0" in asked[0]


async def test_a_line_with_a_rate_carries_no_faster() -> None:
    line, loop = Line(bytes_per_s=1e6), asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.gather(*(line.carry(10_000) for _ in range(5)))
    assert loop.time() - began_s >= 0.05


def test_a_line_measures_the_time_in_which_it_carried_anything() -> None:
    line = Line()
    assert line.measured is None
    line.begin(10.0)
    line.begin(11.0)
    line.end(300, 12.0)
    line.end(300, 13.0)
    line.begin(20.0)
    line.end(400, 22.0)
    assert line.measured == 200.0


async def call(address: str, path: str, body: object, token: str) -> tuple[int, Any]:
    pool = ConnectionPool(address)
    data = json.dumps(body).encode()
    head = request_head(path, address, "application/json", len(data), [("authorization", f"Bearer {token}")])
    try:
        reply = await pool.call(head, [data], 10.0)
    finally:
        pool.close()
    return reply.status, json.loads(reply.body)


async def test_every_path_takes_the_token(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as one:
        for path in ("/held", "/hold", "/release", f"/bytes/{REGION.name}", "/nothing"):
            assert (await call(one.address, path, {}, "wrong"))[0] == 401


async def test_regions_are_held_reported_and_released_over_http(tmp_path: Path) -> None:
    async with node(tmp_path, "a") as one:
        asked = {"name": REGION.name, "bytes": REGION.nbytes, "sha256": REGION.sha256, "peer": None}
        status, found = await call(one.address, "/hold", {"regions": [asked]}, "secret")
        assert (status, found["regions"][0]["copied"]) == (200, len(CONTENT))
        assert (await call(one.address, "/held", {}, "secret"))[1]["held"] == {REGION.name: len(CONTENT)}
        assert (await call(one.address, "/release", {"names": [REGION.name]}, "secret"))[1] == {"freed": len(CONTENT)}


@pytest.mark.slow
async def test_when_a_peer_fails_nothing_is_under_way_any_more_and_the_disk_takes_over_at_once(tmp_path: Path) -> None:
    names = [f"p/{number}.bin" for number in range(9)]
    async with node(tmp_path, "a", Breaks(7)) as broken, node(tmp_path, "b") as target:
        for name in names:
            (tmp_path / "disk" / name).write_bytes(CONTENT)
        asked = [{"name": name, "bytes": REGION.nbytes, "sha256": REGION.sha256} for name in names]
        status, _ = await call(
            target.address, "/hold", {"regions": [{**one, "peer": broken.address} for one in asked]}, "secret"
        )
        assert status == 502
        assert (await call(target.address, "/release", {"names": names[:1]}, "secret"))[0] == 200
        status, _ = await call(target.address, "/hold", {"regions": asked}, "secret")
        assert status == 200
        assert target.manager.held()["held"] == dict.fromkeys(names, len(CONTENT))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        pytest.param("/hold", {"regions": [{"name": "../x", "bytes": 1, "sha256": ""}]}, 409, id="outside"),
        pytest.param("/hold", {"regions": [{"name": "p/one.bin"}]}, 400, id="no-size"),
        pytest.param("/hold", [], 400, id="no-object"),
        pytest.param("/hold", {"regions": [{"name": "p/no", "bytes": 1, "sha256": ""}]}, 502, id="not-on-disk"),
        pytest.param("/bytes/p/none", {}, 409, id="not-held"),
        pytest.param("/elsewhere", {}, 404, id="no-path"),
    ],
)
async def test_bad_requests_get_a_sentence(tmp_path: Path, path: str, body: object, status: int) -> None:
    async with node(tmp_path, "a") as one:
        found, answer = await call(one.address, path, body, "secret")
        assert found == status
        assert answer["error"]["message"]


def test_settings_are_checked(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    environ = {"smoe_weights_dir": "/m", "smoe_pipelines_dir": "/p", "smoe_feed_token_file": str(token)}
    assert from_environment(environ).token == "secret"
    with pytest.raises(SettingsError, match="smoe_weights_dir"):
        from_environment({**environ, "smoe_weights_dir": ""})
    for wrong in ("-1", "many", "inf", "nan"):
        with pytest.raises(SettingsError, match="smoe_link_bytes_per_s"):
            from_environment({**environ, "smoe_link_bytes_per_s": wrong})

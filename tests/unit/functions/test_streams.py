"""Replies that are streamed: sent as they come, no faster than they are read, and ended once whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from functions.wire.messages import Reply, Request
from tests.unit.functions.conftest import get, post, read_reply, turns


class Streaming:
    """Answers ``POST`` with a stream of what the test puts in: pieces, None for its end, an error to break it off."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.requests: list[Request] = []
        self.taken = 0
        self.ended = 0

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self.requests.append(request)
        if request.method == "GET":
            answer(Reply(200, (b"plain",), "text/plain"))
            return
        reply = Reply(200, content_type="text/event-stream", stream=self._stream())
        reply.ended = self._end
        answer(reply)

    async def _stream(self) -> AsyncIterator[bytes]:
        while (piece := await self.pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            self.taken += 1
            yield piece

    def _end(self) -> None:
        self.ended += 1

    def metrics(self) -> bytes:
        return b""

    def close(self) -> None:
        """Holds nothing."""


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(100):
        size = int(await reader.readline(), 16)
        data = await reader.readexactly(size)
        await reader.readline()
        return data


async def opened(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(100):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return reader, writer, head


async def test_each_piece_is_sent_before_the_next_is_made_and_the_connection_is_kept(start: Any) -> None:
    application = Streaming()
    running = await start(application)
    reader, writer, head = await opened(running.port, post())
    assert "transfer-encoding: chunked" in head
    assert "content-length" not in head
    for piece in (b"one", b"two"):
        application.pieces.put_nowait(piece)
        assert await read_chunk(reader) == piece
    assert running.server.in_flight == 1
    writer.write(get("/"))  # waits until the stream is over
    application.pieces.put_nowait(None)
    assert await read_chunk(reader) == b""
    assert (await read_reply(reader))[2] == b"plain"
    assert (application.ended, running.server.in_flight) == (1, 0)
    writer.close()


async def test_a_slow_reader_holds_the_stream_back(start: Any) -> None:
    application = Streaming()
    running = await start(application)
    reader, writer, _ = await opened(running.port, post())
    piece = bytes(64 * 1024)
    for _ in range(1000):
        application.pieces.put_nowait(piece)
    application.pieces.put_nowait(None)
    before = -1
    while application.taken != before:  # until nothing moves any more
        before = application.taken
        await turns(500)
    assert before < 900
    received = 0
    while data := await read_chunk(reader):
        received += len(data)
    assert received == 1000 * len(piece)
    assert application.ended == 1
    writer.close()


async def test_a_client_that_leaves_ends_the_stream(start: Any) -> None:
    application = Streaming()
    running = await start(application)
    reader, writer, _ = await opened(running.port, post())
    application.pieces.put_nowait(b"one")
    await read_chunk(reader)
    writer.transport.abort()
    async with asyncio.timeout(100):
        while running.server.connections or not application.ended:
            await asyncio.sleep(0)
    assert application.requests[0].abandoned
    assert (application.ended, running.server.in_flight) == (1, 0)


async def test_a_stream_that_breaks_off_cuts_the_connection(start: Any) -> None:
    application = Streaming()
    running = await start(application)
    reader, writer, _ = await opened(running.port, post())
    application.pieces.put_nowait(b"one")
    application.pieces.put_nowait(ValueError("broken"))
    assert await read_chunk(reader) == b"one"
    async with asyncio.timeout(100):
        assert await reader.read() == b""  # and no last chunk
    assert (application.ended, running.server.in_flight) == (1, 0)
    writer.close()


async def test_draining_waits_for_streams(start: Any) -> None:
    application = Streaming()
    running = await start(application, drain_s=1000.0)
    reader, writer, _ = await opened(running.port, post())
    draining = asyncio.create_task(running.server.drain())
    for _ in range(3):
        await asyncio.sleep(0)
    application.pieces.put_nowait(b"late")
    assert await read_chunk(reader) == b"late"
    assert not draining.done()
    application.pieces.put_nowait(None)
    assert await read_chunk(reader) == b""
    await asyncio.wait_for(draining, 100)
    writer.close()

"""A server of the gateway or the watchdog that ends while requests are on their way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop

from gateway.draining import DrainingServer
from gateway.guard import RequestBounds, guarded
from gateway.serving import listen
from tests.unit.gateway.client import WAIT_S, parse, request

FAR_S = 1000.0


class Application:
    """Answers with the body that came; calls of ``/held`` answer their head and wait for ``release``."""

    def __init__(self) -> None:
        self.began, self.release = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held = scope["path"] == "/held"
        if held:
            await self._begin(send)
            self.began.set()
            await self.release.wait()
        message, body = await receive(), b""
        while message["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
            message = await receive()
        if not held:
            await self._begin(send)
        await send({"type": "http.response.body", "body": body})

    async def _begin(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})


class Serving:
    """A server on a port of this machine."""

    def __init__(self, settle_s: float) -> None:
        self.application, self.listener = Application(), listen("127.0.0.1", 0)
        self.protocol = guarded(RequestBounds(head_timeout_s=FAR_S, body_timeout_s=FAR_S))
        config = uvicorn.Config(
            self.application, http=self.protocol, loop="none", lifespan="off", log_config=None, ws="none"
        )  # type: ignore[arg-type]
        self.server = DrainingServer(config, settle_s)
        self.ended = asyncio.ensure_future(self.server._serve([self.listener]))
        self.address = self.listener.getsockname()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0)

    async def closed(self) -> None:
        """Until it accepts no more."""
        await self.until(lambda: self.listener.fileno() < 0)


@asynccontextmanager
async def serving(settle_s: float = 0.0) -> AsyncIterator[Serving]:
    one = Serving(settle_s)
    await one.until(lambda: one.server.started)
    yield one
    one.server.should_exit = True
    await asyncio.wait_for(one.ended, WAIT_S)


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_what_came_while_the_loop_stood_still_is_answered(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def story() -> None:
        async with serving() as one:
            kept = await asyncio.to_thread(socket.create_connection, one.address)
            await one.until(lambda: one.server.server_state.connections)
            one.server.should_exit = True
            await one.until(lambda: one.protocol.ending)
            clients = [kept, *(socket.create_connection(one.address) for _ in range(20))]
            for client in clients:
                client.sendall(request("POST", "/", b"abc", close=False))
        for client in clients:
            client.settimeout(WAIT_S)
            answer = parse(b"".join(iter(lambda client=client: client.recv(65536), b"")))  # type: ignore[misc]
            assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"abc", "close")
            client.close()

    run(story())


async def test_replies_announce_the_end_while_connections_are_still_open(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s, loop = 0.0, asyncio.get_running_loop()
    real_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_s() + passed_s)
    async with serving(settle_s=FAR_S) as one:
        idle, idle_writer = await asyncio.open_connection(*one.address)
        await one.until(lambda: one.server.server_state.connections)
        one.server.should_exit = True
        await one.until(lambda: one.protocol.ending)
        for _ in range(2):  # on new connections, too
            reader, writer = await asyncio.open_connection(*one.address)
            writer.write(request("POST", "/", b"abc", close=False))
            assert parse(await rest_of(reader)).headers["connection"] == "close"
            writer.close()
        assert not idle.at_eof()
        passed_s += FAR_S
        assert await rest_of(idle) == b""
        idle_writer.close()


@pytest.mark.parametrize("left", [6, 1], ids=["head", "body"])
async def test_a_request_that_has_partly_come_is_answered(left: int) -> None:
    async with serving() as one:
        whole = request("POST", "/", b"abc", close=False)
        reader, writer = await asyncio.open_connection(*one.address)
        writer.write(whole[:-left])
        await one.until(lambda: any(client._part != "idle" for client in one.protocol.clients.open))
        one.server.should_exit = True
        await one.closed()
        writer.write(whole[-left:])
        answer = parse(await rest_of(reader))
        assert (answer.status, answer.body, answer.headers["connection"]) == (200, b"abc", "close")
        writer.close()


async def test_of_pipelined_requests_the_last_reply_closes_the_connection() -> None:
    async with serving(settle_s=FAR_S) as one:
        one.protocol.announce_end()
        reader, writer = await asyncio.open_connection(*one.address)
        writer.write(b"".join(request("POST", "/", body, close=False) for body in (b"one", b"two", b"end")))
        data = await rest_of(reader)
        assert data.count(b"HTTP/1.1 200 ") == 3 and data.count(b"connection: close") == 1
        assert data.index(b"two") < data.index(b"connection: close") < data.index(b"end")
        writer.close()


async def test_a_reply_whose_head_was_sent_before_closes_its_connection_at_its_end() -> None:
    async with serving() as one:
        reader, writer = await asyncio.open_connection(*one.address)
        writer.write(request("POST", "/held", b"abc", close=False))
        await one.application.began.wait()
        one.server.should_exit = True
        await one.closed()
        assert not one.ended.done()
        one.application.release.set()
        answer = parse(await rest_of(reader))
        assert (answer.status, answer.body) == (200, b"abc")
        writer.close()

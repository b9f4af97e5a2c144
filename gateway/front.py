"""The front door as raw ASGI: ``/function/NAME[/path]`` and ``/async-function/NAME[/path]``."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from starlette.responses import PlainTextResponse, Response

from gateway.asynchronous import AsyncCalls
from gateway.calls import BodyTooLargeError, Call, ClientGoneError, Outcome
from gateway.forwarding import Forwarder
from gateway.held import HeldBytes, Room, TooMuchHeldError
from gateway.specs import split_name
from gateway.upstream import UpstreamError

log = logging.getLogger(__name__)

METHODS = frozenset(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"))
ASYNC_METHODS = frozenset(("POST",))
LINGER_S = 0.5
BUSY = {"connection": "close", "retry-after": "1"}
_NAME = re.compile(r"[-a-zA-Z_0-9.]+")


class FrontDoor:
    """Reads a call, forwards it, streams the reply back."""

    def __init__(
        self, forwarder: Forwarder, queue: AsyncCalls, held: HeldBytes, *, buffer_bytes: int, max_body_bytes: int
    ) -> None:
        self._forwarder = forwarder
        self._queue = queue
        self._held = held
        self._buffer_bytes = buffer_bytes
        self._max_body_bytes = max_body_bytes

    @staticmethod
    def served() -> set[tuple[str, str]]:
        """(method, path) of everything here, as openapi.yaml writes it."""
        doors = (("/function/{name}", METHODS), ("/async-function/{name}", ASYNC_METHODS))
        return {(method, path + rest) for path, methods in doors for method in methods for rest in ("", "/{path}")}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = scope.get("raw_path") or scope["path"].encode()
        parts = raw.split(b"/", 3)  # b"", b"function", NAME, rest?
        name = parts[2].decode("latin-1") if len(parts) > 2 else ""
        asynchronous = scope["path"].startswith("/async-function/")
        if not _NAME.fullmatch(name):
            return await PlainTextResponse("404 page not found", 404)(scope, receive, send)
        methods = ASYNC_METHODS if asynchronous else METHODS
        if scope["method"] not in methods:
            allow = {"allow": ", ".join(sorted(methods))}
            return await PlainTextResponse("Method Not Allowed", 405, allow)(scope, receive, send)
        call = self._call(scope, name, b"/" + (parts[3] if len(parts) > 3 else b""))
        limit = min(self._max_body_bytes, self._queue.body_bytes) if asynchronous else self._max_body_bytes
        with self._held.room() as room:
            try:
                await self._read_body(call, receive, limit, room)
            except BodyTooLargeError as error:
                return await refuse_body(receive, send, PlainTextResponse(str(error), 413, {"connection": "close"}))
            except TooMuchHeldError as error:
                return await refuse_body(receive, send, PlainTextResponse(str(error), 503, BUSY))
            except ClientGoneError:
                return None
            if asynchronous:
                return await (await self._enqueue(call))(scope, receive, send)
            return await self._forward(call, receive, send)

    @staticmethod
    def _call(scope: Any, name: str, path: bytes) -> Call:
        function, namespace = split_name(name)
        if scope["query_string"]:
            path += b"?" + scope["query_string"]
        headers = [(bytes(key), bytes(value)) for key, value in scope["headers"]]
        call_id = next((value.decode("latin-1") for key, value in headers if key == b"x-call-id"), "")
        length = next((value for key, value in headers if key == b"content-length"), b"")
        client = scope.get("client")
        return Call(
            scope["method"],
            function,
            namespace,
            path,
            headers,
            length=int(length) if length.isdigit() else None,
            client=f"{client[0]}:{client[1]}" if client else "",
            call_id=call_id,
        )

    async def _read_body(self, call: Call, receive: Any, limit: int, room: Room) -> None:
        """All of it when it is small; else the first part, and the rest as a stream."""
        if call.length is not None and call.length > limit:
            raise BodyTooLargeError(_too_large(limit))
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            data = message.get("body", b"")
            size += len(data)
            if size > limit:
                raise BodyTooLargeError(_too_large(limit))
            if data:
                room.take(len(data))
                parts.append(data)
            if not message.get("more_body"):
                break
            if size > self._buffer_bytes:
                call.rest = self._rest(receive, size, limit)
                break
        call.body = parts[0] if len(parts) == 1 else b"".join(parts)

    async def _rest(self, receive: Any, size: int, limit: int) -> AsyncIterator[bytes]:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError("the client went away within its body")
            data = message.get("body", b"")
            size += len(data)
            if size > limit:
                raise BodyTooLargeError(_too_large(limit))
            if data:
                yield data
            if not message.get("more_body"):
                return

    async def _forward(self, call: Call, receive: Any, send: Any) -> None:
        """Forward and reply; when the client closes its connection, the call to the replica is given up."""
        work = asyncio.current_task()
        assert work is not None
        received = asyncio.Event()
        if call.rest is None:
            received.set()
        else:
            call.rest = _then(call.rest, received)
        watching = asyncio.create_task(_cancel_when_gone(receive, received, work))
        try:
            await self._reply(call, await self._forwarder.forward(call), send)
        except ClientGoneError:
            return
        except asyncio.CancelledError:
            if not (watching.done() and not watching.cancelled()):
                raise
            work.uncancel()
        finally:
            watching.cancel()

    async def _reply(self, call: Call, outcome: Outcome, send: Any) -> None:
        start = {"type": "http.response.start", "status": outcome.status, "headers": outcome.headers}
        try:
            await send(start)
            if outcome.stream is None:
                await send({"type": "http.response.body", "body": outcome.body})
                return
            async for data in outcome.stream:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except (UpstreamError, BodyTooLargeError) as error:
            # Returning without the end makes the server cut the client's connection.
            log.warning("call %s of %s: %s", call.call_id[:64], call.key, error)
        finally:
            outcome.release()

    async def _enqueue(self, call: Call) -> Response:
        refused = await self._queue.put(call)
        if refused is None:
            return Response(status_code=202, headers={"x-call-id": call.call_id})
        status, message = refused
        return PlainTextResponse(message, status, {"retry-after": "1"} if status in (429, 503) else {})


async def _then(rest: AsyncIterator[bytes], received: asyncio.Event) -> AsyncIterator[bytes]:
    """``rest``, and report when it is complete: from then on someone else may call ``receive``."""
    async for data in rest:
        yield data
    received.set()


async def _cancel_when_gone(receive: Any, received: asyncio.Event, work: asyncio.Task[Any]) -> None:
    await received.wait()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            work.cancel()
            return


def _too_large(limit: int) -> str:
    return f"the body is larger than {limit} bytes"


async def refuse_body(receive: Any, send: Any, reply: Response) -> None:
    """Reply, and then drop what still comes for a moment: a client cut off while it sends might never read it."""
    await send({"type": "http.response.start", "status": reply.status_code, "headers": reply.raw_headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            while (await receive()).get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})

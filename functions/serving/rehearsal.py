"""A few made-up calls through a function's own path before it is ready, so that the first real one costs what later
ones do.

A process writes to most of the memory that it shares with its parent, maps its weights' pages and makes its buffers in
its first call, which takes seven times the processor time of the tenth; under a small CPU limit that is seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable

from functions.dispatch.client import request_head
from functions.serving.connection import Connection
from functions.serving.node_host import NodeHost
from functions.serving.relay import Relay
from functions.serving.server import FunctionServer, ServerSettings
from functions.wire import layout as wire
from functions.wire.messages import REQUEST_ID, Application, Body

log = logging.getLogger(__name__)

REHEARSED_TOKENS = (1, 32)
"""Sizes of a node's calls: the smallest, and a sentence. A third call changes nothing measurable."""
REHEARSAL_S = 2.0
"""Longest rehearsal: then the function is ready without the rest, as slow at first as it would have been."""


async def rehearse(application: Application) -> None:
    """Answer ``REHEARSED_TOKENS`` for every node that ``application`` hosts, which does not count them; others have
    nothing to rehearse."""
    host = application.inner if isinstance(application, Relay) else application
    if not isinstance(host, NodeHost):
        return
    server = FunctionServer(host, ServerSettings())
    try:
        async with asyncio.timeout(REHEARSAL_S):
            for path, chunks in host.made_up_calls(REHEARSED_TOKENS):
                await _answered(server, path, chunks)
    except (TimeoutError, OSError) as error:
        log.warning("a rehearsal broke off, so first calls are slow: %s %s", type(error).__name__, error)
    host.forget_calls()


async def _answered(server: FunctionServer, path: str, chunks: Iterable[Body]) -> None:
    """One call over a connection of its own."""
    loop = asyncio.get_running_loop()
    body = b"".join(chunks)
    head = request_head(
        path, "localhost", wire.CONTENT_TYPE, len(body), [(REQUEST_ID, "rehearsal"), ("connection", "close")]
    )
    here, there = socket.socketpair()
    with here:
        here.setblocking(False)
        await loop.connect_accepted_socket(lambda: Connection(server, loop), there)
        await loop.sock_sendall(here, head + body)
        reply = bytearray()
        while part := await loop.sock_recv(here, 1 << 18):
            reply += part
    if not reply.startswith(b"HTTP/1.1 200 "):
        log.warning("the rehearsal of %s was answered %r", path, bytes(reply[:300]))

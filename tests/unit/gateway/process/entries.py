"""Small programs that tests run as replicas: ``function(environ, listener, ready)``, plain asyncio HTTP."""

from __future__ import annotations

import asyncio
import functools
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Ready = Callable[[], None]


def echo(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """Answers each request with environment, path, process id; ``/slow`` takes ``slow_s``, ``/eat`` memory."""
    asyncio.run(_serve(dict(environ), listener, ready))


def prepared(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """As ``echo``, with the name of the function for which the process was prepared before it had its own."""
    _serve_prepared("", environ, listener, ready)


def prepare(environ: Mapping[str, str]) -> Callable[[Mapping[str, str], socket.socket, Ready], None]:
    """What standbys of these entries do ahead: remember for whom."""
    return functools.partial(_serve_prepared, environ["OPENFAAS_NAME"])


def _serve_prepared(name: str, environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    os.environ["prepared_for"] = name
    asyncio.run(_serve(dict(environ), listener, ready))


def crash(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """Ends at once with code 3."""
    print("about to fail", flush=True)
    sys.exit(3)


def broken(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """Raises before it is ready."""
    raise ValueError("the weights are not there")


def never_ready(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """Waits for a signal and never reports that it is ready."""
    signal.pause()


def mapped(environ: Mapping[str, str], listener: socket.socket, ready: Ready) -> None:
    """Maps the file ``weights`` read-only and answers the sum of its bytes (all the same) after touching each page."""
    with Path(environ["weights"]).open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def total() -> int:
        pages = range(0, len(view), mmap.PAGESIZE)
        return sum(view[start] for start in pages) * mmap.PAGESIZE

    asyncio.run(_serve(dict(environ), listener, ready, total))


async def _serve(
    environ: dict[str, str], listener: socket.socket, ready: Ready, total: Callable[[], int] = lambda: 0
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    in_flight = 0
    limit = _limit(environ)
    hoard: list[bytearray] = []

    def reload() -> None:
        nonlocal limit
        limit = _limit(environ)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal in_flight
        in_flight += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            print(f"asked for {path}", flush=True)
            if path == "/slow":
                await asyncio.sleep(float(environ.get("slow_s", "1")))
            elif path == "/eat":
                hoard.append(bytearray(os.urandom(1 << 20) * int(environ["eat_mib"])))
            elif path == "/free":
                hoard.clear()
            report = {"environ": dict(os.environ), "path": path, "pid": os.getpid(), "limit": limit, "sum": total()}
            body = json.dumps(report).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body))
            await writer.drain()
            writer.close()
        finally:
            in_flight -= 1

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    server = await asyncio.start_server(handle, sock=listener)
    ready()
    await stop.wait()
    server.close()
    while in_flight:
        await asyncio.sleep(0.005)


def _limit(environ: Mapping[str, str]) -> int:
    document = json.loads(Path(environ["smoe_live_settings"]).read_text())
    return int(document["max_inflight"])

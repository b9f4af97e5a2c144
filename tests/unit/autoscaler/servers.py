"""A small HTTP server in a thread, for the edges that speak HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import responses
from socketserver import StreamRequestHandler, ThreadingTCPServer

Reply = tuple[int, bytes] | tuple[int, bytes, Mapping[str, str]]
Handler = Callable[[str, str, bytes, str], Reply]
"""(method, path, body, Authorization header) → status, body and, where there are more, headers."""


@dataclass
class Server:
    address: str
    seen: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.address}"


@contextmanager
def serve(handler: Handler) -> Iterator[Server]:
    class Serve(StreamRequestHandler):
        """The standard library's own handler parses headers as those of mail, which takes most of a call."""

        def handle(self) -> None:
            while line := self.rfile.readline():
                method, path, _ = line.decode("latin-1").split()
                headers = {}
                while (line := self.rfile.readline().strip()) != b"":
                    key, _, value = line.decode("latin-1").partition(":")
                    headers[key.lower()] = value.strip()
                body = self.rfile.read(int(headers.get("content-length", 0)))
                server.seen.append((method, path))
                status, reply, *more = handler(method, path, body, headers.get("authorization", ""))
                kind = "application/json" if reply[:1] in (b"[", b"{") else "text/plain"
                fields = {"Content-Type": kind, "Content-Length": len(reply), **(more[0] if more else {})}
                head = f"HTTP/1.1 {status} {responses[status]}\r\n" + "".join(
                    f"{key}: {value}\r\n" for key, value in fields.items()
                )
                self.wfile.write(f"{head}\r\n".encode("latin-1") + reply)
                if headers.get("connection", "").lower() == "close":
                    return

    class Listener(ThreadingTCPServer):
        request_queue_size = 128

    listener = Listener(("127.0.0.1", 0), Serve)
    listener.daemon_threads = True
    server = Server(f"127.0.0.1:{listener.server_address[1]}")
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join()

"""A small HTTP server in a thread, for the edges that speak HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
    class Serve(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536  # head and body in one write

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.seen.append((self.command, self.path))
            status, reply, *more = handler(self.command, self.path, body, self.headers.get("Authorization", ""))
            self.send_response(status)
            for key, value in more[0].items() if more else ():
                self.send_header(key, value)
            self.send_header("Content-Type", "application/json" if reply[:1] in (b"[", b"{") else "text/plain")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Serve)
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

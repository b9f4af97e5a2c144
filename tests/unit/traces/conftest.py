"""A small web server whose answers are scripted, for downloads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Script:
    """What the server does, answer by answer; the last one repeats. ``0`` to ``599``: that status. ``cut:N``: N
    bytes of what was asked, then the connection ends. ``stall:N``: N bytes, then silence. ``whole``: all of it.
    ``endless``: all of it, again and again, without a length."""

    content: bytes = b""
    answers: list[str] = field(default_factory=lambda: ["whole"])
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    """Headers of every request."""
    released: threading.Event = field(default_factory=threading.Event)
    address: str = ""

    def next_answer(self) -> str:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            script.asked.append(dict(self.headers))
            answer = script.next_answer()
            self.close_connection = True
            if answer.isdecimal():
                self.send_response(int(answer))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            if answer != "endless":
                self.send_header("Content-Length", str(len(script.content)))
            for name, value in script.headers.items():
                self.send_header(name, value)
            self.end_headers()
            while answer == "endless":
                self.wfile.write(script.content)
            kind, _, count = answer.partition(":")
            self.wfile.write(script.content[: int(count)] if count else script.content)
            self.wfile.flush()
            if kind == "stall":
                script.released.wait(20)

    return Handler


class Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gives up is part of the tests."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    script = Script()
    web = Server(("127.0.0.1", 0), _handler(script))
    script.address = f"http://127.0.0.1:{web.server_address[1]}/file"
    thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield script
    script.released.set()
    web.shutdown()
    web.server_close()
    thread.join(5)

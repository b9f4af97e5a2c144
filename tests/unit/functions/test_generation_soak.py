"""The soak's clients count what goes wrong within a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.generation_soak import Soak


class Failing(BaseHTTPRequestHandler):
    """Every stream ends with an error's event."""

    asked = threading.Semaphore(0)
    """Released by each request."""

    def do_POST(self) -> None:
        self.asked.release()
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"error": {"message": "lost"}}\n\n')

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_stream_that_ends_with_an_error_is_counted_as_wrong(address: str) -> None:
    soak = Soak(address, [([1], "t1")], time.monotonic() + 60)
    client = threading.Thread(target=soak.client, args=(0,))
    client.start()
    for _ in range(3):
        assert Failing.asked.acquire(timeout=60)
    soak.until_s = 0.0
    client.join()
    assert soak.counts["wrong"] == soak.counts.total() - soak.counts["wrong"] >= 3

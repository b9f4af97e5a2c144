"""What the controller's benchmark says of itself: its own memory, and that it takes any credential of a kubeconfig."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from benchmarks.controller.__main__ import peak_rss_mb
from benchmarks.controller.loaded import Server

PRINT_PEAK = "from benchmarks.controller.__main__ import peak_rss_mb; print(peak_rss_mb())"


@pytest.mark.slow
def test_peak_memory_is_not_that_of_the_process_that_started_it() -> None:
    held = bytearray(b"x") * (300 << 20)
    done = subprocess.run([sys.executable, "-c", PRINT_PEAK], capture_output=True, text=True, check=True, timeout=120)
    assert 20.0 < float(done.stdout) < 300.0 < peak_rss_mb()
    assert len(held) == 300 << 20


def test_a_token_reaches_the_api_server(tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        file, url = tmp_path / "kubeconfig", f"http://127.0.0.1:{server.server_port}"
        contexts = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        users, clusters = [{"name": "u", "user": {"token": "secret"}}], [{"name": "c", "cluster": {"server": url}}]
        named = {"current-context": "c", "contexts": contexts, "users": users, "clusters": clusters}
        file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **named}))
        assert Server(file).call("GET", "/version") == {}
        server.shutdown()
    assert seen == ["Bearer secret"]

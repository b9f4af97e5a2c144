"""``smoe run`` reads its metrics through a Prometheus of its own."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from rich.console import Console

from smoe import prometheus as server
from smoe.commands import demo
from smoe.errors import SmoeError

TOKEN = "the-token"


class Gateway(BaseHTTPRequestHandler):
    """Lists itself twice, to who shows the token, and serves one metric."""

    def do_GET(self) -> None:
        listed = self.path == "/system/targets"
        allowed = not listed or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        address = self.headers["Host"]
        targets = [{"targets": [address], "labels": {"job": job}} for job in ("gateway", "ingress")]
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Type", "application/json" if listed else "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(json.dumps(targets).encode() if listed else b"smoe_answer 42\n")

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def gateway() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as front:
        threading.Thread(target=front.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{front.server_port}"
        front.shutdown()


def state_with(token: str, folder: Path) -> Path:
    (folder / "secrets").mkdir()
    (folder / "secrets" / "feed-token").write_text(token)
    return folder


@pytest.mark.prometheus
@pytest.mark.slow
def test_its_targets_are_those_that_the_gateway_lists_to_the_feed_token(gateway: str, tmp_path: Path) -> None:
    if shutil.which(server.BINARY) is None:
        pytest.skip("no Prometheus server on PATH")
    with server.prometheus(gateway, state_with(TOKEN, tmp_path), window_s=2.0) as url:
        rows = requests.get(f"{url}/api/v1/query", params={"query": "smoe_answer"}, timeout=5).json()["data"]["result"]
    assert {row["metric"]["job"]: row["value"][1] for row in rows} == {"gateway": "42", "ingress": "42"}
    with pytest.raises(requests.RequestException):
        requests.get(url, timeout=2)


@pytest.mark.prometheus
@pytest.mark.slow
def test_a_server_that_finds_no_target_is_an_error_with_its_own_words(
    gateway: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(server.BINARY) is None:
        pytest.skip("no Prometheus server on PATH")
    monkeypatch.setattr(server, "READY_S", 3.0)
    with pytest.raises(SmoeError, match="401"), server.prometheus(gateway, state_with("wrong", tmp_path), 2.0):
        pass


def test_without_a_server_on_path_the_run_reads_the_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = demo.RunSettings(pipeline="minilm", state=tmp_path, data=None)
    with demo._metrics(settings, "http://127.0.0.1:1", Console(width=200)) as url:
        assert url is None
    assert "the targets themselves: no Prometheus is on PATH" in capsys.readouterr().out

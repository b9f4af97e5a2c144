"""Decisions of ``smoe placement rebalance`` against a played gateway, its ingresses, and a coordinator that notes its
orders."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from moe.manifest import Manifest, load
from placement.heterogeneous import MIB, expert_bytes
from placement.moves.errors import MoveError
from placement.moves.journal import Phase
from smoe.cli import cli
from smoe.commands import rebalance as command

KEY = "right"


class Simulated:
    """Two nodes with an ingress each and every expert on the other node than its callers'; moves are noted."""

    def __init__(self, manifest: Manifest, calls: float) -> None:
        self.manifest = manifest
        self.url = "played"
        self.orders: list[dict[str, Any]] = []
        self.refuses = False
        self.broken_off: Phase | None = None
        self.taken_up: list[str] = []
        self._answers = {node: self._statistics(node, calls) for node in "ab"}
        self._servers = {node: self._serve(answer) for node, answer in self._answers.items()}

    def replicas(self) -> dict[str, list[dict[str, Any]]]:
        replicas = {self.manifest.name: [self._replica(node, port) for node, port in self.ports.items()]}
        for layer in range(self.manifest.layers):
            for node in self.manifest.experts(layer):
                at = "b" if (node.expert or 0) < 2 else "a"
                replicas[self.manifest.function_name(node.id)] = [self._replica(at, 1)]
        return replicas

    def caller_key(self, name: str) -> str:
        assert name == self.manifest.name
        return KEY

    def functions(self) -> list[dict[str, Any]]:
        return [{"name": name, "labels": {"smoe.pipeline": self.manifest.name}} for name in self.replicas()]

    def roll_back(self) -> Any:
        return self._take_up("back")

    def resume(self) -> Any:
        return self._take_up("on")

    def _take_up(self, goes: str) -> Any:
        if self.broken_off is None:
            return None
        self.broken_off = None
        self.taken_up.append(goes)
        return SimpleNamespace(settled_s=0.5)

    def move(self, target: Any) -> Any:
        assert self.broken_off is None
        if self.refuses:
            raise MoveError("the move was taken back: played")
        self.orders.append(target)
        return SimpleNamespace(settled_s=0.5)

    @property
    def ports(self) -> dict[str, int]:
        return {node: server.server_address[1] for node, server in self._servers.items()}

    def lose(self, node: str) -> None:
        self._servers[node].shutdown()
        self._servers[node].server_close()

    def close(self) -> None:
        """As a client's: it keeps no connection open."""

    def end(self) -> None:
        for node in self._servers:
            self.lose(node)

    def _statistics(self, node: str, calls: float) -> bytes:
        tokens = [calls, calls, 0, 0] if node == "a" else [0, 0, calls, calls]
        return json.dumps({"node": node, "window_s": 300, "tokens": [tokens] * self.manifest.layers}).encode()

    @staticmethod
    def _replica(node: str, port: int) -> dict[str, Any]:
        return {"id": f"{node}{port}", "address": f"127.0.0.1:{port}", "state": "ready", "node": node}

    @staticmethod
    def _serve(answer: bytes) -> ThreadingHTTPServer:
        class Answering(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if self.headers["X-Smoe-Caller-Key"] == KEY else 403)
                self.end_headers()
                self.wfile.write(answer if self.path == "/statistics" else b"{}")

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server


@pytest.fixture
def manifest(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


@pytest.fixture(params=[1e9])
def simulated(
    request: pytest.FixtureRequest, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Simulated]:
    platform = Simulated(manifest, request.param)
    monkeypatch.setattr(command, "connect", lambda *_: platform)
    monkeypatch.setattr(command, "Coordinator", lambda *_: nullcontext(platform))
    yield platform
    platform.end()


@pytest.fixture
def run(minilm_pipeline: Path, manifest: Manifest, tmp_path: Path) -> Any:
    memory_mb = (2 * manifest.layers * expert_bytes(manifest) + 1) / MIB
    profile = tmp_path / "nodes.json"
    profile.write_text(
        json.dumps({"nodes": {"a": {"memory_mb": memory_mb}, "b": {"memory_mb": memory_mb}}, "mbit_per_s": 500})
    )

    def invoke(*options: str) -> Result:
        given = ["rebalance", str(minilm_pipeline), "--nodes", str(profile), "--state", str(tmp_path), *options]
        return CliRunner().invoke(cli, given)

    return invoke


def test_experts_go_to_their_callers_when_that_pays(simulated: Simulated, run: Any) -> None:
    result = run("--once", "--json")
    assert result.exit_code == 0, result.output
    reported = json.loads(result.output)
    assert (reported["worth"], reported["moved"], reported["then_s"], reported["moved_s"]) == (True, True, 0, 0.5)
    manifest = simulated.manifest
    assert simulated.orders == [
        {
            manifest.function_name(node.id): {"a" if (node.expert or 0) < 2 else "b": 1}
            for layer in range(manifest.layers)
            for node in manifest.experts(layer)
        }
    ]


def test_a_dry_run_says_what_would_pay_and_moves_nothing(simulated: Simulated, run: Any) -> None:
    result = run("--dry-run")
    assert result.exit_code == 0, result.output
    assert "worth a move" in result.output
    assert simulated.orders == []


@pytest.mark.parametrize("simulated", [1.0], indirect=True)
def test_few_calls_are_not_worth_a_move(simulated: Simulated, run: Any) -> None:
    assert "nothing moves" in run("--once").output
    assert simulated.orders == []


def test_without_one_ingresss_account_nothing_is_decided(simulated: Simulated, run: Any) -> None:
    simulated.lose("b")
    result = run("--once")
    assert result.exit_code == 1
    assert "gave no statistics" in str(result.exception)
    assert simulated.orders == []


def test_decisions_go_on_after_one_that_failed(simulated: Simulated, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated.refuses = True
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        simulated.refuses = False
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", wait)
    result = run("--every", "7")
    assert "no decision: the move was taken back: played" in result.output
    assert (waited, len(simulated.orders)) == ([7.0, 7.0], 1)


@pytest.mark.parametrize(
    ("phase", "goes", "ending"),
    [
        ("copying", "back", "taken back"),
        ("switching", "back", "taken back"),
        ("releasing", "on", "finished"),
    ],
)
def test_a_move_that_was_broken_off_is_settled_before_a_decision(
    simulated: Simulated, run: Any, phase: Phase, goes: str, ending: str
) -> None:
    simulated.broken_off = phase
    result = run("--once")
    assert result.exit_code == 0, result.output
    assert f"broken off is {ending}" in result.output
    assert (simulated.taken_up, len(simulated.orders)) == ([goes], 1)


def test_a_dry_run_leaves_a_move_that_was_broken_off(simulated: Simulated, run: Any) -> None:
    simulated.broken_off = "switching"
    result = run("--dry-run")
    assert result.exit_code == 0, result.output
    assert (simulated.taken_up, simulated.orders) == ([], [])

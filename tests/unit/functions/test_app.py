"""The Flask form answers as the local worker does."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.harness.local_pipeline import LocalPipeline
from functions.app import FunctionApp, serve, threads_for
from functions.serving.server import ServerSettings
from functions.serving.settings import from_environment
from functions.wire import format as wire
from moe.manifest import load
from moe.reference import WholeModel
from moe.runtime import load_node


def until(holds: Callable[[], bool]) -> None:
    """At most 100 s; who calls looks whether it does."""
    end_s = time.monotonic() + 100
    while not holds() and time.monotonic() < end_s:
        time.sleep(0.01)


def ready_app(environ: dict[str, str]) -> FunctionApp:
    app = FunctionApp(from_environment(environ))
    until(lambda: app.server.ready)
    return app


def status(url: str) -> int:
    """The answer's status; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=100) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def until_idle(app: FunctionApp) -> None:
    until(lambda: not app.server.in_flight)
    assert app.server.in_flight == 0


@pytest.fixture(scope="module")
def expert(bert: Path) -> Iterator[FunctionApp]:
    app = ready_app({"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "max_inflight": "4"})
    yield app
    app.close()


def test_an_expert_answers_as_its_program(expert: FunctionApp, bert: Path) -> None:
    x = {"x": torch.randn(3, 32)}
    reply = expert.test_client().post("/", data=wire.encode_bytes(x), headers={"X-Request-Id": "abc"})
    program = load_node(bert, load(bert, verify=False), "expert-0-0")
    assert (reply.status_code, reply.content_type) == (200, wire.CONTENT_TYPE)
    assert reply.headers["X-Request-Id"] == "abc"
    torch.testing.assert_close(wire.decode(reply.data)["y"], program.run(x)["y"])


def test_in_a_container_a_worker_with_a_key_takes_no_call_without_it(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    environ = {"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "smoe_caller_key_file": str(tmp_path / "key")}
    app = ready_app(environ)
    try:
        client, body = app.test_client(), wire.encode_bytes({"x": torch.randn(3, 32)})
        keys = ("", "guess", "é", "secret")
        answers = [client.post("/", data=body, headers={"x-smoe-caller-key": key}) for key in keys]
        assert [answer.status_code for answer in answers] == [403, 403, 403, 200]
        assert {client.get(path).status_code for path in ("/_/health", "/_/ready", "/metrics")} == {200}
    finally:
        app.close()


def test_what_fails_before_a_call_is_served_is_500_at_once(
    expert: FunctionApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expert.server, "admit", lambda request, answer: 1 / 0)
    assert expert.test_client().post("/", data=b"SMOE").status_code == 500


def test_the_function_contract_holds_behind_flask_too(expert: FunctionApp) -> None:
    client = expert.test_client()
    assert client.get("/_/health").status_code == 200
    assert client.get("/_/ready").status_code == 200
    assert b"smoe_worker_calls" in client.get("/metrics").data
    assert client.post("/", data=b"SMOE").status_code == 400
    assert client.get("/").status_code == 405
    assert client.post("/elsewhere").status_code == 404
    assert client.post("/", headers={"X-Timeout-Ms": "0"}).status_code == 504
    expert.server.in_flight = 4
    busy = client.post("/", data=b"")
    expert.server.in_flight = 0
    assert (busy.status_code, busy.headers["Retry-After"], busy.headers["X-OpenFaaS-Internal"]) == (429, "1", "smoe")


def test_a_body_above_the_limit_gets_413(expert: FunctionApp) -> None:
    expert.config["MAX_CONTENT_LENGTH"] = 10
    reply = expert.test_client().post("/", data=bytes(11))
    expert.config["MAX_CONTENT_LENGTH"] = expert.server.settings.max_body_bytes
    assert reply.status_code == 413
    assert "error" in json.loads(reply.data)


def test_bodies_behind_flask_have_the_bounds_of_the_function(
    expert: FunctionApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, bounds, body = expert.test_client(), expert.server.settings, bytes(100)
    assert 8192 * 32 * 4 < bounds.max_body_bytes < 64 * 2**20
    monkeypatch.setattr(bounds, "max_held_bytes", 150)
    monkeypatch.setattr(expert.server, "held_bytes", 51)
    refused = client.post("/", data=body)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    monkeypatch.setattr(expert.server, "held_bytes", 50)
    assert client.post("/", data=body).status_code == 400  # taken, and no tensors
    assert expert.server.held_bytes == 50
    monkeypatch.setattr(bounds, "max_body_bytes", 99)
    assert client.post("/", data=body).status_code == 413


def test_the_live_limit_is_read_again(bert: Path, tmp_path: Path) -> None:
    live = tmp_path / "live.json"
    app = ready_app(
        {"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "smoe_live_settings": str(live), "max_inflight": "1"}
    )
    live.write_text('{"max_inflight": 9}')
    app.reload()
    assert app.server.settings.max_inflight == 9
    live.write_text('{"max_inflight": "many"}')
    app.reload()
    assert app.server.settings.max_inflight == 9
    app.close()


@pytest.mark.slow
def test_the_ingress_serves_the_model_through_flask(bert: Path) -> None:
    with LocalPipeline(bert) as pipeline:
        own = {"smoe_nodes": "ingress", "smoe_feed_url": pipeline.feed_url}
        app = ready_app({"smoe_pipeline": str(bert), **own})
        client = app.test_client()
        reply = client.post("/", json={"inputs": ["hello", "experts"]})
        expected = WholeModel(bert).embed(["hello", "experts"])
        torch.testing.assert_close(torch.tensor(reply.json["embeddings"]), expected, rtol=1e-5, atol=1e-6)
        assert client.post("/", json={"inputs": ""}).status_code == 400
        assert client.get("/").json["model"] == "tiny"
        app.close()


@pytest.mark.slow
def test_flask_streams_and_tells_when_its_client_is_gone(pipeline_of: Callable[[str], Path]) -> None:
    decoder = pipeline_of("mixtral")
    with LocalPipeline(decoder) as pipeline:
        own = {"smoe_nodes": "ingress", "smoe_feed_url": pipeline.feed_url}
        app = ready_app({"smoe_pipeline": str(decoder), **own})
        client = app.test_client()
        request = {"prompt": "abc", "max_tokens": 20, "temperature": 0}
        whole = client.post("/v1/completions", json=request).json["choices"][0]["text"]
        reply = client.post("/v1/completions", json={**request, "stream": True}, buffered=False)
        events = [line.removeprefix(b"data: ") for line in reply.data.split(b"\n\n") if line]
        assert events.pop() == b"[DONE]"
        assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == whole
        until_idle(app)
        pieces = client.post("/v1/completions", json={**request, "max_tokens": 50, "stream": True}, buffered=False)
        next(pieces.response)
        pieces.close()
        until_idle(app)
        app.close()


@pytest.mark.parametrize(
    ("nodes", "words"), [("expert-9-9", "expert-9-9"), ("ingress", "smoe_feed_url or smoe_address_template")]
)
def test_bad_settings_keep_it_unready_with_a_sentence(bert: Path, nodes: str, words: str) -> None:
    app = FunctionApp(from_environment({"smoe_pipeline": str(bert), "smoe_nodes": nodes}))
    until(lambda: words in app.test_client().get("/_/ready").text)
    reply = app.test_client().get("/_/ready")
    app.close()
    assert (reply.status_code, words in reply.text) == (503, True)


@pytest.mark.slow
@pytest.mark.parametrize(("module", "key"), [("functions.app", "smoe_upstream_port"), ("functions.worker", "port")])
def test_a_function_runs_from_its_environment_until_sigterm(bert: Path, module: str, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = {
        "smoe_pipeline": str(bert),
        "smoe_nodes": "expert-0-0",
        key: str(port),
        "OMP_NUM_THREADS": "1",
        "smoe_quiet": "0s",
    }
    with subprocess.Popen([sys.executable, "-m", module], env={**os.environ, **own}) as process:
        try:
            ready = f"http://127.0.0.1:{port}/_/ready"
            until(lambda: status(ready) == 200)
            assert status(ready) == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 0
        finally:
            process.kill()  # else leaving the block waits for ever where it did not end


@pytest.mark.slow
def test_behind_a_watchdog_a_function_answers_until_the_watchdog_has_ended(bert: Path, tmp_path: Path) -> None:
    """However long nothing is called: a process of its name stands for it, and ends when its input does."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (watchdog := tmp_path / "fwatchdog").symlink_to(sys.executable)
    start = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    own = {"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "smoe_upstream_port": str(port), "smoe_quiet": "0s"}
    command, pipe = [watchdog, "-c", start, sys.executable, "-m", "functions.app"], subprocess.PIPE
    ready = f"http://127.0.0.1:{port}/_/ready"
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **own}) as process:
        assert process.stdin is not None and process.stdout is not None
        function = int(process.stdout.readline())
        try:
            until(lambda: status(ready) == 200)
            os.kill(function, signal.SIGTERM)
            until(lambda: status(ready) == 503)
            time.sleep(1.0)  # much longer than it would stay by itself
            assert status(ready) == 503
            process.stdin.close()
            until(lambda: status(ready) == 0)
            assert status(ready) == 0
        finally:
            with suppress(ProcessLookupError):
                os.kill(function, signal.SIGKILL)


class Answered:
    """What ``serve`` needs of an application; its one reply is answered, and its drain over, before it is sent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.server = SimpleNamespace(settings=ServerSettings())
        self.function_settings = SimpleNamespace(write_timeout_s=100.0)
        self.answered, self.drained, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, environ: dict[str, str], start_response: Callable[..., object]) -> Iterator[bytes]:
        start_response("200 OK", [("content-length", str(self.size))])
        yield bytes(self.size)
        self.answered.set()

    def drain(self) -> None:
        self.drained.set()

    def close(self) -> None:
        self.closed.set()


class Busy(Answered):
    """Calls of ``/`` stay until they are let go; anything else is answered."""

    def __init__(self, max_inflight: int) -> None:
        super().__init__(0)
        self.server = SimpleNamespace(settings=ServerSettings(max_inflight))
        self.calls: list[str] = []
        self.let_go = threading.Event()

    def __call__(self, environ: dict[str, str], start_response: Callable[..., object]) -> Iterator[bytes]:
        if environ["PATH_INFO"] == "/":
            self.calls.append(environ["REQUEST_METHOD"])
            assert self.let_go.wait(200)
        start_response("200 OK", [("content-length", "0")])
        return iter(())


@pytest.mark.slow
@pytest.mark.parametrize("at_first", [150, 4])
def test_as_many_calls_as_are_let_in_are_under_way_at_once_and_scrapes_are_answered_meanwhile(at_first: int) -> None:
    """By default waitress has four threads and accepts a hundred connections. The limit may be raised meanwhile."""
    app = Busy(max_inflight=at_first)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"

    def ask() -> int:
        until(lambda: status(f"{url}metrics") == 200)
        app.server.settings.max_inflight = 150
        with ThreadPoolExecutor(150) as callers:
            answers = [callers.submit(status, url) for _ in range(150)]
            try:
                until(lambda: len(app.calls) == len(answers))
                under_way = len(app.calls)
                scraped = status(f"{url}metrics")
            finally:
                app.let_go.set()
            assert {one.result() for one in answers} == {scraped} == {200}
        os.kill(os.getpid(), signal.SIGTERM)
        return under_way

    with ThreadPoolExecutor(1) as thread, handlers_kept():
        asking = thread.submit(ask)
        serve(app, "127.0.0.1", port)  # type: ignore[arg-type]
        assert asking.result() == 150


def test_a_function_has_threads_for_its_calls_within_bounds() -> None:
    assert [threads_for(limit) for limit in (0, 10, 512, 10_000)] == [1000, 32, 520, 1000]


@contextmanager
def handlers_kept() -> Iterator[None]:
    """``serve`` takes signals over, and leaves them so."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


@pytest.mark.slow
def test_a_function_ends_once_its_last_reply_is_sent() -> None:
    app = Answered(12 << 20)  # more than the sockets take, less than waitress holds back
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def call() -> bytes:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(100)
        until(lambda: client.connect_ex(("127.0.0.1", port)) in (0, errno.EISCONN))
        with client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert app.answered.wait(100)
            os.kill(os.getpid(), signal.SIGTERM)
            assert app.drained.wait(100)
            assert not app.closed.wait(0.5)
            return b"".join(iter(lambda: client.recv(1 << 20), b""))

    with ThreadPoolExecutor(1) as thread, handlers_kept():
        reply = thread.submit(call)
        serve(app, "127.0.0.1", port, 1)  # type: ignore[arg-type]
        assert len(reply.result().partition(b"\r\n\r\n")[2]) == app.size
    assert app.closed.is_set()

"""A pipeline as forked worker processes without a gateway: for tests and benchmarks.

    with LocalPipeline(directory) as pipeline:
        pipeline.url  # the ingress

Workers die with this process, whatever ends it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.harness.clean_forks import clean_forks
from gateway.backends.process.workers.parent_client import Exit
from moe.grouping import FunctionGroup, group
from moe.manifest import load

LOOPBACK = "127.0.0.1"
FEED_S = 0.5
"""Seconds between two lines of the feed."""
STOP_S = 8.0


@dataclass
class WorkerProcess:
    """One forked worker and where it listens."""

    function: str
    pid: int
    port: int
    node: str = ""
    """The emulated machine it is on."""
    slot: str = ""
    """Its name for the process that forked it."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def wait(self) -> Exit:
        """How it ended, once it has."""
        return clean_forks().wait(self.slot)


def start_worker(function: str, environ: Mapping[str, str], node: str = "") -> WorkerProcess:
    """Fork a worker and wait until it is ready. Raises RuntimeError when it ends before."""
    with socket.create_server((LOOPBACK, 0), backlog=512) as listener:
        slot, pid = clean_forks().fork(function, environ, listener)
        return WorkerProcess(function, pid, listener.getsockname()[1], node, slot)


class LocalPipeline:
    """Every function of a pipeline folder as ``replicas`` forked workers each, and one ingress, in a ``with`` block.

    With ``nodes``, replica r of function f is reported to be on node ``(f + r) mod len(nodes)``, the ingress on the
    first. The ingress follows a small feed of this object, as it would follow a gateway's.
    """

    ingress: WorkerProcess

    def __init__(
        self,
        directory: Path,
        *,
        replicas: int = 1,
        max_inflight: int = 8,
        max_functions: int = 0,
        nodes: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._replicas, self._max_inflight = replicas, max_inflight
        self._nodes = tuple(nodes) or ("",)
        self._environ = {
            "smoe_pipeline": str(directory.resolve()),
            "max_inflight": str(max_inflight),
            "smoe_max_functions": str(max_functions),
            "write_timeout": "5s",
            **(environ or {}),
        }
        self.manifest = load(directory.resolve(), verify=False)
        self._functions = group(self.manifest, max_functions).functions[1:]
        self.workers: list[WorkerProcess] = []
        self._ingresses: list[WorkerProcess] = []
        self._ended = threading.Event()
        self._feed: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://{self.ingress.address}"

    @property
    def key(self) -> str:
        """What workers and ingresses take calls with; empty where ``environ`` names no ``smoe_caller_key_file``."""
        file = self._environ.get("smoe_caller_key_file")
        return Path(file).read_text() if file else ""

    @property
    def feed_url(self) -> str:
        """Where the replicas are published, as a gateway would."""
        assert self._feed is not None, "start it first"
        return f"http://{LOOPBACK}:{self._feed.server_address[1]}/system/replicas"

    def __enter__(self) -> LocalPipeline:
        try:
            for number, function in enumerate(self._functions):
                for replica in range(self._replicas):
                    node = self._nodes[(number + replica) % len(self._nodes)]
                    self.workers.append(self._worker(function, node))
            self._feed = _feed_server(self._snapshot, self._ended)
            self.ingress = self.add_ingress({})
        except BaseException:
            self.__exit__()
            raise
        return self

    def add_ingress(self, environ: Mapping[str, str]) -> WorkerProcess:
        """One more ingress over the same workers, with settings of its own; it ends with the others."""
        settings = {"smoe_nodes": "ingress", "max_inflight": "0", "smoe_feed_url": self.feed_url, **environ}
        self._ingresses.append(self._fork(self.manifest.name, self._nodes[0], settings))
        return self._ingresses[-1]

    def start_again(self, worker: WorkerProcess) -> None:
        """Another one in place of ``worker`` once that has ended, as a gateway would start it."""
        worker.wait()
        function = next(one for one in self._functions if one.name == worker.function)
        self.workers[self.workers.index(worker)] = self._worker(function, worker.node)

    def _worker(self, function: FunctionGroup, node: str) -> WorkerProcess:
        return self._fork(function.name, node, {"smoe_nodes": ",".join(function.nodes)})

    def _fork(self, function: str, node: str, extra_environ: Mapping[str, str]) -> WorkerProcess:
        return start_worker(function, {"smoe_machine": node, **self._environ, **extra_environ}, node)

    def _snapshot(self) -> bytes:
        """All workers, as a line of the feed."""
        replicas_of: dict[str, list[dict[str, str]]] = {}
        for one in self.workers:
            entry = {"id": str(one.pid), "address": one.address, "state": "ready", "node": one.node}
            replicas_of.setdefault(f"{one.function}.openfaas-fn", []).append(entry)
        limits = {"max_inflight": self._max_inflight, "key": self.key}
        functions = {name: {**limits, "replicas": replicas} for name, replicas in replicas_of.items()}
        return json.dumps({"version": 1, "functions": functions}).encode() + b"\n"

    def __exit__(self, *_: object) -> None:
        """SIGTERM to all, wait, SIGKILL to those that stay."""
        processes = [*self.workers, *self._ingresses]
        for process in processes:
            _signal(process.pid, signal.SIGTERM)
        self._ended.set()
        if self._feed is not None:
            self._feed.shutdown()
            self._feed.server_close()
        for process in processes:
            timer = threading.Timer(STOP_S, _signal, (process.pid, signal.SIGKILL))
            timer.start()
            process.wait()
            timer.cancel()


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _feed_server(line: Callable[[], bytes], ended: threading.Event) -> ThreadingHTTPServer:
    """The gateway's replica feed in small: the NDJSON ``line`` again and again, until ``ended``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not ended.is_set():
                    self.wfile.write(line())
                    self.wfile.flush()
                    ended.wait(FEED_S)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: this is a test and benchmark aid."""

    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server

"""A pipeline as forked worker processes without a gateway: for tests and benchmarks.

    with LocalPipeline(directory) as pipeline:
        pipeline.url  # the ingress

Workers die with this process, whatever ends it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Protocol

from functions import worker
from moe.grouping import group
from moe.manifest import load

_PR_SET_PDEATHSIG = 1
LOOPBACK = "127.0.0.1"


@dataclass
class WorkerProcess:
    """One forked worker and where it listens."""

    function: str
    pid: int
    port: int
    host: str = LOOPBACK
    node: str = ""
    """The emulated machine it is on."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Ground(Protocol):
    """Where workers are started: emulated machines may have networks of their own."""

    feed_host: str
    """Address at which this process is reached from every node."""

    def host(self, node: str) -> str:
        """Address at which a node's workers listen."""

    def fork(self, node: str, start: Callable[[], WorkerProcess]) -> WorkerProcess:
        """``start()`` on that node; on a thread that outlives the worker, which dies with the one it was forked by."""


class OneMachine:
    """All nodes on this machine's loopback device."""

    feed_host = LOOPBACK

    def host(self, node: str) -> str:
        return LOOPBACK

    def fork(self, node: str, start: Callable[[], WorkerProcess]) -> WorkerProcess:
        return start()


def fork_worker(function: str, environ: Mapping[str, str], host: str = LOOPBACK) -> WorkerProcess:
    """Fork a worker and wait until it is ready. Raises RuntimeError when it ends before."""
    listener = socket.create_server((host, 0), backlog=512)
    port = listener.getsockname()[1]
    read_end, write_end = os.pipe()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent_pid:
                os._exit(1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            worker.main(environ, listener, lambda: _report_ready(write_end))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write_end)
    listener.close()
    try:
        if os.read(read_end, 1) != b"r":
            os.waitpid(pid, 0)
            raise RuntimeError(f"the worker of {function} ended before it was ready; its error is above")
    finally:
        os.close(read_end)
    return WorkerProcess(function, pid, port, host)


def _report_ready(write_end: int) -> None:
    os.write(write_end, b"r")
    os.close(write_end)


class LocalPipeline:
    """Every function of a pipeline folder as ``replicas`` forked workers each, and one ingress.

    With ``nodes``, replica r of function f is reported to be on node ``(f + r) mod len(nodes)``, the ingress on the
    first. The ingress follows a small feed of this object, as it would follow a gateway's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        replicas: int = 1,
        max_inflight: int = 8,
        max_functions: int = 0,
        nodes: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        ground: Ground | None = None,
    ) -> None:
        self._directory = directory.resolve()
        self._replicas = replicas
        self._max_inflight = max_inflight
        self._max_functions = max_functions
        self._nodes = tuple(nodes) or ("",)
        self._environ = dict(environ or {})
        self._ground = ground or OneMachine()
        self._feed = _Feed(self._ground.feed_host)
        self.manifest = load(self._directory, verify=False)
        self.workers: list[WorkerProcess] = []
        self.ingress: WorkerProcess | None = None
        self._added: list[WorkerProcess] = []

    @property
    def url(self) -> str:
        assert self.ingress is not None, "start it first"
        return f"http://{self.ingress.address}"

    @property
    def feed_url(self) -> str:
        """Where the replica table is published, as a gateway would."""
        return self._feed.url

    def __enter__(self) -> LocalPipeline:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        for number, function in enumerate(group(self.manifest, self._max_functions).functions[1:]):
            for replica in range(self._replicas):
                node = self._nodes[(number + replica) % len(self._nodes)]
                environment = {"smoe_nodes": ",".join(function.nodes)}
                self.workers.append(self._fork(function.name, node, environment))
        self.publish()
        self._feed.start()
        self.ingress = self._fork_ingress({})

    def add_ingress(self, environ: Mapping[str, str]) -> WorkerProcess:
        """One more ingress over the same workers, with settings of its own; it ends with the others."""
        self._added.append(self._fork_ingress(environ))
        return self._added[-1]

    def _fork_ingress(self, environ: Mapping[str, str]) -> WorkerProcess:
        feed = {
            "smoe_nodes": "ingress",
            "max_inflight": "0",
            "smoe_feed_url": self._feed.url,
        }
        return self._fork(self.manifest.name, self._nodes[0], {**feed, **environ})

    def _fork(self, function: str, node: str, extra_environ: Mapping[str, str]) -> WorkerProcess:
        environ = {
            "smoe_pipeline": str(self._directory),
            "max_inflight": str(self._max_inflight),
            "smoe_max_functions": str(self._max_functions),
            "write_timeout": "5s",
            "smoe_machine": node,
            **self._environ,
            **extra_environ,
        }
        host = self._ground.host(node)
        return replace(self._ground.fork(node, lambda: fork_worker(function, environ, host)), node=node)

    def publish(self) -> None:
        """Send the ingress the workers that are ready now."""
        functions: dict[str, dict[str, object]] = {}
        for process in self.workers:
            entry = functions.setdefault(
                f"{process.function}.openfaas-fn", {"max_inflight": self._max_inflight, "replicas": []}
            )
            replicas = entry["replicas"]
            assert isinstance(replicas, list)
            replicas.append(
                {"id": str(process.pid), "address": process.address, "state": "ready", "node": process.node}
            )
        self._feed.publish(functions)

    def stop(self) -> None:
        """SIGTERM to all, wait, SIGKILL to those that stay."""
        processes = [*self.workers, *([self.ingress] if self.ingress else []), *self._added]
        for process in processes:
            _signal(process.pid, signal.SIGTERM)
        self._feed.stop()
        for process in processes:
            timer = threading.Timer(8, _signal, (process.pid, signal.SIGKILL))
            timer.start()
            try:
                os.waitpid(process.pid, 0)
            except ChildProcessError:
                pass
            finally:
                timer.cancel()
        self.workers, self.ingress, self._added = [], None, []


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class _Feed:
    """The gateway's replica feed in small: NDJSON snapshots over HTTP."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._changed = threading.Condition()
        self._version = 0
        self._functions: Mapping[str, object] = {}
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        handler = _feed_handler(self._snapshot)
        self._server = ThreadingHTTPServer((self._host, 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        assert self._server is not None, "start it first"
        return f"http://{self._host}:{self._server.server_address[1]}/system/replicas"

    def publish(self, functions: Mapping[str, object]) -> None:
        with self._changed:
            self._functions = functions
            self._version += 1
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._version = -1
            self._changed.notify_all()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _snapshot(self, last_version: int) -> tuple[int, bytes]:
        """The next version after ``last_version`` (or the present one after 5 s); version -1 ends the feed."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != last_version, 5.0)
            document = {"version": self._version, "functions": self._functions}
            return self._version, json.dumps(document).encode() + b"\n"


def _feed_handler(snapshot: Callable[[int], tuple[int, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            version = 0
            try:
                while version >= 0:
                    version, line = snapshot(version)
                    self.wfile.write(line)
                    self.wfile.flush()
            except OSError:
                return

        def log_message(self, format: str, *args: object) -> None:
            """Silent: this is a test and benchmark aid."""

    return Handler

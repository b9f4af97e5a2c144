"""The double on a port of its own, served from a thread with its own event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import uvicorn

from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.server import ApiServer

Result = TypeVar("Result")
WAIT_S = 100.0


class Running:
    """``url`` of the API, and its parts. Tests change them only through :meth:`do`, on the double's own loop."""

    def __init__(self, url: str, api: ApiServer, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.api = api
        self.cluster = api.cluster
        self.store = api.store
        self._loop = loop

    def do(self, work: Callable[[], Result]) -> Result:
        """Run on the double's loop and let the cluster settle."""

        async def run() -> Result:
            result = work()
            self.cluster.settle()
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_S)

    def set(self, **switches: Any) -> None:
        """Set switches of the API (``down``, ``conflicts``, …) or of the cluster (``hold_starts``, …)."""

        def change() -> None:
            for name, value in switches.items():
                owner = self.api if hasattr(self.api, name) else self.cluster
                assert hasattr(owner, name), name
                setattr(owner, name, value)

        self.do(change)

    def end_watches(self) -> None:
        """Cut every watch; the cluster need not settle."""
        self._loop.call_soon_threadsafe(self.api.cut_watches)

    def deployment(self, name: str, namespace: str = "openfaas-fn") -> dict[str, Any]:
        return self.do(lambda: self.store.get("deployments", namespace, name))

    def pods(self, function: str | None = None) -> list[dict[str, Any]]:
        return self.do(lambda: [dict(pod) for pod in self.cluster.pods(function)])


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def running(cluster: Callable[[], Cluster] = Cluster, version: tuple[int, int] = (1, 36)) -> Iterator[Running]:
    """Serve a cluster until the end of the block."""
    found: Future[tuple[Running, _Server]] = Future()

    async def serve(listener: socket.socket) -> None:
        api = ApiServer(cluster(), version)
        config = uvicorn.Config(
            api.app, http="h11", loop="none", lifespan="off", log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        server = _Server(config)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found.set_result((Running(url, api, asyncio.get_running_loop()), server))
        await server.serve(sockets=[listener])
        api.cluster.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Head and body are two writes, and asyncio does not set this here: each reply would wait 40 ms for the client.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=lambda: asyncio.run(serve(listener)), name="kubernetes-double", daemon=True)
        thread.start()
        double, server = found.result(WAIT_S)
        try:
            yield double
        finally:
            server.should_exit = True
            double.end_watches()
            thread.join(WAIT_S)

"""Whole gateways in this process: real sockets and servers, replicas of the backend in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from gateway.app import Gateway
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, FunctionSpec
from gateway.serving import build_server, listen
from gateway.settings import Credentials, GatewaySettings, ensure_credentials
from tests.doubles.fake_backend import FakeBackend
from tests.doubles.fake_replica import FakeReplica, Program
from tests.unit.gateway.client import WAIT_S, Reply, ask

TIMEOUT_S = 20.0


class Running:
    """Addresses and parts of a running gateway."""

    def __init__(
        self, gateway: Gateway, backend: FakeBackend, credentials: Credentials, ports: tuple[int, int]
    ) -> None:
        self.gateway = gateway
        self.backend = backend
        self.credentials = credentials
        self.address = f"127.0.0.1:{ports[0]}"
        self.metrics_address = f"127.0.0.1:{ports[1]}"

    @property
    def basic(self) -> str:
        pair = f"{self.credentials.user}:{self.credentials.password}"
        return "Basic " + base64.b64encode(pair.encode()).decode()

    async def call(self, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
        """A request as anyone may send it."""
        return await ask(self.address, method, target, body, **headers)

    async def system(self, method: str, target: str, document: Any = None, **headers: str) -> Reply:
        """A request to the control API with basic auth and a JSON body."""
        body = b"" if document is None else json.dumps(document).encode()
        return await ask(self.address, method, target, body, authorization=self.basic, **headers)

    async def deploy(self, name: str = "f", replicas: int = 1, program: Program | None = None, **fields: Any) -> None:
        """A function straight in the backend; ``program`` answers its calls."""
        image = f"test/{name}"
        if program is not None:
            self.backend.programs[image] = program
        await self.backend.create(FunctionSpec(name, image, **fields), replicas)

    def replicas(self, name: str = "f") -> list[FakeReplica]:
        return self.backend.replicas(name, DEFAULT_NAMESPACE)

    async def metrics(self) -> str:
        return (await ask(self.metrics_address, "GET", "/metrics")).text

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that sends no notice, by giving way to the other tasks of the loop."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0)


Starter = Callable[..., AbstractAsyncContextManager[Running]]


@asynccontextmanager
async def gateway_on(state: Path, backend: FakeBackend | None = None, **changes: Any) -> AsyncIterator[Running]:
    """A running gateway on a state folder; ``changes`` are settings."""
    settings = GatewaySettings(state=state, **{"settle_s": 0.0, "drain_s": 5.0, "start_wait_s": 5.0, **changes})
    backend = backend or FakeBackend()
    credentials = ensure_credentials(settings)
    gateway = Gateway(settings, backend, credentials)
    sockets = (listen(settings.host, 0), listen(settings.host, 0))
    ports = (sockets[0].getsockname()[1], sockets[1].getsockname()[1])
    gateway.system.metrics_address = f"{settings.host}:{ports[1]}"
    servers = [build_server(app, settings) for app in (gateway.api, gateway.metrics_app)]
    await gateway.start()
    tasks = [
        asyncio.create_task(server.serve(sockets=[socket])) for server, socket in zip(servers, sockets, strict=True)
    ]
    try:
        yield Running(gateway, backend, credentials, ports)
    finally:
        gateway.stop_streams()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks)
        await gateway.close()


class Roomy(FakeBackend):
    """Accepts any number of replicas and runs few of them: generated numbers must not open thousands of sockets."""

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        await super().create(spec, min(replicas, 2))

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        await super().scale(name, namespace, min(replicas, 2))


class Served:
    """A running gateway in a thread and event loop of its own, for clients that block."""

    def __init__(self, state: Path) -> None:
        self._found: Future[Running] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(state)))
        self.session = requests.Session()
        self.session.trust_env = False

    def __enter__(self) -> Served:
        self._thread.start()
        self.running = self._found.result(TIMEOUT_S)
        return self

    def __exit__(self, *reason: object) -> None:
        self.session.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(TIMEOUT_S)

    def with_function(self) -> None:
        """The function of the file's examples is there, whatever was done before."""

        async def deploy() -> None:
            with suppress(ConflictError):
                await self.running.deploy("echo")

        asyncio.run_coroutine_threadsafe(deploy(), self._loop).result(TIMEOUT_S)

    async def _serve(self, state: Path) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with gateway_on(state, Roomy(), start_wait_s=0.05) as running:
                self._found.set_result(running)
                await self._stop.wait()
        except BaseException as error:
            if self._found.done():
                raise
            self._found.set_exception(error)


DEPLOYMENT: dict[str, Any] = {
    "service": "f",
    "image": "test/f:1",
    "envProcess": "cat",
    "envVars": {"A": "b", "max_inflight": "3"},
    "constraints": ["zone=a"],
    "secrets": ["key"],
    "labels": {"team": "x", "com.openfaas.scale.min": "2"},
    "annotations": {"topic": "t"},
    "limits": {"memory": "128Mi", "cpu": "500m"},
    "requests": {"memory": "64Mi"},
    "readOnlyRootFilesystem": True,
}


async def deploy(running: Running, **changes: Any) -> int:
    document = {key: value for key, value in (DEPLOYMENT | {"secrets": []} | changes).items() if value is not None}
    return (await running.system("POST", "/system/functions", document)).status

"""The ASGI application: front door, control API, and the metrics port's own small application."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.asynchronous import AsyncCalls, AsyncQueue
from gateway.auth import Auth, Passwords, SameSite
from gateway.contract import Backend, BackendError, GatewayError
from gateway.forwarding import Forwarder
from gateway.front import FrontDoor
from gateway.held import HeldBytes
from gateway.login import Login
from gateway.metrics import GatewayMetrics
from gateway.openai_door import OpenAiDoor, PageDoor
from gateway.scaling import ScaleFromZero
from gateway.sessions import Sessions
from gateway.settings import Credentials, GatewaySettings
from gateway.store import FunctionStore
from gateway.system import SystemApi, gateway_error
from gateway.views import Instances, Page, Views

log = logging.getLogger(__name__)

OPEN_PATHS = ("/healthz", "/openapi.yaml", "/")
"""Routes of the control port that ask for no password."""


class Gateway:
    """Everything of the gateway but its sockets. ``api`` and ``metrics_app`` are ASGI applications."""

    def __init__(self, settings: GatewaySettings, backend: Backend, credentials: Credentials) -> None:
        self.settings = settings
        self.backend = backend
        self.store = FunctionStore(settings.state / "functions" if settings.keeps_functions else None)
        self.metrics = GatewayMetrics(backend, settings.cpu_scale)
        scaler = ScaleFromZero(backend, enabled=settings.scale_from_zero, wait_s=settings.start_wait_s)
        self.forwarder = Forwarder(
            backend, self.metrics, scaler, settings.upstream_timeout_s, settings.upstream_silence_s
        )
        held = self.held = HeldBytes(settings.held_bytes)
        self.queue = self._make_queue()
        self.system = SystemApi(backend, self.store, self.metrics, settings)
        self._housekeeping: asyncio.Task[None] | None = None
        front = FrontDoor(
            self.forwarder, self.queue, held, buffer_bytes=settings.buffer_bytes, max_body_bytes=settings.max_body_bytes
        )
        page = Page(Views(settings.state / "view", settings.controllers), Instances(backend))
        chat = PageDoor(OpenAiDoor(front, backend, held, None))
        sessions = Sessions(credentials)
        login = Login(Passwords(credentials) if settings.basic_auth else None, sessions)
        pages = [*login.routes(), *chat.routes(), *page.routes(), Route("/", _to_ui, methods=["GET"])]
        self._routes = [*self.system.routes(), *pages]
        self._metrics_routes = [
            Route("/metrics", self._metrics_text, methods=["GET"]),
            Route("/healthz", self.system.health, methods=["GET"]),
        ]
        behind = Auth(self._control(), credentials, sessions) if settings.basic_auth else self._control()
        control = SameSite(behind, local=settings.loopback and not settings.basic_auth)
        key = None if settings.loopback and not settings.api_key else credentials.api_key
        self.api = _Router(front, OpenAiDoor(front, backend, held, key), control, self._control())
        self.metrics_app = Starlette(routes=self._metrics_routes)

    async def start(self) -> None:
        """Start the backend and bring back the functions of the store."""
        await self.backend.start()
        for spec, replicas in self.store.load():
            try:
                await self.backend.create(spec, replicas)
            except GatewayError as error:
                log.warning("function %s was not brought back: %s", spec.key, error)
        await self.queue.start()
        self._housekeeping = asyncio.create_task(self._forget_gone())

    def _make_queue(self) -> AsyncCalls:
        """The queue of asynchronous calls. Raises BackendError where a package for it is missing."""
        settings = self.settings
        bounds: dict[str, Any] = {
            "size": settings.async_queue,
            "workers": settings.async_workers,
            "body_bytes": settings.async_body_bytes,
            "held_bytes": settings.async_held_bytes,
            "held": self.held,
            "run_timeout_s": settings.async_timeout_s,
            "callback_timeout_s": settings.callback_timeout_s,
            "callback_targets": settings.callback_targets,
        }
        if settings.nats is None:
            return AsyncQueue(self.forwarder, self.metrics, **bounds)
        try:
            from gateway.jetstream import JetStreamQueue
        except ModuleNotFoundError as error:
            raise BackendError("asynchronous calls at NATS need the package nats-py: pip install smoe[nats]") from error
        return JetStreamQueue(self.forwarder, self.metrics, url=settings.nats, **bounds)

    def stop_streams(self) -> None:
        """End what clients follow without end; called before the server drains."""
        self.system.close()

    async def close(self) -> None:
        """Run queued calls, then end every replica."""
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._housekeeping
        await self.queue.close(self.settings.drain_s)
        self.forwarder.close()
        await self.backend.close()

    async def _forget_gone(self) -> None:
        version = -1
        while True:
            version = await self.backend.wait_change(version, 60.0)
            live = (replica.address for state in self.backend.list() for replica in state.replicas)
            self.forwarder.forget_gone(live)
            await asyncio.sleep(1.0)

    def served(self) -> set[tuple[str, str]]:
        """(method, path) of everything this gateway answers on both ports; HEAD of GET routes is not listed."""
        routes = (*self._routes, *self._metrics_routes)
        routed = {(method, route.path) for route in routes for method in route.methods or () if method != "HEAD"}
        return routed | FrontDoor.served() | OpenAiDoor.served()

    def _control(self) -> Starlette:
        return Starlette(
            routes=self._routes, exception_handlers={GatewayError: gateway_error, ClientDisconnect: _client_gone}
        )

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


class _Router:
    """Calls to functions skip everything that the control API needs."""

    def __init__(self, front: Any, openai: Any, control: Any, open_control: Any) -> None:
        self._front = front
        self._openai = openai
        self._control = control
        self._open = open_control

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            if path.startswith(("/function/", "/async-function/")):
                await self._front(scope, receive, send)
                return
            if path.startswith("/v1/"):
                await self._openai(scope, receive, send)
                return
            if path in OPEN_PATHS:
                await self._open(scope, receive, send)
                return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
            return
        await self._control(scope, receive, send)


async def _to_ui(request: Request) -> Response:
    return RedirectResponse("/ui/", status_code=307)


async def _client_gone(request: Request, error: Exception) -> Response:
    """A client left within its body: nobody reads the answer, and there is nothing to report."""
    return Response(status_code=400)

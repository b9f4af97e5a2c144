"""The control door: OpenFaaS's ``/system`` API. Writes answer 202, as OpenFaaS's own gateway does."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import platform
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway import __version__
from gateway.contract import (
    DEFAULT_NAMESPACE,
    Backend,
    FunctionState,
    GatewayError,
    InvalidSpecError,
    LogLine,
    NotFoundError,
)
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.specs import (
    check_name,
    check_namespace,
    max_inflight,
    parse_deployment,
    scale_bounds,
    split_name,
    status_of,
)
from gateway.store import FunctionStore

METRICS_LABEL = "smoe.metrics"
FEED_PERIOD_S = 5.0
MAX_REPLICAS = 10_000


class SystemApi:
    """Handlers of ``/system``."""

    def __init__(
        self, backend: Backend, store: FunctionStore, metrics: GatewayMetrics, settings: GatewaySettings
    ) -> None:
        self._backend = backend
        self._store = store
        self._metrics = metrics
        self._settings = settings
        self.metrics_address = f"{settings.host}:{settings.metrics_port}"
        self._closing = asyncio.Event()

    def routes(self) -> list[Route]:
        """Everything under ``/system`` and ``/healthz``."""
        return [
            Route("/healthz", self.health, methods=["GET"]),
            Route("/system/functions", self.list_functions, methods=["GET"]),
            Route("/system/functions", self.create_function, methods=["POST"]),
            Route("/system/functions", self.update_function, methods=["PUT"]),
            Route("/system/functions", self.delete_function, methods=["DELETE"]),
            Route("/system/function/{name}", self.describe_function, methods=["GET"]),
            Route("/system/scale-function/{name}", self.scale_function, methods=["POST"]),
            Route("/system/info", self.info, methods=["GET"]),
            Route("/system/namespaces", self.namespaces, methods=["GET"]),
            Route("/system/namespace/{namespace}", self.namespace, methods=["GET"]),
            Route("/system/alert", self.alert, methods=["POST"]),
            Route("/system/secrets", self.list_secrets, methods=["GET"]),
            Route("/system/secrets", self.create_secret, methods=["POST"]),
            Route("/system/secrets", self.update_secret, methods=["PUT"]),
            Route("/system/secrets", self.delete_secret, methods=["DELETE"]),
            Route("/system/logs", self.logs, methods=["GET"]),
            Route("/system/replicas", self.replicas, methods=["GET"]),
            Route("/system/targets", self.targets, methods=["GET"]),
        ]

    # functions

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("OK")

    async def list_functions(self, request: Request) -> Response:
        namespace = check_namespace(request.query_params.get("namespace") or DEFAULT_NAMESPACE)
        return JSONResponse([self._status(state) for state in self._backend.list(namespace)])

    async def create_function(self, request: Request) -> Response:
        spec = parse_deployment(await self._json(request))
        max_inflight(spec)
        replicas = scale_bounds(spec)[0]
        await self._backend.create(spec, replicas)
        self._store.save(spec, replicas)
        return Response(status_code=202)

    async def update_function(self, request: Request) -> Response:
        spec = parse_deployment(await self._json(request))
        max_inflight(spec)
        before = self._backend.get(spec.name, spec.namespace)
        await self._backend.update(spec)
        low, high = scale_bounds(spec)
        wanted = min(max(before.desired_replicas, low), high if high is not None else before.desired_replicas)
        wanted = max(wanted, low) if before.desired_replicas else 0
        if wanted != before.desired_replicas:
            await self._backend.scale(spec.name, spec.namespace, wanted)
        self._store.save(spec, wanted)
        return Response(status_code=202)

    async def delete_function(self, request: Request) -> Response:
        document = await self._object(request)
        name, namespace = self._named(document.get("functionName"), document.get("namespace"), request)
        await self._backend.delete(name, namespace)
        self._store.remove(name, namespace)
        return Response(status_code=202)

    async def describe_function(self, request: Request) -> Response:
        name, namespace = split_name(request.path_params["name"], request.query_params.get("namespace"))
        try:
            state = self._backend.get(name, namespace)
        except NotFoundError:
            return Response(status_code=404)
        usage = self._backend.usage(name, namespace) if request.query_params.get("usage") in ("1", "true") else None
        return JSONResponse(self._status(state) | ({"usage": status_of(state, 0, usage)["usage"]} if usage else {}))

    async def scale_function(self, request: Request) -> Response:
        document = await self._object(request)
        given = document.get("serviceName") or request.path_params["name"]
        name, namespace = self._named(given, document.get("namespace"), request)
        replicas = document.get("replicas")
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
            raise InvalidSpecError(f"replicas must be a whole number from 0 to {MAX_REPLICAS}")
        state = self._backend.get(name, namespace)
        _, high = scale_bounds(state.spec)
        if high is not None:
            replicas = min(replicas, high)
        await self._backend.scale(name, namespace, replicas)
        self._store.save(state.spec, replicas)
        return Response(status_code=202)

    def _status(self, state: FunctionState) -> dict[str, Any]:
        return status_of(state, float(self._metrics.invocations[state.spec.key]))

    # about

    async def info(self, request: Request) -> Response:
        found = self._backend.info()
        version = {"release": found.version, "sha": __version__}
        provider = {"provider": found.provider, "version": version, "orchestration": found.orchestration}
        own = {"release": __version__, "sha": __version__}
        arch = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
        return JSONResponse({"provider": provider, "version": own, "arch": arch, "notes": list(found.notes)})

    async def namespaces(self, request: Request) -> Response:
        return JSONResponse([DEFAULT_NAMESPACE])

    async def namespace(self, request: Request) -> Response:
        return PlainTextResponse(f"there is one namespace, {DEFAULT_NAMESPACE}; it has no settings", status_code=501)

    async def alert(self, request: Request) -> Response:
        return PlainTextResponse(
            "this gateway does not scale by alerts: a controller scales through /system/scale-function", status_code=501
        )

    # secrets

    async def list_secrets(self, request: Request) -> Response:
        namespace = check_namespace(request.query_params.get("namespace") or DEFAULT_NAMESPACE)
        names = self._backend.secret_names(namespace)
        return JSONResponse([{"name": name, "namespace": namespace} for name in names])

    async def create_secret(self, request: Request) -> Response:
        return await self._put_secret(request, create=True)

    async def update_secret(self, request: Request) -> Response:
        return await self._put_secret(request, create=False)

    async def delete_secret(self, request: Request) -> Response:
        document = await self._object(request)
        name, namespace = self._named(document.get("name"), document.get("namespace"), request)
        await self._backend.delete_secret(name, namespace)
        return Response(status_code=202)

    async def _put_secret(self, request: Request, *, create: bool) -> Response:
        document = await self._object(request)
        name, namespace = self._named(document.get("name"), document.get("namespace"), request)
        value, raw = document.get("value"), document.get("rawValue")
        if isinstance(raw, str) and raw:
            try:
                content = base64.b64decode(raw, validate=True)
            except (binascii.Error, ValueError):
                raise InvalidSpecError("rawValue of the secret must be base64") from None
        elif isinstance(value, str):
            content = value.encode()
        else:
            raise InvalidSpecError("a secret takes value (text) or rawValue (base64)")
        await self._backend.put_secret(check_name(name, "secret"), namespace, content, create=create)
        return Response(status_code=202)

    # logs, feed, targets

    async def logs(self, request: Request) -> Response:
        query = request.query_params
        name, namespace = split_name(query.get("name", ""), query.get("namespace"))
        if not name:
            raise InvalidSpecError("logs need the parameter name")
        self._backend.get(name, namespace)
        lines = self._backend.logs(
            name,
            namespace,
            instance=query.get("instance") or None,
            since_s=_since(query.get("since", "")),
            tail=_whole(query.get("tail", ""), "tail"),
            follow=query.get("follow", "").lower() in ("1", "true"),
        )
        return StreamingResponse(self._until_closing(_log_lines(lines)), media_type="application/x-ndjson")

    async def replicas(self, request: Request) -> Response:
        if request.query_params.get("follow", "").lower() not in ("1", "true"):
            return JSONResponse(self._snapshot())
        return StreamingResponse(self._until_closing(self._follow()), media_type="application/x-ndjson")

    def close(self) -> None:
        """End the streams that clients follow, so that the server can drain."""
        self._closing.set()

    async def _until_closing(self, stream: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while not closing.done():
                item = asyncio.ensure_future(anext(stream, None))
                try:
                    await asyncio.wait((item, closing), return_when=asyncio.FIRST_COMPLETED)
                    data = item.result() if item.done() else None
                finally:
                    await _cancelled(item)
                if data is None:
                    return
                yield data
        finally:
            closing.cancel()
            await stream.aclose()

    async def targets(self, request: Request) -> Response:
        targets: list[dict[str, Any]] = [{"targets": [self.metrics_address], "labels": {"job": "gateway"}}]
        for state in self._backend.list():
            if state.spec.labels.get(METRICS_LABEL) != "true":
                continue
            for replica in state.ready:
                labels = {"job": "ingress", "function_name": state.spec.key, "replica": replica.id}
                targets.append({"targets": [replica.address], "labels": labels})
        return JSONResponse(targets)

    async def _follow(self) -> AsyncGenerator[bytes]:
        while True:
            version = self._backend.version()
            yield json.dumps(self._snapshot(), separators=(",", ":")).encode() + b"\n"
            await self._backend.wait_change(version, FEED_PERIOD_S)

    def _snapshot(self) -> dict[str, Any]:
        functions = {
            state.spec.key: {
                "max_inflight": state.max_inflight,
                "replicas": [
                    {"id": replica.id, "address": replica.address, "state": replica.state} for replica in state.replicas
                ],
            }
            for state in self._backend.list()
        }
        return {"version": self._backend.version(), "functions": functions}

    # reading requests

    async def _json(self, request: Request) -> Any:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > self._settings.max_json_bytes:
                raise HTTPException(413, f"the body is larger than {self._settings.max_json_bytes} bytes")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidSpecError(f"the body is not JSON: {error}") from error

    async def _object(self, request: Request) -> dict[str, Any]:
        document = await self._json(request)
        if not isinstance(document, dict):
            raise InvalidSpecError("the body must be a JSON object")
        return document

    def _named(self, name: Any, namespace: Any, request: Request) -> tuple[str, str]:
        """Name and namespace from the body, the namespace else from the query (clients do either)."""
        if not isinstance(name, str) or not name:
            raise InvalidSpecError("the name is missing")
        if namespace is not None and not isinstance(namespace, str):
            raise InvalidSpecError("namespace must be a string")
        return split_name(name, namespace or request.query_params.get("namespace"))


async def gateway_error(request: Request, error: Exception) -> Response:
    """Errors of the contract as plain text, which faas-cli prints."""
    status = 500
    for kind in type(error).__mro__:
        status = _STATUS.get(kind.__name__, status)
        if kind.__name__ in _STATUS:
            break
    return PlainTextResponse(str(error), status_code=status)


_STATUS = {"NotFoundError": 404, "InvalidSpecError": 400, "ConflictError": 409, "BackendError": 500}
HANDLED = (GatewayError,)


async def _cancelled(future: asyncio.Future[Any]) -> None:
    """Cancel and wait until it has ended, so that what it was running may be closed."""
    future.cancel()
    await asyncio.wait((future,))


async def _log_lines(lines: AsyncIterator[LogLine]) -> AsyncGenerator[bytes]:
    async for line in lines:
        stamp = datetime.fromtimestamp(line.timestamp_s, UTC).isoformat().replace("+00:00", "Z")
        entry = {
            "name": line.name,
            "namespace": line.namespace,
            "instance": line.instance,
            "timestamp": stamp,
            "text": line.text,
        }
        yield json.dumps(entry).encode() + b"\n"


def _since(text: str) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise InvalidSpecError(f"since is {text[:40]!r}; it takes a time such as 2026-01-31T12:00:00Z") from None


def _whole(text: str, what: str) -> int:
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        raise InvalidSpecError(f"{what} is {text[:40]!r}; it takes a whole number") from None

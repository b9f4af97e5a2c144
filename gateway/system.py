"""The control API: OpenFaaS's ``/system`` API. Writes answer 202, as OpenFaaS's own gateway does."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway import __version__
from gateway.alerts import parse_alerts, wanted_replicas
from gateway.contract import (
    DEFAULT_NAMESPACE,
    Backend,
    ConflictError,
    FunctionSpec,
    FunctionState,
    GatewayError,
    InvalidSpecError,
    LogLine,
    NotFoundError,
    Usage,
)
from gateway.feed import ReplicaFeed
from gateway.inputs import (
    activation,
    flag,
    moment,
    named,
    read_json,
    read_object,
    replica_count,
    replica_orders,
    secret_name,
    secret_value,
    whole,
)
from gateway.metrics import GatewayMetrics
from gateway.settings import GatewaySettings
from gateway.specs import (
    burst_of,
    max_inflight,
    parse_deployment,
    scale_bounds,
    split_name,
    status_of,
)
from gateway.store import FunctionStore
from platform_words.labels import METRICS_LABEL

IN_MEMORY = (
    "Asynchronous calls wait in the memory of the gateway that took them: copies share none, and a gateway that is "
    "killed loses them."
)
ONE_NAMESPACE = f"this gateway has the one namespace {DEFAULT_NAMESPACE}; no other can be made, changed or removed"
CLUSTER_NAMESPACES = (
    "namespaces are the cluster's: make or remove one there (kubectl create namespace NAME) and annotate it openfaas=1"
)


class SystemApi:
    """Handlers of ``/system``."""

    def __init__(
        self, backend: Backend, store: FunctionStore, metrics: GatewayMetrics, settings: GatewaySettings
    ) -> None:
        self._backend = backend
        self._store = store
        self._metrics = metrics
        self._max_bytes = settings.max_json_bytes
        self._no_namespaces = ONE_NAMESPACE if settings.keeps_functions else CLUSTER_NAMESPACES
        self._notes = () if settings.keeps_functions or settings.nats else (IN_MEMORY,)
        self.metrics_address = f"{settings.host}:{settings.metrics_port}"
        self._closing = asyncio.Event()
        self._feed = ReplicaFeed(backend)

    def routes(self) -> list[Route]:
        """Everything under ``/system``, ``/healthz`` and the description of it all."""
        return [
            Route("/healthz", self.health, methods=["GET"]),
            Route("/openapi.yaml", self.description, methods=["GET"]),
            Route("/system/functions", self.list_functions, methods=["GET"]),
            Route("/system/functions", self.create_function, methods=["POST"]),
            Route("/system/functions", self.update_function, methods=["PUT"]),
            Route("/system/functions", self.delete_function, methods=["DELETE"]),
            Route("/system/function/{name}", self.describe_function, methods=["GET"]),
            Route("/system/scale-function/{name}", self.scale_function, methods=["POST"]),
            Route("/system/scale-functions", self.scale_functions, methods=["POST"]),
            Route("/system/info", self.info, methods=["GET"]),
            Route("/system/namespaces", self.namespaces, methods=["GET"]),
            Route("/system/namespace/{namespace}", self.namespace, methods=["GET"]),
            Route("/system/namespace/{namespace}", self.no_namespace, methods=["POST", "PUT", "DELETE"]),
            Route("/system/namespace/", self.no_namespace, methods=["POST"]),
            Route("/system/alert", self.alert, methods=["POST"]),
            Route("/system/secrets", self.list_secrets, methods=["GET"]),
            Route("/system/secrets", self.create_secret, methods=["POST"]),
            Route("/system/secrets", self.update_secret, methods=["PUT"]),
            Route("/system/secrets", self.delete_secret, methods=["DELETE"]),
            Route("/system/logs", self.logs, methods=["GET"]),
            Route("/system/replicas", self.replicas, methods=["GET"]),
            Route("/system/replicas", self.activate, methods=["POST"]),
            Route("/system/targets", self.targets, methods=["GET"]),
        ]

    # functions

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("OK")

    async def description(self, request: Request) -> Response:
        return Response(resources.files("gateway").joinpath("openapi.yaml").read_bytes(), media_type="application/yaml")

    async def list_functions(self, request: Request) -> Response:
        namespace = self._namespace(request)
        return JSONResponse([self._status(state) for state in self._backend.list(namespace)])

    async def create_function(self, request: Request) -> Response:
        spec = await self._deployment(request)
        replicas = scale_bounds(spec)[0]
        await self._backend.create(spec, replicas)
        self._store.save(spec, replicas)
        return Response(status_code=202)

    async def update_function(self, request: Request) -> Response:
        spec = await self._deployment(request)
        await self._backend.update(spec)
        before = self._backend.get(spec.name, spec.namespace)
        low, high = scale_bounds(spec)
        wanted = min(max(before.desired_replicas, low), high if high is not None else before.desired_replicas)
        wanted = max(wanted, low) if before.desired_replicas else 0
        if wanted != before.desired_replicas:
            await self._backend.scale(spec.name, spec.namespace, wanted)
        self._store.save(self._backend.get(spec.name, spec.namespace).spec, wanted)
        return Response(status_code=202)

    async def _deployment(self, request: Request) -> FunctionSpec:
        spec = parse_deployment(await read_json(request, self._max_bytes))
        self._backend.check_namespace(spec.namespace)
        max_inflight(spec)
        burst_of(spec)
        return spec

    def _namespace(self, request: Request) -> str:
        """The namespace of the query. Raises InvalidSpecError where functions may not be in it."""
        namespace = request.query_params.get("namespace") or DEFAULT_NAMESPACE
        self._backend.check_namespace(namespace)
        return namespace

    async def delete_function(self, request: Request) -> Response:
        document = await read_object(request, self._max_bytes)
        name, namespace = named(document.get("functionName"), document.get("namespace"), request)
        await self._backend.delete(name, namespace)
        self._store.remove(name, namespace)
        return Response(status_code=202)

    async def describe_function(self, request: Request) -> Response:
        query = request.query_params
        name, namespace = split_name(request.path_params["name"], query.get("namespace"))
        with_usage = flag(query, "usage")
        try:
            state = await self._backend.look(name, namespace)
        except NotFoundError:
            return Response(status_code=404)
        usage = self._backend.usage(name, namespace) if with_usage else None
        return JSONResponse(self._status(state, usage))

    async def scale_function(self, request: Request) -> Response:
        document = await read_object(request, self._max_bytes)
        given = document.get("serviceName")
        given = request.path_params["name"] if given in (None, "") else given
        name, namespace = named(given, document.get("namespace"), request)
        replicas = replica_count(document)
        state = await self._backend.look(name, namespace)
        _, high = scale_bounds(state.spec)
        await self._scale(state, replicas if high is None else min(replicas, high))
        return Response(status_code=202)

    async def scale_functions(self, request: Request) -> Response:
        """Set replicas and add annotations of many functions. All orders are checked before one is carried out."""
        asked = replica_orders(await read_object(request, self._max_bytes))
        for order in asked:
            self._backend.check_namespace(order.namespace)
        for order in asked:
            await self._backend.look(order.name, order.namespace)
        for order in asked:
            # Each as it is by now, and stored at once: others may change or delete functions between two orders.
            state = await self._backend.look(order.name, order.namespace)
            spec = replace(state.spec, annotations={**state.spec.annotations, **order.annotations})
            if spec != state.spec:
                await self._backend.update(spec)
                updated = self._backend.get(order.name, order.namespace)
                self._store.save(updated.spec, updated.desired_replicas)  # whatever becomes of its scale
            _, high = scale_bounds(spec)
            await self._scale(state, order.replicas if high is None else min(order.replicas, high))
            await asyncio.sleep(0)  # calls go on meanwhile
        return Response(status_code=202)

    async def alert(self, request: Request) -> Response:
        """Every alert is followed as far as it can be; functions that are not there are named in the reply."""
        missing: list[str] = []
        for alert in parse_alerts(await read_json(request, self._max_bytes)):
            try:
                state = await self._backend.look(alert.function, alert.namespace)
                wanted = wanted_replicas(state, firing=alert.firing)
                if wanted != state.desired_replicas:
                    await self._scale(state, wanted)
            except NotFoundError as error:
                missing.append(str(error))
        if missing:
            raise NotFoundError("; ".join(missing))
        return Response(status_code=200)

    async def _scale(self, state: FunctionState, replicas: int) -> None:
        name, namespace = state.spec.name, state.spec.namespace
        await self._backend.scale(name, namespace, replicas)
        self._store.save(self._backend.get(name, namespace).spec, replicas)  # NotFoundError: deleted meanwhile

    def _status(self, state: FunctionState, usage: Mapping[str, Usage] | None = None) -> dict[str, Any]:
        return status_of(state, float(self._metrics.invocations[state.spec.key]), usage)

    # about

    async def info(self, request: Request) -> Response:
        backend = self._backend.info()
        version = {"release": backend.version, "sha": __version__}
        provider = {"provider": backend.provider, "version": version, "orchestration": backend.orchestration}
        gateway = {"release": __version__, "sha": __version__}
        arch = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
        notes = [*backend.notes, *self._notes]
        document = {"provider": provider, "version": gateway, "arch": arch, "notes": notes}
        return JSONResponse(document | {"standbys": backend.standbys})

    async def namespaces(self, request: Request) -> Response:
        return JSONResponse([namespace.name for namespace in self._backend.namespaces()])

    async def namespace(self, request: Request) -> Response:
        name = request.path_params["namespace"]
        for present in self._backend.namespaces():
            if present.name == name:
                document = {"name": name, "annotations": dict(present.annotations), "labels": dict(present.labels)}
                return JSONResponse(document)
        try:
            self._backend.check_namespace(name)
        except InvalidSpecError as error:
            raise NotFoundError(str(error)) from None
        raise NotFoundError(f"namespace {name[:80]!r} does not exist")

    async def no_namespace(self, request: Request) -> Response:
        """Namespaces are not made, changed or removed here."""
        return PlainTextResponse(self._no_namespaces, 405, {"allow": "GET"})

    # secrets

    async def list_secrets(self, request: Request) -> Response:
        namespace = self._namespace(request)
        names = self._backend.secret_names(namespace)
        return JSONResponse([{"name": name, "namespace": namespace} for name in names])

    async def create_secret(self, request: Request) -> Response:
        return await self._put_secret(request, create=True)

    async def update_secret(self, request: Request) -> Response:
        return await self._put_secret(request, create=False)

    async def delete_secret(self, request: Request) -> Response:
        document = await read_object(request, self._max_bytes)
        name, namespace = secret_name(document, request)
        self._backend.check_namespace(namespace)
        await self._backend.delete_secret(name, namespace)
        return Response(status_code=202)

    async def _put_secret(self, request: Request, *, create: bool) -> Response:
        document = await read_object(request, self._max_bytes)
        name, namespace = secret_name(document, request)
        content = secret_value(document)
        self._backend.check_namespace(namespace)
        await self._backend.put_secret(name, namespace, content, create=create)
        return Response(status_code=202)

    # logs, feed, targets

    async def logs(self, request: Request) -> Response:
        query = request.query_params
        name, namespace = split_name(query.get("name", ""), query.get("namespace"))
        if not name:
            raise InvalidSpecError("logs need the parameter name")
        instance, since_s = query.get("instance") or None, moment(query, "since")
        tail, follow = whole(query, "tail"), flag(query, "follow")
        await self._backend.look(name, namespace)
        lines = self._backend.logs(name, namespace, instance=instance, since_s=since_s, tail=tail, follow=follow)
        return StreamingResponse(self._until_closing(_log_lines(lines)), media_type="application/x-ndjson")

    async def replicas(self, request: Request) -> Response:
        if not flag(request.query_params, "follow"):
            return JSONResponse(self._feed.snapshot())
        return StreamingResponse(self._until_closing(self._feed.follow()), media_type="application/x-ndjson")

    async def activate(self, request: Request) -> Response:
        """Standbys of many functions, activated and released at once; the reply is their part of the feed, so that
        nobody has to wait for its next line."""
        asked = activation(await read_object(request, self._max_bytes))
        await self._backend.activate(asked)
        return JSONResponse({"functions": self._feed.functions(asked.levels)})

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


async def gateway_error(request: Request, error: Exception) -> Response:
    """Errors of the contract as plain text, which faas-cli prints."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return PlainTextResponse(str(error), status_code=status)


_STATUSES: tuple[tuple[type[GatewayError], int], ...] = (
    (NotFoundError, 404),
    (InvalidSpecError, 400),
    (ConflictError, 409),
)


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

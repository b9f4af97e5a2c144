"""The API over HTTP: paths and verbs, patches, watches, subresources, RBAC, and switches for what goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.doubles.kubernetes import fields
from tests.doubles.kubernetes.admission import changed_pod, check_deployment, check_grant, check_log, resized
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import Refusal, gone, invalid, not_found, stale
from tests.doubles.kubernetes.patches import PATCHES
from tests.doubles.kubernetes.resources import KINDS, qualified, selects

APPLY = "application/apply-patch+yaml"
METADATA_ONLY = "as=PartialObjectMetadata"
VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Call:
    """A request as RBAC sees it."""

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str


class ApiServer:
    """``users``: bearer token → name; ``grants``: name → rules, None allows everything."""

    def __init__(self, cluster: Cluster, version: tuple[int, int] = (1, 36)) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self.version = version
        self.users: dict[str, str] = {}
        self.grants: dict[str, list[dict[str, Any]]] | None = None
        self.metrics: dict[str, tuple[str, str]] | None = None
        """Pod → (cpu, memory) of ``metrics.k8s.io``; None: no metrics server is installed."""
        self.down = False
        self.conflicts = 0
        """So many of the next writes are answered 409."""
        self.throttled = 0
        """So many of the next requests are answered 429."""
        self.broken: set[str] = set()
        """Functions whose writes are answered 500."""
        self.refusals: dict[tuple[str, str], Refusal] = {}
        """(verb, resource) → what it is answered, whatever it asks."""
        self.ending = 0
        """So many of the next watches end as soon as they are open."""
        self.calls: list[Call] = []
        self.watching = 0
        self._cut = asyncio.Event()
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        self.app = Starlette(
            routes=[
                Route("/version", self._version),
                *(Route(root + tail, self._answer, methods=methods) for root in _ROOTS for tail in _TAILS),
            ]
        )

    def cut_watches(self) -> None:
        """Every open watch ends without a word."""
        waiting, self._cut = self._cut, asyncio.Event()
        waiting.set()

    async def _version(self, request: Request) -> Response:
        major, minor = self.version
        version = {"major": str(major), "minor": f"{minor}", "gitVersion": f"v{major}.{minor}.2"}
        return _unavailable() if self.down else JSONResponse(version)

    async def _answer(self, request: Request) -> Response:
        if self.down:
            return _unavailable()
        body = await request.body()
        try:
            if self.throttled:
                self.throttled -= 1
                raise Refusal(429, "TooManyRequests", "too many requests, please try again later", 1)
            return self._dispatch(request, json.loads(body) if body else None)
        except Refusal as refusal:
            headers = {} if refusal.retry_after_s is None else {"retry-after": str(refusal.retry_after_s)}
            return JSONResponse(refusal.document, status_code=refusal.code, headers=headers)

    def _dispatch(self, request: Request, body: Any) -> Response:
        path, query = request.path_params, request.query_params
        resource, name, sub = path["resource"], path.get("name", ""), path.get("sub", "")
        namespace = path.get("namespace", "")
        group = path.get("group", "")
        if group == "metrics.k8s.io" and resource == "pods" and self.metrics is not None:
            self._authorise(request, "list", group, "pods", namespace, name)
            return JSONResponse(self._pod_metrics(namespace))
        if resource not in KINDS or KINDS[resource].group != group or (namespace and not self._namespace(namespace)):
            raise not_found("the server could not find the requested resource", resource)
        if resource == "namespaces":
            namespace = ""
        verb = VERBS.get(request.method) or ("get" if name else "watch" if query.get("watch") else "list")
        self._authorise(request, verb, group, f"{resource}/{sub}" if sub else resource, namespace, name)
        if request.method != "GET" and self._function_of(resource, namespace, name) in self.broken:
            raise Refusal(500, "InternalError", "etcdserver: request timed out")
        if request.method != "GET" and self.conflicts:
            self.conflicts -= 1
            raise stale(qualified(resource), name or body["metadata"]["name"])
        if sub:
            return self._subresource(request, resource, namespace, name, sub, body)
        handler: Callable[..., Response] = getattr(self, f"_{verb}")
        return handler(request, resource, namespace, name, body)

    def _function_of(self, resource: str, namespace: str, name: str) -> str:
        stored = self.store.find(resource, namespace, name)
        return name if stored is None else (stored["metadata"].get("labels") or {}).get("faas_function", name)

    def _namespace(self, name: str) -> bool:
        return self.store.find("namespaces", "", name) is not None

    def _authorise(self, request: Request, verb: str, group: str, resource: str, namespace: str, name: str) -> None:
        token = request.headers.get("authorization", "").partition(" ")[2]
        user = self.users.get(token, "anonymous")
        if self.users and user == "anonymous":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        self.calls.append(Call(user, verb, group, resource, namespace, name))
        if self.grants is not None:
            check_grant(self.grants.get(user, []), user, verb, group, resource, namespace)
        refusal = self.refusals.get((verb, resource))
        if refusal is not None:
            raise refusal

    # verbs

    def _get(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        return self._reply(request, self.store.get(resource, namespace, name))

    def _list(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        """In pages where ``limit`` says so; a page's token is the name to go on after."""
        query = request.query_params
        selector, after = query.get("labelSelector", ""), query.get("continue", "")
        if after and self.store.oldest > int(after.partition("/")[0]):
            raise gone(int(after.partition("/")[0]), self.store.oldest)
        found = [
            one
            for one in self.store.all(resource, namespace)
            if selects(selector, one["metadata"].get("labels") or {})
            and one["metadata"]["name"] > after.partition("/")[2]
        ]
        limit = int(query.get("limit") or len(found) or 1)
        page = [_view(request, one) for one in found[:limit]]
        version = after.partition("/")[0] or str(self.store.version)
        meta = {"resourceVersion": version}
        if len(found) > limit:
            meta["continue"] = f"{version}/{found[limit - 1]['metadata']['name']}"
        kind = "PartialObjectMetadata" if METADATA_ONLY in request.headers.get("accept", "") else KINDS[resource].name
        return JSONResponse({"kind": f"{kind}List", "metadata": meta, "items": page})

    def _watch(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        version = int(request.query_params.get("resourceVersion") or self.store.version)
        stream = self._events(request, resource, namespace, version)
        return StreamingResponse(stream, media_type="application/json")

    async def _events(self, request: Request, resource: str, namespace: str, version: int) -> AsyncIterator[bytes]:
        if self.ending:
            self.ending -= 1
            return
        query, cut = request.query_params, self._cut
        selector = query.get("labelSelector", "")
        loop = asyncio.get_running_loop()
        end_s = loop.time() + float(query.get("timeoutSeconds") or 300)
        self.watching += 1
        try:
            while not cut.is_set() and loop.time() < end_s:
                changed = self.store.changed
                try:
                    events = self.store.since(version, resource)
                except Refusal as refusal:
                    yield _line("ERROR", refusal.document)
                    return
                for event in events:
                    version = event.version
                    labels = event.object["metadata"].get("labels") or {}
                    if event.object["metadata"].get("namespace", "") == namespace and selects(selector, labels):
                        yield _line(event.kind, _view(request, event.object))
                if query.get("allowWatchBookmarks") and self.store.version > version:
                    version = self.store.version
                    marked = {"kind": KINDS[resource].name, "metadata": {"resourceVersion": str(version)}}
                    yield _line("BOOKMARK", marked)
                waits = [asyncio.ensure_future(one.wait()) for one in (changed, cut)]
                await asyncio.wait(waits, timeout=end_s - loop.time(), return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
        finally:
            self.watching -= 1

    def _create(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        document = {**body, "metadata": {**body["metadata"], **({"namespace": namespace} if namespace else {})}}
        if resource == "deployments":
            check_deployment(document, None)
        made = self.store.create(resource, document, _manager(request))
        self.cluster.settle()
        return self._reply(request, made, 201)

    def _update(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        before = self.store.get(resource, namespace, name)
        document = {**body, "metadata": {"namespace": namespace, **body["metadata"]}}
        if resource == "deployments":
            check_deployment(document, before)
        changed = self.store.replace(resource, document, _manager(request))
        self.cluster.settle()
        return self._reply(request, changed)

    def _patch(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        kind = request.headers.get("content-type", "")
        if kind == APPLY:
            changed = self._apply(request, resource, namespace, name, body)
        else:
            before = self.store.get(resource, namespace, name)
            patched = _patched(kind, before, body)
            if resource == "pods":
                patched = changed_pod(before, patched)
            if resource == "deployments":
                check_deployment(patched, before)
            changed = self.store.replace(resource, patched, _manager(request))
        self.cluster.settle()
        return self._reply(request, changed)

    def _apply(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> dict[str, Any]:
        query = request.query_params
        if not query.get("fieldManager"):
            raise Refusal(400, "BadRequest", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        if body.get("kind") != KINDS[resource].name or body.get("apiVersion") != KINDS[resource].api_version:
            raise Refusal(400, "BadRequest", "invalid object type: apiVersion and kind must be set")
        before = self.store.find(resource, namespace, name)
        given = body["metadata"].get("resourceVersion")
        if before is not None and given is not None and given != before["metadata"]["resourceVersion"]:
            raise stale(qualified(resource), name)
        uid = body["metadata"].get("uid")
        if uid is not None and before is None:
            said = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {said}')
        if uid is not None and before is not None and uid != before["metadata"]["uid"]:
            raise invalid(KINDS[resource].name, name, f'metadata.uid: Invalid value: "{uid}": field is immutable')
        if before is None:
            self._authorise(request, "create", KINDS[resource].group, resource, namespace, name)
        if resource == "deployments":
            merged = fields.merge(copied(before), body) if before is not None else body
            check_deployment(merged, before)
        config = {**copied(body), "metadata": {k: v for k, v in body["metadata"].items() if k not in _IDENTITY}}
        try:
            force = query.get("force") == "true"
            return self.store.apply(resource, namespace, name, config, str(query["fieldManager"]), force)
        except fields.ApplyConflictError as error:
            raise Refusal(409, "Conflict", str(error)) from None

    def _delete(self, request: Request, resource: str, namespace: str, name: str, body: Any) -> Response:
        if resource == "pods":
            pod = self.store.get("pods", namespace, name)
            self.cluster.delete_pod(pod)
        else:
            self.store.delete(resource, namespace, name)
        if resource == "namespaces":
            self.cluster.empty_namespace(name)
        self.cluster.settle()
        return JSONResponse({"kind": "Status", "status": "Success"})

    # subresources

    def _subresource(self, request: Request, resource: str, namespace: str, name: str, sub: str, body: Any) -> Response:
        if (resource, sub) == ("deployments", "scale"):
            return self._scale(request, namespace, name, body)
        if (resource, sub) == ("pods", "resize") and self.version >= (1, 33):
            return self._resize(request, namespace, name, body)
        if (resource, sub) == ("pods", "status") and request.method == "PATCH":
            return self._pod_status(request, namespace, name, body)
        if (resource, sub) == ("pods", "log") and request.method == "GET":
            check_log(self.store.get("pods", namespace, name), request.query_params.get("container"))
            return StreamingResponse(self._log(request, namespace, name), media_type="text/plain")
        raise Refusal(404, "NotFound", "the server could not find the requested resource")

    def _scale(self, request: Request, namespace: str, name: str, body: Any) -> Response:
        deployment = self.store.get("deployments", namespace, name)
        if request.method != "GET":
            replicas = body["spec"]["replicas"]
            if not isinstance(replicas, int) or replicas < 0:
                raise invalid("Scale", name, "spec.replicas: Invalid value: must be greater than or equal to 0")
            deployment["spec"]["replicas"] = replicas
            deployment["metadata"]["resourceVersion"] = body.get("metadata", {}).get("resourceVersion")
            self.store.replace("deployments", deployment, _manager(request))
            self.cluster.settle()
            deployment = self.store.get("deployments", namespace, name)
        meta = {key: deployment["metadata"][key] for key in ("name", "namespace", "resourceVersion")}
        spec = {"replicas": deployment["spec"].get("replicas", 1)}
        return JSONResponse({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": spec})

    def _resize(self, request: Request, namespace: str, name: str, body: Any) -> Response:
        pod = self.store.get("pods", namespace, name)
        patched = _patched(request.headers.get("content-type", ""), pod, body)
        result = resized(self.cluster, pod, patched)
        if request.query_params.get("dryRun"):
            return JSONResponse(result)
        changed = self.store.replace("pods", result, _manager(request))
        self.cluster.settle()
        return self._reply(request, changed)

    def _pod_status(self, request: Request, namespace: str, name: str, body: Any) -> Response:
        """Nothing but the status of the patch is taken."""
        pod = self.store.get("pods", namespace, name)
        patched = _patched(request.headers.get("content-type", ""), pod, body)
        changed = self.store.replace("pods", {**pod, "status": patched["status"]}, _manager(request), status=True)
        self.cluster.settle()
        return self._reply(request, changed)

    async def _log(self, request: Request, namespace: str, name: str) -> AsyncIterator[bytes]:
        query = request.query_params
        since = query.get("sinceTime")
        after_s = datetime.fromisoformat(since).timestamp() if since else float("-inf")
        tail = query.get("tailLines")
        given, first = 0, True
        while True:
            logged = self.cluster.logged
            lines = self.cluster.logs.get((namespace, name), [])
            fresh = [(time_s, text) for time_s, text in lines[given:] if time_s >= after_s]
            if first and tail is not None:
                fresh = fresh[-int(tail) :] if int(tail) else []
            given, first = len(lines), False
            for time_s, text in fresh:
                stamp = datetime.fromtimestamp(time_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "000Z")
                yield f"{stamp} {text}\n".encode()
            if query.get("follow") != "true" or self.store.find("pods", namespace, name) is None:
                return
            waits = [asyncio.ensure_future(one.wait()) for one in (logged, self.store.changed, self._cut)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            cut = waits[2].done()
            for wait in waits:
                wait.cancel()
            if cut:
                return

    def _pod_metrics(self, namespace: str) -> dict[str, Any]:
        items = [
            {"metadata": {"name": name, "namespace": namespace}, "containers": [{"usage": {"cpu": cpu, "memory": mem}}]}
            for name, (cpu, mem) in (self.metrics or {}).items()
        ]
        return {"kind": "PodMetricsList", "metadata": {}, "items": items}

    def _reply(self, request: Request, document: dict[str, Any], status: int = 200) -> Response:
        return JSONResponse(_view(request, document), status_code=status)


_IDENTITY = ("resourceVersion", "uid")
"""What an apply may name so that it is for that form or that object only."""
_ROOTS = ("/api/v1", "/apis/{group}/{version}")
_TAILS = (
    "/{resource}",
    "/{resource:str}/{name}",
    "/namespaces/{namespace}/{resource}",
    "/namespaces/{namespace}/{resource}/{name}",
    "/namespaces/{namespace}/{resource}/{name}/{sub}",
)


def _manager(request: Request) -> str:
    return request.query_params.get("fieldManager") or request.headers.get("user-agent", "unknown").split("/")[0]


def _patched(kind: str, before: dict[str, Any], body: Any) -> dict[str, Any]:
    if kind not in PATCHES:
        raise Refusal(415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {kind}")
    patched: dict[str, Any] = PATCHES[kind](before, body)
    if "resourceVersion" not in (body.get("metadata") or {}):
        patched["metadata"] = {**patched["metadata"], "resourceVersion": None}
    return patched


def _view(request: Request, document: dict[str, Any]) -> dict[str, Any]:
    """Objects, or only their metadata where the client asked so; values of secrets are base64 already."""
    if METADATA_ONLY in request.headers.get("accept", ""):
        return {"kind": "PartialObjectMetadata", "metadata": document["metadata"]}
    return document


def _line(kind: str, document: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


def _unavailable() -> Response:
    return PlainTextResponse("apiserver not ready", status_code=503)

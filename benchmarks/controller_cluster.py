"""A cluster and a Prometheus that answer fast, for the benchmark of the controller: a process of its own.

Deployments are those that the gateway writes, pods as the API server returns them (about 3 KB each). It serves what the
controller calls and nothing else: paged lists, watches, and patches of Deployments, their scale, pods and their resize,
which are stored and sent to the watches. It refuses nothing and starts no pods. Prometheus' answers are those of a
pipeline under load in which a share of the experts is busy, another share each time it is asked.

    python -m benchmarks.controller_cluster PIPELINE_DIR PORT
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from autoscaler.monitor.catalogue import METRICS
from autoscaler.state.readings import SHAPES, Series
from gateway.backends.kubernetes import KubernetesSettings, objects
from gateway.backends.process.kernel import die_with_parent
from gateway.specs import parse_deployment
from moe.manifest import load
from smoe.deployment import function_deployments

NAMESPACE = "openfaas-fn"
PODS = 2
"""Pods of each function."""
BUSY_SHARE = 0.01
MANAGED = [{"manager": "smoe-gateway", "operation": "Apply", "fieldsV1": {f"f:key-{i}": {} for i in range(40)}}]
Object = dict[str, Any]


@dataclass
class Kind:
    """Objects of one kind by name, and the queues of those who watch."""

    objects: dict[str, Object] = field(default_factory=dict)
    watches: set[asyncio.Queue[bytes]] = field(default_factory=set)


class Cluster:
    def __init__(self, directory: Path) -> None:
        self.version = 1
        self.deployments, self.pods = Kind(), Kind()
        self.calls = 0
        self.ticks = 0
        manifest = load(directory, verify=False)
        self.pipeline = manifest.name
        self.nodes = [node.id for node in manifest.nodes]
        self.names = {node: manifest.function_name(node) for node in ("ingress", *self.nodes)}
        settings = KubernetesSettings()
        for deployment in function_deployments(manifest):
            spec = parse_deployment(deployment)
            made = objects.deployment(spec, settings, frozenset())
            made["spec"]["replicas"] = PODS
            made["metadata"] |= {"uid": spec.name, "generation": 1, "managedFields": MANAGED}
            made["status"] = {"replicas": PODS, "updatedReplicas": PODS, "readyReplicas": PODS, "conditions": []}
            self.put(self.deployments, made)
            for i in range(PODS):
                self.put(self.pods, _pod(made, f"{spec.name}-5d7f9c6b8-{i:05d}"))

    def put(self, kind: Kind, document: Object, event: str = "ADDED") -> Object:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        kind.objects[document["metadata"]["name"]] = document
        line = orjson.dumps({"type": event, "object": document}) + b"\n" if kind.watches else b""
        for queue in kind.watches:
            queue.put_nowait(line)
        return document


def _pod(deployment: Object, name: str) -> Object:
    template = deployment["spec"]["template"]
    spec = orjson.loads(orjson.dumps(template["spec"])) | {"nodeName": "node-1", "serviceAccountName": "default"}
    now = "2026-01-01T00:00:00Z"
    ready = [
        {"type": kind, "status": "True", "lastTransitionTime": now}
        for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name[:-6], "uid": name, "controller": True}
    meta: Object = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": name,
        "ownerReferences": [owner],
        "managedFields": MANAGED,
    }
    meta |= {key: dict(template["metadata"][key]) for key in ("labels", "annotations")}
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready, "startTime": now, "qosClass": "Burstable"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def merged(live: Any, patch: Any) -> Any:
    """A merge patch; lists of named objects are merged by name, as a strategic one does."""
    if isinstance(patch, dict) and isinstance(live, dict):
        found = dict(live)
        for key, value in patch.items():
            found[key] = merged(found.get(key), value)
        return {key: value for key, value in found.items() if value is not None}
    if isinstance(patch, list) and patch and isinstance(live, list) and all("name" in item for item in patch):
        wishes = {item["name"]: item for item in patch}
        return [merged(item, wishes.pop(item["name"], {})) for item in live] + list(wishes.values())
    return patch


def app_of(cluster: Cluster) -> web.Application:
    app = web.Application(client_max_size=1 << 24)
    app.add_routes(
        [
            web.get("/version", lambda _: _json({"major": "1", "minor": "36"})),
            web.get("/calls", lambda _: _json({"calls": cluster.calls})),
            web.route("*", "/api/v1/query", lambda request: _query(cluster, request)),
            web.route("*", "/{root:.*}/namespaces/{namespace}/{kind}", lambda request: _list(cluster, request)),
            web.patch(
                "/{root:.*}/namespaces/{namespace}/{kind}/{name}{sub:(/scale|/resize)?}",
                lambda request: _patch(cluster, request),
            ),
        ]
    )
    return app


async def _json(document: object) -> web.Response:
    return web.Response(body=orjson.dumps(document), content_type="application/json")


async def _list(cluster: Cluster, request: web.Request) -> web.StreamResponse:
    kind: Kind = getattr(cluster, request.match_info["kind"])
    if request.query.get("watch"):
        return await _watch(kind, request)
    cluster.calls += 1
    limit, after = int(request.query["limit"]), int(request.query.get("continue", "0"))
    items = list(kind.objects.values())[after : after + limit]
    meta = {"resourceVersion": str(cluster.version)}
    if after + limit < len(kind.objects):
        meta["continue"] = str(after + limit)
    return await _json({"metadata": meta, "items": items})


async def _watch(kind: Kind, request: web.Request) -> web.StreamResponse:
    """From now on: the benchmark changes nothing between a list and its watch."""
    reply = web.StreamResponse(headers={"content-type": "application/json"})
    await reply.prepare(request)
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    kind.watches.add(queue)
    try:
        async with asyncio.timeout(float(request.query["timeoutSeconds"])):
            while True:
                await reply.write(await queue.get())
    except TimeoutError:
        return reply
    finally:
        kind.watches.discard(queue)


async def _patch(cluster: Cluster, request: web.Request) -> web.Response:
    cluster.calls += 1
    kind: Kind = getattr(cluster, request.match_info["kind"])
    known = kind.objects[request.match_info["name"]]
    made = cluster.put(kind, merged(known, orjson.loads(await request.read())), "MODIFIED")
    if request.match_info["sub"] == "/scale":
        made = {"metadata": made["metadata"], "spec": {"replicas": made["spec"]["replicas"]}}
    return await _json(made)


async def _query(cluster: Cluster, request: web.Request) -> web.Response:
    """An instant query: the rows of the metric that it names."""
    data = {**request.query, **await request.post()}
    text = str(data["query"])
    series = max((one for one in Series if METRICS[one] in text), key=lambda one: len(METRICS[one]))
    asked_for_age = text.startswith("max(timestamp")
    rows = [({}, float(str(data["time"])))] if asked_for_age else _rows(cluster, series, text)
    found = [{"metric": labels, "value": [0, repr(float(value))]} for labels, value in rows]
    return await _json({"status": "success", "data": {"resultType": "vector", "result": found}})


def _rows(cluster: Cluster, series: Series, text: str) -> list[tuple[dict[str, str], float]]:
    shape = SHAPES[series]
    if series is Series.REQUESTS:
        cluster.ticks += 1
        return [({"pipeline": cluster.pipeline, "code": "200"}, 600.0)]
    bounds = [*(f"{0.0005 * 1.3**i:.9g}" for i in range(45)), "+Inf"] if shape.kind == "histogram" else [None]
    if "histogram_quantile" in text:
        bounds = [None]
    if "node" in shape.labels:
        keys: list[dict[str, str]] = [{"pipeline": cluster.pipeline, "node": node} for node in cluster.nodes]
        keys = [{**key, "code": "200"} for key in keys] if "code" in shape.labels else keys
        busy = [_busy(cluster, i) for i in range(len(keys))]
    elif "function_name" in shape.labels:
        keys = [{"function_name": f"{name}.{NAMESPACE}"} for name in cluster.names.values()]
        keys = [{**key, "state": "ready"} for key in keys] if "state" in shape.labels else keys
        busy = [False, *(_busy(cluster, i) for i in range(len(keys) - 1))]
    elif "layer" in shape.labels:
        keys, busy = [{"pipeline": cluster.pipeline, "layer": "0"}], [False]
    else:
        keys, busy = [{"pipeline": cluster.pipeline} if shape.labels else {}], [False]
    value = _VALUES.get(series, 1.0)
    return [
        ({**key, "le": bound} if bound is not None else key, value * (20.0 if hot and series in _LOAD else 1.0))
        for key, hot in zip(keys, busy, strict=True)
        for bound in bounds
    ]


def _busy(cluster: Cluster, i: int) -> bool:
    """A hundredth of the nodes, others at each tick."""
    return (i + cluster.ticks) % round(1 / BUSY_SHARE) == 0


_VALUES = {
    Series.REPLICAS_WANTED: PODS,
    Series.REPLICAS_BY_STATE: PODS,
    Series.CPU_LIMIT_CORES: 1.0,
    Series.MEMORY_LIMIT_BYTES: 256.0 * 2**20,
    Series.REPLICA_CPU_SECONDS: 24.0,
    Series.REPLICA_MEMORY_BYTES: 64.0 * 2**20,
    Series.MAX_INFLIGHT: 8.0,
    Series.NODE_BUSY_SECONDS: 20.0,
    Series.NODE_CALL_SECONDS: 0.02,
    Series.NODE_TOKENS_PEAK: 100.0,
}
_LOAD = (Series.NODE_BUSY_SECONDS, Series.NODE_TOKENS, Series.NODE_CALLS)


def main() -> None:
    die_with_parent(os.getppid())
    directory, port = Path(sys.argv[1]), int(sys.argv[2])
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    web.run_app(app_of(Cluster(directory)), host="127.0.0.1", port=port, print=None, handle_signals=True)


if __name__ == "__main__":
    main()

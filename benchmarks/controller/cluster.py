"""A cluster and a Prometheus that answer fast, for the benchmark of the controller: a process of its own.

Deployments are those that the gateway writes, pods as the API server returns them (about 3 KB each). It serves what the
controller calls and nothing else: paged lists, watches, and patches of Deployments, their scale, pods and their resize,
which are stored and sent to the watches. It refuses nothing; replicas start and end at once. Prometheus' answers are
those of a pipeline under load in which a share of the nodes is busy, another share in each tick.

With ``--as-served`` objects have the form and size that an API server gives them (``benchmarks.controller.served``),
items of lists have no ``kind``, and a replica that starts or ends, and its Deployment, cause as many events as they do
in a cluster. It is no API server all the same: no TLS, no admission, no etcd.

    python -m benchmarks.controller.cluster PIPELINE_DIR [--as-served]

Its first line has its port, and the mean bytes of a Deployment and of a pod.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import uvloop
from aiohttp import web

from autoscaler.monitor.catalogue import METRICS
from autoscaler.monitor.prometheus import ONLY
from autoscaler.platforms.kubernetes.deployments import live_of
from autoscaler.platforms.quantities import float_quantity
from autoscaler.state.readings import SHAPES, Series
from benchmarks.controller.served import deployment_status, served_deployment, served_pod
from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.kernel import die_with_parent
from gateway.specs import parse_deployment
from moe.manifest import load
from smoe.deployment import function_deployments

NAMESPACE = "openfaas-fn"
PODS = 2
"""Pods of each function."""
BUSY_EVERY, BUSY_TIMES = 50, 20.0
"""One node in so many has so many times the load, another one in each tick."""
MANAGED = [{"manager": "smoe-gateway", "operation": "Apply", "fieldsV1": {f"f:key-{i}": {} for i in range(40)}}]
Object = dict[str, Any]


@dataclass
class Kind:
    """Objects of one kind by name, and the queues of those who watch."""

    objects: dict[str, Object] = field(default_factory=dict)
    watches: set[asyncio.Queue[bytes]] = field(default_factory=set)


class Cluster:
    def __init__(self, directory: Path, *, as_served: bool = False) -> None:
        self.version = 1
        self.as_served = as_served
        self.deployments, self.pods = Kind(), Kind()
        manifest = load(directory, verify=False)
        names = {node: manifest.function_name(node) for node in ("ingress", *(node.id for node in manifest.nodes))}
        self.answers = Answers(manifest.name, names, self.replicas, self.limits)
        settings = KubernetesSettings()
        for deployment in function_deployments(manifest):
            spec = parse_deployment(deployment)
            made = objects.deployment(spec, settings, frozenset())
            made["spec"]["replicas"] = PODS
            made["metadata"] |= {"uid": spec.name, "generation": 1, "managedFields": MANAGED}
            made["status"] = {"replicas": PODS, "updatedReplicas": PODS, "readyReplicas": PODS, "conditions": []}
            made = served_deployment(made) if as_served else made
            self.put(self.deployments, made)
            self.start(made)

    def replicas(self, function: str) -> int:
        """As the Deployment wants them; they start and end at once."""
        return int(self.deployments.objects[function]["spec"]["replicas"])

    def limits(self, function: str) -> dict[Series, float]:
        """What a replica may use, and how many calls it takes."""
        live = live_of(self.deployments.objects[function])
        assert live is not None
        return {
            Series.MEMORY_LIMIT_BYTES: float_quantity(live.limits["memory"]),
            Series.CPU_LIMIT_CORES: float_quantity(live.limits["cpu"]),
            Series.MAX_INFLIGHT: float(live.max_inflight),
        }

    def start(self, deployment: Object) -> None:
        """Start or end pods until there are as many as the Deployment wants."""
        function = deployment["metadata"]["name"]
        for i in itertools.count():
            name, wanted = f"{function}-5d7f9c6b8-{i:05d}", i < deployment["spec"]["replicas"]
            pod = self.pods.objects.get(name)
            if wanted and pod is None:
                self._begin(_pod(deployment, name))
            elif not wanted and pod is not None:
                self._end(pod)
            elif not wanted:
                break
        self.answers.forget(function)

    def _begin(self, pod: Object) -> None:
        if not self.as_served:
            self.put(self.pods, pod)
            return
        for event, stage in (("ADDED", "created"), *(("MODIFIED", one) for one in ("scheduled", "starting", "ready"))):
            if self.pods.watches or stage == "ready":
                self.put(self.pods, served_pod(pod, stage), event)

    def _end(self, pod: Object) -> None:
        if self.as_served:  # marked, its containers gone, then it itself
            leaving = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 38}
            pod = self.put(self.pods, {**pod, "metadata": {**pod["metadata"], **leaving}}, "MODIFIED")
            status = {**pod["status"], "phase": "Succeeded"}
            pod = self.put(self.pods, {**pod, "metadata": dict(pod["metadata"]), "status": status}, "MODIFIED")
        self.put(self.pods, {**pod, "metadata": dict(pod["metadata"])}, "DELETED")

    def scaled(self, deployment: Object, before: int) -> None:
        """Start or end pods after an order; the status follows as the deployment controller writes it."""
        self.start(deployment)
        if not self.as_served:
            return
        meta, count = deployment["metadata"], deployment["spec"]["replicas"]
        generation = meta["generation"]
        for ready in (min(before, count), count):
            status = deployment_status(meta["name"], count, ready, generation)
            self.put(self.deployments, {**deployment, "metadata": dict(meta), "status": status}, "MODIFIED")

    def mean_bytes(self) -> tuple[int, int]:
        """JSON of a Deployment and of a pod."""
        deployments, pods = (
            round(sum(len(orjson.dumps(one)) for one in kind.objects.values()) / len(kind.objects))
            for kind in (self.deployments, self.pods)
        )
        return deployments, pods

    def put(self, kind: Kind, document: Object, event: str = "ADDED") -> Object:
        self.version += 1
        meta = document["metadata"]
        meta["resourceVersion"] = str(self.version)
        meta["managedFields"] = meta.pop("managedFields")  # the last of metadata, as an API server writes it
        kind.objects[document["metadata"]["name"]] = document
        if event == "DELETED":
            del kind.objects[document["metadata"]["name"]]
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
        document = dict(live)
        for key, value in patch.items():
            document[key] = merged(document.get(key), value)
        return {key: value for key, value in document.items() if value is not None}
    if isinstance(patch, list) and patch and isinstance(live, list) and all("name" in item for item in patch):
        desired = {item["name"]: item for item in patch}
        return [merged(item, desired.pop(item["name"], {})) for item in live] + list(desired.values())
    return patch


def app_of(cluster: Cluster) -> web.Application:
    app = web.Application(client_max_size=1 << 24)
    app.add_routes(
        [
            web.get("/version", lambda _: _json({"major": "1", "minor": "36"})),
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
    limit, after = int(request.query["limit"]), int(request.query.get("continue", "0"))
    items = list(kind.objects.values())[after : after + limit]
    if cluster.as_served:
        items = [{key: one[key] for key in ("metadata", "spec", "status")} for one in items]
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
    kind: Kind = getattr(cluster, request.match_info["kind"])
    stored = kind.objects[request.match_info["name"]]
    wanted = merged(stored, orjson.loads(await request.read()))
    if cluster.as_served and wanted["spec"] != stored["spec"]:
        wanted["metadata"] = {**wanted["metadata"], "generation": stored["metadata"]["generation"] + 1}
    made = cluster.put(kind, wanted, "MODIFIED")
    if request.match_info["sub"] == "/scale":
        cluster.scaled(made, stored["spec"]["replicas"])
        made = {"metadata": made["metadata"], "spec": {"replicas": made["spec"]["replicas"]}}
    return await _json(made)


async def _query(cluster: Cluster, request: web.Request) -> web.Response:
    """An instant query: the rows of the metric that it names, compressed where that is asked for."""
    data = {**request.query, **await request.post()}
    reply = web.Response(body=cluster.answers.body(str(data["query"]), float(str(data["time"]))))
    reply.content_type = "application/json"
    reply.enable_compression()
    return reply


class Answers:
    """Prometheus' answers, kept as rows of bytes: only what load and replicas change is written again."""

    def __init__(
        self,
        pipeline: str,
        names: dict[str, str],
        replicas: Callable[[str], int],
        limits: Callable[[str], dict[Series, float]],
    ) -> None:
        """``names``: node → function, ingress first; ``replicas`` of a function now, and its ``limits``."""
        self._pipeline = pipeline
        self._nodes = list(names)[1:]
        self._replicas = replicas
        self._limits = limits
        self._rows: dict[str, list[bytes]] = {}
        self._functions = list(names.values())
        self._places = {function: place for place, function in enumerate(self._functions)}
        self._changed: list[str] = []
        """Functions whose replicas have changed, one after the other."""
        self._written: dict[str, int] = {}
        """Query → how many of those changes its rows know."""
        self._ticks = 0

    def body(self, query: str, time_s: float) -> bytes:
        """One answer as Prometheus writes it."""
        series = max((kind for kind in Series if METRICS[kind] in query), key=lambda kind: len(METRICS[kind]))
        if series is Series.REQUESTS:  # the first query of a tick
            self._ticks += 1
        rows = [_row({}, time_s)] if query.startswith("max(timestamp") else self._current(series, query)
        data = b",".join(rows).replace(_TIME, f"{time_s:.3f}".encode())
        return b'{"status":"success","data":{"resultType":"vector","result":[' + data + b"]}}"

    def forget(self, function: str) -> None:
        """Its replicas have changed: the rows that count them are written again when they are asked for."""
        self._changed.append(function)

    def _current(self, series: Series, query: str) -> list[bytes]:
        if query not in self._rows:
            self._rows[query] = [_row(labels, value) for labels, value in self._made(series, query)]
            self._written[query] = len(self._changed)
        rows = self._rows[query]
        if series in _COUNTED:
            for function in self._changed[self._written[query] :]:
                made = [_row(labels, value) for labels, value in self._of_function(series, query, function)]
                begin = self._places[function] * len(made)
                rows[begin : begin + len(made)] = made
            self._written[query] = len(self._changed)
        if series not in _LOAD:
            return rows
        rows = rows.copy()
        for i in range(-self._ticks % BUSY_EVERY, len(rows), BUSY_EVERY):
            rows[i] = _row(self._labels(series, self._nodes[i]), BUSY_TIMES * _varied(series, i))
        return rows

    def _made(self, series: Series, query: str) -> Iterator[tuple[dict[str, str], float]]:
        shape, value = SHAPES[series], _VALUES.get(series, 1.0)
        if series is Series.REQUESTS:
            yield {"pipeline": self._pipeline, "code": "200"}, 600.0
        elif "node" in shape.labels:
            yield from ((self._labels(series, node), _varied(series, i)) for i, node in enumerate(self._nodes))
        elif "function_name" in shape.labels:
            for function in self._functions:
                yield from self._of_function(series, query, function)
        else:
            labels = {"pipeline": self._pipeline} if shape.labels else {}
            labels |= {"layer": "0"} if "layer" in shape.labels else {}
            bounds = [*(f"{0.0005 * 1.3**i:.9g}" for i in range(45)), "+Inf"] if shape.kind == "histogram" else []
            yield from (({**labels, "le": bound}, value) for bound in bounds)
            if not bounds:
                yield labels, value

    def _of_function(self, series: Series, query: str, function: str) -> Iterator[tuple[dict[str, str], float]]:
        if series == Series.STANDBY_ACTIVATED_SECONDS:  # functions without standbys have none
            return
        labels = {"function_name": f"{function}.{NAMESPACE}"}
        counted = self._counted(series, query, function, _varied(series, self._places[function]))
        if "state" not in SHAPES[series].labels:
            yield labels, counted
            return
        states = ("ready",) if ONLY[Series.REPLICAS_BY_STATE] in query else ("starting", "ready", "draining")
        yield from (({**labels, "state": state}, counted if state == "ready" else 0.0) for state in states)

    def _labels(self, series: Series, node: str) -> dict[str, str]:
        code = {"code": "200"} if "code" in SHAPES[series].labels else {}
        return {"pipeline": self._pipeline, "node": node, **code}

    def _counted(self, series: Series, query: str, function: str, value: float) -> float:
        if series in _LIMITS:
            return self._limits(function)[series]
        replicas = self._replicas(function)
        if series in (Series.REPLICAS_WANTED, Series.REPLICAS_BY_STATE) or query.startswith("count"):
            return float(replicas)
        return value * replicas if series in _COUNTED else value


@cache
def _varied(series: Series, place: int) -> float:
    """The value of one of many nodes or functions: like the others' up to a tenth, as measured values are."""
    return _VALUES.get(series, 1.0) * random.Random(f"{series}/{place}").uniform(1.0, 1.1)


def _row(labels: dict[str, str], value: float) -> bytes:
    return b'{"metric":%b,"value":[%b,"%b"]}' % (orjson.dumps(labels), _TIME, f"{value:.17g}".encode())


_TIME = b"@time"
"""In a row that is kept: the time of the query stands in every row."""


_COUNTED = (Series.REPLICAS_WANTED, Series.REPLICAS_BY_STATE, Series.REPLICA_CPU_SECONDS, Series.REPLICA_MEMORY_BYTES)
"""Series that say how many replicas there are, or a sum over them."""
_LIMITS = (Series.MEMORY_LIMIT_BYTES, Series.CPU_LIMIT_CORES, Series.MAX_INFLIGHT)
_VALUES = {
    Series.REPLICA_CPU_SECONDS: 12.0,
    Series.REPLICA_MEMORY_BYTES: 64.0 * 2**20,
    Series.NODE_BUSY_SECONDS: 20.0,
    Series.NODE_CALL_SECONDS: 0.02,
    Series.NODE_TOKENS_PEAK: 100.0,
}
_LOAD = (Series.NODE_BUSY_SECONDS, Series.NODE_TOKENS, Series.NODE_CALLS)


def main() -> None:
    die_with_parent(os.getppid())
    directory, listener = Path(sys.argv[1]), socket.create_server(("127.0.0.1", 0))
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    cluster = Cluster(directory, as_served="--as-served" in sys.argv[2:])
    app = app_of(cluster)
    # Who connects before waits longer than a query may.
    print(listener.getsockname()[1], *cluster.mean_bytes(), flush=True)
    gc.collect()
    gc.freeze()  # a pass over thousands of documents would let a tick wait for a third of a second
    web.run_app(app, sock=listener, print=None, handle_signals=True)


if __name__ == "__main__":
    main()

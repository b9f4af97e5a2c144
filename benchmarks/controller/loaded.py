"""The benchmark's functions in a real API server that has neither controllers nor nodes: put there and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import orjson

from autoscaler.platforms.kubernetes.client import MERGE, connect
from benchmarks.controller.cluster import NAMESPACE, Cluster

WRITERS = 16
TIMEOUT_S = 30.0
_AT_ONCE = ("apps/v1", "deployments"), ("v1", "pods")


class Server:
    def __init__(self, kubeconfig: Path) -> None:
        self._api = connect(kubeconfig)
        self._api.configuration.connection_pool_maxsize = WRITERS
        self._root = self._api.configuration.host

    def call(self, method: str, path: str, body: object = None, expected: tuple[int, ...] = (200, 201)) -> Any:
        """Raises ClickException where the answer is not one of ``expected``."""
        kind = MERGE if method == "PATCH" else "application/json"
        headers = {**self._api.default_headers, "Content-Type": kind}
        # a token is no default header of the client
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        reply = self._api.rest_client.pool_manager.request(
            method, self._root + path, body=orjson.dumps(body), headers=headers, timeout=TIMEOUT_S
        )
        if reply.status not in expected:
            raise click.ClickException(f"{method} {path}: {reply.status} {reply.data[:300].decode(errors='replace')}")
        return orjson.loads(reply.data)

    def put(self, version: str, resource: str, document: dict[str, Any]) -> None:
        """Make it, with its status."""
        path = _path(version, resource)
        meta = {
            key: document["metadata"][key] for key in ("name", "labels", "annotations") if key in document["metadata"]
        }
        made = {"apiVersion": version, "kind": document["kind"], "metadata": meta, "spec": document["spec"]}
        self.call("POST", path, made)
        self.call("PATCH", f"{path}/{meta['name']}/status", {"status": document["status"]})

    def delete(self, version: str, resource: str, name: str) -> None:
        """Take it away at once, where it is there still."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        self.call("DELETE", f"{_path(version, resource)}/{name}", options, (200, 202, 404))


def _path(version: str, resource: str) -> str:
    return f"/{'api' if version == 'v1' else 'apis'}/{version}/namespaces/{NAMESPACE}/{resource}"


@contextmanager
def loaded(kubeconfig: Path, directory: Path) -> Iterator[None]:
    """Deployments and pods of the pipeline in ``directory``. Raises ClickException where the namespace has any."""
    server, cluster = Server(kubeconfig), Cluster(directory)
    spaces = "/api/v1/namespaces"
    server.call("POST", spaces, {"metadata": {"name": NAMESPACE}}, (201, 409))
    server.call("POST", f"{spaces}/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "default"}}, (201, 409))
    if server.call("GET", f"{_path('apps/v1', 'deployments')}?limit=1")["items"]:
        raise click.ClickException(f"namespace {NAMESPACE} holds Deployments; the benchmark wants it for itself")
    try:
        with ThreadPoolExecutor(WRITERS) as writers:
            for (version, resource), kind in zip(_AT_ONCE, (cluster.deployments, cluster.pods), strict=True):
                list(writers.map(lambda one, v=version, r=resource: server.put(v, r, one), kind.objects.values()))
        yield
    finally:
        with ThreadPoolExecutor(WRITERS) as writers:  # of thousands at once the answer would come too late
            for (version, resource), kind in zip(_AT_ONCE, (cluster.deployments, cluster.pods), strict=True):
                list(writers.map(lambda name, v=version, r=resource: server.delete(v, r, name), kind.objects))

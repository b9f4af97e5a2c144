"""An OpenFaaS gateway as small as can be: what the platform adapter needs, with switches for what goes wrong."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.unit.autoscaler.servers import Reply

AUTH = ("admin", "secret")
_EXPECTED = "Basic " + base64.b64encode(":".join(AUTH).encode()).decode()


class OpenFaas:
    """Functions by name, as FunctionStatus objects (numbers that are 0 are left out, as Go does)."""

    def __init__(self, functions: dict[str, dict[str, Any]]) -> None:
        self.functions = functions
        self.broken: set[str] = set()
        self.down = False
        self.ignores_updates = False
        self.standbys = False
        """Whether it announces standbys, as this project's gateway does."""
        self.orchestration = "kubernetes"
        self.asked_about = 0
        """Times that it was asked what it is."""
        self.most_replicas: int | None = None
        self.writes: list[tuple[str, dict[str, Any]]] = []

    def reply(self, method: str, path: str, body: bytes, authorization: str) -> Reply:
        if self.down:
            return 502, b""
        if authorization != _EXPECTED:
            return 401, b"invalid credentials"
        if path == "/system/info":
            self.asked_about += 1
            about: dict[str, Any] = {"arch": "x86_64", "provider": {"orchestration": self.orchestration}}
            return 200, json.dumps(about | ({"standbys": True} if self.standbys else {})).encode()
        if path == "/system/functions":
            return self._list_or_update(method, body)
        name = path.rpartition("/")[2]
        if name not in self.functions:
            return 404, b""
        if method == "GET":
            return 200, json.dumps(self.functions[name]).encode()
        return self._scale(name, json.loads(body))

    def _list_or_update(self, method: str, body: bytes) -> Reply:
        if method == "GET":
            return 200, json.dumps(list(self.functions.values())).encode()
        document = json.loads(body)
        name = document.pop("service")
        if name not in self.functions:
            return 404, b"not found"
        if name in self.broken:
            return 500, b"unable to update"
        self.writes.append(("PUT", {"service": name, **document}))
        if not self.ignores_updates:
            kept = {key: self.functions[name][key] for key in ("replicas", "createdAt") if key in self.functions[name]}
            labels = {**document.get("labels", {}), "faas_function": name}
            self.functions[name] = {**document, "name": name, "labels": labels, **kept}
        return 202, b""

    def _scale(self, name: str, document: dict[str, Any]) -> Reply:
        if name in self.broken:
            return 500, b"unable to scale"
        self.writes.append(("scale", document))
        self.functions[name]["replicas"] = min(document["replicas"], self.most_replicas or document["replicas"])
        return 202, b""


def status(name: str, **more: Any) -> dict[str, Any]:
    """A function of pipeline ``m``: one replica of 256 MiB and one core, four calls at once."""
    return {
        "name": name,
        "image": "smoe/function:1",
        "namespace": "openfaas-fn",
        "envProcess": "",
        "envVars": {"max_inflight": "4", "smoe_pipeline": "m"},
        "labels": {"smoe.pipeline": "m", "faas_function": name, "com.openfaas.scale.min": "1"},
        "annotations": {"com.openfaas.retry.attempts": "3"},
        "limits": {"memory": "256Mi", "cpu": "1000m"},
        "requests": {"memory": "256Mi", "cpu": "50m"},
        "secrets": ["feed-token"],
        "replicas": 1,
        "createdAt": "2026-01-01T00:00:00Z",
        **more,
    }

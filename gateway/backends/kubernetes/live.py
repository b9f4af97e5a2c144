"""What a function's pods should have now, and how a pod that differs is brought there without a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.backends.kubernetes.api import Object
from gateway.backends.process.quantities import parse_quantity
from gateway.contract import FunctionSpec
from gateway.specs import max_inflight

FUNCTION_LABEL = "faas_function"
"""OpenFaaS's label of everything that belongs to a function."""
POD_SETTINGS = "smoe.settings"
"""Annotation of a pod; the downward API shows it to the function as a file."""
LIVE_FOLDER = "/etc/smoe/live"
LIVE_FILE = "settings.json"
OPT_IN = "smoe.live-settings"
"""Annotation of a function, ``true``: its image reads the file named by ``smoe_live_settings``."""
RESIZED = ("cpu", "memory")


@dataclass(frozen=True)
class Live:
    """Limits and requests of a replica's container, and how many calls it takes at once."""

    limits: Mapping[str, str]
    requests: Mapping[str, str]
    max_inflight: int

    @staticmethod
    def parse(text: str) -> Live:
        """Raises ValueError, KeyError and TypeError for what :meth:`text` did not write."""
        found = json.loads(text)
        return Live(dict(found["limits"]), dict(found["requests"]), int(found["max_inflight"]))

    def text(self) -> str:
        fields = {
            "limits": dict(self.limits),
            "requests": dict(self.requests),
            "max_inflight": self.max_inflight,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def settings(self) -> str:
        """Content of the live settings file."""
        return json.dumps({"max_inflight": self.max_inflight}, separators=(",", ":"))

    @property
    def guaranteed(self) -> bool:
        """Kubernetes' class of service: requests equal limits. A live pod keeps its class."""
        full = {**self.limits, **self.requests}
        return all(name in self.limits and _same(full[name], self.limits[name]) for name in RESIZED)


def live_of(spec: FunctionSpec) -> Live:
    """What ``spec`` asks for."""
    return Live(dict(spec.limits), dict(spec.requests), max_inflight(spec))


def takes_live_settings(spec: FunctionSpec) -> bool:
    """Whether the image reads ``smoe_live_settings``; others learn ``max_inflight`` from their environment only."""
    return spec.annotations.get(OPT_IN) == "true"


def resize(pod: Object, name: str, live: Live) -> Object | None:
    """The body for ``pods/resize`` that gives the container ``name`` its CPU and memory; None where nothing differs.

    A pod of another template (with a GPU, or without limits) is left alone: a roll-out replaces it.
    """
    container = next((one for one in pod["spec"]["containers"] if one["name"] == name), None)
    if container is None:
        return None
    present = container.get("resources") or {}
    wanted: dict[str, dict[str, str]] = {
        "limits": dict(live.limits),
        "requests": {**{k: v for k, v in live.limits.items() if k in RESIZED}, **live.requests},
    }
    changes: dict[str, dict[str, str]] = {}
    for kind in ("limits", "requests"):
        have = {k: v for k, v in (present.get(kind) or {}).items() if k in RESIZED}
        want = {k: v for k, v in wanted[kind].items() if k in RESIZED}
        if have.keys() != want.keys():
            return None
        differing = {k: v for k, v in want.items() if not _same(have[k], v)}
        if differing:
            changes[kind] = want
    if not changes:
        return None
    return {"spec": {"containers": [{"name": name, "resources": changes}]}}


def annotate(pod: Object, live: Live) -> Object | None:
    """A merge patch that tells a pod its live settings; None where it knows them or cannot read them."""
    present = (pod["metadata"].get("annotations") or {}).get(POD_SETTINGS)
    wanted = live.settings()
    if present is None or present == wanted:
        return None
    return {"metadata": {"annotations": {POD_SETTINGS: wanted}}}


def leaving(pod: Object) -> bool:
    """Whether the pod is on its way out or over."""
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def condition(pod: Object, kind: str) -> dict[str, Any] | None:
    """A condition of a pod that is true."""
    for one in pod.get("status", {}).get("conditions") or ():
        if one["type"] == kind and one["status"] == "True":
            return dict(one)
    return None


def _same(one: str, other: str) -> bool:
    return parse_quantity(str(one)) == parse_quantity(str(other))

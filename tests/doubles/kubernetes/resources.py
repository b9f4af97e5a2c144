"""What the double serves, and quantities."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from platform_words.resources import parse_quantity


@dataclass(frozen=True)
class Kind:
    group: str
    version: str
    name: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


KINDS = {
    "deployments": Kind("apps", "v1", "Deployment"),
    "replicasets": Kind("apps", "v1", "ReplicaSet"),
    "services": Kind("", "v1", "Service"),
    "endpointslices": Kind("discovery.k8s.io", "v1", "EndpointSlice"),
    "pods": Kind("", "v1", "Pod"),
    "secrets": Kind("", "v1", "Secret"),
    "namespaces": Kind("", "v1", "Namespace"),
    "leases": Kind("coordination.k8s.io", "v1", "Lease"),
    "resourcequotas": Kind("", "v1", "ResourceQuota"),
}


def qualified(resource: str) -> str:
    """``deployments.apps``, as messages name resources."""
    group = KINDS[resource].group
    return f"{resource}.{group}" if group else resource


@cache
def amount(text: object) -> Fraction:
    """A scheduler and quotas ask for the same few again and again."""
    return parse_quantity(str(text))


def requested(pod: dict[str, Any], resource: str, kind: str = "requests") -> Fraction:
    """Sum over the pod's containers."""
    given = [(one.get("resources", {}).get(kind) or {}).get(resource, "0") for one in pod["spec"]["containers"]]
    return amount(given[0]) if len(given) == 1 else sum(map(amount, given), Fraction(0))


def qos(spec: dict[str, Any]) -> str:
    """Quality of service class of a pod."""
    classes = set()
    for container in spec["containers"]:
        limits = container.get("resources", {}).get("limits") or {}
        requests = container.get("resources", {}).get("requests") or {}
        if not limits and not requests:
            classes.add("BestEffort")
        elif all(
            name in limits and name in requests and amount(limits[name]) == amount(requests[name])
            for name in ("cpu", "memory")
        ):
            classes.add("Guaranteed")
        else:
            classes.add("Burstable")
    return classes.pop() if len(classes) == 1 else "Burstable"


def with_defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's spec as the API server stores it: requests default to limits."""
    for container in spec["containers"]:
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        container.setdefault("imagePullPolicy", "IfNotPresent")
    return spec


def selects(selector: str, labels: dict[str, str]) -> bool:
    """Label selectors ``a=b``, ``a!=b``, ``a`` and ``!a``, joined by commas."""
    for term in filter(None, selector.split(",")):
        if "!=" in term:
            key, _, value = term.partition("!=")
            if labels.get(key) == value:
                return False
        elif "=" in term:
            key, _, value = term.partition("=")
            if labels.get(key.rstrip("=")) != value.lstrip("="):
                return False
        elif term.startswith("!"):
            if term[1:] in labels:
                return False
        elif term not in labels:
            return False
    return True

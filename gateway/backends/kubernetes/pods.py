"""Replicas from pods and endpoints: state, address, start times. Computes only, on what the watches brought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.live import condition, leaving
from gateway.contract import Replica, ReplicaState


def addresses(slices: Iterable[Object]) -> dict[str, tuple[str, bool]]:
    """Pod → ``host:port`` and whether it takes calls, from a function's EndpointSlices."""
    found: dict[str, tuple[str, bool]] = {}
    for one in slices:
        ports = [port["port"] for port in one.get("ports") or () if port.get("port")]
        for endpoint in one.get("endpoints") or ():
            pod = (endpoint.get("targetRef") or {}).get("name")
            if not pod or not ports or not endpoint.get("addresses"):
                continue
            host = endpoint["addresses"][0]
            host = f"[{host}]" if ":" in host else host
            conditions = endpoint.get("conditions") or {}
            # A missing ``ready`` counts as true (EndpointSlice API).
            takes_calls = conditions.get("ready") is not False and not conditions.get("terminating")
            found[pod] = (f"{host}:{ports[0]}", takes_calls)
    return found


def replicas(pods: Iterable[Object], known: Mapping[str, tuple[str, bool]]) -> tuple[Replica, ...]:
    """A function's replicas, oldest first; pods that have ended are none."""
    found = []
    for pod in sorted(pods, key=lambda one: (one["metadata"].get("creationTimestamp", ""), one["metadata"]["name"])):
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            continue
        name = pod["metadata"]["name"]
        address, takes_calls = known.get(name, ("", False))
        state: ReplicaState = "draining" if leaving(pod) else "ready" if takes_calls else "starting"
        started_s = moment(pod["metadata"].get("creationTimestamp"))
        found.append(Replica(name, address, state, None, started_s, pod.get("spec", {}).get("nodeName", "")))
    return tuple(found)


def restarts(pods: Iterable[Object]) -> int:
    """Containers that the kubelet started again, in the pods there are."""
    return sum(
        status.get("restartCount", 0) for pod in pods for status in pod.get("status", {}).get("containerStatuses") or ()
    )


def is_ready(pod: Object) -> bool:
    return not leaving(pod) and condition(pod, "Ready") is not None


def moment(text: str | None) -> float:
    """Unix time of an API timestamp; 0 where there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0

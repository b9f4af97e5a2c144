"""Replicas from pods and endpoints: state, address, start times. Computes only, on what the watches brought."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.live import condition, leaving
from gateway.contract import Replica, ReplicaState


def addresses(slices: Iterable[Object]) -> dict[str, tuple[str, bool]]:
    """Pod → ``host:port`` and whether it takes calls, from a function's EndpointSlices."""
    address_by_pod: dict[str, tuple[str, bool]] = {}
    for endpoint_slice in slices:
        ports = [port["port"] for port in endpoint_slice.get("ports") or () if port.get("port")]
        for endpoint in endpoint_slice.get("endpoints") or ():
            pod = (endpoint.get("targetRef") or {}).get("name")
            if not pod or not ports or not endpoint.get("addresses"):
                continue
            host = endpoint["addresses"][0]
            host = f"[{host}]" if ":" in host else host
            conditions = endpoint.get("conditions") or {}
            # A missing ``ready`` counts as true (EndpointSlice API).
            takes_calls = conditions.get("ready") is not False and not conditions.get("terminating")
            address_by_pod[pod] = (f"{host}:{ports[0]}", takes_calls)
    return address_by_pod


def replicas(pods: Iterable[Object], address_by_pod: Mapping[str, tuple[str, bool]]) -> tuple[Replica, ...]:
    """A function's replicas, oldest first; pods that have ended are none."""
    members = []
    for pod in sorted(pods, key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"])):
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            continue
        name = pod["metadata"]["name"]
        address, takes_calls = address_by_pod.get(name, ("", False))
        state: ReplicaState = "draining" if leaving(pod) else "ready" if takes_calls else "starting"
        started_s = moment(pod["metadata"].get("creationTimestamp"))
        members.append(Replica(name, address, state, None, started_s, pod.get("spec", {}).get("nodeName", "")))
    return tuple(members)


def restarts(pods: Iterable[Object]) -> int:
    """Containers that the kubelet started again, in the pods there are."""
    return sum(
        status.get("restartCount", 0) for pod in pods for status in pod.get("status", {}).get("containerStatuses") or ()
    )


def problems(pods: Iterable[Object]) -> tuple[str, ...]:
    """What keeps pods from being ready, one pod of each reason: no node, no image, a container that ends again and
    again."""
    by_reason: dict[str, str] = {}
    for pod in pods:
        if leaving(pod) or is_ready(pod):
            continue
        for reason, message in _reasons(pod):
            words = f"{reason}: {' '.join(message.split())[:300]}" if message else reason
            by_reason.setdefault(reason, f"{pod['metadata']['name']}: {words}")
    return tuple(by_reason.values())


def _reasons(pod: Object) -> Iterator[tuple[str, str]]:
    status = pod.get("status") or {}
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            yield one.get("reason", "Unschedulable"), one.get("message", "")
    for container in status.get("containerStatuses") or ():
        state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or last
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            yield waiting["reason"], waiting.get("message", "")
        if ended:
            code = f"exit code {ended['exitCode']}" if "exitCode" in ended else ""
            yield ended.get("reason", "ended"), ended.get("message", "") or code


def is_ready(pod: Object) -> bool:
    return not leaving(pod) and condition(pod, "Ready") is not None


def moment(text: str | None) -> float:
    """Unix time of an API timestamp; 0 where there is none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0

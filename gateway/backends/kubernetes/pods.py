"""Replicas from pods and endpoints: state, address, start times, on what the watches brought."""

from __future__ import annotations

import time
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


class Starts:
    """Times starts of pods, from first sight until they are seen ready; those that a list holds as ready are not timed.

    Events that come together are one change, so a quick pod can be ready at first sight: it is timed from its creation,
    which the API server gives in whole seconds.
    """

    def __init__(self) -> None:
        self._starting_s: dict[str, float] = {}
        """Pod → when it was first seen without being ready (monotonic)."""
        self._seen: set[str] = set()
        self._taken_s: list[float] = []

    def see(self, pods: Iterable[Object], *, listed: bool = False) -> None:
        """``listed``: they come from a list, not from an event."""
        now_s = time.monotonic()
        for pod in pods:
            name = pod["metadata"]["name"]
            if not is_ready(pod):
                self._starting_s.setdefault(name, now_s)
            elif (begun_s := self._starting_s.pop(name, None)) is not None:
                self._taken_s.append(max(1e-6, now_s - begun_s))
            elif not listed and name not in self._seen:
                created_s = moment(pod["metadata"].get("creationTimestamp")) or time.time()
                self._taken_s.append(max(1e-6, time.time() - created_s))
            self._seen.add(name)

    def take(self) -> list[float]:
        """Seconds of the starts since this was last asked."""
        taken_s, self._taken_s = self._taken_s, []
        return taken_s

    def keep(self, pods: Iterable[str]) -> None:
        """Only these are there still."""
        present = set(pods)
        self._seen &= present
        for name in self._starting_s.keys() - present:
            del self._starting_s[name]

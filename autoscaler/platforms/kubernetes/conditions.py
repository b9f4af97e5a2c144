"""What stands in the way of a function's configuration, read from its Deployment and pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from autoscaler.platforms.kubernetes.client import Object, RefusedError, beyond_namespace

ConditionKind = Literal[
    "deferred", "infeasible", "resize failed", "unschedulable", "quota", "forbidden", "node lost", "refused"
]


DRIVEN_AWAY = ("DeletionByTaintManager", "DeletionByPodGC")
"""Reasons of ``DisruptionTarget`` that are the node's."""


@dataclass(frozen=True)
class Condition:
    """One obstacle. ``pod`` is empty where the whole function has it; ``since_s`` Unix time, None where it is not
    reported."""

    function: str
    kind: ConditionKind
    pod: str
    message: str
    since_s: float | None = None

    def __str__(self) -> str:
        where = f", pod {self.pod}" if self.pod else ""
        return f"{self.function}{where}: {self.kind}: {self.message}"


def conditions_of(deployment: Object, pods: Iterable[Object]) -> Iterator[Condition]:
    """All that the API server shows of one function now."""
    function = deployment["metadata"]["name"]
    for one in deployment.get("status", {}).get("conditions") or ():
        if one["type"] == "ReplicaFailure" and one["status"] == "True":
            message = one.get("message", "")
            kind: ConditionKind = "quota" if beyond_namespace(message) else "refused"
            yield Condition(function, kind, "", message, _moment(one.get("lastTransitionTime")))
    for pod in pods:
        yield from _of_pod(function, pod)


def leaving(pod: Object) -> bool:
    """Whether the pod is on its way out or over."""
    return "deletionTimestamp" in pod["metadata"] or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def kind_of(error: RefusedError) -> ConditionKind:
    """What an answer of the API server means."""
    if error.over_quota:
        return "quota"
    if error.beyond_node:
        return "infeasible"
    return "forbidden" if error.code == 403 else "refused"


def _of_pod(function: str, pod: Object) -> Iterator[Condition]:
    name, status = pod["metadata"]["name"], pod.get("status", {})
    lost = _lost(status)
    if lost is not None:
        node = pod["spec"].get("nodeName", "")
        yield Condition(function, "node lost", name, f"node {node} {lost}", _since(status))
        return
    if leaving(pod):
        return
    for one in status.get("conditions") or ():
        since_s, reason, message = _moment(one.get("lastTransitionTime")), one.get("reason"), one.get("message", "")
        if one["type"] == "PodResizePending" and one["status"] == "True":
            kind: ConditionKind = "infeasible" if reason == "Infeasible" else "deferred"
            yield Condition(function, kind, name, message, since_s)
        elif one["type"] == "PodResizeInProgress" and one["status"] == "True" and reason == "Error":
            yield Condition(function, "resize failed", name, message, since_s)
        elif one["type"] == "PodScheduled" and one["status"] == "False" and reason == "Unschedulable":
            yield Condition(function, "unschedulable", name, message, since_s)


def _lost(status: Object) -> str | None:
    """What happened to the node of a pod, None where it is heard of.

    Kubernetes marks the pods of a silent node unready and leaves their containers ready, which no kubelet does
    (``MarkPodsNotReady``); minutes later it drives them away by taints, or collects them once the node is deleted.
    """
    true = {one["type"]: one.get("reason", "") for one in status.get("conditions") or () if one["status"] == "True"}
    if true.get("DisruptionTarget") in DRIVEN_AWAY:
        return "is gone, or drives its pods away"
    gated = any(one.get("reason") == "ReadinessGatesNotReady" for one in status.get("conditions") or ())
    if "Ready" not in true and "ContainersReady" in true and not gated:
        return "is not heard of any more"
    return None


def _since(status: Object) -> float | None:
    """When the pod was marked."""
    marks = ("DisruptionTarget", "Ready")
    times = {one["type"]: _moment(one.get("lastTransitionTime")) for one in status.get("conditions") or ()}
    return next((times[mark] for mark in marks if mark in times), None)


def _moment(text: str | None) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None

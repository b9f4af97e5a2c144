"""The cluster behind the API: nodes, quotas, the controllers that make pods and endpoints, and the kubelet.

Everything runs on one event loop and settles after each write; what takes time in a real cluster is a switch here.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.doubles.kubernetes import rollout
from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import Refusal, forbidden
from tests.doubles.kubernetes.kubelet import Container
from tests.doubles.kubernetes.resources import amount, requested, with_defaults
from tests.doubles.kubernetes.store import Store, now

Resizing = Literal["done", "deferred", "infeasible", "in progress", "failed"]


@dataclass
class Node:
    """A machine and what pods may request of it."""

    allocatable: dict[str, str] = field(default_factory=lambda: {"cpu": "32", "memory": "64Gi", "nvidia.com/gpu": "10"})
    lost: bool = False


class Cluster:
    """``serve_port``: pods really listen there, each on a loopback address of its own; None: addresses are made up."""

    def __init__(self, nodes: dict[str, Node] | None = None, serve_port: int | None = None) -> None:
        self.store = Store()
        self.nodes = nodes or {"node-1": Node()}
        self.serve_port = serve_port
        self.resizing: Resizing = "done"
        """What the kubelet makes of a resize that the API server took."""
        self.new_pods_refused = ""
        """What an admission says to every new pod; empty: nothing."""
        self.hold_starts = False
        """Pods stay unready until :meth:`let_start`."""
        self.hold_ends = False
        """Pods that are deleted go on taking up their node's room until :meth:`let_end`."""
        self.needs: dict[str, str] = {}
        """Function → memory that a container of it takes: with a smaller limit it is ended while it starts."""
        self._cgroups: dict[str, str] = {}
        """Uid of a pod → memory limit of its cgroup."""
        self.logs: dict[tuple[str, str], list[tuple[float, str]]] = {}
        self.logged = asyncio.Event()
        self._containers: dict[str, Container] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random(os.urandom(8))
        self._net = f"127.{self._random.randrange(1, 255)}.{self._random.randrange(255)}"
        self._made = 0
        self.add_namespace("openfaas-fn")

    def add_namespace(self, name: str, annotations: dict[str, str] | None = None) -> None:
        self.store.create("namespaces", {"metadata": {"name": name, "annotations": annotations or {}}}, "test")

    def pods(self, function: str | None = None, namespace: str | None = None) -> list[dict[str, Any]]:
        """Pods, the terminating ones too."""
        return [
            pod
            for pod in self.store.all("pods", namespace)
            if function in (None, pod["metadata"]["labels"].get("faas_function"))
        ]

    def settle(self) -> None:
        """Let the controllers and the kubelet work until nothing changes."""
        for _ in range(200):
            before = self.store.version
            rollout.deployments(self)
            self._schedule()
            self._run_pods()
            self._resize()
            rollout.endpoint_slices(self)
            rollout.statuses(self)
            self._count_quotas()
            if self.store.version == before:
                return
        raise AssertionError("the cluster does not settle")

    def empty_namespace(self, name: str) -> None:
        """As the namespace controller does; pods go with their Deployments."""
        for resource in ("deployments", "services", "secrets", "leases", "resourcequotas"):
            for one in list(self.store.all(resource, name)):
                self.store.delete(resource, name, one["metadata"]["name"])

    # what tests do to it

    def let_start(self) -> None:
        self.hold_starts = False
        self.settle()

    def delete_pods(self) -> None:
        """All of them at once."""
        for pod in self.pods():
            self.delete_pod(pod)
        self.settle()

    def let_end(self) -> None:
        self.hold_ends = False
        for pod in self.pods():
            if "deletionTimestamp" in pod["metadata"]:
                self.delete_pod(pod)
        self.settle()

    def lose_node(self, name: str) -> None:
        """The node's kubelet is heard no more: its pods are marked unready, and nothing else of them is touched."""
        self.nodes[name].lost = True
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self._set_ready(pod, False)
        self.settle()

    def evict_lost(self, after_s: float = 300.0) -> None:
        """What Kubernetes does once its taints are there for ``after_s``: pods of lost nodes that bear them no longer
        are deleted, and stay terminating."""
        for pod in self.pods():
            node = self.nodes.get(pod["spec"].get("nodeName", ""))
            if node is not None and node.lost and _borne_s(pod) <= after_s:
                changed = copied(pod)
                changed["metadata"]["deletionTimestamp"] = now()
                why = "Taint manager: deleting due to NoExecute taint"
                _condition(changed, "DisruptionTarget", "True", "DeletionByTaintManager", why)
                self.store.replace("pods", changed, "controller", status=True)
        self.settle()

    def refuse_new_pods(self, said: str) -> None:
        """By an admission that says so (a limit range, PodSecurity, a webhook); empty: no more."""
        self.new_pods_refused = said
        self.settle()

    def set_resizing(self, how: Resizing) -> None:
        self.resizing = how
        self.settle()

    def end_containers(self, function: str) -> None:
        """Containers die and are started again in the same pods."""
        for pod in self.pods(function):
            if pod["status"].get("containerStatuses"):
                self._begin(pod)
        self.settle()

    # pods

    def make_pod(self, namespace: str, name: str, template: dict[str, Any], owner: dict[str, Any]) -> None:
        """Admission and creation. Raises Refusal for quotas, and where new pods are refused."""
        pod = {
            "metadata": {
                "name": f"{name}-",
                "namespace": namespace,
                "labels": dict(template["metadata"].get("labels") or {}),
                "annotations": dict(template["metadata"].get("annotations") or {}),
                "ownerReferences": [owner],
            },
            "spec": with_defaults(copied(template["spec"])),
            "status": {"phase": "Pending", "conditions": []},
        }
        self.admit_quota(namespace, pod, None)
        if self.new_pods_refused:
            raise forbidden("pods", pod["metadata"]["name"], self.new_pods_refused)
        pod["metadata"]["name"] += f"{self._random.randrange(16**5):05x}"
        self.store.create("pods", pod, "kube-controller-manager")

    def delete_pod(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        node = pod["spec"].get("nodeName")
        if node is not None and (self.hold_ends or self.nodes.get(node, Node()).lost):
            changed = copied(pod)
            changed["metadata"].setdefault("deletionTimestamp", now())
            self.store.replace("pods", changed, "controller", status=True)
            return
        container = self._containers.pop(meta["uid"], None)
        self.store.delete("pods", meta["namespace"], meta["name"])
        if container is not None:
            container.stop()

    def admit_quota(self, namespace: str, pod: dict[str, Any], instead_of: str | None) -> None:
        """Raises Refusal 403 where a quota of the namespace would be exceeded."""
        others = [one for one in self.pods(namespace=namespace) if one["metadata"]["name"] != instead_of]
        for quota in self.store.all("resourcequotas", namespace):
            for key, text in quota["spec"]["hard"].items():
                asked = _counted(pod, *_what(key))
                used = sum((_counted(one, *_what(key)) for one in others), start=amount("0"))
                if used + asked > amount(text):
                    raise forbidden(
                        "pods",
                        pod["metadata"]["name"],
                        f"exceeded quota: {quota['metadata']['name']}, requested: {key}={float(asked):g}, "
                        f"used: {key}={float(used):g}, limited: {key}={text}",
                    )

    def _count_quotas(self) -> None:
        """As the quota controller does: a real API server refuses by what it counted last."""
        for quota in list(self.store.all("resourcequotas")):
            pods = self.pods(namespace=quota["metadata"]["namespace"])
            used = {key: f"{sum(float(_counted(pod, *_what(key))) for pod in pods):g}" for key in quota["spec"]["hard"]}
            changed = {**copied(quota), "status": {"hard": quota["spec"]["hard"], "used": used}}
            self.store.replace("resourcequotas", changed, "controller", status=True)

    def free(self, node: str, resource: str, without: str | None = None) -> Any:
        """What is left to request on a node; ``without`` names a pod that is not counted."""
        used = amount("0")
        for pod in self.pods():
            if pod["spec"].get("nodeName") == node and pod["metadata"]["name"] != without:
                used += requested(pod, resource)
        return amount(self.nodes[node].allocatable.get(resource, "0")) - used

    def log(self, namespace: str, pod: str, text: str, time_s: float) -> None:
        self.logs.setdefault((namespace, pod), []).append((time_s, text))
        waiting, self.logged = self.logged, asyncio.Event()
        waiting.set()

    def close(self) -> None:
        for container in self._containers.values():
            container.stop()

    def _schedule(self) -> None:
        for pod in self.pods():
            if "nodeName" in pod["spec"] or "deletionTimestamp" in pod["metadata"]:
                continue
            fitting, why = self._fitting(pod)
            changed = copied(pod)
            if fitting is None:
                _condition(changed, "PodScheduled", "False", "Unschedulable", why)
            else:
                changed["spec"]["nodeName"] = fitting
                _condition(changed, "PodScheduled", "True")
            self.store.replace("pods", changed, "kube-scheduler", status=True)

    def _fitting(self, pod: dict[str, Any]) -> tuple[str | None, str]:
        lacking: list[str] = []
        for name, node in self.nodes.items():
            short = [
                resource
                for resource in ("cpu", "memory", "nvidia.com/gpu")
                if requested(pod, resource) > self.free(name, resource)
            ]
            if not short and not node.lost:
                return name, ""
            lacking += short
        what = ", ".join(f"{lacking.count(one)} Insufficient {one}" for one in sorted(set(lacking)))
        return None, f"0/{len(self.nodes)} nodes are available: {what}."

    def _run_pods(self) -> None:
        for pod in self.pods():
            node = pod["spec"].get("nodeName")
            if node is None or self.nodes[node].lost or self.hold_starts or pod["status"].get("podIP"):
                continue
            self._made += 1
            changed = copied(pod)
            ip = f"{self._net}.{self._made}" if self._made < 255 else f"127.9.{self._made // 250}.{self._made % 250}"
            changed["status"] |= {"podIP": ip, "phase": "Running", "startTime": now()}
            changed["status"]["containerStatuses"] = list(_statuses(changed))
            self._cgroups[changed["metadata"]["uid"]] = _memory(changed)
            self._begin(changed)
            if self.serve_port is not None:
                task = asyncio.get_running_loop().create_task(self._serve(changed["metadata"], ip))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _begin(self, pod: dict[str, Any]) -> None:
        """Containers start: they run, or are ended for want of memory, and waited for in a back-off."""
        changed, function = copied(pod), pod["metadata"]["labels"].get("faas_function", "")
        up = amount(self._cgroups[pod["metadata"]["uid"]]) >= amount(self.needs.get(function, "0"))
        for one in changed["status"]["containerStatuses"]:
            one["state"] = {"running": {}} if up else {"waiting": {"reason": "CrashLoopBackOff"}}
            one["ready"] = up
            if not up:
                one["lastState"] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
                one["restartCount"] += 1
        if self.serve_port is None:
            _condition(changed, "ContainersReady", "True" if up else "False")
            _condition(changed, "Ready", "True" if up else "False")
        self.store.replace("pods", changed, "kubelet", status=True)

    async def _serve(self, meta: dict[str, Any], ip: str) -> None:
        loop = asyncio.get_running_loop()
        epoch_s = __import__("time").time() - loop.time()
        container = Container(
            meta["name"], lambda text: self.log(meta["namespace"], meta["name"], text, epoch_s + loop.time())
        )
        await container.start(ip, self.serve_port or 0)
        pod = self.store.find("pods", meta["namespace"], meta["name"])
        if pod is None:
            container.stop()
            return
        self._containers[pod["metadata"]["uid"]] = container
        self._set_ready(pod, True)
        self.settle()

    def _set_ready(self, pod: dict[str, Any], ready: bool) -> None:
        changed = copied(pod)
        _condition(changed, "Ready", "True" if ready else "False")
        if ready:
            _condition(changed, "ContainersReady", "True")
        self.store.replace("pods", changed, "kubelet", status=True)

    def _resize(self) -> None:
        for pod in self.pods():
            if not pod["status"].get("containerStatuses") or self.nodes[pod["spec"]["nodeName"]].lost:
                continue
            same = _actual(pod) == [one.get("resources", {}) for one in pod["spec"]["containers"]]
            if same and pod["status"].get("observedGeneration") == pod["metadata"]["generation"]:
                continue
            changed = copied(pod)
            waits = "PodResizePending" if self.resizing in ("deferred", "infeasible") else "PodResizeInProgress"
            over = [kind for kind in ("PodResizePending", "PodResizeInProgress") if same or kind != waits]
            conditions = changed["status"]["conditions"]
            conditions[:] = [one for one in conditions if one["type"] not in over]
            if not same:
                if self.resizing == "done":
                    conditions[:] = [one for one in conditions if one["type"] != waits]
                    before = changed["status"]["containerStatuses"]
                    changed["status"]["containerStatuses"] = [
                        {**old, **new, "ready": old["ready"], "restartCount": old["restartCount"]}
                        for old, new in zip(before, _statuses(changed), strict=True)
                    ]
                    # not while one loops: kubernetes/kubernetes#138760; a kubelet beside this one may report no state
                    if not any("waiting" in one.get("state", {}) for one in before):
                        self._cgroups[changed["metadata"]["uid"]] = _memory(changed)
                elif self.resizing == "in progress":
                    _condition(changed, waits, "True")
                elif self.resizing == "failed":
                    why = "cannot decrease memory limits: attempting to set pod memory limit below current usage"
                    _condition(changed, waits, "True", "Error", why)
                else:
                    why = "Node didn't have enough resource: cpu"
                    _condition(changed, waits, "True", self.resizing.capitalize(), why)
            changed["status"]["observedGeneration"] = changed["metadata"]["generation"]
            self.store.replace("pods", changed, "kubelet", status=True)


def _memory(pod: dict[str, Any]) -> str:
    """Memory limit of the first container."""
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return str(limits.get("memory", "1Ti"))


def _borne_s(pod: dict[str, Any]) -> float:
    """How long a pod stays on a node that is unreachable; the admission plugin DefaultTolerationSeconds says 300."""
    key, found = "node.kubernetes.io/unreachable", pod["spec"].get("tolerations") or ()
    borne = [one.get("tolerationSeconds", math.inf) for one in found if one.get("key") == key]
    return min(borne, default=300.0)


def _what(key: str) -> tuple[str, str]:
    """``limits.memory`` → kind and resource; of ``pods`` the kind is empty."""
    kind, _, resource = key.rpartition(".")
    return kind, resource


def _counted(pod: dict[str, Any], kind: str, resource: str) -> Any:
    return amount("1") if resource == "pods" else requested(pod, resource, kind or "requests")


def _actual(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [one["resources"] for one in pod["status"]["containerStatuses"]]


def _statuses(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for container in pod["spec"]["containers"]:
        resources = copied(container.get("resources", {}))
        yield {
            "name": container["name"],
            "ready": True,
            "restartCount": 0,
            "resources": resources,
            "allocatedResources": resources.get("requests", {}),
        }


def _condition(pod: dict[str, Any], kind: str, status: str, reason: str = "", message: str = "") -> None:
    conditions = pod["status"].setdefault("conditions", [])
    before = next((one for one in conditions if one["type"] == kind), None)
    if before is not None and (before["status"], before.get("reason", "")) == (status, reason):
        return
    conditions[:] = [one for one in conditions if one["type"] != kind]
    made = {"type": kind, "status": status, "lastTransitionTime": now()}
    conditions.append({**made, **({"reason": reason, "message": message} if reason else {})})


__all__ = ["Cluster", "Node", "Refusal"]

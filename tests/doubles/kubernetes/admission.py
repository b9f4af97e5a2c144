"""What the API server refuses of pods, deployments and resizes, in the words that were recorded from a real one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import Refusal, forbidden, invalid
from tests.doubles.kubernetes.resources import amount, qos, requested

if TYPE_CHECKING:
    from tests.doubles.kubernetes.cluster import Cluster

RESIZABLE = ("cpu", "memory")
_ONLY = "spec: Forbidden: only cpu and memory resources are mutable"
_PLAIN = (
    "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations)"
)
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def resized(cluster: Cluster, pod: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """The pod with the resources of ``patched`` and nothing else of it: other fields are ignored without a word."""
    name = pod["metadata"]["name"]
    result = copied(pod)
    result["metadata"]["resourceVersion"] = patched["metadata"].get("resourceVersion")
    for container, desired in zip(result["spec"]["containers"], patched["spec"]["containers"], strict=True):
        if desired.get("resizePolicy") != container.get("resizePolicy"):
            raise invalid("Pod", name, _ONLY)
        _check(name, container.get("resources", {}), desired.get("resources", {}))
        container["resources"] = desired.get("resources", {})
    if qos(pod["spec"]) != qos(result["spec"]):
        raise invalid("Pod", name, "spec: Invalid value: Pod QOS Class may not change as a result of resizing")
    _fits_node(cluster, result)
    cluster.admit_quota(pod["metadata"]["namespace"], result, name)
    return result


def changed_pod(pod: dict[str, Any], patched: dict[str, Any]) -> dict[str, Any]:
    """A plain update of a pod: metadata only."""
    if patched["spec"] != pod["spec"]:
        raise invalid("Pod", pod["metadata"]["name"], _PLAIN)
    return {**patched, "status": pod["status"]}


def check_deployment(document: dict[str, Any], before: dict[str, Any] | None) -> None:
    name = document["metadata"]["name"]
    spec = document.get("spec") or {}
    labels = (spec.get("template", {}).get("metadata") or {}).get("labels") or {}
    selector = (spec.get("selector") or {}).get("matchLabels") or {}
    if not selector or not selector.items() <= labels.items():
        raise invalid("Deployment", name, "spec.template.metadata.labels: `selector` does not match template `labels`")
    if before is not None and before["spec"]["selector"] != spec["selector"]:
        raise invalid("Deployment", name, "spec.selector: Invalid value: field is immutable")
    if not spec["template"]["spec"].get("containers"):
        raise invalid("Deployment", name, "spec.template.spec.containers: Required value")
    for key, value in [*labels.items(), *(document["metadata"].get("labels") or {}).items()]:
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            raise invalid("Deployment", name, f"metadata.labels: Invalid value: {value!r} of {key}")
    for container in spec["template"]["spec"]["containers"]:
        _check_amounts("Deployment", name, container.get("resources", {}))


def _check(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    for kind in ("limits", "requests"):
        old, new = before.get(kind) or {}, after.get(kind) or {}
        for resource in old.keys() | new.keys():
            if resource not in RESIZABLE and old.get(resource) != new.get(resource):
                raise invalid("Pod", name, _ONLY)
            if resource in old and new.get(resource) is None:
                raise invalid("Pod", name, f"spec.containers[0].resources: resource {kind} cannot be removed")
    _check_amounts("Pod", name, after)


def _check_amounts(kind: str, name: str, resources: dict[str, Any]) -> None:
    limits = resources.get("limits") or {}
    for resource, text in (resources.get("requests") or {}).items():
        if resource in limits and amount(text) > amount(limits[resource]):
            where = f'spec.containers[0].resources.requests: Invalid value: "{text}"'
            raise invalid(kind, name, f"{where}: must be less than or equal to {resource} limit of {limits[resource]}")


def _fits_node(cluster: Cluster, pod: dict[str, Any]) -> None:
    """More than the whole node is refused at once; what fits the node but not beside others is for the kubelet."""
    node = cluster.nodes.get(pod["spec"].get("nodeName", ""))
    if node is None:
        return
    for resource, unit in (("cpu", 1000), ("memory", 1)):
        asked, there = requested(pod, resource) * unit, amount(node.allocatable[resource]) * unit
        if asked > there:
            raise forbidden(
                "pods",
                pod["metadata"]["name"],
                f"node didn't have enough allocatable resources: {resource}, "
                f"requested: {int(asked)}, allocatable: {int(there)}",
            )


def check_grant(grants: list[dict[str, Any]], user: str, verb: str, group: str, resource: str, namespace: str) -> None:
    """RBAC: raises Refusal 403 unless one of the roles' rules allows it. ``resource`` may be ``pods/resize``."""
    for rule in grants:
        if (
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and rule.get("namespace") in (None, namespace)
        ):
            return
    raise Refusal(
        403,
        "Forbidden",
        f'{resource.partition("/")[0]} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
        f'in API group "{group}" in the namespace "{namespace}"',
    )


def check_log(pod: dict[str, Any], container: str | None) -> None:
    """A kubelet has no log of a container that has not started."""
    name, names = pod["metadata"]["name"], [one["name"] for one in pod["spec"]["containers"]]
    if container not in (None, *names):
        raise Refusal(400, "BadRequest", f"container {container} is not valid for pod {name}")
    if "nodeName" in pod["spec"] and not pod["status"].get("containerStatuses"):
        said = f'container "{container or names[0]}" in pod "{name}" is waiting to start: ContainerCreating'
        raise Refusal(400, "BadRequest", said)

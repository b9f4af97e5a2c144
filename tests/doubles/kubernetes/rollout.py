"""The deployment controller, the endpoint slice controller, and the status that both report."""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import orjson

from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import Refusal
from tests.doubles.kubernetes.store import now

if TYPE_CHECKING:
    from tests.doubles.kubernetes.cluster import Cluster

HASH = "pod-template-hash"
ORDER = "test/order"
"""Label of a replica set: when it was made."""
SERVICE = "kubernetes.io/service-name"


def template_hash(template: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(template, option=orjson.OPT_SORT_KEYS)).hexdigest()[:10]


def ready(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and any(
        one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", [])
    )


def deployments(cluster: Cluster) -> None:
    """Pods for every deployment: new template first, surge before anything old goes. Pods of none are deleted."""
    owners = set()
    for deployment in list(cluster.store.all("deployments")):
        owners.add(deployment["metadata"]["uid"])
        _roll(cluster, deployment)
    for pod in cluster.pods():
        owner = pod["metadata"].get("ownerReferences", [{}])[0].get("uid")
        if owner is not None and owner not in owners and "deletionTimestamp" not in pod["metadata"]:
            cluster.delete_pod(pod)
    for one in list(cluster.store.all("replicasets")):
        if _controller(one) not in owners:
            cluster.store.delete("replicasets", one["metadata"]["namespace"], one["metadata"]["name"])
    for service in list(cluster.store.all("services")):
        meta = service["metadata"]
        if meta.get("ownerReferences") and meta["ownerReferences"][0]["uid"] not in owners:
            cluster.store.delete("services", meta["namespace"], meta["name"])


def pods_of(cluster: Cluster, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """Pods of a deployment that are not terminating."""
    uid = deployment["metadata"]["uid"]
    return [
        pod
        for pod in cluster.pods(namespace=deployment["metadata"]["namespace"])
        if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
        and "deletionTimestamp" not in pod["metadata"]
    ]


def replica_sets(cluster: Cluster, deployment: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a deployment, the oldest first."""
    uid, namespace = deployment["metadata"]["uid"], deployment["metadata"]["namespace"]
    found = (one for one in cluster.store.all("replicasets", namespace) if _controller(one) == uid)
    return sorted(found, key=lambda one: int(one["metadata"]["labels"][ORDER]))


def _controller(document: dict[str, Any]) -> str:
    return str(document["metadata"].get("ownerReferences", [{}])[0].get("uid"))


def new_replica_set(cluster: Cluster, deployment: dict[str, Any]) -> dict[str, Any] | None:
    """The one of the deployment's template (``FindNewReplicaSet`` of the deployment controller)."""
    wanted = deployment["spec"]["template"]
    return next((one for one in replica_sets(cluster, deployment) if _without_hash(one) == wanted), None)


def _without_hash(replica_set: dict[str, Any]) -> dict[str, Any]:
    template = copied(replica_set["spec"]["template"])
    template["metadata"]["labels"].pop(HASH)
    if not template["metadata"]["labels"]:
        del template["metadata"]["labels"]
    return template


def _made_replica_set(cluster: Cluster, deployment: dict[str, Any]) -> dict[str, Any]:
    """As ``getNewReplicaSet`` makes it; a name that is taken by one of another template gets another hash."""
    meta, template = deployment["metadata"], copied(deployment["spec"]["template"])
    there, stamp = replica_sets(cluster, deployment), template_hash(template)
    while any(one["metadata"]["name"] == f"{meta['name']}-{stamp}" for one in there):
        stamp = template_hash({"before": stamp})
    template["metadata"].setdefault("labels", {})[HASH] = stamp
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}
    number = 1 + max((int(one["metadata"]["labels"][ORDER]) for one in there), default=0)
    labels = {**template["metadata"]["labels"], ORDER: str(number)}
    document = {
        "metadata": {
            "name": f"{meta['name']}-{stamp}",
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"replicas": 0, "template": template},
    }
    return cluster.store.create("replicasets", document, "kube-controller-manager")


def _roll(cluster: Cluster, deployment: dict[str, Any]) -> None:
    spec = deployment["spec"]
    wanted, paused = spec.get("replicas", 1), bool(spec.get("paused"))
    current = new_replica_set(cluster, deployment)
    if current is None and not paused:
        current = _made_replica_set(cluster, deployment)
    pods = pods_of(cluster, deployment)
    if paused:  # it is scaled, by the template of what runs, and not rolled out
        running = [one for one in replica_sets(cluster, deployment) if one["spec"]["replicas"]]
        current = current if current is not None or len(running) != 1 else running[0]
    if current is None:
        return
    stamp = current["metadata"]["labels"][HASH]
    new = [pod for pod in pods if pod["metadata"]["labels"].get(HASH) == stamp]
    old = [pod for pod in pods if pod not in new]
    rolling = spec.get("strategy", {}).get("rollingUpdate", {})
    recreate = spec.get("strategy", {}).get("type") == "Recreate"
    surge = 0 if recreate else _share(rolling.get("maxSurge", "25%"), wanted, math.ceil)
    missing = 0 if recreate else _share(rolling.get("maxUnavailable", "25%"), wanted, math.floor)
    if recreate:
        for pod in old:
            cluster.delete_pod(pod)
        old = []
    failure = _create(cluster, deployment, current, min(wanted - len(new), wanted + surge - len(new) - len(old)))
    _note_failure(cluster, deployment, failure)
    available = sum(ready(pod) for pod in pods)
    for pod in sorted(old, key=ready):
        if not ready(pod):
            cluster.delete_pod(pod)
        elif available > wanted - missing:
            cluster.delete_pod(pod)
            available -= 1
    worst_first = sorted(new, key=lambda pod: (ready(pod), pod["metadata"]["name"]))
    for pod in worst_first[: max(0, len(new) - wanted)]:
        cluster.delete_pod(pod)
    for one in replica_sets(cluster, deployment):
        own = one["metadata"]["labels"][HASH]
        count = wanted if own == stamp else sum(pod["metadata"]["labels"].get(HASH) == own for pod in old)
        if one["spec"]["replicas"] != count:
            changed = copied(one)
            changed["spec"]["replicas"] = count
            cluster.store.replace("replicasets", changed, "kube-controller-manager")


def _create(cluster: Cluster, deployment: dict[str, Any], replica_set: dict[str, Any], count: int) -> str:
    meta = deployment["metadata"]
    template, stamp = copied(replica_set["spec"]["template"]), replica_set["metadata"]["labels"][HASH]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": meta["name"], "uid": meta["uid"]}
    for _ in range(count):
        try:
            cluster.make_pod(meta["namespace"], f"{meta['name']}-{stamp}", template, owner)
        except Refusal as refusal:
            return str(refusal)
    return ""


def _note_failure(cluster: Cluster, deployment: dict[str, Any], failure: str) -> None:
    """Condition ReplicaFailure, as the deployment controller copies it from its replica set."""
    meta = deployment["metadata"]
    live = cluster.store.find("deployments", meta["namespace"], meta["name"])
    assert live is not None
    if not failure and not live.get("status", {}).get("conditions"):
        return
    changed = copied(live)
    conditions = changed.setdefault("status", {}).setdefault("conditions", [])
    since = next((one["lastTransitionTime"] for one in conditions if one["type"] == "ReplicaFailure"), now())
    conditions[:] = [one for one in conditions if one["type"] != "ReplicaFailure"]
    if failure:
        reported = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": failure}
        conditions.append({**reported, "lastTransitionTime": since})
    cluster.store.replace("deployments", changed, "controller", status=True)


def statuses(cluster: Cluster) -> None:
    for deployment in list(cluster.store.all("deployments")):
        pods = pods_of(cluster, deployment)
        current = new_replica_set(cluster, deployment)
        stamp = None if current is None else current["metadata"]["labels"][HASH]
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": len(pods),
            "updatedReplicas": sum(pod["metadata"]["labels"].get(HASH, "") == stamp for pod in pods),
            "readyReplicas": sum(map(ready, pods)),
            "availableReplicas": sum(map(ready, pods)),
        }
        if not status.items() <= deployment.get("status", {}).items():
            changed = copied(deployment)
            changed["status"] = {**changed.get("status", {}), **status}
            cluster.store.replace("deployments", changed, "controller", status=True)


def endpoint_slices(cluster: Cluster) -> None:
    """One slice for each service, with the service's labels, as the endpoint slice controller makes it."""
    wanted = set()
    for service in list(cluster.store.all("services")):
        meta = service["metadata"]
        name = f"{meta['name']}-{meta['uid'][:5]}"
        wanted.add((meta["namespace"], name))
        document = {
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {**(meta.get("labels") or {}), SERVICE: meta["name"]},
            },
            "addressType": "IPv4",
            **_endpoints(cluster, service),
        }
        live = cluster.store.find("endpointslices", meta["namespace"], name)
        if live is None:
            cluster.store.create("endpointslices", document, "endpointslice-controller")
        elif any(live[key] != document[key] for key in ("endpoints", "ports")) or (
            live["metadata"]["labels"] != document["metadata"]["labels"]
        ):
            changed = {**copied(live), **document, "metadata": {**copied(live["metadata"]), **document["metadata"]}}
            cluster.store.replace("endpointslices", changed, "endpointslice-controller")
    for known in list(cluster.store.all("endpointslices")):
        key = (known["metadata"]["namespace"], known["metadata"]["name"])
        if key not in wanted:
            cluster.store.delete("endpointslices", *key)


def _endpoints(cluster: Cluster, service: dict[str, Any]) -> dict[str, Any]:
    selector = service["spec"].get("selector") or {}
    endpoints, ports = [], {}
    for pod in cluster.pods(namespace=service["metadata"]["namespace"]):
        meta = pod["metadata"]
        if not selector or not pod["status"].get("podIP") or not selector.items() <= meta["labels"].items():
            continue
        leaving = "deletionTimestamp" in meta
        up = ready(pod)
        endpoints.append(
            {
                "addresses": [pod["status"]["podIP"]],
                "conditions": {"ready": up, "serving": up, "terminating": leaving},
                "targetRef": {"kind": "Pod", "name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            }
        )
        ports = {port["name"]: _target(port, pod) for port in service["spec"]["ports"]}
    return {"endpoints": endpoints, "ports": [{"name": n, "port": p, "protocol": "TCP"} for n, p in ports.items()]}


def _target(port: dict[str, Any], pod: dict[str, Any]) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    named = (one for container in pod["spec"]["containers"] for one in container.get("ports", []))
    return int(next(one["containerPort"] for one in named if one.get("name") == target))


def _share(value: int | str, of: int, rounding: Any) -> int:
    return value if isinstance(value, int) else int(rounding(of * int(value.removesuffix("%")) / 100))

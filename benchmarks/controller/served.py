"""Objects in the form in which an API server returns them: defaults filled in, full status, ``managedFields``.

Composed from the defaults and field-ownership rules of Kubernetes 1.36's API, not recorded from a server. Computes
only.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

import orjson

Object = dict[str, Any]
NOW = "2026-01-01T00:00:00Z"
_KEYS = {
    **dict.fromkeys(("containers", "env", "volumes"), "name"),
    **{"volumeMounts": "mountPath", "conditions": "type", "podIPs": "ip", "hostIPs": "ip", "ownerReferences": "uid"},
}
"""Associative lists and their keys; ``ports`` has two."""
_NOT_OWNED = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_POD = {
    **{"restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"},
    "securityContext": {},
}


def served_deployment(document: Object) -> Object:
    """A Deployment of the gateway whose rollout is complete: all of ``spec.replicas`` are ready."""
    made: Object = orjson.loads(orjson.dumps(document))
    made["metadata"].pop("managedFields", None)
    gateway_spec = _without(made["spec"], "replicas")  # it applies neither replicas nor a status
    applied = _owner("smoe-gateway", "Apply", {**made, "spec": gateway_spec, "status": {}})
    spec, count = made["spec"], made["spec"].get("replicas", 1)
    spec |= {"progressDeadlineSeconds": 600, "replicas": count}
    _pod_defaults(spec["template"]["spec"])
    made["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    made["status"] = deployment_status(document["metadata"]["name"], count, count, 1)
    book = {"metadata": {"annotations": {"deployment.kubernetes.io/revision": "1"}}, "status": made["status"]}
    made["metadata"] |= {
        "uid": _uid("deployment", document["metadata"]["name"]),
        "generation": 1,
        "creationTimestamp": NOW,
        "managedFields": [
            applied,
            _owner("smoe-controller", "Update", {"spec": {"replicas": count}}, "scale"),
            _owner("kube-controller-manager", "Update", book, "status"),
        ],
    }
    return made


def deployment_status(name: str, count: int, ready: int, generation: int) -> Object:
    """The status where ``ready`` of ``count`` replicas are available; zero counts are left out, as the API does."""
    stamp = {"lastUpdateTime": NOW, "lastTransitionTime": NOW}
    progressing = f'ReplicaSet "{name}-5d7f9c6b8" has successfully progressed.'
    conditions = [
        {"type": "Available", "status": "True", **stamp, "reason": "MinimumReplicasAvailable"}
        | {"message": "Deployment has minimum availability."},
        {"type": "Progressing", "status": "True", **stamp, "reason": "NewReplicaSetAvailable", "message": progressing},
    ]
    counts = {"replicas": count, "updatedReplicas": count, "readyReplicas": ready, "availableReplicas": ready}
    counts |= {"unavailableReplicas": count - ready}
    numbers = {key: value for key, value in counts.items() if value}
    return {"observedGeneration": generation, **numbers, "conditions": conditions}


def served_pod(document: Object, stage: str = "ready") -> Object:
    """A pod as it was ``created``, ``scheduled``, ``starting`` or ``ready``."""
    made: Object = orjson.loads(orjson.dumps(document))
    meta, spec = made["metadata"], made["spec"]
    meta.pop("managedFields", None)
    _pod_defaults(spec)
    spec |= {"enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority", "priority": 0}
    spec |= {"serviceAccount": spec["serviceAccountName"]}
    replica_set = meta["name"].rsplit("-", 1)[0]
    meta["labels"]["pod-template-hash"] = replica_set.rsplit("-", 1)[1]
    meta["ownerReferences"][0] |= {"uid": _uid("replicaset", replica_set), "blockOwnerDeletion": True}
    meta |= {"generateName": f"{replica_set}-", "uid": _uid("pod", meta["name"]), "creationTimestamp": NOW}
    if stage == "created":
        del spec["nodeName"]
    owners = [_owner("kube-controller-manager", "Update", {**made, "status": {}, "spec": _without(spec, "nodeName")})]
    made["status"] = _pod_status(made, stage)
    if stage in ("starting", "ready"):
        owners.append(_owner("kubelet", "Update", {"status": made["status"]}, "status"))
    meta |= {"managedFields": owners, "generation": 1}
    return made


def _pod_defaults(spec: Object) -> None:
    """Fill in what the API server does."""
    for key, value in _POD.items():
        spec.setdefault(key, value)
    for container in spec["containers"]:
        for key, text in _CONTAINER.items():
            container.setdefault(key, text)
        for name in ("livenessProbe", "readinessProbe", "startupProbe"):
            if name in container:
                container[name] = {**_PROBE, **container[name]}
                container[name]["httpGet"].setdefault("scheme", "HTTP")
        for entry in container["env"]:
            if "fieldRef" in entry.get("valueFrom", {}):
                entry["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    for volume in spec.get("volumes", ()):
        if "downwardAPI" in volume:
            volume["downwardAPI"].setdefault("defaultMode", 420)
            for item in volume["downwardAPI"]["items"]:
                item["fieldRef"].setdefault("apiVersion", "v1")


def _pod_status(pod: Object, stage: str) -> Object:
    if stage == "created":
        return {"phase": "Pending", "qosClass": "Burstable"}
    stamp = {"lastProbeTime": None, "lastTransitionTime": NOW, "observedGeneration": 1}
    if stage == "scheduled":
        scheduled = {"type": "PodScheduled", "status": "True", **stamp}
        return {"phase": "Pending", "qosClass": "Burstable", "conditions": [scheduled]}
    ready, names = stage == "ready", ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
    conditions = [{"type": name, "status": "True", **stamp} for name in (*names, "PodScheduled")]
    if not ready:
        name = pod["spec"]["containers"][0]["name"]
        why = {"reason": "ContainersNotReady", "message": f"containers with unready status: [{name}]"}
        conditions = [
            {**one, "status": "False", **why} if one["type"] in ("Ready", "ContainersReady") else one
            for one in conditions
        ]
    container = pod["spec"]["containers"][0]
    digest = uuid.uuid5(uuid.NAMESPACE_OID, pod["metadata"]["name"]).hex * 2
    state = {
        **{"name": container["name"], "image": container["image"], "imageID": f"{container['image']}@sha256:{digest}"},
        **{"containerID": f"containerd://{digest}", "restartCount": 0, "lastState": {}, "started": ready},
        **{"ready": ready, "state": {"running": {"startedAt": NOW}}, "resources": container["resources"]},
        "allocatedResources": container["resources"].get("requests", {}),
        "volumeMounts": [{**mount, "recursiveReadOnly": "Disabled"} for mount in container["volumeMounts"]],
        "user": {"linux": {"uid": 100, "gid": 101, "supplementalGroups": [101]}},
    }
    addresses = {"hostIP": "10.1.0.1", "hostIPs": [{"ip": "10.1.0.1"}], "podIP": "10.0.0.1"}
    return {
        **{"observedGeneration": 1, "phase": "Running", "conditions": conditions, **addresses},
        **{"podIPs": [{"ip": "10.0.0.1"}], "startTime": NOW, "containerStatuses": [state], "qosClass": "Burstable"},
    }


def _owner(manager: str, operation: str, fields: Object, subresource: str = "") -> Object:
    owned = {key: value for key, value in fields.items() if key not in ("apiVersion", "kind") and value}
    if "metadata" in owned:
        owned["metadata"] = _without(owned["metadata"], *_NOT_OWNED)
    entry = {"manager": manager, "operation": operation, "apiVersion": fields.get("apiVersion", "v1"), "time": NOW}
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": _tree(owned, top=True)}
    return entry | ({"subresource": subresource} if subresource else {})


def _tree(value: Any, field: str = "", *, top: bool = False) -> Object:
    """``fieldsV1``: one step a field, keyed steps for items of associative lists, ``.`` for what has fields itself."""
    if isinstance(value, dict) and field not in ("selector", "fieldRef", "resourceFieldRef"):
        here: Object = {} if top or field in ("metadata", "spec", "template", "status") or not value else {".": {}}
        return here | {f"f:{name}": _tree(inner, name) for name, inner in value.items()}
    keyed = isinstance(value, list) and all(isinstance(item, dict) for item in value)
    names = ("containerPort", "protocol") if field == "ports" else (_KEYS.get(field, ""),)
    if not keyed or not value or any(name not in item for name in names for item in value):
        return {}
    keys = [json.dumps({name: item[name] for name in names}, separators=(",", ":")) for item in value]
    return {".": {}} | {f"k:{key}": {".": {}} | _tree(item, top=True) for key, item in zip(keys, value, strict=True)}


def _without(document: Object, *names: str) -> Object:
    return {key: value for key, value in document.items() if key not in names}


def _uid(kind: str, name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{kind}/{name}"))

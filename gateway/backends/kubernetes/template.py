"""Keeps the template of a Deployment so that new pods start with the memory that pods have now, without a roll-out.

Live limits change pods that run (``pods/resize``); a pod that comes later, after a crash, a drain or a scale-up, is
made of the ReplicaSet's template. With less memory there the kernel would end it before it is resized, again and
again. A new template of a Deployment is a roll-out, unless its ReplicaSet has the same template: so the Deployment is
paused with the new template, the ReplicaSet is given the same, and it goes on once the deployment controller reports
that the ReplicaSet's pods are of this template. Each step is seen in the objects, and any gateway takes the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from gateway.backends.kubernetes.api import MERGE, STRATEGIC, Api, ApiError, Object
from gateway.backends.kubernetes.live import condition, leaving, resize
from platform_words.labels import FOLLOWS, FUNCTION_LABEL
from platform_words.live import Live
from platform_words.resources import parse_quantity

log = logging.getLogger(__name__)

_CHANGED_MEANWHILE = (404, 409, 422)


class Templates:
    """Deployments and ReplicaSets of ``namespace``."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api = api
        apps = f"/apis/apps/v1/namespaces/{namespace}"
        self._deployments, self._replica_sets = f"{apps}/deployments", f"{apps}/replicasets"

    async def follow(self, document: Object, live: Live, pods: Iterable[Object]) -> bool:
        """Whether new pods start with the memory of ``live`` or more; takes the next step where they do not yet, and
        ``pods``, those of the function, have what was ordered: what a node or a quota refuses is taken back elsewhere.

        Raises ApiError and UnreachableError; what others changed meanwhile is looked at again when it is seen.
        """
        name = document["metadata"]["name"]
        try:
            if FOLLOWS in (document["metadata"].get("annotations") or {}):
                await self._go_on(name, document)
                return False
            if starts_with_enough(document, live):
                return True
            if settled(document) and not any(_differs(pod, name, live) for pod in pods):
                await self._begin(name, document, live)
        except ApiError as error:
            if error.code not in _CHANGED_MEANWHILE:
                raise
        return False

    async def _begin(self, name: str, document: Object, live: Live) -> None:
        template = {"spec": {"containers": [{"name": name, "resources": _resources(live)}]}}
        spec: Object = {"template": template}
        annotations = {}
        if document["spec"].get("replicas", 1):
            spec["paused"], annotations = True, {FOLLOWS: live.text()}
        metadata = {"resourceVersion": document["metadata"]["resourceVersion"], "annotations": annotations}
        path = f"{self._deployments}/{name}"
        changed = await self._api.merge(path, {"metadata": metadata, "spec": spec}, STRATEGIC, again=False)
        log.info("function %s: new pods will start with %s of memory", name, live.limits.get("memory"))
        if annotations:
            await self._same_template(name, changed)

    async def _go_on(self, name: str, document: Object) -> None:
        if not document["spec"].get("paused"):
            await self._end(name, document)  # somebody rolled it out meanwhile
        elif not await self._same_template(name, document) and settled(document, paused=True):
            await self._end(name, document)

    async def _same_template(self, name: str, document: Object) -> bool:
        """Give the ReplicaSet whose pods run the Deployment's resources; whether that changed one."""
        uid = document["metadata"]["uid"]
        listed = await self._api.get(self._replica_sets, {"labelSelector": f"{FUNCTION_LABEL}={name}"})
        owned = [one for one in listed.get("items") or () if _owner(one) == uid and one["spec"].get("replicas", 1)]
        wanted = _container(document, name).get("resources") or {}
        differing = [one for one in owned if (_container(one, name).get("resources") or {}) != wanted]
        if len(owned) != 1 or not differing:
            return False
        template = {"spec": {"containers": [{"name": name, "resources": wanted}]}}
        patch = {"metadata": _version(differing[0]), "spec": {"template": template}}
        path = f"{self._replica_sets}/{differing[0]['metadata']['name']}"
        await self._api.merge(path, patch, STRATEGIC, again=False)
        return True

    async def _end(self, name: str, document: Object) -> None:
        metadata = {**_version(document), "annotations": {FOLLOWS: None}}
        path = f"{self._deployments}/{name}"
        await self._api.merge(path, {"metadata": metadata, "spec": {"paused": None}}, MERGE, again=False)


def starts_with_enough(document: Object, live: Live) -> bool:
    """Whether the template's memory limit is that of ``live`` or more; more is taken away when the pod is seen."""
    limits = (_container(document, document["metadata"]["name"]).get("resources") or {}).get("limits") or {}
    if "memory" not in live.limits or "memory" not in limits:
        return True
    return parse_quantity(limits["memory"]) >= parse_quantity(live.limits["memory"])


def settled(document: Object, *, paused: bool = False) -> bool:
    """Whether the deployment controller has seen this form, and all pods are of its template."""
    status, wanted = document.get("status") or {}, document["spec"].get("replicas", 1)
    is_observed = status.get("observedGeneration") == document["metadata"].get("generation")
    updated, there = status.get("updatedReplicas", 0), status.get("replicas", 0)
    return bool(document["spec"].get("paused")) == paused and is_observed and updated == there == wanted


def _differs(pod: Object, name: str, live: Live) -> bool:
    differs = resize(pod, name, live, may_wait=True) is not None
    return not leaving(pod) and (differs or condition(pod, "PodResizePending") is not None)


def _container(document: Object, name: str) -> Object:
    containers: list[Object] = document["spec"]["template"]["spec"].get("containers") or [{}]
    return next((one for one in containers if one.get("name") == name), containers[0])


def _resources(live: Live) -> Object:
    return {kind: dict(amounts) for kind, amounts in (("limits", live.limits), ("requests", live.requests)) if amounts}


def _version(document: Object) -> Object:
    return {"resourceVersion": document["metadata"]["resourceVersion"]}


def _owner(document: Object) -> str:
    return next((one["uid"] for one in document["metadata"].get("ownerReferences") or () if one.get("controller")), "")

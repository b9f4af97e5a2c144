"""Keeps pods in line with what their function should have now: CPU and memory by ``pods/resize``, live settings by an
annotation. Level-triggered: it looks at every pod, changes those that differ, and remembers only what was refused.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from gateway.backends.kubernetes.api import STRATEGIC, Api, ApiError, Object
from gateway.backends.kubernetes.live import beyond_resizing, condition, leaving, live_annotations, resize
from platform_words.labels import ACTIVATED
from platform_words.live import Live

log = logging.getLogger(__name__)

_REFUSED = (403, 422)
"""Beyond the node or a quota; not allowed on a live pod. Asking again changes nothing."""


class Keeper:
    """``path`` is that of the namespace's pods."""

    def __init__(self, api: Api, path: str) -> None:
        self._api = api
        self._path = path
        self._refused: dict[str, tuple[str, str]] = {}
        """Pod → what was asked for and what the API server replied."""
        self._pending: dict[str, str] = {}
        """Pod → why the kubelet has not done it yet."""

    async def keep(
        self,
        name: str,
        live: Live,
        pods: Iterable[Object],
        *,
        renewed: bool = False,
        waiting: tuple[Collection[str], Live] | None = None,
        notes: Mapping[str, str | None] = MappingProxyType({}),
    ) -> bool:
        """Bring the pods of function ``name`` in line; False where one of them was refused its resources.

        ``renewed``: new pods start with enough memory, so one that is ended for want of it again and again is deleted.
        ``waiting``: pods, and what they have in place of ``live``; None: all standbys keep the CPU request they have.
        ``notes``: new text of pods' annotation ``smoe.activated``; None takes it away.

        Raises ApiError and UnreachableError for anything else.
        """
        taken = True
        for pod in pods:
            if leaving(pod):
                continue
            pod_name = pod["metadata"]["name"]
            if renewed and beyond_resizing(pod, name, live):
                log.warning("pod %s is replaced: it is down for want of memory, and no resize reaches it", pod_name)
                await self._delete(pod)
                continue
            changed = live_annotations(pod, live) | ({ACTIVATED: notes[pod_name]} if pod_name in notes else {})
            if changed:
                await self._patch(pod_name, "", {"metadata": {"annotations": changed}})
            wanted = waiting[1] if waiting is not None and pod_name in waiting[0] else live
            body = resize(pod, name, wanted, may_wait=waiting is None)
            if body is None:
                self._refused.pop(pod_name, None)
                self._note(pod_name, pod)
                continue
            taken = await self._resize(pod_name, body, wanted) and taken
        return taken

    def notes(self) -> list[str]:
        """Sentences about pods that differ from what they should be."""
        refused = [f"Pod {pod} could not be resized: {refusal}" for pod, (_, refusal) in sorted(self._refused.items())]
        return refused + [f"Pod {pod} waits for its resize: {why}" for pod, why in sorted(self._pending.items())]

    async def _resize(self, pod: str, body: Object, live: Live) -> bool:
        if self._refused.get(pod, ("", ""))[0] == live.text():
            return False
        try:
            await self._patch(pod, "/resize", body, STRATEGIC)
        except ApiError as error:
            if error.code not in _REFUSED:
                raise
            log.warning("pod %s keeps its resources: %s", pod, error.message)
            self._refused[pod] = (live.text(), error.message)
            return False
        self._refused.pop(pod, None)
        return True

    async def _delete(self, pod: Object) -> None:
        """This very pod, and no other of its name; one that has gone meanwhile needs nothing."""
        only = {"uid": pod["metadata"]["uid"]}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": only}
        try:
            await self._api.call("DELETE", f"{self._path}/{pod['metadata']['name']}", options)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    async def _patch(self, pod: str, subresource: str, body: Object, content_type: str | None = None) -> None:
        """A pod that has gone meanwhile needs nothing."""
        try:
            path = f"{self._path}/{pod}{subresource}"
            await (self._api.merge(path, body) if content_type is None else self._api.merge(path, body, content_type))
        except ApiError as error:
            if error.code != 404:
                raise

    def _note(self, name: str, pod: Object) -> None:
        pending = condition(pod, "PodResizePending")
        if pending is None:
            self._pending.pop(name, None)
        else:
            self._pending[name] = f"{pending.get('reason', '')}: {pending.get('message', '')}"

    def forget(self, present: Iterable[str]) -> None:
        """Drop what is remembered of pods that are not ``present``."""
        alive = set(present)
        for by_pod in (self._refused, self._pending):
            for pod in by_pod.keys() - alive:
                del by_pod[pod]

"""Objects of one kind as a watch of the API server keeps them: listed once, then followed, in a thread.

A cache is an aid, never the only way: where its watch is not whole (not yet begun, broken off, too old), ``objects``
answers None, and whoever asks lists for itself (``fresh`` waits for a list that is under way). So an API server that is
gone is seen as before, and what is read is as young as the watch, which is milliseconds; a watch that hangs is cut by
its own end after ``WATCH_S``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from autoscaler.errors import PlatformError
from autoscaler.platforms.kubernetes.client import Event, ExpiredError, KubernetesClient, Object
from autoscaler.platforms.kubernetes.deployments import IN_FORCE
from platform_words.labels import FUNCTION_LABEL, PIPELINE_LABEL, SPEC

log = logging.getLogger("smoe.autoscaler.kubernetes.cache")

WATCH_S = 30
"""How long one watch is asked to last: a connection that died in silence is found out after that."""
RELIST_S = 600.0
"""Everything is listed again this often, whatever the watch reported."""
FRESH_S = 1.0
"""A list that ended so lately, its watch about to be opened, is as young as one that is read now."""
_WAITS_S = (0.2, 1.0, 5.0)
LIVED_S = 5.0
"""A watch that ends before it lived so long was none: a pause comes before the next one."""


class Source(Protocol):
    """Where a cache reads: the client, for one kind of objects."""

    def list(self) -> tuple[Iterator[Object], Callable[[], str]]:
        """Objects, and a function that gives their version once they were all read."""

    def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
        """Events after a version, until the API server ends the watch; ``opened`` gets what ends it from here.

        Raises ExpiredError and PlatformError.
        """


class ClientSource:
    """Objects of one kind that a selector chooses."""

    def __init__(self, client: KubernetesClient, resource: str, selector: str) -> None:
        self._client = client
        self._resource = resource
        self._selector = selector

    def list(self) -> tuple[Iterator[Object], Callable[[], str]]:
        versions: list[str] = []
        return self._client.listed(self._resource, self._selector, versions.append), lambda: versions[-1]

    def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
        return self._client.watch(self._resource, self._selector, version, seconds, opened)


@dataclass(frozen=True, slots=True)
class Kept:
    """An object as it is kept: what is asked of it at every look, and the rest packed.

    Thousands of unpacked documents are ten times as large, and the garbage collector walks through all of them several
    times in a tick.
    """

    name: str
    uid: str
    version: str
    function: str
    """Label of the function that it belongs to."""
    pipeline: str
    """Label of the pipeline, of a Deployment that of its pods."""
    packed: bytes

    @staticmethod
    def of(document: Object) -> Kept:
        meta = document["metadata"]
        labels = meta.get("labels") or {}
        pods = document.get("spec", {}).get("template", {}).get("metadata", meta).get("labels") or {}
        return Kept(
            meta["name"],
            meta.get("uid", ""),
            meta.get("resourceVersion", ""),
            labels.get(FUNCTION_LABEL, ""),
            pods.get(PIPELINE_LABEL, ""),
            bytes(memoryview(orjson.dumps(document))),  # a copy, as orjson's own keeps 4 to 8 KB for any short document
        )

    def document(self) -> Object:
        """A copy of one's own."""
        document: dict[str, Any] = orjson.loads(self.packed)
        return document


class WatchCache:
    """``trimmed`` keeps of an object what is needed. ``clock``: seconds that only grow."""

    def __init__(self, source: Source, trimmed: Callable[[Object], Object], clock: Callable[[], float]) -> None:
        self._source = source
        self._trimmed = trimmed
        self._clock = clock
        self._objects: dict[str, Kept] = {}
        self._version = ""
        self._listed_s = 0.0
        self._whole = False
        self._loading = False
        self._failed: PlatformError | None = None
        """Why the last list failed, None where it did not."""
        self._opening = False
        """A list was read to its end and its watch is neither open yet nor refused."""
        self._lock = threading.Condition()
        self._stop = threading.Event()
        self._cut: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to list and to follow."""
        self._loading = True
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        with suppress(OSError, ValueError):  # the connection may be gone already
            self._cut()
        self._thread.join(timeout=5.0)

    def objects(self) -> list[Kept] | None:
        """All objects, None where the watch is not whole now."""
        with self._lock:
            return list(self._objects.values()) if self._whole else None

    def fresh(self) -> list[Kept] | None:
        """All objects, None where the watch is not whole now and no list is under way or has just ended.

        A list that is under way is waited for, as long as its calls may take: read a second time at once, both would
        take twice as long. Raises PlatformError where it failed: another one asks the same.
        """
        with self._lock:
            if not self._whole and self._loading:
                self._lock.wait_for(lambda: not self._loading)
                if self._failed is not None:
                    raise self._failed
            if self._opening and self._clock() - self._listed_s < FRESH_S:
                return list(self._objects.values())
        return self.objects()

    def put(self, kept: Kept) -> None:
        """Take over what a write was answered, ahead of the watch."""
        with self._lock:
            present = self._objects.get(kept.name)
            if present is not None and _newer(kept.uid, kept.version, present):
                self._objects[kept.name] = kept

    def _run(self) -> None:
        failed = short = 0
        while not self._stop.is_set():
            begun_s = self._clock()
            try:
                if not self._version or self._clock() - self._listed_s > RELIST_S:
                    self._load()
                for event in self._source.watch(self._version, WATCH_S, self._opened):
                    self._take(event)
                    failed = 0
            except ExpiredError:
                self._whole, self._opening, self._version = False, False, ""
            except PlatformError as error:
                self._whole = self._opening = False
                if not self._stop.is_set():
                    (log.info if failed else log.warning)("%s; lists are read until the watch is back", error)
                self._pause(failed)
                failed += 1
                continue
            except Exception:
                self._whole, self._opening, self._version = False, False, ""
                log.exception("the watch failed; everything is listed again")
                self._stop.wait(_WAITS_S[-1])
                continue
            short = 0 if self._clock() - begun_s >= LIVED_S else short + 1
            if short > 1:  # one may be cut by chance: the next one goes on at once
                self._whole = False
                self._pause(short - 2)
        self._whole = self._opening = False
        with self._lock:  # stopped before it listed: nobody waits for a list that does not come
            self._loading = False
            self._lock.notify_all()

    def _pause(self, before: int) -> None:
        """Wait, the longer the more pauses there were ``before``; no pause is longer than the last of ``_WAITS_S``."""
        self._stop.wait(_WAITS_S[min(before, len(_WAITS_S) - 1)])

    def _opened(self, cut: Callable[[], None]) -> None:
        self._cut, self._whole, self._opening = cut, True, False
        if self._stop.is_set():
            cut()

    def _load(self) -> None:
        with self._lock:
            self._loading, self._failed = True, None
        try:
            listed, version = self._source.list()
            objects = {document["metadata"]["name"]: Kept.of(self._trimmed(document)) for document in listed}
            with self._lock:
                self._objects, self._version, self._listed_s = objects, version(), self._clock()
                self._opening = True
        except PlatformError as error:
            self._failed = error
            raise
        finally:
            with self._lock:
                self._loading = False
                self._lock.notify_all()

    def _take(self, event: Event) -> None:
        kind, document = event
        with self._lock:
            self._version = document["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                return
            name = document["metadata"]["name"]
            present = self._objects.get(name)
            if kind == "DELETED":
                if present is not None and present.uid == document["metadata"].get("uid", ""):
                    del self._objects[name]
            elif present is None or _newer(document["metadata"].get("uid", ""), self._version, present):
                self._objects[name] = Kept.of(self._trimmed(document))


def trimmed_deployment(document: Object) -> Object:
    """What the controller reads of a Deployment; of the gateway's note of what was deployed, that it is there."""
    meta, spec = document["metadata"], document["spec"]
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key.startswith("smoe.")}
    if SPEC in annotations:
        annotations[SPEC] = ""
    template = spec["template"]
    containers = [_picked(one, ("name", "resources", "env")) for one in template["spec"].get("containers") or ()]
    return {
        "metadata": {
            **_picked(meta, ("name", "uid", "resourceVersion", "labels", "ownerReferences")),
            "annotations": annotations,
        },
        "spec": {
            "replicas": spec.get("replicas", 1),
            "template": {
                "metadata": _picked(template["metadata"], ("labels", "annotations")),
                "spec": {"containers": containers},
            },
        },
        "status": _picked(document.get("status") or {}, ("replicas", "updatedReplicas", "conditions")),
    }


def trimmed_pod(document: Object) -> Object:
    """What the controller reads of a pod."""
    meta, spec, status = document["metadata"], document["spec"], document.get("status") or {}
    annotations = {key: value for key, value in (meta.get("annotations") or {}).items() if key.startswith("smoe.")}
    kept = ("name", "uid", "resourceVersion", "labels", "deletionTimestamp")
    all_conditions = status.get("conditions") or ()
    unready = any(one["type"] == "Ready" and one["status"] != "True" for one in all_conditions)
    types = (*_CONDITIONS, "Ready", "ContainersReady") if unready else _CONDITIONS
    conditions = [one for one in all_conditions if one["type"] in types]
    return {
        "metadata": {**_picked(meta, kept), "annotations": annotations},
        "spec": {
            **_picked(spec, ("nodeName",)),
            "containers": [_picked(one, ("name", "resources")) for one in spec.get("containers") or ()],
        },
        "status": {**_picked(status, ("phase",)), "conditions": conditions, **_in_force(spec, status)},
    }


def _in_force(spec: Object, status: Object) -> Object:
    """Limits of containers where they are not those of the spec."""
    wanted = {one["name"]: (one.get("resources") or {}).get("limits") for one in spec.get("containers") or ()}
    there = {one["name"]: (one.get("resources") or {}).get("limits") for one in status.get("containerStatuses") or ()}
    differing = {name: limits for name, limits in there.items() if limits and limits != wanted.get(name)}
    return {IN_FORCE: differing} if differing else {}


_CONDITIONS = ("PodResizePending", "PodResizeInProgress", "PodScheduled", "DisruptionTarget")


def _picked(document: Object, keys: tuple[str, ...]) -> Object:
    return {key: document[key] for key in keys if key in document}


def _newer(uid: str, version: str, present: Kept) -> bool:
    """Whether it is of a later form; versions of one kind are numbers that grow. Another object of the name is."""
    if uid != present.uid:
        return True
    if not (version.isdigit() and present.version.isdigit()):
        return True
    return int(version) > int(present.version)

"""Objects of one kind as a watch of the API server keeps them: listed once, then followed, in a thread.

A cache is an aid, never the only way: where it follows no watch (``State``), ``objects`` answers None, and whoever asks
lists for itself (``fresh`` waits for a list that is under way). So an API server that is gone is seen as before, and
what is read is as young as the watch, which is milliseconds; a watch that hangs is cut by its own end after
``WATCH_S``, and one that is opened again gives what came meanwhile in its first milliseconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import orjson

from autoscaler.errors import PlatformError
from autoscaler.platforms.kubernetes.client import Event, ExpiredError, KubernetesClient, Object, RefusedError
from autoscaler.platforms.kubernetes.deployments import IN_FORCE
from platform_words.labels import FUNCTION_LABEL, PIPELINE_LABEL, SPEC

Result = TypeVar("Result")
log = logging.getLogger("smoe.autoscaler.kubernetes.cache")

WATCH_S = 30
"""How long one watch is asked to last: a connection that died in silence is found out after that."""
RELISTS_AFTER = 3
"""After so many failures in a row a version is given up and everything is listed: what such a watch would have to catch
up with is long, and a server that was set back does not know the version."""
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
    ends: bool
    """It is a pod that ends and still takes up its node's room."""
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
            "deletionTimestamp" in meta and "nodeName" in document["spec"],
            bytes(memoryview(orjson.dumps(document))),  # a copy, as orjson's own keeps 4 to 8 KB for any short document
        )

    def document(self) -> Object:
        """A copy of one's own."""
        document: dict[str, Any] = orjson.loads(self.packed)
        return document


class State(Enum):
    """What a cache is doing. ``WatchCache._become`` alone changes it."""

    LISTING = "a list is under way, or begins at once"
    LISTED = "a list was read to its end, and its watch is neither open yet nor refused"
    FOLLOWING = "a watch is open, or the next one goes on where the last one ended"
    BROKEN = "none of these: not begun, pausing after trouble, closed"


class WatchCache:
    """``trimmed`` keeps of an object what is needed. ``clock``: seconds that only grow."""

    def __init__(self, source: Source, trimmed: Callable[[Object], Object], clock: Callable[[], float]) -> None:
        self._source = source
        self._trimmed = trimmed
        self._clock = clock
        self._objects: dict[str, Kept] = {}
        self._ahead: dict[str, Kept] = {}
        """What writes were answered since the list that is under way began: its pages may be older."""
        self._version = ""
        """The last list's or event's, empty where only a list helps."""
        self._listed_s = self._opened_s = 0.0
        """When the last list ended, and when the last watch was opened."""
        self._failures = 0
        """In a row, of lists and watches."""
        self._state = State.BROKEN
        self._failed: PlatformError | None = None
        """Why the last list failed; None while it did not, and in every state but BROKEN."""
        self._lock = threading.Condition()
        self._stop = threading.Event()
        self._cut: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to list and to follow."""
        self._become(State.LISTING)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        with suppress(OSError, ValueError):  # the connection may be gone already
            self._cut()
        self._thread.join(timeout=5.0)

    def objects(self) -> list[Kept] | None:
        """All objects, None where no watch is followed now."""
        with self._lock:
            return list(self._objects.values()) if self._state is State.FOLLOWING else None

    def fresh(self) -> list[Kept] | None:
        """All objects, None where no watch is followed now and no list is under way or has just ended.

        A list that is under way is waited for, as long as its calls may take: read a second time at once, both would
        take twice as long. Raises PlatformError where it failed: another one asks the same.
        """
        with self._lock:
            if self._state is State.LISTING:
                self._lock.wait_for(lambda: self._state is not State.LISTING)
                if self._failed is not None:
                    raise self._failed
            just_listed = self._state is State.LISTED and self._clock() - self._listed_s < FRESH_S
            return list(self._objects.values()) if just_listed or self._state is State.FOLLOWING else None

    def put(self, kept: Kept) -> None:
        """Take over what a write was answered, ahead of the watch."""
        with self._lock:
            present = self._objects.get(kept.name)
            if present is not None and _newer(kept, present):
                self._objects[kept.name] = kept
            if self._state is State.LISTING:
                self._ahead[kept.name] = kept

    def _become(self, state: State, failed: PlatformError | None = None) -> None:
        with self._lock:
            self._state, self._failed = state, failed
            self._lock.notify_all()

    def _run(self) -> None:
        short = 0
        while not self._stop.is_set():
            try:
                self._follow()
            except ExpiredError:
                self._version = ""
            except PlatformError as error:
                self._fail(error)
                continue
            except Exception:
                self._version = ""
                self._become(State.BROKEN)
                log.exception("the watch failed; everything is listed again")
                self._stop.wait(_WAITS_S[-1])
                continue
            short = 0 if self._lived() else short + 1
            if short > 1:  # one may be cut by chance: the next one goes on at once
                self._become(State.BROKEN)
                self._pause(short - 2)
        self._become(State.BROKEN)  # nobody waits for a list that does not come

    def _follow(self) -> None:
        """List, where only that helps, and take the events of one watch. Raises PlatformError."""
        if not self._version:
            self._load()
        for event in self._source.watch(self._version, WATCH_S, self._opened):
            self._take(event)
            self._failures = 0

    def _fail(self, error: PlatformError) -> None:
        """A list or a watch failed: whoever asks lists for itself, and the next try comes after a pause."""
        if self._lived():
            self._failures = 0
        self._become(State.BROKEN, error if self._state is State.LISTING else None)
        if not self._stop.is_set():
            (log.info if self._failures else log.warning)("%s; lists are read until the watch is back", error)
        self._failures += 1
        if self._failures >= RELISTS_AFTER:
            self._version = ""
        self._pause(self._failures - 1)

    def _lived(self) -> bool:
        """Whether a watch has been followed for long enough, up to now."""
        return self._state is State.FOLLOWING and self._clock() - self._opened_s >= LIVED_S

    def _pause(self, before: int) -> None:
        """Wait, the longer the more pauses there were ``before``; no pause is longer than the last of ``_WAITS_S``."""
        self._stop.wait(_WAITS_S[min(before, len(_WAITS_S) - 1)])

    def _opened(self, cut: Callable[[], None]) -> None:
        self._cut, self._opened_s = cut, self._clock()
        self._become(State.FOLLOWING)
        if self._stop.is_set():
            cut()

    def _load(self) -> None:
        with self._lock:
            self._become(State.LISTING)
            self._ahead = {}
        objects, version = read_all(self._listed)
        with self._lock:
            for name, kept in self._ahead.items():
                if name in objects and _newer(kept, objects[name]):
                    objects[name] = kept
            self._objects, self._version, self._listed_s = objects, version, self._clock()
            self._become(State.LISTED)

    def _listed(self) -> tuple[dict[str, Kept], str]:
        """Objects by name, and the list's version; what has not changed stays the same object."""
        listed, version = self._source.list()
        objects: dict[str, Kept] = {}
        for document in listed:
            meta = document["metadata"]
            present = self._objects.get(meta["name"])
            if present is None or (present.uid, present.version) != (meta.get("uid"), meta.get("resourceVersion")):
                present = Kept.of(self._trimmed(document))
            objects[present.name] = present
        return objects, version()

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
            else:
                kept = Kept.of(self._trimmed(document))
                if present is None or _newer(kept, present):
                    self._objects[name] = kept


def read_all(read: Callable[[], Result]) -> Result:
    """What ``read`` gives of a whole list; once more from the beginning where its next page had grown too old (410)."""
    try:
        return read()
    except RefusedError as error:
        if error.code != 410:
            raise
    return read()


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


def _newer(kept: Kept, present: Kept) -> bool:
    """Whether it is of a later form. Versions of one kind are numbers that grow, from one object of a name to its next
    one, too: an answer to a write that comes late does not bring back an object that was replaced meanwhile."""
    if not (kept.version.isdigit() and present.version.isdigit()):
        return True
    return int(kept.version) > int(present.version)

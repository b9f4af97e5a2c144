"""Objects, resource versions, the history that watches read, and who owns which field."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.doubles.kubernetes import fields
from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import exists, gone, not_found, stale
from tests.doubles.kubernetes.resources import KINDS, qualified

Key = tuple[str, str, str]
"""(resource, namespace, name)."""


@dataclass(frozen=True)
class Event:
    version: int
    resource: str
    kind: str
    object: dict[str, Any]


class Store:
    """All objects. Everything happens on one event loop; readers get copies."""

    def __init__(self) -> None:
        self.version = 100
        self.oldest = 0
        """Watches from before this version are answered 410."""
        self.changed = asyncio.Event()
        self._objects: dict[Key, dict[str, Any]] = {}
        self._sets: dict[str, fields.Sets] = {}
        self._events: list[Event] = []

    def get(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        try:
            return self._shown(self._objects[resource, namespace, name])
        except KeyError:
            raise not_found(qualified(resource), name) from None

    def find(self, resource: str, namespace: str, name: str) -> dict[str, Any] | None:
        """The object itself, for the controllers; not to be changed."""
        return self._objects.get((resource, namespace, name))

    def all(self, resource: str, namespace: str | None = None) -> Iterator[dict[str, Any]]:
        """The objects themselves, by name; not to be changed."""
        for key in sorted(self._objects):
            if key[0] == resource and namespace in (None, key[1]):
                yield self._objects[key]

    def create(self, resource: str, document: dict[str, Any], manager: str) -> dict[str, Any]:
        meta = document["metadata"]
        namespace = "" if resource == "namespaces" else meta["namespace"]
        key = (resource, namespace, meta["name"])
        if key in self._objects:
            raise exists(qualified(resource), meta["name"])
        made = copied(document)
        made["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "generation": 1,
        }
        made |= {"apiVersion": KINDS[resource].api_version, "kind": KINDS[resource].name}
        sets: fields.Sets = {}
        fields.updated({}, made, sets, manager)
        self._sets[made["metadata"]["uid"]] = sets
        return self._put(key, made, "ADDED")

    def apply(self, resource: str, namespace: str, name: str, config: dict[str, Any], manager: str, force: bool) -> Any:
        """Server-side apply: makes the object or merges into it. Raises fields.ApplyConflictError."""
        live = self._objects.get((resource, namespace, name))
        if live is None:
            made = copied(config)
            made["metadata"] |= {"namespace": namespace} if namespace else {}
            created = self.create(resource, made, manager)
            self._sets[created["metadata"]["uid"]] = {(manager, "Apply"): set(fields.leaves(config))}
            return created
        sets = self._sets[live["metadata"]["uid"]]
        return self.replace(resource, fields.apply(live, sets, manager, config, force), manager, applied=True)

    def replace(
        self, resource: str, document: dict[str, Any], manager: str, *, applied: bool = False, status: bool = False
    ) -> dict[str, Any]:
        """Store a new form of an object; nothing happens where nothing differs. Managed fields that a client sends
        are taken over, as a real API server does it unless they are empty."""
        meta = document["metadata"]
        key = (resource, "" if resource == "namespaces" else meta["namespace"], meta["name"])
        live = self._objects.get(key)
        if live is None:
            raise not_found(qualified(resource), meta["name"])
        given = meta.get("resourceVersion")
        if given is not None and given != live["metadata"]["resourceVersion"]:
            raise stale(qualified(resource), meta["name"])
        changed = copied(document)
        owners = changed["metadata"].pop("managedFields", None)
        sets = self._sets[live["metadata"]["uid"]]
        disowned = bool(owners) and fields.sets_of(owners) != sets
        if disowned:
            sets.clear()
            sets.update(fields.sets_of(owners))
        for name in ("uid", "creationTimestamp", "resourceVersion", "generation"):
            changed["metadata"][name] = live["metadata"][name]
        if changed == live and not disowned:
            return self._shown(live)
        if not applied and not status:
            fields.updated(live, changed, sets, manager)
        if changed.get("spec") != live.get("spec") and not status:  # binding a pod to its node does not count
            changed["metadata"]["generation"] += 1
        return self._put(key, changed, "MODIFIED")

    def delete(self, resource: str, namespace: str, name: str) -> dict[str, Any]:
        try:
            last = self._objects.pop((resource, namespace, name))
        except KeyError:
            raise not_found(qualified(resource), name) from None
        self.version += 1
        last = {**last, "metadata": {**last["metadata"], "resourceVersion": str(self.version)}}
        self._record(Event(self.version, resource, "DELETED", last))
        return copied(last)

    def since(self, version: int, resource: str) -> list[Event]:
        """What happened after ``version``. Raises Refusal 410."""
        if version < self.oldest:
            raise gone(version, self.oldest)
        return [event for event in self._events if event.version > version and event.resource == resource]

    def compact(self) -> None:
        """Forget all history."""
        self.oldest = self.version
        self._events.clear()

    def owners(self, resource: str, namespace: str, name: str) -> fields.Sets:
        return self._sets[self._objects[resource, namespace, name]["metadata"]["uid"]]

    def _put(self, key: Key, document: dict[str, Any], kind: str) -> dict[str, Any]:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self._objects[key] = document
        self._record(Event(self.version, key[0], kind, copied(document)))
        return self._shown(document)

    def _record(self, event: Event) -> None:
        self._events.append(event)
        waiting, self.changed = self.changed, asyncio.Event()
        waiting.set()

    def _shown(self, document: dict[str, Any]) -> dict[str, Any]:
        shown = copied(document)
        shown["metadata"]["managedFields"] = fields.managed_fields(self._sets.get(shown["metadata"]["uid"], {}))
        return shown


ahead_s = 0.0
"""How far the cluster's clock is ahead of the machine's; tests that move a clock of their own move this one too."""


def now() -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead_s)).strftime("%Y-%m-%dT%H:%M:%SZ")

"""Who owns which field: server-side apply and the field sets of ``metadata.managedFields``.

A path is a tuple of steps: ``f:NAME`` into an object, ``k:{...}`` to the item of a list that is keyed, as in the API's
own ``fieldsV1``. Lists without keys and the maps in ``ATOMIC`` are owned as a whole.
"""

from __future__ import annotations

import json
from typing import Any

from tests.doubles.kubernetes.copies import copied

Path = tuple[str, ...]
Sets = dict[tuple[str, str], set[Path]]
"""(manager, Apply | Update) → paths of leaves."""

KEYS = {
    "containers": ("name",),
    "env": ("name",),
    "ports": ("containerPort", "port", "protocol"),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "conditions": ("type",),
}
"""Associative lists by the name of their field; of ``ports`` the keys that an item has."""
ATOMIC = {"selector", "nodeSelector"}
NOT_OWNED = {
    ("f:apiVersion",),
    ("f:kind",),
    *(
        ("f:metadata", f"f:{name}")
        for name in ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
    ),
}


class ApplyConflictError(Exception):
    """Fields are owned by other managers with other values."""


def key_of(field: str, item: Any) -> str | None:
    """The step to an item of an associative list, None where the list is atomic."""
    if field not in KEYS or not isinstance(item, dict):
        return None
    key = {name: item[name] for name in KEYS[field] if name in item}
    return "k:" + json.dumps(key, sort_keys=True, separators=(",", ":")) if key else None


def leaves(value: Any, path: Path = (), field: str = "") -> dict[Path, Any]:
    """Path → value of everything that can be owned."""
    if path in NOT_OWNED or (path and path[0] == "f:status"):
        return {}
    found: dict[Path, Any] = {}
    if isinstance(value, dict) and value and field not in ATOMIC:
        for name, inner in value.items():
            found |= leaves(inner, (*path, f"f:{name}"), name)
        return found
    if isinstance(value, list) and value and all(key_of(field, item) for item in value):
        for item in value:
            found |= leaves(item, (*path, str(key_of(field, item))))
        return found
    return {path: value} if path else {}


def apply(live: dict[str, Any], sets: Sets, manager: str, config: dict[str, Any], force: bool) -> dict[str, Any]:
    """The object after an apply by ``manager``; ``sets`` is changed. Raises ApplyConflictError unless ``force``."""
    wanted, present = leaves(config), leaves(live)
    conflicts: list[str] = []
    for owner, owned in sets.items():
        if owner == (manager, "Apply"):
            continue
        taken = {path for path in wanted if path in owned and path in present and present[path] != wanted[path]}
        if taken and force:
            owned -= taken
        conflicts += [f'conflict with "{owner[0]}": {shown(path)}' for path in sorted(taken)]
    if conflicts and not force:
        raise ApplyConflictError(f"Apply failed with {len(conflicts)} conflicts: {'; '.join(conflicts)}")
    merged = merge(copied(live), config)
    others = set().union(*(owned for owner, owned in sets.items() if owner != (manager, "Apply")))
    for path in sets.get((manager, "Apply"), set()) - wanted.keys() - others:
        remove(merged, path)
    sets[manager, "Apply"] = set(wanted)
    _forget_empty(sets)
    return merged


def updated(before: dict[str, Any], after: dict[str, Any], sets: Sets, manager: str) -> None:
    """Book a create, update or patch: what changed is owned by ``manager``, what went by nobody."""
    old, new = leaves(before), leaves(after)
    changed = {path for path, value in new.items() if path not in old or old[path] != value}
    for owned in sets.values():
        owned -= changed | (old.keys() - new.keys())
    if changed:
        sets.setdefault((manager, "Update"), set()).update(changed)
    _forget_empty(sets)


def merge(live: Any, config: Any, field: str = "") -> Any:
    """``config`` over ``live``; keyed lists by item, other lists as a whole."""
    if isinstance(live, dict) and isinstance(config, dict) and field not in ATOMIC:
        for name, value in config.items():
            live[name] = merge(live.get(name), value, name)
        return live
    if isinstance(live, list) and isinstance(config, list) and config and all(key_of(field, one) for one in config):
        by_key = {key_of(field, item): item for item in live}
        for item in config:
            by_key[key_of(field, item)] = merge(by_key.get(key_of(field, item)), item)
        return list(by_key.values())
    return copied(config)


def remove(value: Any, path: Path, field: str = "") -> None:
    """Take the leaf at ``path`` away, and what is empty then."""
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        name = step[2:]
        if not isinstance(value, dict) or name not in value:
            return
        if rest:
            remove(value[name], rest, name)
        if not rest or value[name] in ({}, []):
            del value[name]
        return
    if isinstance(value, list):
        for item in [item for item in value if key_of(field, item) == step]:
            keys = set(json.loads(step[2:]))
            if rest and not (len(rest) == 1 and rest[0][2:] in keys):
                remove(item, rest)
            if not rest or not set(item) - keys:
                value.remove(item)


def managed_fields(sets: Sets) -> list[dict[str, Any]]:
    """``metadata.managedFields``."""
    entries = []
    for (manager, operation), paths in sorted(sets.items()):
        tree: dict[str, Any] = {}
        for path in sorted(paths):
            inner = tree
            for step in path:
                inner = inner.setdefault(step, {})
        entries.append({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": tree})
    return entries


def sets_of(entries: list[dict[str, Any]]) -> Sets:
    """What :func:`managed_fields` wrote, or a client in its form. Raises KeyError for entries of another form."""
    sets: Sets = {}
    for entry in entries:
        if entry["operation"] not in ("Apply", "Update") or entry["fieldsType"] != "FieldsV1":
            raise KeyError(entry["operation"])
        sets.setdefault((entry["manager"], entry["operation"]), set()).update(_paths(entry["fieldsV1"]))
    return sets


def _paths(tree: dict[str, Any], path: Path = ()) -> set[Path]:
    if not tree:
        return {path}
    return {found for step, inner in tree.items() for found in _paths(inner, (*path, step))}


def shown(path: Path) -> str:
    return "." + ".".join(step[2:] for step in path)


def _forget_empty(sets: Sets) -> None:
    for owner in [owner for owner, owned in sets.items() if not owned]:
        del sets[owner]

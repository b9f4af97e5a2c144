"""Merge patches (RFC 7386) and strategic merge patches (lists with keys are merged by item)."""

from __future__ import annotations

from typing import Any

from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.fields import key_of


def merge_patch(live: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(live) if isinstance(live, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def strategic_patch(live: Any, patch: Any, field: str = "") -> Any:
    if isinstance(patch, dict):
        result = dict(live) if isinstance(live, dict) else {}
        for name, value in patch.items():
            if value is None:
                result.pop(name, None)
            else:
                result[name] = strategic_patch(result.get(name), value, name)
        return result
    if isinstance(patch, list) and patch and all(key_of(field, item) for item in patch) and isinstance(live, list):
        by_key = {key_of(field, item): item for item in live}
        for item in patch:
            if item.get("$patch") == "delete":
                by_key.pop(key_of(field, item), None)
                continue
            by_key[key_of(field, item)] = strategic_patch(by_key.get(key_of(field, item)), item)
        return list(by_key.values())
    return copied(patch)


PATCHES = {
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_patch,
}

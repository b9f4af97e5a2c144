"""Who owns the fields of a Deployment (``metadata.managedFields``). Computes only.

A create and the patches of labels and annotations own what they set as *Update*s, which an apply by the same manager
does not take away when it is gone from what is applied. So before an apply they become its own, as client-go's
``csaupgrade`` does it for kubectl. The number of replicas does not: it is nobody's, so that an apply, which does not
name it, leaves it as whoever scales set it.
"""

from __future__ import annotations

from typing import Any

from gateway.backends.kubernetes.api import FIELD_MANAGER, Object

_Fields = dict[str, Any]


def adoption(document: Object) -> Object | None:
    """A merge patch, for this version of ``document`` only, that makes our fields an apply's; None where they are."""
    entries = document["metadata"].get("managedFields") or []
    updates = [entry for entry in entries if _ours(entry, "Update")]
    applied = [entry for entry in entries if _ours(entry, "Apply")]
    mine = [*applied, *updates]
    if not updates and not any(_counts(entry) for entry in applied):
        return None
    fields: _Fields = {}
    for entry in mine:
        fields = _union(fields, entry.get("fieldsV1") or {})
    # Replicas are scaled through their subresource; an apply that owned them would set them back at every roll-out.
    spec = {name: inner for name, inner in fields.pop("f:spec", {}).items() if name != "f:replicas"}
    if spec:
        fields["f:spec"] = spec
    adopted = {**mine[0], "operation": "Apply", "fieldsV1": fields}
    others = [entry for entry in entries if entry not in mine]
    version = document["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version, "managedFields": [*others, adopted]}}


def _ours(entry: Object, operation: str) -> bool:
    """Whether this gateway made the entry; what it set through a subresource (``scale``) stays apart."""
    return entry["manager"] == FIELD_MANAGER and entry["operation"] == operation and not entry.get("subresource")


def _counts(entry: Object) -> bool:
    return "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})


def _union(one: _Fields, other: _Fields) -> _Fields:
    """Sets of fields as trees: what either has."""
    shared = one.keys() & other.keys()
    return {**one, **other, **{name: _union(one[name], other[name]) for name in shared}}

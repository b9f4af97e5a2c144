"""Where a function's pods may run: annotation ``smoe.placement`` as affinity to nodes and spread. Computes only."""

from __future__ import annotations

import re

from gateway.backends.kubernetes.api import Object
from gateway.contract import FunctionSpec, InvalidSpecError
from gateway.placement import parse_placement
from platform_words.labels import FUNCTION_LABEL, PLACEMENT

HOSTNAME = "kubernetes.io/hostname"
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def placed(spec: FunctionSpec) -> Object:
    """Affinity and spread for annotation ``smoe.placement``: on its nodes only, in its proportions.

    As many replicas on each: the spread alone gives every node its own. Otherwise nodes with more are preferred, and
    none has more above another than the largest has above the smallest. Raises InvalidSpecError.
    """
    places = parse_placement(spec)
    if not places:
        return {}
    for node in places:
        if len(node) > 253 or not _NODE_NAME.fullmatch(node):
            raise InvalidSpecError(f"annotation {PLACEMENT} names {node[:60]!r}, which is no name of a Kubernetes node")
    most, fewest = max(places.values()), min(places.values())
    affinity: Object = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_on(sorted(places))]},
    }
    if most > fewest:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": max(1, 100 * count // most), "preference": _on([node])} for node, count in sorted(places.items())
        ]
    spread = {
        "maxSkew": max(1, most - fewest),
        "topologyKey": HOSTNAME,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {FUNCTION_LABEL: spec.name}},
        "matchLabelKeys": ["pod-template-hash"],  # a rolling update counts the new pods alone
    }
    return {"affinity": {"nodeAffinity": affinity}, "topologySpreadConstraints": [spread]}


def _on(nodes: list[str]) -> Object:
    return {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": nodes}]}

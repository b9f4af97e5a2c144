"""What runs where: functions of a pipeline, their replicas by node, and the regions that they need there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from functions.memory.regions import Region
from gateway.client.client import GatewayClient
from moe.manifest import Manifest
from moe.names import INGRESS
from placement.moves.errors import MoveError
from platform_words.labels import FUNCTION_LABEL, PIPELINE_LABEL, PLACEMENT, SCALE_MAX

Places = Mapping[str, Mapping[str, int]]
"""Function → node → replicas; node "" is wherever the gateway starts them."""


@dataclass(frozen=True)
class Deployed:
    """A pipeline's functions as the gateway has them: deployments as they would be sent again, and desired replicas."""

    deployments: Mapping[str, dict[str, Any]]
    replicas: Mapping[str, int]

    def annotation(self, name: str) -> str:
        """A function's replicas by node in the form a=1,b=2; empty where none are ordered."""
        return str((self.deployments[name].get("annotations") or {}).get(PLACEMENT, ""))

    def most(self, name: str) -> int | None:
        """Replicas that the gateway gives a function at most; None: no limit."""
        label = str(self.deployments[name]["labels"].get(SCALE_MAX, ""))
        return int(label) if label.isdecimal() else None


def deployed(client: GatewayClient, pipeline: str) -> Deployed:
    """Raises MoveError where the pipeline is not deployed."""
    deployments, replicas = {}, {}
    for status in client.functions():
        labels = dict(status.get("labels", {}))
        if labels.get(PIPELINE_LABEL) != pipeline:
            continue
        labels.pop(FUNCTION_LABEL, None)
        name = str(status["name"])
        kept = {key: value for key, value in status.items() if key not in _OF_STATUS}
        deployments[name] = {**kept, "service": name, "labels": labels}
        replicas[name] = int(status.get("replicas", 0))
    if not deployments:
        raise MoveError(f"pipeline {pipeline} is not deployed at {client.url}")
    return Deployed(deployments, replicas)


_OF_STATUS = ("name", "labels", "createdAt", "invocationCount", "replicas", "availableReplicas", "usage")


def places_now(client: GatewayClient, functions: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Replicas that serve or will, by function and node."""
    feed = client.replicas()
    return {
        name: dict(
            Counter(str(one["node"]) for one in feed.get(name, []) if one["state"] != "draining" and "node" in one)
        )
        for name in functions
    }


def regions_of(manifest: Manifest, deployment: Mapping[str, Any]) -> list[Region]:
    """Regions that one replica of a function maps; none for the ingress."""
    node_ids = str(deployment["envVars"]["smoe_nodes"]).split(",")
    files = dict.fromkeys(manifest.node(one).weights.file for one in node_ids if one != INGRESS)
    return [
        Region(f"{manifest.name}/{file}", manifest.files[file].bytes, manifest.files[file].sha256) for file in files
    ]


def regions_by_node(manifest: Manifest, pipeline: Deployed, places: Places) -> dict[str, frozenset[str]]:
    """Node → names of the regions that replicas there need."""
    needed: dict[str, set[str]] = {}
    for name, by_node in places.items():
        names = [region.name for region in regions_of(manifest, pipeline.deployments[name])]
        for node, replicas in by_node.items():
            if replicas and node:
                needed.setdefault(node, set()).update(names)
    return {node: frozenset(names) for node, names in needed.items()}

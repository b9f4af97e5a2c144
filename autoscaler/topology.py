"""From a pipeline's manifest to the controller's topology."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autoscaler.contract import NodeInfo, Topology
from moe.manifest import load


def load_topology(directory: Path) -> Topology:
    """Read ``directory/pipeline.json``. Raises ``moe.errors.ManifestError``."""
    manifest = load(directory, verify=False)
    digest = hashlib.sha256((directory / "pipeline.json").read_bytes()).hexdigest()
    ingress = NodeInfo("ingress", manifest.name, "ingress", None, None, 0, 0, 0)
    nodes = [
        NodeInfo(
            node.id,
            manifest.function_name(node.id),
            node.kind,
            node.layer,
            node.expert,
            node.flops_per_token,
            node.parameter_bytes,
            max(node.bytes_in_per_token, node.bytes_out_per_token),
        )
        for node in manifest.nodes
    ]
    return Topology(manifest.name, digest, manifest.layers, (ingress, *nodes), tuple(manifest.edges))

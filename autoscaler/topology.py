"""From a pipeline's manifest to the controller's topology (the paper's topology descriptor, section 3, ③)."""

from __future__ import annotations

import hashlib
from pathlib import Path

from autoscaler.contract import NodeInfo, Topology
from moe.grouping import group
from moe.manifest import load


def load_topology(directory: Path, max_functions: int = 0) -> Topology:
    """Read ``directory/pipeline.json``; weights are not touched.

    ``max_functions`` must be what the pipeline was deployed with: above 0, several nodes may share a function. Raises
    ``moe.errors.ManifestError`` and, when that many functions are too few, ``moe.errors.GroupingError``.
    """
    manifest = load(directory, verify=False)
    digest = hashlib.sha256((directory / "pipeline.json").read_bytes()).hexdigest()
    function_of = {
        node: function.name for function in group(manifest, max_functions).functions for node in function.nodes
    }
    ingress = NodeInfo("ingress", manifest.name, "ingress", None, None, 0, 0, 0)
    nodes = [
        NodeInfo(
            node.id,
            function_of[node.id],
            node.kind,
            node.layer,
            node.expert,
            node.flops_per_token,
            node.parameter_bytes,
            max(node.bytes_in_per_token, node.bytes_out_per_token),
        )
        for node in manifest.nodes
    ]
    edges = tuple(manifest.edges)
    generates = manifest.task == "causal-lm"
    return Topology(manifest.name, digest, manifest.layers, (ingress, *nodes), edges, manifest.dtype, generates)

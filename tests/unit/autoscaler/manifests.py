"""A pipeline folder with a manifest and no weights: enough for a controller, which reads nothing else."""

from __future__ import annotations

from pathlib import Path

from moe.manifest import FileRef, Manifest, Node, Router, WeightsRef, save
from moe.names import expected_edges, expert_id, segment_id

LAYERS, EXPERTS = 2, 2
NUMBERS = {
    "activation": "gelu",
    "eps": 1e-12,
    "ffn_size": 16,
    "heads": 2,
    "hidden_size": 8,
    "layers": LAYERS,
    "max_positions": 32,
    "normalise_embedding": True,
    "pooling": "mean",
    "token_types": 2,
    "vocab_size": 99,
}


def write_pipeline(folder: Path, name: str = "tiny") -> Path:
    """``name``: two MoE layers of two experts."""
    first, last = ("token_ids", "lengths"), ("embedding", "states")
    middle, routed = ("hidden", "lengths"), ("residual", "x", "expert_ids", "gates")
    nodes = [
        _node(segment_id(i), "segment", i, None, middle if i else first, routed if i < LAYERS else last)
        for i in range(LAYERS + 1)
    ]
    nodes += [_node(expert_id(i, j), "expert", i, j, ("x",), ("y",)) for i in range(LAYERS) for j in range(EXPERTS)]
    manifest = Manifest(
        name,
        "bert",
        "embedding",
        "float32",
        NUMBERS,
        Router(top_k=1),
        None,
        tuple(nodes),
        tuple(expected_edges(LAYERS + 1, [EXPERTS] * LAYERS)),
        {f"weights/{node.id}.safetensors": FileRef("0" * 64, 1024) for node in nodes},
    )
    folder.mkdir(parents=True)
    save(manifest, folder)
    return folder


def _node(
    name: str, kind: str, layer: int, expert: int | None, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Node:
    weights = WeightsRef(f"weights/{name}.safetensors")
    return Node(name, kind, layer, expert, weights, 1000, 250, 500, 32, 32, inputs, outputs)  # type: ignore[arg-type]

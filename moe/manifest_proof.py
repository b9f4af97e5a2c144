"""Proofs of a manifest: its numbers fit each other, and the folder's files are those that it names.

Anything wrong raises :class:`ManifestError` with a sentence that names the file, the key and the rule.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from moe.errors import ManifestError
from moe.names import MANIFEST_FILE, expected_edges, expert_id, segment_id

if TYPE_CHECKING:
    from moe.manifest import Manifest


def check(manifest: Manifest, where: str) -> None:
    """Nodes, edges, the family's numbers and the names of files fit each other. ``where`` begins every message."""
    _check_topology(manifest, where)
    _check_architecture(manifest, where)
    _check_references(manifest, where)


def _check_topology(manifest: Manifest, where: str) -> None:
    ids = [node.id for node in manifest.nodes]
    if len(set(ids)) != len(ids):
        twice = next(node_id for node_id in ids if ids.count(node_id) > 1)
        raise ManifestError(f"{where}: key nodes: id {twice!r} stands twice; ids are unique.")
    for index, node in enumerate(manifest.nodes):
        if (node.kind == "segment") != (node.expert is None):
            raise ManifestError(f"{where}: key nodes[{index}].expert: null for segments, a number for experts.")
        wanted = segment_id(node.layer) if node.expert is None else expert_id(node.layer, node.expert)
        if node.id != wanted:
            raise ManifestError(f"{where}: key nodes[{index}].id: is {node.id!r}, its numbers say {wanted!r}.")
    segments = [node.layer for node in manifest.segments]
    if segments != list(range(len(segments))) or len(segments) < 2:
        raise ManifestError(f"{where}: key nodes: segments must be numbered 0 to n (n ≥ 1) without gaps.")
    counts = [0] * (len(segments) - 1)
    for node in manifest.nodes:
        if node.kind == "expert":
            if node.layer >= len(counts):
                raise ManifestError(f"{where}: key nodes: {node.id} belongs to a layer without segments around it.")
            counts[node.layer] += 1
    for layer, count in enumerate(counts):
        if [node.expert for node in manifest.experts(layer)] != list(range(count)) or count == 0:
            raise ManifestError(f"{where}: key nodes: experts of layer {layer} must be numbered 0 to m without gaps.")
        if manifest.router.calls > count:
            raise ManifestError(
                f"{where}: key router.top_k: is {manifest.router.top_k}, but layer {layer} has {count} experts, "
                f"{manifest.router.shared or 0} of which are not chosen."
            )
    _check_edges(manifest, counts, where)


def _check_architecture(manifest: Manifest, where: str) -> None:
    """The family's numbers must fit each other and the nodes."""
    numbers = manifest.architecture
    stacks = [numbers["encoder"], numbers["decoder"]] if manifest.family == "bert2bert" else [numbers]
    routed = sum(stack["layers"] for stack in stacks)
    if "moe_layers" in numbers:
        chosen = numbers["moe_layers"]
        routed = len(chosen)
        if chosen != sorted(chosen) or chosen[-1] >= numbers["layers"]:
            raise ManifestError(f"{where}: key architecture.moe_layers: must be ascending layers below layers.")
        if numbers["heads"] % numbers["kv_heads"]:
            raise ManifestError(f"{where}: key architecture.heads: must be a multiple of kv_heads.")
    elif any(stack["hidden_size"] % stack["heads"] for stack in stacks):
        raise ManifestError(f"{where}: key architecture.hidden_size: must be a multiple of heads.")
    if len({stack["hidden_size"] for stack in stacks}) > 1:
        raise ManifestError(f"{where}: key architecture: encoder and decoder must have the same hidden_size.")
    if routed != manifest.layers:
        raise ManifestError(
            f"{where}: key architecture: names {routed} layers with experts, the nodes have {manifest.layers}."
        )


def _check_edges(manifest: Manifest, counts: list[int], where: str) -> None:
    node_ids = {node.id for node in manifest.nodes}
    for index, edge in enumerate(manifest.edges):
        for end in edge:
            if end not in node_ids:
                raise ManifestError(f"{where}: key edges[{index}]: {end!r} is not a node of this pipeline.")
    wanted, edges = set(expected_edges(len(counts) + 1, counts)), set(manifest.edges)
    if len(edges) != len(manifest.edges):
        raise ManifestError(f"{where}: key edges: an edge stands twice; edges are unique.")
    if wanted != edges:
        edge, verb = (min(wanted - edges), "is missing") if wanted - edges else (min(edges - wanted), "is too much")
        raise ManifestError(
            f"{where}: key edges: {edge[0]} → {edge[1]} {verb}; edges go "
            "from segment i to each expert of layer i "
            "and from there to segment i+1."
        )


def _check_references(manifest: Manifest, where: str) -> None:
    for path in manifest.files:
        pure = PurePosixPath(path)
        if pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == MANIFEST_FILE:
            raise ManifestError(f"{where}: key files: {path!r} must be a plain path inside the pipeline folder.")
    for node in manifest.nodes:
        if node.weights.file not in manifest.files:
            raise ManifestError(f"{where}: key nodes: {node.id} names {node.weights.file!r}, not listed under files.")
    tokenizer = manifest.tokenizer
    for file in (tokenizer.file, tokenizer.chat_template) if tokenizer is not None else ():
        if file is not None and file not in manifest.files:
            raise ManifestError(f"{where}: key tokenizer: {file!r} is not listed under files; list every file.")


def verify_files(manifest: Manifest, directory: Path, names: Iterable[str] | None = None) -> None:
    """Compare size and sha256 of these files (default: all) with the manifest. Raises ManifestError."""
    for name in manifest.files if names is None else names:
        ref, path = manifest.files[name], directory / name
        try:
            size = path.stat().st_size
            if size != ref.bytes:
                raise ManifestError(f"{path}: holds {size} bytes, {MANIFEST_FILE} states {ref.bytes} (files.bytes).")
            digest = sha256_of(path)
        except OSError as error:
            raise ManifestError(f"{path}: named in {MANIFEST_FILE} but not readable ({error.strerror}).") from error
        if digest != ref.sha256:
            raise ManifestError(
                f"{path}: sha256 is {digest}, {MANIFEST_FILE} states {ref.sha256}; the file was changed or damaged."
            )


def verify_weights(manifest: Manifest, directory: Path) -> None:
    """Compare the tensors that weights' files hold, by their heads, with each node's bytes. Raises ManifestError."""
    sizes: dict[str, dict[str, int]] = {}
    for node in manifest.nodes:
        path = directory / node.weights.file
        if node.weights.file not in sizes:
            sizes[node.weights.file] = _tensor_bytes(path)
        held = sizes[node.weights.file].items()
        nbytes = sum(size for name, size in held if name.startswith(node.weights.prefix))
        if nbytes != node.parameter_bytes:
            raise ManifestError(
                f"{path}: holds {nbytes} bytes of {node.id}, the manifest's parameter_bytes is {node.parameter_bytes}."
            )


def _tensor_bytes(path: Path) -> dict[str, int]:
    """Bytes of each tensor of a safetensors file. Raises ManifestError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            tensors = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            return {
                name: math.prod(tensor.get_shape()) * _bits(tensor.get_dtype()) // 8 for name, tensor in tensors.items()
            }
    except (OSError, SafetensorError, ValueError) as error:
        raise ManifestError(f"{path}: is not a readable safetensors file ({error}).") from error


def _bits(dtype: str) -> int:
    """Bits of an element, by safetensors' name of its type: F32, BF16, F8_E4M3, BOOL."""
    number = re.search(r"\d+", dtype)
    return int(number[0]) if number else 8


def sha256_of(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

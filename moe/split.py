"""Turning a checkpoint into a pipeline folder.

The folder is written next to its final place and renamed when complete, so a reader never sees half of one.
The same source, settings and seed give the same bytes on the same machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer

from moe import manifest as m
from moe.checkpoints.llama import LlamaReader
from moe.checkpoints.open import is_dense, open_dense, open_native, open_source
from moe.checkpoints.reader import DenseReader, NativeReader, NodeTensors
from moe.checkpoints.source import SeededSource, Source
from moe.convert import apply_adapter
from moe.dense import Adapter, Calibration, Method, activations_of, convert, load_adapter
from moe.errors import CheckpointError
from moe.families.weights import FLOAT32
from moe.manifest_proof import sha256_of
from moe.names import MANIFEST_FILE, expected_edges, expert_id, segment_id
from moe.runtime import DTYPES
from moe.tokenize import adopt_tokenizer

Progress = Callable[[str, int, int], None]
"""Called with a node's id, nodes done, and nodes in all."""

PAGE_BYTES = 4096


@dataclass(frozen=True)
class SplitSettings:
    """What a user chooses. ``top_k`` None: what the checkpoint states, or half of the experts of a dense one.

    ``method`` neurons: every expert holds a share of the neurons, exact when ``top_k`` = ``experts``;
    full: every expert starts as a copy of the whole FFN. Native mixtures keep their experts, whatever ``experts`` is.
    """

    name: str
    experts: int = 4
    top_k: int | None = None
    method: Method = "neurons"
    dtype: m.Dtype = "float32"
    seed: int = 0
    layers: Sequence[int] | None = None
    """Model layers of a dense checkpoint that get experts; None: all, or those of the adapter."""


def split(
    source: str | Path | Source,
    out: str | Path,
    name: str | None = None,
    experts: int = 4,
    top_k: int | None = None,
    method: Method = "neurons",
    dtype: m.Dtype = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    *,
    force: bool = False,
    tokenizer: str | Path | FastTokenizer | None = None,
    adapter: str | Path | None = None,
    layers: Sequence[int] | None = None,
) -> m.Manifest:
    """Write the pipeline folder ``out`` from a Hugging Face folder, a GGUF file or an open source.

    ``tokenizer``: a tokenizer, or its JSON file, used when the folder has none. ``force``: replace ``out`` where it is
    a pipeline folder already. ``layers``: those of a dense decoder with rotary positions that get experts. Raises
    CheckpointError; then ``out`` is as it was before.
    """
    out = Path(out)
    opened = open_source(source) if isinstance(source, (str, Path)) else source
    settings = SplitSettings(name or out.name, experts, top_k, method, dtype, seed, layers)
    check_target(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Next to its place: only within one file system is the renaming at the end a single step.
    part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    try:
        writer = _Writer(part, settings, progress)
        manifest, reader = _write(writer, opened, settings, adapter)
        manifest = adopt_tokenizer(manifest, opened, reader, tokenizer, part)
        m.save(manifest, part)
        part.chmod(0o755)  # mkdtemp's folder is for its owner alone; functions may run as another user
        _put_in_place(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return manifest


def _write(
    writer: _Writer, opened: Source, settings: SplitSettings, adapter: str | Path | None
) -> tuple[m.Manifest, DenseReader | NativeReader]:
    """The nodes of a dense model or of a mixture. Raises CheckpointError."""
    if is_dense(opened):
        dense = open_dense(opened)
        if adapter is not None:
            return _split_adapted(writer, dense, settings, load_adapter(Path(adapter))), dense
        put_experts(dense, settings.layers, settings.name)
        return _split_dense(writer, opened, dense, settings), dense
    native = open_native(opened)
    if settings.layers is not None:
        raise CheckpointError(f"{settings.name}: a mixture has its experts in the layers it was trained with.")
    if settings.method != "neurons" or adapter is not None:
        raise CheckpointError(f"{settings.name}: a mixture keeps its experts; method and adapter are not for it.")
    return _split_native(writer, native, settings), native


def put_experts(reader: DenseReader, layers: Sequence[int] | None, name: str) -> None:
    """Leave the layers that are not in ``layers`` whole, inside the segments. Raises CheckpointError."""
    if layers is None:
        return
    if not isinstance(reader, LlamaReader):
        raise CheckpointError(
            f"{name}: experts in some layers only are for dense decoders with rotary positions, not {reader.family}."
        )
    reader.put_experts(layers)


def check_target(out: Path, force: bool) -> None:
    """Refuse to write over anything but, with ``force``, a pipeline folder. Raises CheckpointError."""
    if not out.exists() and not out.is_symlink():
        return
    if not force:
        raise CheckpointError(f"{out}: exists already; choose another place or replace it (--force).")
    if not (out / MANIFEST_FILE).is_file():
        raise CheckpointError(f"{out}: exists and is not a pipeline folder, so it is not replaced.")


def _put_in_place(part: Path, out: Path) -> None:
    if not out.exists():
        part.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    out.rename(old / out.name)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)


class _Writer:
    """Writes nodes' files and keeps their descriptions."""

    def __init__(self, folder: Path, settings: SplitSettings, progress: Progress | None) -> None:
        self.folder = folder
        self.dtype = DTYPES[settings.dtype]
        self.progress = progress
        self.total = 0
        self.nodes: list[m.Node] = []
        self.files: dict[str, m.FileRef] = {}
        (folder / "weights").mkdir()

    def write(self, node_id: str, layer: int, expert: int | None, tensors: NodeTensors, **shape: Any) -> None:
        """``shape`` holds the node's flows (see ``flows_of_*``)."""
        stored = {
            name: tensor.to(torch.float32 if name in FLOAT32 else self.dtype).contiguous()
            for name, tensor in layout(tensors).items()
        }
        file = f"weights/{node_id}.safetensors"
        save_file(stored, str(self.folder / file), metadata={"node": node_id})
        path = self.folder / file
        path.chmod(0o644)
        self.files[file] = m.FileRef(sha256_of(path), path.stat().st_size)
        self.nodes.append(
            m.Node(
                id=node_id,
                kind="segment" if expert is None else "expert",
                layer=layer,
                expert=expert,
                weights=m.WeightsRef(file),
                parameter_bytes=sum(tensor.nbytes for tensor in stored.values()),
                parameters=sum(tensor.numel() for tensor in stored.values()),
                flops_per_token=flops_per_token(tensors),
                **shape,
            )
        )
        if self.progress is not None:
            self.progress(node_id, len(self.nodes), self.total)

    def write_layer(
        self,
        reader: DenseReader | NativeReader,
        index: int,
        router: m.Router,
        segment: NodeTensors,
        experts: Iterable[NodeTensors],
    ) -> None:
        """Segment ``index`` and the experts behind it, one after another."""
        size = int(reader.architecture.get("decoder", reader.architecture)["hidden_size"])
        shared = "shared.w_in.weight" in segment
        flows = flows_of_segment(reader, index, router.calls, self.dtype.itemsize, shared)
        self.write(segment_id(index), index, None, segment, **flows)
        for expert, tensors in enumerate(experts):
            flows = flows_of_expert(size, self.dtype.itemsize)
            self.write(expert_id(index, expert), index, expert, tensors, **flows)

    def manifest(self, reader: DenseReader | NativeReader, settings: SplitSettings, router: m.Router) -> m.Manifest:
        counts = [sum(n.kind == "expert" and n.layer == layer for n in self.nodes) for layer in range(reader.layers)]
        nodes = sorted(self.nodes, key=lambda node: (node.kind == "expert", node.layer, node.expert or 0))
        return m.Manifest(
            name=settings.name,
            family=reader.family,
            task=reader.task,
            dtype=settings.dtype,
            architecture=reader.architecture,
            router=router,
            tokenizer=None,
            nodes=tuple(nodes),
            edges=tuple(expected_edges(reader.layers + 1, counts)),
            files=self.files,
        )


def layout(tensors: NodeTensors) -> NodeTensors:
    """Matrices transposed to ``[in, out]`` where that multiplies faster.

    For few tokens BLAS is faster on ``[in, out]`` (1.3 to 2.4 times at 4 to 32 tokens, d 384), except where
    its rows start at equal places in memory pages, which makes them compete for the same cache lines.
    """
    result: NodeTensors = {}
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.dim() == 2 and tensor.shape[0] * 4 % PAGE_BYTES:
            result[f"{name}_t"] = tensor.t()
        else:
            result[name] = tensor
    return result


def flops_per_token(tensors: NodeTensors) -> int:
    """2 for each weight of each matrix product; a language head counts as if every token asked for logits."""
    return sum(2 * t.numel() for name, t in tensors.items() if name.endswith(".weight") and t.dim() == 2)


def flows_of_expert(hidden_size: int, itemsize: int) -> dict[str, Any]:
    """Names and bytes per token of an expert's call."""
    size = hidden_size * itemsize
    return {"inputs": ("x",), "outputs": ("y",), "bytes_in_per_token": size, "bytes_out_per_token": size}


def flows_of_segment(
    reader: DenseReader | NativeReader, index: int, calls: int, itemsize: int, shared: bool
) -> dict[str, Any]:
    """Names and bytes per token of a segment's call.

    Memory is counted as if it were as long as the text, logits as if each text had one token.
    """
    seq2seq = reader.family == "bert2bert"
    numbers = reader.architecture["encoder"] if seq2seq else reader.architecture
    bridge = numbers["layers"] if seq2seq else -1
    size = numbers["hidden_size"] * itemsize
    inputs: tuple[str, ...] = ("hidden", "lengths")
    bytes_in = size
    if index == 0:
        inputs, bytes_in = ("token_ids", "lengths"), 8
    elif index == bridge:
        inputs, bytes_in = ("hidden", "memory_lengths", "token_ids", "lengths"), size + 8
    elif seq2seq and bridge < index < reader.layers:
        inputs, bytes_in = ("hidden", "lengths", "memory", "memory_lengths"), 2 * size
    if index == reader.layers:
        if reader.task == "embedding":
            return _flows(inputs, ("embedding", "states"), bytes_in, size)
        vocab = (reader.architecture["decoder"] if seq2seq else numbers)["vocab_size"]
        return _flows(inputs, ("logits",), bytes_in, vocab * itemsize)
    outputs: tuple[str, ...] = ("residual", "expert_ids", "gates")
    bytes_out = size + 12 * calls
    if shared or reader.task == "causal-lm":
        outputs, bytes_out = ("residual", "x", "expert_ids", "gates"), bytes_out + size
    if index == bridge:
        outputs, bytes_out = ("memory", *outputs), bytes_out + size
    return _flows(inputs, outputs, bytes_in, bytes_out)


def _flows(inputs: tuple[str, ...], outputs: tuple[str, ...], bytes_in: int, bytes_out: int) -> dict[str, Any]:
    return {
        "inputs": inputs,
        "outputs": outputs,
        "bytes_in_per_token": bytes_in,
        "bytes_out_per_token": bytes_out,
    }


SHARED = ("gate_up.weight", "down.weight")
"""Tensors of an expert that every token meets."""


def _split_native(writer: _Writer, reader: NativeReader, settings: SplitSettings) -> m.Manifest:
    top_k = settings.top_k or reader.router.top_k
    if top_k != reader.router.top_k:
        raise CheckpointError(
            f"{settings.name}: this checkpoint was trained with top-k {reader.router.top_k}, not {top_k}."
        )
    router = reader.router
    for index in range(reader.layers + 1):
        segment, shared = _without_shared(reader.segment(index))
        if shared and index == 0:
            router = replace(router, shared=1)
        writer.total = reader.layers * (1 + reader.experts + (router.shared or 0)) + 1
        experts = (reader.expert(index, expert) for expert in range(reader.experts if index < reader.layers else 0))
        writer.write_layer(reader, index, router, segment, chain(experts, [shared] if shared else []))
    return writer.manifest(reader, settings, router)


def _without_shared(segment: NodeTensors) -> tuple[NodeTensors, NodeTensors]:
    """A segment's tensors without the expert that every token meets, and that expert's; its gate stays, as it is chosen
    with the others."""
    moved = {f"shared.{name}": name for name in SHARED if f"shared.{name}" in segment}
    rest = {name: tensor for name, tensor in segment.items() if name not in moved}
    return rest, {ours: segment[theirs] for theirs, ours in moved.items()}


def dense_router(settings: SplitSettings) -> m.Router:
    """Gates of a converted model: a plain sum over neuron groups; over copies, gates that sum to one."""
    top_k = settings.top_k or max(1, settings.experts // 2)
    if settings.experts < 1 or not 1 <= top_k <= settings.experts:
        raise CheckpointError(
            f"{settings.name}: experts is {settings.experts}, top_k {top_k}; allowed is 1 ≤ top_k ≤ experts."
        )
    if settings.method == "full":
        return m.Router(top_k, "softmax-topk", True)
    return m.Router(top_k, "ones")


def _split_dense(
    writer: _Writer,
    source: Source,
    reader: DenseReader,
    settings: SplitSettings,
) -> m.Manifest:
    router = dense_router(settings)
    seeded = isinstance(source, SeededSource)
    cluster = router.top_k < settings.experts and not seeded
    writer.total = reader.layers * (1 + settings.experts) + 1
    calibration = Calibration(reader, settings.seed)
    for index in range(reader.layers):
        tensors, ffn = reader.segment(index), reader.ffn(index)
        x = calibration.before_experts(index, tensors)
        activations = activations_of(ffn, x, reader.activation(index))
        converted = convert(
            ffn,
            x,
            activations,
            experts=settings.experts,
            method=settings.method,
            seed=settings.seed + index,
            cluster=cluster,
        )
        if seeded and settings.method == "neurons":
            calibration.through_experts(x, index, converted, router)
        else:
            calibration.through_ffn(activations, ffn)
        writer.write_layer(reader, index, router, tensors | converted.segment, converted.experts)
    writer.write_layer(reader, reader.layers, router, reader.segment(reader.layers), ())
    return writer.manifest(reader, settings, router)


def _split_adapted(writer: _Writer, reader: DenseReader, settings: SplitSettings, adapter: Adapter) -> m.Manifest:
    """A dense checkpoint with the changes, neuron groups and routers of a trained adapter."""
    if settings.method != "neurons" or adapter.experts != settings.experts:
        raise CheckpointError(
            f"{settings.name}: the adapter was trained for method neurons with {adapter.experts} experts, "
            f"not {settings.method} with {settings.experts}."
        )
    if settings.top_k not in (None, adapter.router.top_k):
        raise CheckpointError(
            f"{settings.name}: the adapter was trained for top-k {adapter.router.top_k}, not {settings.top_k}."
        )
    if settings.layers is not None and tuple(sorted(settings.layers)) != adapter.layers:
        raise CheckpointError(f"{settings.name}: the adapter was trained for experts in layers {adapter.layers}.")
    put_experts(reader, adapter.layers, settings.name)
    writer.total = reader.layers * (1 + settings.experts) + 1
    for index in range(reader.layers + 1):
        ffn = reader.ffn(index) if index < reader.layers else None
        adapted = apply_adapter(adapter.tensors, index, reader.segment(index), ffn)
        writer.write_layer(reader, index, adapter.router, adapted.segment, adapted.experts)
    return writer.manifest(reader, settings, adapter.router)

"""A node of a pipeline as a program: tensors in, tensors out.

``load_node`` maps the node's safetensors file (copy-on-write and never written, so all replicas on a machine share its
pages) and builds the family's function over it; with a device the weights are copied there, or lie there already and
are lent. Programs are pure and may be called from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moe.cache import KvShape, PageCache, ShapeRecorder
from moe.errors import ManifestError, ProgramInputError
from moe.families import bert, bert2bert, gpt2, rope
from moe.families.experts import GatedFfn, PlainFfn
from moe.families.packing import HOST
from moe.families.routing import RouterProgram
from moe.families.segment import Segment
from moe.families.weights import FLOAT32, Weights
from moe.inputs import CACHED, InputRules, rules_of
from moe.manifest import Manifest, Node

__all__ = ["DTYPES", "HOST", "READ_ON_HOST", "NodeProgram", "ProgramInputError", "Splits", "load_node"]

Tensors = dict[str, Tensor]
Function = Segment | PlainFfn | GatedFfn

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
FAMILIES = {
    "bert": bert,
    "roberta": bert,
    "distilbert": bert,
    "gpt2": gpt2,
    "bert2bert": bert2bert,
    "mixtral": rope,
    "qwen3_moe": rope,
    "olmoe": rope,
    "llama": rope,
    "mistral": rope,
    "qwen2": rope,
    "qwen3": rope,
    "qwen2_moe": rope,
    "granitemoe": rope,
    "phimoe": rope,
    "glm4_moe": rope,
    "gpt_oss": rope,
    "deepseek_v2": rope,
    "deepseek_v3": rope,
}
PER_TEXT = ("lengths", "memory_lengths", "embedding", *CACHED)
PER_MEMORY_TOKEN = ("memory",)
READ_ON_HOST = frozenset(("lengths", "memory_lengths")) | CACHED
"""Inputs that programs read as numbers: they stay on the host whatever the device."""


@dataclass(frozen=True, slots=True)
class Splits:
    """How much of a coalesced call belongs to each of its parts: tokens, texts, and tokens of memory."""

    tokens: tuple[int, ...]
    texts: tuple[int, ...]
    memory: tuple[int, ...]


class NodeProgram:
    """One node, ready to run. ``weights_bytes`` is what it maps, ``id`` the node's id.

    Its weights are on ``device``; inputs lie there but for ``READ_ON_HOST``, and so do replies.
    """

    def __init__(
        self, node: Node, function: Function, rules: InputRules, nbytes: int, device: torch.device = HOST
    ) -> None:
        self.node = node
        self.id = node.id
        self.weights_bytes = nbytes
        self.device = device
        self.rules = rules
        self.cache: PageCache | None = None
        """Keys and values of texts under way, once ``open_cache`` was called."""
        self._function = function
        self._run: Callable[[Mapping[str, Tensor], bool], Tensors]
        self._run = self._segment if isinstance(function, Segment) else self._expert

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ProgramInputError when ``run`` would refuse these tensors ``[tokens, …]``; takes little time compared
        with computing."""
        self.rules.check(tensors)

    def made_up(self, tokens: int) -> Tensors:
        """A call ``[tokens, …]`` that it accepts, for a rehearsal."""
        return self.rules.made_up(tokens)

    def run(self, tensors: Mapping[str, Tensor], *, all_logits: bool = False, checked: bool = False) -> Tensors:
        """Compute the node's reply (names and shapes: architecture.md, section 2).

        ``all_logits``: a language head answers ``[T, vocab]`` in place of each text's last token ``[B,
        vocab]``.
        ``checked``: ``check`` has passed these tensors already. Raises ProgramInputError, and with ``sequences``
        CacheMissError and CacheFullError.
        """
        if not checked:
            self.rules.check(tensors)
        with torch.inference_mode():
            return self._run(tensors, all_logits)

    def _segment(self, tensors: Mapping[str, Tensor], all_logits: bool) -> Tensors:
        assert isinstance(self._function, Segment)
        past = None
        if "sequences" in tensors:
            if self.cache is None:
                raise ProgramInputError(f"{self.id}: the call names sequences, but no keys and values are kept here.")
            past = self.cache.begin(*(tensors[name].tolist() for name in ("sequences", "starts", "lengths", "parents")))
        return self._function(tensors, all_logits, past)

    def take_router(self) -> RouterProgram | None:
        """The segment's router, which it computes no more from now on; None: it has none."""
        assert isinstance(self._function, Segment)
        router = self._function.router
        self._function = replace(self._function, router=None)
        return router

    def open_cache(self, limit_bytes: int) -> PageCache:
        """Keep keys and values from now on, at most ``limit_bytes`` of them. Raises ProgramInputError where the node is
        no decoder's segment."""
        if not self.rules.caches:
            raise ProgramInputError(f"{self.id} is no segment of a decoder: it has no keys and values to keep.")
        self.cache = PageCache(self.kv_shapes, limit_bytes, self.device)
        return self.cache

    @cached_property
    def kv_shapes(self) -> list[KvShape]:
        """What each attention of a decoder's segment keeps for a token, seen by running the program on one."""
        assert isinstance(self._function, Segment)
        call: Tensors = {"lengths": torch.ones(1, dtype=torch.int64)}
        for name, width in self.rules.widths.items():
            call[name] = torch.zeros(1, width, dtype=self.rules.dtype, device=self.device)
        if "token_ids" in self.rules.names:
            call["token_ids"] = torch.zeros(1, dtype=torch.int64, device=self.device)
        recorder = ShapeRecorder()
        with torch.inference_mode():
            self._function(call, past=recorder)
        return recorder.shapes

    def _expert(self, tensors: Mapping[str, Tensor], all_logits: bool) -> Tensors:
        assert not isinstance(self._function, Segment)
        return {"y": self._function(tensors["x"])}

    def coalesce(self, calls: Sequence[Mapping[str, Tensor]]) -> tuple[Tensors, Splits]:
        """Several calls as one: every tensor ``[tokens or texts, …]`` concatenated along its first axis.

        ``calls`` must have been checked.
        """
        splits = self.splits(calls)
        if len(calls) == 1:
            return dict(calls[0]), splits
        with torch.inference_mode():
            return {name: torch.cat([call[name] for call in calls]) for name in calls[0]}, splits

    def splits(self, calls: Sequence[Mapping[str, Tensor]]) -> Splits:
        """The share ``[tokens]``, ``[texts]`` of each of ``calls`` once they are one."""
        return Splits(
            tuple(_tokens(call) for call in calls),
            tuple(call["lengths"].shape[0] if "lengths" in call else 0 for call in calls),
            tuple(_memory(call) for call in calls),
        )

    def split(self, reply: Mapping[str, Tensor], splits: Splits) -> list[Tensors]:
        """Undo ``coalesce`` on the reply ``[tokens or texts, …]``; the parts are views."""
        if len(splits.tokens) == 1:
            return [dict(reply)]
        parts: list[Tensors] = [{} for _ in splits.tokens]
        with torch.inference_mode():
            for name, tensor in reply.items():
                sizes = splits.tokens
                if name in PER_TEXT or (name == "logits" and tensor.shape[0] == sum(splits.texts)):
                    sizes = splits.texts
                elif name in PER_MEMORY_TOKEN:
                    sizes = splits.memory
                for part, piece in zip(parts, tensor.split_with_sizes(sizes), strict=True):
                    part[name] = piece
        return parts


def _tokens(call: Mapping[str, Tensor]) -> int:
    for name in ("token_ids", "hidden", "x"):
        if name in call:
            return call[name].shape[0]
    raise ProgramInputError("A call carries token_ids, hidden or x; this one has none of them.")


def _memory(call: Mapping[str, Tensor]) -> int:
    if "memory" in call:
        return call["memory"].shape[0]
    return call["hidden"].shape[0] if "token_ids" in call and "hidden" in call else 0


Lent = Callable[[Path, str], Mapping[str, Tensor] | None]
"""A weights file and a prefix → tensors that are on the device already, named as by ``read_mapped``; None: none are."""


def load_node(
    directory: str | Path, manifest: Manifest, node_id: str, device: torch.device = HOST, lent: Lent | None = None
) -> NodeProgram:
    """Map a node's weights and build its program; on another device than the host they are copied there, unless
    ``lent`` has them there.

    Raises KeyError for an unknown node, ManifestError when the file does not hold what the manifest promises, and what
    the device raises.
    """
    node = manifest.node(node_id)
    path = Path(directory) / node.weights.file
    placed = lent(path, node.weights.prefix) if lent is not None else None
    if placed is None:
        mapped = read_mapped(path, node.weights.prefix)
        placed = mapped if device == HOST else _copied(mapped, device)
    weights = Weights(placed, str(path))
    dtype = DTYPES[manifest.dtype]
    for name, tensor in weights.tensors.items():
        if tensor.dtype != (torch.float32 if name in FLOAT32 else dtype):
            raise ManifestError(f"{path}: tensor {name!r} is {tensor.dtype}, the manifest's dtype is {dtype}.")
    nbytes = sum(tensor.nbytes for tensor in weights.tensors.values())
    if nbytes != node.parameter_bytes:
        raise ManifestError(
            f"{path}: holds {nbytes} bytes of {node_id}, the manifest's parameter_bytes is {node.parameter_bytes}."
        )
    family = FAMILIES[manifest.family]
    function: Function
    if node.kind == "segment":
        segment = family.segment(weights, manifest.architecture, manifest.router, node.layer)
        _check_router(segment, manifest, node, path)
        function = segment
    else:
        function = family.expert(weights, manifest.architecture, node.layer)
    weights.finish()
    return NodeProgram(node, function, rules_of(manifest, node, dtype), nbytes, device)


def _copied(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _check_router(segment: Segment, manifest: Manifest, node: Node, path: Path) -> None:
    if segment.router is None:
        return
    routed, experts = segment.router.linear.matrix.shape[1], manifest.routed(node.layer)
    if routed != experts:
        raise ManifestError(f"{path}: the router chooses among {routed} experts, the manifest has {experts}.")


def read_mapped(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Tensors whose names start with ``prefix``, ``[shapes in the file]``, as views of the mapped file. Raises
    ManifestError."""
    try:
        with safe_open(str(path), framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
            return {name.removeprefix(prefix): file.get_tensor(name) for name in names}
    except (OSError, SafetensorError) as error:
        raise ManifestError(f"{path}: is not a readable safetensors file ({error}).") from error

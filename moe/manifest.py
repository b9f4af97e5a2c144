"""The manifest: the only description of a pipeline (``pipeline.json`` in its folder).

``load`` reads and proves it (JSON Schema, topology, sha256 of every file), ``save`` writes it. This module
imports no torch, so every room may read a manifest cheaply. Anything wrong raises :class:`ManifestError` with
a sentence that names the file, the key and the rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import jsonschema

from moe.errors import ManifestError
from moe.manifest_proof import check, verify_files, verify_weights
from moe.names import INGRESS, MANIFEST_FILE

VERSION = 2
"""Newest; what has no shared experts is written as version 1, which older programs read, too."""
MAX_MANIFEST_BYTES = 64 * 2**20

Family = Literal[
    "bert",
    "gpt2",
    "bert2bert",
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "granitemoe",
    "phimoe",
    "glm4_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "roberta",
    "distilbert",
]
Task = Literal["embedding", "causal-lm", "seq2seq-lm"]
Dtype = Literal["float32", "bfloat16", "float16"]
Kind = Literal["segment", "expert"]
Gates = Literal["softmax-topk", "topk-softmax", "ones", "sparsemixer", "sigmoid-topk"]


@dataclass(frozen=True)
class WeightsRef:
    """Where a node's tensors lie: a safetensors file of the folder, and the prefix of their names in it."""

    file: str
    prefix: str = ""


@dataclass(frozen=True)
class FileRef:
    """Identity of one file of the folder."""

    sha256: str
    bytes: int


@dataclass(frozen=True)
class Router:
    """How a segment turns router logits ``[T, E]`` into ``expert_ids`` and ``gates`` ``[T, k]``.

    ``softmax-topk``: probabilities over all experts, the k largest; ``normalise`` divides them by their sum.
    ``topk-softmax``: the k largest logits, softmax over those.
    ``ones``: the k largest logits, every gate 1: a plain sum, exact for neuron splits with ``top_k`` =
    experts. ``sparsemixer``: one expert after another, each with its probability among those left that lie within
    twice ``jitter`` of it. ``sigmoid-topk``: a sigmoid of each logit, the k largest after a correction that the segment
    holds. With ``groups`` of neighbouring experts the k come from the ``top_groups`` best of them. Gates are multiplied
    by ``scale`` at the end.

    The last ``shared`` experts of every layer are not chosen: every token meets them, with gate 1 or what the segment's
    own gate gives (version 2). They follow the ``top_k`` chosen ones.
    """

    top_k: int
    gates: Gates = "softmax-topk"
    normalise: bool = False
    scale: float = 1.0
    jitter: float | None = None
    groups: int | None = None
    top_groups: int | None = None
    shared: int | None = None

    @property
    def calls(self) -> int:
        """Experts that a token meets in each layer."""
        return self.top_k + (self.shared or 0)


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids. ``special`` holds ids by role: ``bos eos pad unk cls sep mask decoder_start``."""

    file: str
    max_tokens: int
    """Longest text in tokens, special tokens included."""
    kind: Literal["tokenizers-json"] = "tokenizers-json"
    special: Mapping[str, int] = field(default_factory=dict)
    chat_template: str | None = None
    """File of the folder with the checkpoint's Jinja template for conversations."""
    ends: tuple[int, ...] | None = None
    """Ids of the tokens that end a text, where they are not ``eos`` alone."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Ids of the tokens with which the model ends a text."""
        eos = self.special.get("eos")
        return frozenset(self.ends or (() if eos is None else (eos,)))


@dataclass(frozen=True)
class Node:
    """One segment or expert. ``inputs`` and ``outputs`` are tensor names of the pass (architecture.md,
    section 2).
    """

    id: str
    kind: Kind
    layer: int
    expert: int | None
    weights: WeightsRef
    parameter_bytes: int
    parameters: int
    flops_per_token: int
    """Operations of matrix products, 2 per multiply-add, without the part of attention that grows with the text."""
    bytes_in_per_token: int
    bytes_out_per_token: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """A pipeline. Nodes are in canonical order: segments 0…n, then experts by (layer, expert)."""

    name: str
    family: Family
    task: Task
    dtype: Dtype
    architecture: Mapping[str, Any]
    router: Router
    tokenizer: Tokenizer | None
    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]
    files: Mapping[str, FileRef]

    @property
    def version(self) -> int:
        """The oldest version that holds all of it."""
        return 1 if self.router.shared is None else VERSION

    @cached_property
    def segments(self) -> tuple[Node, ...]:
        """Segments 0…n in order."""
        return tuple(sorted((node for node in self.nodes if node.kind == "segment"), key=lambda node: node.layer))

    @property
    def layers(self) -> int:
        """Number of MoE layers n (one less than segments)."""
        return len(self.segments) - 1

    @cached_property
    def _experts(self) -> tuple[tuple[Node, ...], ...]:
        rows: list[list[Node]] = [[] for _ in range(self.layers)]
        for node in self.nodes:
            if node.kind == "expert":
                rows[node.layer].append(node)
        return tuple(tuple(sorted(row, key=lambda node: node.expert or 0)) for row in rows)

    def experts(self, layer: int) -> tuple[Node, ...]:
        """Experts of MoE layer ``layer`` (0…n-1) in order. Raises IndexError outside that range."""
        if not 0 <= layer < self.layers:
            raise IndexError(f"Pipeline {self.name} has MoE layers 0 to {self.layers - 1}, not {layer}.")
        return self._experts[layer]

    def routed(self, layer: int) -> int:
        """How many experts of MoE layer ``layer`` the router chooses among."""
        return len(self.experts(layer)) - (self.router.shared or 0)

    def tokens_share(self, expert: Node) -> float:
        """Mean part of its layer's tokens that an expert gets, where the chosen ones get equal parts."""
        routed = self.routed(expert.layer)
        return 1.0 if (expert.expert or 0) >= routed else self.router.top_k / routed

    @cached_property
    def _by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    def node(self, node_id: str) -> Node:
        """Raises KeyError for an id that is not a segment or expert of this pipeline."""
        try:
            return self._by_id[node_id]
        except KeyError:
            raise KeyError(f"Pipeline {self.name} has no node {node_id!r}.") from None

    def function_name(self, node_id: str) -> str:
        """``PIPELINE-NODEID``; the ingress's function is just ``PIPELINE``."""
        return self.name if node_id == INGRESS else f"{self.name}-{self.node(node_id).id}"

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all nodes' weights."""
        return sum(node.parameter_bytes for node in self.nodes)


# Reading ----------------------------------------------------------------------------------------------------


@cache
def _validator() -> Any:
    """Checks a document against the schema, whose references are resolved here, once, and not again at every node."""
    schema = json.loads(Path(__file__).with_name("manifest.schema.json").read_text(encoding="utf-8"))
    definitions = {f"#/$defs/{name}": definition for name, definition in schema.pop("$defs").items()}

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, dict):
            return part
        rest = {key: resolved(value) for key, value in part.items() if key != "$ref"}
        if "$ref" not in part:
            return rest
        definition = resolved(definitions[part["$ref"]])
        return rest | {"allOf": [definition]} if rest else definition

    return jsonschema.Draft202012Validator(resolved(schema))


def load(directory: str | Path, verify: bool = True, *, trusted: bool = False) -> Manifest:
    """Read ``directory/pipeline.json``.

    With ``verify`` every file's size and sha256 is compared with the manifest, and what the weights' files state of
    their tensors; without it only the manifest itself is checked (schema and topology). ``trusted`` leaves out the
    schema too: for workers, whose manifest was checked when it was deployed, and whose start it would make several
    times longer. Raises ManifestError.
    """
    path = Path(directory) / MANIFEST_FILE
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path}: a manifest may hold at most {MAX_MANIFEST_BYTES} bytes.")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror}); is this a pipeline folder?") from error
    except UnicodeDecodeError as error:
        raise ManifestError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    manifest = from_json(text, where=str(path), trusted=trusted)
    if verify:
        verify_files(manifest, Path(directory))
        verify_weights(manifest, Path(directory))
    return manifest


def from_json(text: str, where: str = MANIFEST_FILE, *, trusted: bool = False) -> Manifest:
    """Parse and prove a manifest's text (schema, unless ``trusted``, and topology). ``where`` begins every message.
    Raises ManifestError.
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except (json.JSONDecodeError, _NotStrictJsonError) as error:
        raise ManifestError(f"{where}: is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise ManifestError(f"{where}: is nested too deeply to be a manifest.") from error
    broken = "" if trusted else _broken_rule(text)
    if broken:
        raise ManifestError(f"{where}: {broken}")
    try:
        manifest = _build(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"{where}: is not a manifest ({type(error).__name__}: {error}).") from error
    check(manifest, where)
    return manifest


_BROKEN_RULES: dict[str, str] = {}
"""sha256 of a manifest's text → what it breaks, of the last few; the text itself may be 64 MiB."""


def _broken_rule(text: str) -> str:
    """What a manifest breaks of the schema, if anything. Kept, as one command reads the same manifest several times."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    broken = _BROKEN_RULES.get(digest)
    if broken is None:
        broken = _rule_that_breaks(text)
        if len(_BROKEN_RULES) >= 4:
            _BROKEN_RULES.pop(next(iter(_BROKEN_RULES), ""), None)
        _BROKEN_RULES[digest] = broken
    return broken


def _rule_that_breaks(text: str) -> str:
    broken = jsonschema.exceptions.best_match(_validator().iter_errors(json.loads(text)))
    if broken is None:
        return ""
    return f"key {_path_of(broken)} breaks rule {broken.validator!r}: {broken.message[:300]}."


class _NotStrictJsonError(ValueError):
    """JSON that Python would accept but a strict reader would not."""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))  # type: ignore[func-returns-value]
        raise _NotStrictJsonError(f"key {twice!r} stands twice in one object")
    return result


def _no_constant(text: str) -> Any:
    raise _NotStrictJsonError(f"{text} is not a JSON number")


def _path_of(error: Any) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    return path.lstrip(".") or "(top)"


def _build(document: Mapping[str, Any]) -> Manifest:
    tokenizer = document["tokenizer"]
    fields = {name: value for name, value in document.items() if name != "version"}
    fields["router"] = Router(**document["router"])
    fields["tokenizer"] = None if tokenizer is None else _tokenizer(tokenizer)
    fields["nodes"] = tuple(
        Node(
            **{
                **node,
                "weights": WeightsRef(**node["weights"]),
                "inputs": tuple(node["inputs"]),
                "outputs": tuple(node["outputs"]),
            }
        )
        for node in document["nodes"]
    )
    fields["edges"] = tuple((edge[0], edge[1]) for edge in document["edges"])
    fields["files"] = {path: FileRef(**ref) for path, ref in document["files"].items()}
    fields["architecture"] = MappingProxyType(dict(document["architecture"]))
    return Manifest(**fields)


def _tokenizer(document: Mapping[str, Any]) -> Tokenizer:
    ends = document.get("ends")
    return Tokenizer(**{**document, "ends": None if ends is None else tuple(ends)})


# Writing ----------------------------------------------------------------------------------------------------


LATER = frozenset(("chat_template", "ends", "jitter", "groups", "top_groups", "shared"))
"""Keys that came later and are written where they have a value only: a profile names its manifest by its bytes."""


def to_json(manifest: Manifest) -> str:
    """Canonical text: same manifest, same bytes."""
    return json.dumps(_plain(manifest), indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        names = list(value.__dataclass_fields__)
        if isinstance(value, Manifest):
            names.insert(0, "version")
        return {
            name: _plain(entry) for name in names if (entry := getattr(value, name)) is not None or name not in LATER
        }
    if isinstance(value, Mapping):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return cast("str | int | float | bool | None", value)


def save(manifest: Manifest, directory: str | Path) -> Path:
    """Prove the manifest, then write ``directory/pipeline.json`` atomically. Returns its path. Raises
    ManifestError.
    """
    path = Path(directory) / MANIFEST_FILE
    text = to_json(manifest)
    from_json(text, where=str(path))
    part = path.with_suffix(".json.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    return path

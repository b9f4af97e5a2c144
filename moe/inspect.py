"""What is in a pipeline folder: sizes, work per token, and the share of each kind of node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.tree import Tree

from moe.manifest import Manifest, Node, load
from moe.names import MANIFEST_FILE


@dataclass(frozen=True)
class Sums:
    """Totals over some nodes. ``parameter_share``: fraction of the pipeline's parameters, 0 to 1."""

    nodes: int
    parameters: int
    parameter_bytes: int
    flops_per_token: float
    """Work one token causes: of a layer's experts only the mean of ``top_k`` is counted."""
    parameter_share: float


@dataclass(frozen=True)
class LayerView:
    """One MoE layer: the segment that routes to it, and its experts (parameters of each)."""

    layer: int
    segment: str
    segment_parameters: int
    expert_parameters: tuple[int, ...]


@dataclass(frozen=True)
class Inspection:
    """A pipeline as ``smoe pipeline inspect`` shows it. ``active_parameters``: those one token meets, on average."""

    directory: str
    name: str
    family: str
    task: str
    dtype: str
    layers: int
    top_k: int
    shared: int
    """Experts at the end of each layer that every token meets."""
    gates: str
    tokenizer: str | None
    max_tokens: int | None
    total: Sums
    segments: Sums
    experts: Sums
    active_parameters: float
    by_layer: tuple[LayerView, ...]
    last_segment: str
    last_segment_parameters: int
    files_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``json.dumps``."""
        return asdict(self)


def inspect(directory: str | Path, verify: bool = True) -> Inspection:
    """Read a pipeline folder; with ``verify`` every file is checked. Raises ManifestError."""
    manifest = load(directory, verify)
    rows = [manifest.experts(layer) for layer in range(manifest.layers)]
    experts = [node for row in rows for node in row]
    whole = sum(node.parameters for node in manifest.nodes)
    router = manifest.router
    segments = _sums(manifest.segments, sum(node.flops_per_token for node in manifest.segments), whole)
    routed = _sums(experts, sum(manifest.tokens_share(node) * node.flops_per_token for node in experts), whole)
    tokenizer = manifest.tokenizer
    return Inspection(
        directory=str(directory),
        name=manifest.name,
        family=manifest.family,
        task=manifest.task,
        dtype=manifest.dtype,
        layers=manifest.layers,
        top_k=router.top_k,
        shared=router.shared or 0,
        gates=router.gates,
        tokenizer=None if tokenizer is None else tokenizer.file,
        max_tokens=None if tokenizer is None else tokenizer.max_tokens,
        total=_sums(manifest.nodes, segments.flops_per_token + routed.flops_per_token, whole),
        segments=segments,
        experts=routed,
        active_parameters=segments.parameters + sum(manifest.tokens_share(node) * node.parameters for node in experts),
        by_layer=tuple(_layer(manifest, layer) for layer in range(manifest.layers)),
        last_segment=manifest.segments[-1].id,
        last_segment_parameters=manifest.segments[-1].parameters,
        files_bytes=sum(ref.bytes for ref in manifest.files.values()),
    )


def _sums(nodes: Sequence[Node], flops: float, whole: int) -> Sums:
    parameters = sum(node.parameters for node in nodes)
    return Sums(len(nodes), parameters, sum(node.parameter_bytes for node in nodes), float(flops), parameters / whole)


def _layer(manifest: Manifest, layer: int) -> LayerView:
    segment = manifest.segments[layer]
    experts = tuple(node.parameters for node in manifest.experts(layer))
    return LayerView(layer, segment.id, segment.parameters, experts)


def render(view: Inspection) -> RenderableType:
    """The same for people: a tree of the pipeline and a table of its kinds."""
    return Group(_tree(view), _table(view), _note(view))


def _tree(view: Inspection) -> Tree:
    title = f"[bold]{view.name}[/bold]  {view.family}, {view.task}, {view.dtype}  ({view.directory}/{MANIFEST_FILE})"
    tree = Tree(title)
    for row in view.by_layer:
        branch = tree.add(f"{row.segment}  {millions(row.segment_parameters)}")
        sizes = sorted(set(row.expert_parameters))
        each = millions(sizes[0]) if len(sizes) == 1 else f"{millions(sizes[0])} to {millions(sizes[-1])}"
        last = len(row.expert_parameters) - 1
        always = f", the last {view.shared} always" if view.shared else ""
        branch.add(f"expert-{row.layer}-0 … {last}  {last + 1} of {each}, top-{view.top_k} ({view.gates}){always}")
    tree.add(f"{view.last_segment}  {millions(view.last_segment_parameters)}")
    return tree


def _table(view: Inspection) -> Table:
    table = Table("kind", "nodes", "parameters", "share", "MiB", "MFLOP per token", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, sums in (("segments", view.segments), ("experts", view.experts), ("all", view.total)):
        table.add_row(
            kind,
            str(sums.nodes),
            millions(sums.parameters),
            f"{sums.parameter_share:.1%}",
            f"{sums.parameter_bytes / 2**20:.1f}",
            f"{sums.flops_per_token / 1e6:.2f}",
        )
    return table


def _note(view: Inspection) -> str:
    texts = "no tokenizer" if view.tokenizer is None else f"texts of at most {view.max_tokens} tokens"
    return f"A token meets {millions(round(view.active_parameters))} parameters on average; {texts}."


def millions(count: int) -> str:
    """``1234567`` as ``1.23 M``."""
    return f"{count / 1e6:.2f} M"

"""Commands of this room for the ``smoe`` command line: ``split`` and ``inspect``. No logic, only words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tokenizers import Tokenizer as FastTokenizer

from moe.checkpoints.open import check_experts, head_left_out, open_source
from moe.checkpoints.source import FolderSource, Source
from moe.errors import CheckpointError, MoeError
from moe.inspect import inspect, render
from moe.manifest import Manifest
from moe.preset import PRESETS, Preset, preset_adapter, preset_source, preset_tokenizer
from moe.runtime import DTYPES
from moe.split import split as split_checkpoint


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """``0,2,5`` as numbers. Raises click.BadParameter."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter("whole numbers with commas between them are needed, such as 2,5,8") from None


SHOWN = 6
"""Names in a note."""


@click.command("split")
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Pipeline folder to write.")
@click.option("--name", help="Name of the pipeline. [default: the folder's name]")
@click.option("--experts", type=click.IntRange(1), help="Experts per layer of a dense model.")
@click.option("--top-k", type=click.IntRange(1), help="Experts per token.")
@click.option(
    "--method",
    type=click.Choice(["neurons", "full"]),
    default="neurons",
    help="Dense models: share out the neurons, or make full-size copies.",
)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", help="Of the weights that are written.")
@click.option("--seed", type=int, default=0, help="Of all random choices.")
@click.option(
    "--source", "folder", type=click.Path(exists=True, file_okay=False), help="Checkpoint folder for a preset."
)
@click.option("--width", type=click.IntRange(1), help="Hidden size of a preset's seeded weights.")
@click.option(
    "--adapter", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Trained adapter of a dense model."
)
@click.option("--use-adapter/--no-adapter", default=True, help="Use the preset's own trained adapter.")
@click.option(
    "--layers", metavar="N,N,…", callback=lambda _, __, value: layer_numbers(value),
    help="Layers of a dense decoder that get experts, from 0; the others stay whole. [default: all]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing pipeline folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
def split(source: str, out: Path, name: str | None, force: bool, as_json: bool, **options: Any) -> None:
    """Split SOURCE into a pipeline folder.

    SOURCE is a Hugging Face folder (config.json and safetensors), a GGUF file of a Llama, or a preset: minilm,
    smollm2, bert-4, bert-6, bert-8, gpt2-4, gpt2-6, b2b-4.
    """
    preset = PRESETS.get(source)
    if preset is None and (options["folder"] is not None or options["width"] is not None):
        raise click.UsageError("--source and --width belong to presets.")
    method, dtype, seed = options["method"], options["dtype"], options["seed"]
    try:
        with _split_progress() as progress:
            wanted = _of_checkpoint(source, options) if preset is None else _of_preset(preset, options)
            manifest = split_checkpoint(
                wanted.checkpoint, out, name, wanted.experts, wanted.top_k, method, dtype, seed, progress,
                force=force, tokenizer=wanted.tokenizer, adapter=wanted.adapter, layers=wanted.layers,
            )  # fmt: skip
    except MoeError as error:
        raise click.ClickException(str(error)) from error
    notes = _notes(manifest, wanted.checkpoint if preset is None else None)
    if as_json:
        click.echo(json.dumps({"out": str(out), "name": manifest.name, "nodes": len(manifest.nodes), "notes": notes}))
        return
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(_sentence(manifest, out), err=True)
    click.echo(after_split(out), err=True)


def after_split(out: Path) -> str:
    """What to do with a pipeline that was made."""
    return f"next: `smoe pipeline inspect {out}` shows it, `smoe up {out}` serves it"


@contextmanager
def _split_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, and what moves it: node, parts done, parts in all."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("split", total=None)
        yield lambda node_id, done, total: bar.update(task, description=node_id, completed=done, total=total)


class _Wanted(NamedTuple):
    """What is split into what, with everything filled in that the options left open."""

    checkpoint: Source
    experts: int
    top_k: int | None
    adapter: Path | None
    layers: Sequence[int] | None
    tokenizer: Path | FastTokenizer | None = None


def _of_checkpoint(source: str, options: Mapping[str, Any]) -> _Wanted:
    """A folder or file that the user has. Raises CheckpointError."""
    if "/" not in source and not Path(source).exists():
        raise CheckpointError(f"{source}: is no preset ({', '.join(PRESETS)}), and no folder or GGUF file here.")
    checkpoint = open_source(source)
    check_experts(checkpoint, options["experts"])
    return _Wanted(checkpoint, options["experts"] or 4, options["top_k"], options["adapter"], options["layers"])


def _of_preset(preset: Preset, options: Mapping[str, Any]) -> _Wanted:
    """A preset as it is meant, but for what the options change. Raises CheckpointError."""
    folder, adapter, layers = options["folder"], options["adapter"], options["layers"]
    experts = options["experts"] or preset.experts
    top_k = options["top_k"] or min(experts, preset.top_k)
    # The preset's adapter belongs to its installed weights: another checkpoint has none here.
    if adapter is None and folder is None and options["use_adapter"]:
        adapter = preset_adapter(preset, experts, top_k or 0, options["method"])
    if layers not in (None, preset.layers):
        adapter = None
    checkpoint = preset_source(preset, folder, options["width"], options["seed"])
    layers = preset.layers if layers is None else layers
    return _Wanted(checkpoint, experts, top_k, adapter, layers, preset_tokenizer(preset))


@click.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--verify/--no-verify", default=True, help="Check sha256 of every file.")
def inspect_(directory: Path, as_json: bool, verify: bool) -> None:
    """Show the pipeline in DIRECTORY: its tree, sizes, work per token, and share of parameters per kind."""
    try:
        view = inspect(directory, verify)
    except MoeError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(view.to_json()))
    else:
        Console().print(render(view))
        click.echo(after_inspect(directory), err=True)


def after_inspect(directory: Path) -> str:
    """What to do with a pipeline that was looked into."""
    return f"next: `smoe up {directory}` serves it"


def _notes(manifest: Manifest, source: Source | None) -> list[str]:
    """What a user may not expect of the pipeline."""
    notes = []
    head = None if source is None else head_left_out(source)
    if head is not None:
        notes.append(f"the checkpoint is a {head}, whose head is left out: the pipeline answers embeddings")
    left = source.unread() if isinstance(source, FolderSource) else {}
    if left:
        first = ", ".join(f"{name} ({count})" for name, count in list(left.items())[:SHOWN])
        more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
        notes.append(f"{sum(left.values())} tensors of the checkpoint are no part of the pipeline: {first}{more}")
    longest = manifest.architecture.get("max_positions")
    stated = None if source is None else source.config.get("max_position_embeddings")
    if manifest.task == "causal-lm" and longest is not None and stated is not None and longest < stated:
        notes.append(f"texts of at most {longest} tokens, not {stated}: longer ones turn by other angles (LongRoPE)")
    if manifest.tokenizer is None:
        notes.append("no tokenizer.json in the checkpoint: functions cannot take texts; put one there and split again")
    return notes


def _sentence(manifest: Manifest, out: Path) -> str:
    experts = sum(node.kind == "expert" for node in manifest.nodes)
    return (
        f"{out}: pipeline {manifest.name}, {manifest.family}, "
        f"{len(manifest.segments)} segments and {experts} "
        f"experts, top-{manifest.router.top_k}, {manifest.parameter_bytes / 2**20:.1f} MiB of weights."
    )

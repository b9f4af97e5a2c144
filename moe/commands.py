"""Commands of this room for the ``smoe`` command line: ``split`` and ``inspect``. No logic, only words."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from moe.checkpoints.open import check_experts, head_left_out, open_source
from moe.checkpoints.source import FolderSource, Source
from moe.errors import MoeError
from moe.inspect import inspect, render
from moe.manifest import Manifest
from moe.preset import PRESETS, preset_adapter, preset_source, preset_tokenizer
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
def split(
    source: str,
    out: Path,
    name: str | None,
    experts: int | None,
    top_k: int | None,
    method: str,
    dtype: str,
    seed: int,
    folder: str | None,
    width: int | None,
    force: bool,
    as_json: bool,
    adapter: Path | None,
    use_adapter: bool,
    layers: tuple[int, ...] | None,
) -> None:
    """Split SOURCE into a pipeline folder.

    SOURCE is a Hugging Face folder (config.json and safetensors), a GGUF file of a Llama, or a preset: minilm,
    smollm2, bert-4, bert-6, bert-8, gpt2-4, gpt2-6, b2b-4.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("split", total=None)

            def progress(node_id: str, done: int, total: int) -> None:
                bar.update(task, description=node_id, completed=done, total=total)

            preset = PRESETS.get(source)
            if preset is None and (folder is not None or width is not None):
                raise click.UsageError("--source and --width belong to presets.")
            opened = None if preset is not None else open_source(source)
            if opened is not None:
                check_experts(opened, experts)
            experts = experts or (preset.experts if preset else 4)
            top_k = top_k or (min(experts, preset.top_k) if preset else None)
            # The preset's adapter belongs to its installed weights: another checkpoint has none here.
            if adapter is None and preset is not None and folder is None and use_adapter:
                adapter = preset_adapter(preset, experts, top_k or 0, method)
            if preset is not None and layers not in (None, preset.layers):
                adapter = None
            manifest = split_checkpoint(
                opened or preset_source(PRESETS[source], folder, width, seed),
                out,
                name,
                experts,
                top_k,
                method,  # type: ignore[arg-type]
                dtype,  # type: ignore[arg-type]
                seed,
                progress,
                force=force,
                tokenizer=None if preset is None else preset_tokenizer(preset),
                adapter=adapter,
                layers=preset.layers if preset is not None and layers is None else layers,
            )
    except MoeError as error:
        raise click.ClickException(str(error)) from error
    notes = _notes(manifest, opened)
    if as_json:
        click.echo(json.dumps({"out": str(out), "name": manifest.name, "nodes": len(manifest.nodes), "notes": notes}))
        return
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(_sentence(manifest, out), err=True)
    click.echo(f"smoe pipeline inspect {out}    shows it;    smoe up {out}    serves it", err=True)


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

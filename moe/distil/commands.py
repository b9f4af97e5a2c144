"""The command ``smoe pipeline distil``. No logic, only words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from moe.checkpoints.open import open_source
from moe.commands import layer_numbers
from moe.distil import decode, run
from moe.distil.layers import DecoderRecipe
from moe.distil.texts import SYSTEM
from moe.distil.train import Recipe
from moe.errors import CheckpointError, MoeError
from moe.preset import ADAPTERS, minilm_folder, smollm2_file
from moe.threads import computing_threads

ENCODER, DECODER = Recipe(), DecoderRecipe()
INSTALLED = {"minilm": minilm_folder, "smollm2": smollm2_file}


def both(name: str) -> str:
    """Defaults of an option: of encoders, and of decoders where they differ."""
    encoder, decoder = getattr(ENCODER, name), getattr(DECODER, name)
    return f"[default: {encoder:,}]" if encoder == decoder else f"[default: {encoder:,}; decoders: {decoder:,}]"


@click.command("distil")
@click.argument("source", default="minilm")
@click.option("--out", type=click.Path(path_type=Path), help="Adapter file to write. [default: the preset's own]")
@click.option("--texts", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder of prompts (wikitext-2-valid.txt, …). [default: next to the project]")  # fmt: skip
@click.option("--system", type=click.Path(exists=True, file_okay=False, path_type=Path), default=SYSTEM,
              help="Where wordnet-base, fortunes, dict-gcide and others lie.")  # fmt: skip
@click.option("--experts", type=click.IntRange(2), help=f"Experts per layer. {both('experts')}")
@click.option("--top-k", type=click.IntRange(1), help=f"Experts per token. {both('top_k')}")
@click.option("--shared", type=click.IntRange(0),
              help=f"Neurons per layer that always run, in the segment. {both('shared')}")  # fmt: skip
@click.option("--rank", type=click.IntRange(1), help=f"Rank of the trained changes. {both('rank')}")
@click.option("--tokens", type=click.IntRange(1), help=f"Tokens trained on. {both('tokens')}")
@click.option("--seed", type=int, default=0, help="Of all random choices.")
@click.option("--layers", type=click.IntRange(1),
              help=f"Decoders: how many layers get experts. [default: {DECODER.layers}]")  # fmt: skip
@click.option("--at", metavar="N,N,…", callback=lambda _, __, value: layer_numbers(value),
              help="Decoders: layers that get experts. [default: those that bear them best, measured]")  # fmt: skip
@click.option("--rounds", type=click.IntRange(0),
              help=f"Decoders: rounds of gradient steps in each layer. [default: {DECODER.rounds}]")  # fmt: skip
@click.option("--joint", type=click.IntRange(0),
              help=f"Decoders: tokens that all layers train on together. [default: {DECODER.joint:,}]")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), default=2, help="Threads that compute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
def distil(
    source: str,
    out: Path | None,
    texts: Path | None,
    system: Path,
    seed: int,
    threads: int,
    as_json: bool,
    **settings: Any,
) -> None:
    """Adapt router and experts of a converted model to the dense model SOURCE, and write the adapter file.

    SOURCE is a preset with weights (minilm, smollm2), or the Hugging Face folder or GGUF file of a BERT encoder or a
    Llama-like decoder.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        path = INSTALLED[source]() if source in INSTALLED else Path(source)
        if out is None and source not in INSTALLED:
            raise click.UsageError("--out is needed: only a preset has an adapter of its own.")
        place = ADAPTERS / f"{source}.safetensors" if out is None else out
        with computing_threads(threads), progress_bar() as (stage, progress):
            kind = open_source(path).config.get("model_type")
            if kind == "bert":
                if given.keys() & {"layers", "at", "rounds", "joint"}:
                    raise click.UsageError("--layers, --at, --rounds and --joint belong to decoders.")
                recipe = replace(ENCODER, **given, seed=seed)
                report = run.distil(
                    path, place, recipe, texts, system, stage=stage,
                    progress=lambda step: progress(step.done, f"cosine {step.cosine:.3f}"),
                )  # fmt: skip
            elif kind in ("llama", "mistral", "qwen2", "qwen3"):
                report = decode.distil_decoder(
                    path, place, replace(DECODER, **given, seed=seed), texts, system, stage=stage,
                    progress=lambda step: progress(step.done, f"loss {step.loss:.4f}"),
                )  # fmt: skip
            else:
                raise CheckpointError(f"{path}: model_type {kind!r} cannot be distilled; BERT and Llama's kin can.")
    except MoeError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report, sort_keys=True))
    else:
        Console(stderr=True).print(sentence(place, report))


@contextmanager
def progress_bar() -> Iterator[tuple[Callable[[str], None], Callable[[float, str], None]]]:
    """Functions that set the stage's name, and the share done with a word on the state."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"),
               TimeElapsedColumn(), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("texts", total=1.0, state="")
        yield (
            lambda name: bar.update(task, description=name),
            lambda done, state: bar.update(task, completed=done, state=state),
        )


def sentence(out: Path, report: dict[str, Any]) -> str:
    """What was written, in words."""
    size = f"{out}: {report['bytes'] / 1e6:.2f} MB"
    if "layers" in report:
        numbers = ", ".join(str(layer) for layer in report["layers"])
        return f"{size}, experts in layers {numbers}; `python -m benchmarks.sparse_default` measures it."
    measured = report["measured"]
    return (
        f"{size}, cosine {measured['cosine_mean']:.3f} on held-out texts, {measured['cosine_foreign']:.3f} on the "
        f"worst foreign kind, load busiest/mean {measured['skew']:.2f}."
    )

"""The command ``smoe pipeline distil``. No logic, only words."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from moe.distil import run
from moe.distil.texts import SYSTEM
from moe.distil.train import Recipe, Step
from moe.errors import MoeError
from moe.preset import MINILM_ADAPTER

DEFAULT = Recipe()


@click.command("distil")
@click.option("--source", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="BERT encoder to adapt: a Hugging Face folder. [default: the installed MiniLM]")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), default=MINILM_ADAPTER,
              help="Adapter file to write. [default: the preset's own]")  # fmt: skip
@click.option("--texts", type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder of prompts (wikitext-2-valid.txt, …). [default: next to the project]")  # fmt: skip
@click.option("--system", type=click.Path(exists=True, file_okay=False, path_type=Path), default=SYSTEM,
              show_default=True, help="Where wordnet-base, fortunes and dict-gcide lie.")  # fmt: skip
@click.option(
    "--experts", type=click.IntRange(2), default=DEFAULT.experts, show_default=True, help="Experts per layer."
)
@click.option("--top-k", type=click.IntRange(1), default=DEFAULT.top_k, show_default=True, help="Experts per token.")
@click.option("--shared", type=click.IntRange(0), default=DEFAULT.shared, show_default=True,
              help="Neurons per layer that always run, in the segment.")  # fmt: skip
@click.option(
    "--rank",
    type=click.IntRange(1),
    default=DEFAULT.rank,
    show_default=True,
    help="Rank of the trained changes of attention and FFN.",
)
@click.option("--tokens", type=click.IntRange(1), default=DEFAULT.tokens, show_default=True,
              help="Tokens trained on; 80,000 take about a minute on two cores.")  # fmt: skip
@click.option("--seed", type=int, default=DEFAULT.seed, show_default=True, help="Of all random choices.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True, help="Threads that compute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of words.")
def distil(
    source: Path | None,
    out: Path,
    texts: Path | None,
    system: Path,
    experts: int,
    top_k: int,
    shared: int,
    rank: int,
    tokens: int,
    seed: int,
    threads: int,
    as_json: bool,
) -> None:
    """Adapt router and experts of a converted encoder to the dense model, and write the adapter file."""
    recipe = Recipe(experts=experts, top_k=top_k, shared=shared, rank=rank, tokens=tokens, seed=seed)
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("texts", total=1.0, state="")

            def stage(name: str) -> None:
                bar.update(task, description=name)

            def progress(step: Step) -> None:
                bar.update(task, completed=step.done, state=f"cosine {step.cosine:.3f}")

            report = run.distil(source, out, recipe, texts, system, threads=threads, stage=stage, progress=progress)
    except MoeError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(report, sort_keys=True))
        return
    measured = report["measured"]
    console.print(
        f"{out}: {report['bytes'] / 1e6:.2f} MB, cosine {measured['cosine_mean']:.3f} on held-out texts, "
        f"{measured['cosine_foreign']:.3f} on the worst foreign kind, load busiest/mean {measured['skew']:.2f}."
    )

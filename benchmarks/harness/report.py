"""What a benchmark shows and stores: progress, tables and pictures for people, CSV files, and one JSON object in the
last line with where its numbers come from."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from evaluation.progress import LongWork
from evaluation.provenance import commit
from simulation.profiles.measure.machine import this_machine


def print_result(result: Mapping[str, Any], seed: object = None) -> None:
    """The last line: ``result`` and ``provenance`` (command, seed, commit, machine). ``seed``: default the option
    ``--seed`` or ``--seeds`` of the click command that runs."""
    print(json.dumps({**result, "provenance": provenance(seed)}))


def provenance(seed: object = None) -> dict[str, Any]:
    """What produced the numbers of this process."""
    context = click.get_current_context(silent=True)
    if seed is None and context is not None:
        seed = context.params.get("seed", context.params.get("seeds"))
    return {"command": command(), "seed": seed, "commit": commit(), "machine": this_machine().to_json()}


def command() -> str:
    """The command line of this process, as it can be typed again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else spec.name.removesuffix(".__main__")
    return f"python -m {name} {shlex.join(sys.argv[1:])}".strip()


@contextmanager
def progress(total: float, what: str = "") -> Iterator[Callable[[str, float], None]]:
    """A bar for as long as the block lasts, off a terminal a line a minute; called with what is being done, and how
    much is done by now."""
    with LongWork(Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda what, done: bar.update(task, description=what, completed=done)


@contextmanager
def picture(path: Path, *shape: int, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """Matplotlib's (figure, axes) of ``pyplot.subplots``, stored at ``path`` when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*shape, layout="constrained", **settings)
    yield figure, axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_csv(path: Path, rows: Iterable[Mapping[str, object]], columns: Sequence[str] | None = None) -> None:
    """A CSV file with these columns, or all of the first row."""
    rows = list(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def print_table(
    title: str | None,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    texts: int = 1,
    width: int | None = None,
    stdout: bool = False,
) -> None:
    """A table for people; the first ``texts`` columns hold words, the others numbers. On stderr, so that stdout can be
    piped, or on ``stdout``."""
    table = Table(title=title)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < texts else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(stderr=not stdout, width=width).print(table)


def in_words(value: object, digits: int) -> str:
    """A cell of a table: fractions with so many digits, "–" where nothing was measured."""
    return "–" if value is None else f"{value:.{digits}f}" if isinstance(value, float) else str(value)


def print_figures(title: str | None, result: Mapping[str, object]) -> None:
    """A row for every figure of a result, on stdout."""
    print_table(title, ("figure", "value"), result.items(), stdout=True)

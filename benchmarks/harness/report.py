"""What a benchmark prints: tables for people, and one JSON object in the last line with where its numbers come from."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from simulation.profiles.measure.machine import this_machine


def print_result(result: Mapping[str, Any], seed: object = None) -> None:
    """The last line: ``result`` and ``provenance`` (command, seed, machine). ``seed``: default the option ``--seed`` or
    ``--seeds`` of the click command that runs."""
    print(json.dumps({**result, "provenance": provenance(seed)}))


def provenance(seed: object = None) -> dict[str, Any]:
    """What produced the numbers of this process."""
    context = click.get_current_context(silent=True)
    if seed is None and context is not None:
        seed = context.params.get("seed", context.params.get("seeds"))
    return {"command": command(), "seed": seed, "machine": this_machine().to_json()}


def command() -> str:
    """The command line of this process, as it can be typed again."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = "" if spec is None else spec.name.removesuffix(".__main__")
    return f"python -m {name} {shlex.join(sys.argv[1:])}".strip()


def table_of(title: str | None, heads: Sequence[str], rows: Iterable[Sequence[object]], *, texts: int = 1) -> Table:
    """A table for people; the first ``texts`` columns hold words, the others numbers."""
    table = Table(title=title)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < texts else "right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


def print_table(
    title: str | None,
    heads: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    texts: int = 1,
    width: int | None = None,
    stdout: bool = False,
) -> None:
    """See :func:`table_of`; on stderr, so that stdout can be piped, or on ``stdout``."""
    Console(stderr=not stdout, width=width).print(table_of(title, heads, rows, texts=texts))


def print_figures(title: str | None, result: Mapping[str, object]) -> None:
    """A row for every figure of a result, on stdout."""
    print_table(title, ("figure", "value"), result.items(), stdout=True)

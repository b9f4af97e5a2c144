"""How a benchmark becomes a command, and the options that several have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import click

from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS

Option = Callable[[Callable[..., Any]], Callable[..., Any]]
AT_LEAST_1 = click.IntRange(1)
FOLDER = click.Path(path_type=Path, file_okay=False)
PRESENT = click.Path(path_type=Path, exists=True)
POSITIVE = click.FloatRange(min=0, min_open=True)


def benchmark(main: Callable[..., Any]) -> click.Command:
    """``main`` as a command whose help is its module's docstring as it is laid out, with the default of each option."""
    paragraphs = (sys.modules[main.__module__].__doc__ or "").strip().split("\n\n")
    text = "\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs)
    return click.command(help=text, context_settings={"show_default": True})(main)


def listed(of: Callable[[str], Any] = str, choices: Collection[str] = ()) -> Callable[..., tuple[Any, ...]]:
    """A callback of an option: its comma list as a tuple of ``of``; where there are ``choices``, of these alone."""

    def split(_: click.Context, __: click.Parameter, value: str) -> tuple[Any, ...]:
        names = [name.strip() for name in value.split(",") if name.strip()]
        unknown = [name for name in names if choices and name not in choices]
        if unknown:
            raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(choices)}")
        try:
            return tuple(map(of, names))
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return split


seed_option = click.option("--seed", type=click.IntRange(0), default=0, help="Of all random choices.")
data_option = click.option("--data", type=FOLDER, help="Folder of public traces.")
routing_option = click.option("--routing", type=PRESENT, help="Folder with the routing logs.")
workloads_option = click.option("--workloads", callback=listed(), default=",".join(PAPER_WORKLOADS), help="Comma list.")
rate_option = click.option("--mean-rps", type=click.FloatRange(0.1, 1e4), default=20.0, help="Mean requests a second.")
workers_option = click.option("--workers", type=click.IntRange(0), default=0, help="Processes; 0: one a core.")
changes_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=JSON", help="Setting of training, as of smoe lab train."
)
publish_option = click.option("--publish", "to", type=FOLDER, help="Folder for all that documents cite.")


def workload_option(default: str) -> Option:
    """``--workload``, one of the paper's; the parameter is ``name``."""
    return click.option(
        "--workload", "name", type=click.Choice(PAPER_WORKLOADS), default=default, help="On the modelled cluster."
    )


pattern_option = click.option("--pattern", type=click.Choice(PATTERNS), default="bursty", help="Of the hour.")


def out_option(default: str | None, what: str) -> Option:
    """``--out``: a folder; ``what`` is its help."""
    return click.option("--out", type=FOLDER, default=None if default is None else Path(default), help=what)

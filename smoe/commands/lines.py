"""Lines with a label in front, as long commands end with them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable

import click
from rich.console import Console
from rich.table import Table

LABEL = 12
"""Columns of a label."""
UNBOUNDED = 10_000
"""Columns that no table has."""


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """As they are; on a terminal broken between words, below each line's first word after the label."""
    for line in lines:
        if console.is_terminal:
            line = textwrap.fill(
                line, console.width, subsequent_indent=" " * LABEL, break_long_words=False, break_on_hyphens=False
            )
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def print_table(table: Table) -> None:
    """On standard output, as wide as its contents are: a terminal that is narrower wraps, and nothing is cut off, which
    would make other numbers and names of them."""
    console = Console()
    natural = console.measure(table, options=console.options.update(max_width=UNBOUNDED)).maximum
    Console(width=max(console.width, natural)).print(table)


def print_next(line: str) -> None:
    """What to do next, on standard error; where standard output is no terminal nobody reads it."""
    if sys.stdout.isatty():
        click.echo(line, err=True)


def after_down(of_state: str) -> str:
    """What to do after a gateway was stopped."""
    return f"next: `smoe up{of_state}` starts it again, with the functions that it had"

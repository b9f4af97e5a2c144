"""Options that the trace commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from traces import catalog

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder of the public traces. [default: ${catalog.DATA_VARIABLE}, else {catalog.USUAL_PLACE} if there]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, help="Of all random choices.")
placement_option = click.option(
    "--placement",
    type=click.Choice(("uniform", "even", "gamma")),
    default="uniform",
    help="Where per-minute counts lie inside their minute.",
)


def clip_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which part of a file is meant."""
    for option in reversed(
        [
            click.option("--row", help="Function, RowId (a leading part is enough) or client."),
            click.option("--start-s", type=click.FloatRange(min=0), help="Begin of the clip in seconds."),
            click.option("--duration-s", type=click.FloatRange(min=0, min_open=True), help="Its length."),
        ]
    ):
        command = option(command)
    return command

"""Options that several benchmarks have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

seed_option = click.option("--seed", default=0, show_default=True, help="Of all random choices.")
data_option = click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), default=None, help="Folder of public traces."
)
routing_option = click.option(
    "--routing", type=click.Path(path_type=Path, exists=True), help="Folder with the routing logs."
)


def out_option(default: str | None, what: str) -> Any:
    """``--out``: a folder; ``what`` is its help."""
    folder = None if default is None else Path(default)
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=folder,
        show_default=default is not None,
        help=what,
    )

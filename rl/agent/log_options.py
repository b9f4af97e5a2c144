"""Options that commands share which read a controller's log."""

from __future__ import annotations

from pathlib import Path

import click

manifest_option = click.option(
    "--manifest",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="With --log: the pipeline's folder, where the controller's is not at hand; of a log of several pipelines also "
    "the one that is meant. [default: the controller's]",
)

"""Options of every command that starts a gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]


def listening_options(command: Command) -> Command:
    """``host``, ``port``, ``metrics_port``: where a gateway listens."""
    for option in reversed(
        [
            click.option("--host", default="127.0.0.1", help="Address to listen on."),
            click.option(
                "--port", type=click.IntRange(0, 65535), default=8080, help="Port of the API; 0 picks a free one."
            ),
            click.option(
                "--metrics-port",
                type=click.IntRange(0, 65535),
                default=8082,
                help="Port of /metrics; 0 picks a free one.",
            ),
        ]
    ):
        command = option(command)
    return command

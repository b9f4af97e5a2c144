"""A click group that imports a command's module only when the command is used, so that ``smoe --help`` stays quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import click

EXTRA = frozenset(("optuna", "torch_geometric", "gymnasium", "stable_baselines3", "tensorboard"))
"""Modules of the optional dependencies ``rl``."""


@dataclass(frozen=True)
class LazyCommand:
    """Where a command lives, and the line shown for it in ``--help``."""

    module: str
    attribute: str
    short_help: str


class LazyGroup(click.Group):
    """Commands come from a table; order of the table is the order of the help."""

    def __init__(self, *args: object, lazy: Mapping[str, LazyCommand], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return None
        try:
            command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in EXTRA:
                raise
            message = f"smoe {cmd_name} needs {error.name}, which is not installed; say: pip install 'smoe[rl]'"
            raise click.UsageError(message) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.short_help) for name, entry in self._lazy.items()])

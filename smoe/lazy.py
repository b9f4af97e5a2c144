"""Click groups that import a command's module only when the command is used, so that ``smoe --help`` stays quick, and
commands whose ``--help`` shows the options that matter most.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import math
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

EXTRA = frozenset(("torch_geometric", "gymnasium", "stable_baselines3", "tensorboard"))
"""Modules of the optional dependencies ``rl``."""
SIGN_AFTER_S = 1.0
"""Imports that take longer show a sign of life."""


@dataclass(frozen=True)
class LazyCommand:
    """Where a command lives, the line shown for it in ``--help``, and under which heading."""

    module: str
    attribute: str
    short_help: str
    heading: str = "Commands"
    essential: frozenset[str] = frozenset()
    """Options that ``--help`` shows where a command has too many for one screen; empty: all of them."""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Headings of ``--help-all`` → the first option below each; the order is that of the options."""


class LazyGroup(click.Group):
    """Commands come from a table; the order of the table is the order of the help. ``aliases`` are former names of
    commands that live in a group now: name → path. They run as before and appear in no help."""

    def __init__(
        self,
        *args: object,
        lazy: Mapping[str, LazyCommand],
        aliases: Mapping[str, tuple[str, ...]] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._lazy = lazy
        self._aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (path := self._aliases.get(cmd_name)) is not None:
            return self._follow(ctx, path)
        entry = self._lazy.get(cmd_name)
        if entry is None:
            return None
        try:
            with _sign(f"loading {cmd_name}"):
                command: click.Command = getattr(importlib.import_module(entry.module), entry.attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in EXTRA:
                raise
            message = (
                f"{ctx.command_path} {cmd_name} needs {error.name}, which is not installed; say: "
                "pip install 'WHEEL[rl]', or make setup in the source tree"
            )
            raise click.UsageError(message) from error
        command = _of_finite_numbers(command)
        return folded(command, entry.essential, entry.sections) if entry.essential else command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; for a name that is not there, with those that are spelt nearly so."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], [*self._lazy, *self._aliases])
            if not near or self.get_command(ctx, args[0]) is not None:
                raise
            text = f"{error.message} (Did you mean {' or '.join(map(repr, near))}?)"
            raise click.UsageError(text, ctx) from error

    def _follow(self, ctx: click.Context, path: tuple[str, ...]) -> click.Command | None:
        command: click.Command | None = self
        for name in path:
            command = command.get_command(ctx, name) if isinstance(command, click.Group) else None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in dict.fromkeys(entry.heading for entry in self._lazy.values()):
            entries = [(name, entry.short_help) for name, entry in self._lazy.items() if entry.heading == heading]
            with formatter.section(heading):
                formatter.write_dl(entries)


@dataclass(frozen=True)
class _Finite:
    """Callback of an option that refuses nan, which click's ranges let through, and infinity; ``inner`` comes next."""

    inner: Callable[[click.Context, click.Parameter, Any], Any] | None

    def __call__(self, ctx: click.Context, option: click.Parameter, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise click.BadParameter(f"{number} is not a finite number", ctx, option)
        return value if self.inner is None else self.inner(ctx, option, value)


def _of_finite_numbers(command: click.Command) -> click.Command:
    """``command``, or a group with its commands, whose options refuse nan and infinity. What is given stays as it is:
    its module has it too."""
    copied = copy.copy(command)
    copied.params = [copy.copy(option) for option in command.params]
    for option in copied.params:
        option.callback = _Finite(option.callback)
    if isinstance(copied, click.Group):
        copied.commands = {name: _of_finite_numbers(inner) for name, inner in copied.commands.items()}
    return copied


@contextmanager
def _sign(words: str) -> Iterator[None]:
    """On a terminal ``words`` on stderr for as long as the block lasts, if that is longer than ``SIGN_AFTER_S``."""
    stream, shown = sys.stderr, threading.Event()

    def show() -> None:
        shown.set()
        print(words, end="\r", file=stream, flush=True)

    timer = threading.Timer(SIGN_AFTER_S, show)
    if stream.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        if shown.is_set():
            print(" " * len(words), end="\r", file=stream, flush=True)


class FoldedCommand(click.Command):
    """A command with many options: ``--help`` shows those in ``essential``, ``--help-all`` every one, below headings.
    ``--settings FILE`` reads any of them from a TOML file whose keys are the options' names; what the command line
    gives wins."""

    essential: frozenset[str] = frozenset()
    sections: Mapping[str, str] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown_always = {*self.essential, *ABOUT_HELP, "--help"}
        everything = ctx.meta.get(_SHOW_ALL, False)
        heading, headings = "Options", {first: heading for heading, first in self.sections.items()}
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if not isinstance(parameter, click.Option) or not (everything or shown_always & {*parameter.opts}):
                continue
            if everything:
                heading = headings.get(parameter.opts[0], heading)
            if (record := parameter.get_help_record(ctx)) is not None:
                rows.setdefault(heading, []).append(record)
        for heading, below in rows.items():
            with formatter.section(heading):
                formatter.write_dl(below)


def folded(command: click.Command, essential: frozenset[str], sections: Mapping[str, str]) -> FoldedCommand:
    """``command`` with the same options, callback and help as a :class:`FoldedCommand`. Raises ValueError for a name in
    ``essential`` or ``sections`` that is no option, and for sections in another order than the options."""
    flags = [flag for option in command.params for flag in option.opts]
    if missing := {*essential, *sections.values()}.difference(flags):
        raise ValueError(f"no options of {command.name}: {', '.join(sorted(missing))}")
    if (begins := [flags.index(first) for first in sections.values()]) != sorted(begins):
        raise ValueError(f"sections of {command.name} are in another order than its options: {', '.join(sections)}")
    params = [*command.params, _settings_option(), _help_all_option()]
    result = FoldedCommand(command.name, callback=command.callback, params=params, help=command.help)
    result.essential = essential
    result.sections = {**sections, "Help and settings": ABOUT_HELP[0]} if sections else {}
    return result


ABOUT_HELP = ("--settings", "--help-all")
_SHOW_ALL = "smoe.lazy.help-all"


def _help_all_option() -> click.Option:
    def show(ctx: click.Context, _option: click.Parameter, asked: bool) -> None:
        if asked and not ctx.resilient_parsing:
            ctx.meta[_SHOW_ALL] = True
            click.echo(ctx.get_help(), color=ctx.color)
            ctx.exit()

    return click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help="Show every option."
    )


def _settings_option() -> click.Option:
    return click.Option(
        ["--settings", "settings_file"],
        type=click.Path(exists=True, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_read_settings,
        help="TOML file with any of the options (key: an option's name without its dashes).",
    )


def _read_settings(ctx: click.Context, _option: click.Parameter, path: str | None) -> None:
    """The file's values become the defaults of this call. Raises BadParameter for a key that is no option."""
    if path is None:
        return
    try:
        table = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path} cannot be read as TOML: {error}") from error
    names = {flag.lstrip("-"): str(option.name) for option in ctx.command.params for flag in option.opts}
    for key in table:
        if key not in names or key in ("settings", "help-all"):
            keys = ", ".join(sorted(set(names) - {"settings", "help-all", "help"}))
            raise click.BadParameter(f"{path}: {key!r} is no option of {ctx.command_path}; the keys are {keys}")
    ctx.default_map = {**(ctx.default_map or {}), **{names[key]: value for key, value in table.items()}}

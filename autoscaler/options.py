"""Command-line options made from a class of settings: name, type, default, limits and help stand there alone."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from pydantic.fields import FieldInfo

from autoscaler.checked import Checked, Flag

Command = TypeVar("Command", bound=Callable[..., Any])


def options_of(kind: type[Checked]) -> Callable[[Command], Command]:
    """Decorator: an option for each setting of ``kind`` that is not hidden, in their order, passed on by its name.

    The name is the setting's with dashes and without the ``_s`` of seconds; its help is the docstring under it.
    """
    hints, help_texts = get_type_hints(kind, include_extras=True), docstrings(kind)
    made = [_option(entry, hints[entry.name], help_texts.get(entry.name, "")) for entry in fields(kind)]  # type: ignore[arg-type]

    def add(command: Command) -> Command:
        for option in reversed(made):
            command = option(command) if option is not None else command
        return command

    return add


def docstrings(kind: type) -> Mapping[str, str]:
    """Attribute → the docstring under it, of a class and its bases."""
    texts: dict[str, str] = {}
    for each in reversed([each for each in kind.__mro__ if "__annotations__" in vars(each) and each is not Checked]):
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for entry, below in zip(body.body, body.body[1:], strict=False):
            match entry, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.replace("``", "").split())
    return texts


def _option(entry: Field[Any], hint: Any, text: str) -> Callable[[Command], Command] | None:
    plain, limits, flag = _parts(hint)
    if flag.hidden:
        return None
    name = flag.name or "--" + entry.name.removesuffix("_s").replace("_", "-")
    default = None if entry.default is MISSING else entry.default
    if plain is bool:
        return click.option(name, entry.name, is_flag=True, default=default, help=text)
    if get_origin(plain) is tuple and get_args(plain)[1:] == (...,):
        text = f"Comma list{' of ' + ','.join(flag.allowed) if flag.allowed else ''}. {text}".strip()
        default = ",".join(map(str, default or ()))

    def scaled(_context: click.Context, _option: click.Parameter, value: Any) -> Any:
        return value if value is None or flag.times == 1 else value / flag.times

    return click.option(
        name, entry.name, type=_type(plain, limits, flag, in_seconds=entry.name.endswith("_s")), default=default,
        show_default=default not in (None, ""), metavar=flag.metavar, callback=scaled, help=text)  # fmt: skip


def _parts(hint: Any) -> tuple[Any, dict[str, Any], Flag]:
    """(type without None and annotations, limits by their names in click, flag)."""
    limits: dict[str, Any] = {}
    flag = Flag()
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is not Annotated:
            hint = next(each for each in get_args(hint) if each is not NoneType)
            continue
        hint, *more = get_args(hint)
        for each in more:
            flag = each if isinstance(each, Flag) else flag
            for limit in each.metadata if isinstance(each, FieldInfo) else ():
                for bound, side in (("gt", "min"), ("ge", "min"), ("lt", "max"), ("le", "max")):
                    if hasattr(limit, bound):
                        limits |= {side: getattr(limit, bound), f"{side}_open": bound in ("gt", "lt")}
    return hint, limits, flag


def _type(plain: Any, limits: dict[str, Any], flag: Flag, in_seconds: bool) -> click.ParamType[Any]:
    if get_origin(plain) is Literal:
        return click.Choice(get_args(plain))
    if get_origin(plain) is tuple:
        parts = get_args(plain)
        return CommaList(parts[0]) if parts[1:] == (...,) else click.Tuple([_type_of(part) for part in parts])
    if plain is Path:
        return click.Path(
            path_type=Path, exists=flag.file or flag.folder, dir_okay=not flag.file, file_okay=not flag.folder
        )
    if plain is int:
        return click.IntRange(**limits) if limits else click.INT
    if plain is float and in_seconds and flag.times == 1:
        return Seconds(**limits)
    if plain is float:
        return click.FloatRange(**limits) if limits else click.FLOAT
    return click.STRING


def _type_of(hint: Any) -> click.ParamType[Any]:
    return _type(*_parts(hint), in_seconds=False)


class CommaList(click.ParamType[tuple[Any, ...]]):
    """Texts or whole numbers with commas between them, as a tuple; none of them is empty."""

    def __init__(self, part: type) -> None:
        self.name = "numbers" if part is int else "names"
        self._part = part

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        try:
            parts = value if isinstance(value, list | tuple) else str(value).split(",")
            return tuple(self._part(text) for part in parts if (text := str(part).strip()))
        except ValueError:
            self.fail(f"{value!r} is no list of whole numbers such as 0,1,2", param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds such as 5, or 5s."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return float(super().convert(str(value).removesuffix("s"), param, ctx))  # type: ignore[arg-type]

"""Settings that check themselves: the type and the limits of each stand once, in its annotation.

They hold for an object when it is made, for a table from a file (:func:`from_table`), and for the options of a command
line (:mod:`autoscaler.options`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from autoscaler.errors import SettingsError

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
AboveOne = Annotated[float, Field(gt=1)]
FromZero = Annotated[int, Field(ge=0)]
FromOne = Annotated[int, Field(ge=1)]

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Rule = tuple[str, bool, str]
"""(setting, whether its value may be so, what is allowed)."""
Kind = TypeVar("Kind", bound="Checked")


@dataclass(frozen=True)
class Flag:
    """How a setting is given on a command line, where that is not ``--name-of-the-setting`` and its value."""

    name: str | None = None
    """The option; a truth value's may have two names, ``--so/--not-so``."""
    metavar: str | None = None
    times: float = 1.0
    """The option is the setting times this: 1000 for an option in milliseconds and a setting in seconds."""
    file: bool = False
    """A path of a file that exists."""
    folder: bool = False
    """A path of a folder that exists."""
    allowed: tuple[str, ...] = ()
    """What a comma list may hold, for the help."""
    hidden: bool = False
    """There is no option."""


class Checked:
    """Base of frozen dataclasses of settings.

    A truth value is no number, text neither; NaN and infinity are refused. Raises ``error`` for the first setting that
    is not allowed, with its name, its value and what is allowed.
    """

    __pydantic_config__ = STRICT
    title: ClassVar[str] = ""
    """What the settings are of, for the sentence of the error."""
    error: ClassVar[type[Exception]] = SettingsError

    def __post_init__(self) -> None:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]
        try:
            _model(type(self)).model_validate(values)  # type: ignore[arg-type]
        except ValidationError as error:
            raise self.error(_sentence(type(self), error)) from None
        for key, holds, allowed in self.rules():
            if not holds:
                raise self.error(f"{_start(type(self))}{key} is {_shown(values[key])}; allowed is {allowed}")

    def as_json(self) -> dict[str, Any]:
        """As JSON gives the settings back: lists for tuples, text for paths."""
        stored: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))  # type: ignore[call-overload]
        return stored

    def rules(self) -> Iterable[Rule]:
        """What no annotation can state, such as rules between settings."""
        return ()


def _shown(value: object) -> str:
    return str(value) if isinstance(value, Path) else repr(value)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The table of a TOML file; ``what`` it holds is for the sentence. Raises SettingsError."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{what} {path} cannot be read: {error}") from error


def from_table(kind: type[Kind], table: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> Kind:
    """Settings from a table of a TOML or JSON file: lists become tuples, tables become settings, text becomes paths.

    ``given``: values from elsewhere, which the table must not hold. Raises ``kind.error``.
    """
    given = given or {}
    if taken := table.keys() & given.keys():
        raise kind.error(f"{_start(kind)}{min(taken)} is a setting of the controller, not of this file")
    try:
        model = _model(kind).model_validate_json(json.dumps(table, default=str))  # type: ignore[arg-type]
    except ValidationError as error:
        raise kind.error(_sentence(kind, error, without=given.keys())) from None
    values = {**{name: getattr(model, name) for name in model.model_fields_set}, **given}
    for entry in fields(kind):  # type: ignore[arg-type]
        if entry.name not in values and entry.default is MISSING and entry.default_factory is MISSING:
            raise kind.error(f"{_start(kind)}{entry.name} is missing")
    return kind(**values)


@cache
def _model(kind: Any) -> type[BaseModel]:
    """The annotations of ``kind`` as pydantic's; nothing is required, so a table may leave settings out."""
    hints = get_type_hints(kind, include_extras=True)
    config = ConfigDict(**STRICT, arbitrary_types_allowed=True)
    names = [entry.name for entry in fields(kind)]
    return create_model(kind.__name__, __config__=config, **{name: (hints[name], None) for name in names})  # type: ignore[call-overload, no-any-return]


def _sentence(kind: type[Checked], error: ValidationError, without: Iterable[str] = ()) -> str:
    first = error.errors()[0]
    # pydantic puts the members of a union among the names, with their types in brackets
    key = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    if first["type"] == "value_error":  # from a class inside these settings
        return f"{_start(kind)}{key}: {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{_start(kind)}{key} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        allowed = sorted({entry.name for entry in fields(kind)} - set(without))  # type: ignore[arg-type]
        return f"{_start(kind)}{key!r} is not known; the keys are {', '.join(allowed)}"
    return f"{_start(kind)}{key} is {first['input']!r}; it {first['msg'][max(0, first['msg'].find('should')) :]}"


def _start(kind: type[Checked]) -> str:
    return f"{kind.title}: " if kind.title else ""

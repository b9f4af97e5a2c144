"""Options made from settings: name, type, limits, default and help of each come from the class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

from autoscaler.checked import Checked, Flag, FromOne, Positive, from_table
from autoscaler.errors import SettingsError
from autoscaler.options import options_of


@dataclass(frozen=True)
class Oven(Checked):
    """Settings."""

    title = "oven"
    dish: Literal["bread", "cake"] = "bread"
    """What is baked."""
    time_s: Positive = 60.0
    """How long,
    in ``seconds``."""
    heat_k: Annotated[Positive | None, Flag("--heat-mk", times=1000)] = None
    loaves: FromOne = 1
    fan: Annotated[bool, Flag("--fan/--no-fan")] = True
    recipe: Annotated[Path | None, Flag(file=True)] = None
    secret: Annotated[str, Flag(hidden=True)] = ""


def bake(*arguments: str) -> tuple[dict[str, Any], str]:
    seen: dict[str, Any] = {}

    @click.command()
    @options_of(Oven)
    def oven(**given: Any) -> None:
        seen.update(given)

    return seen, CliRunner().invoke(oven, arguments).output


def test_defaults_are_those_of_the_class_and_nothing_is_asked_for_what_is_hidden() -> None:
    seen, _ = bake()
    assert Oven(**seen) == Oven() and "secret" not in seen


def test_values_are_converted_to_the_settings_types_and_units() -> None:
    seen, _ = bake("--dish", "cake", "--time", "90s", "--heat-mk", "450500", "--loaves", "2", "--no-fan")
    assert Oven(**seen) == Oven("cake", 90.0, 450.5, 2, False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--dish", "soup"), "'soup' is not one of"),
        (("--time", "0"), "x>0"),
        (("--loaves", "0"), "x>=1"),
        (("--recipe", "/none/here"), "does not exist"),
    ],
)
def test_limits_are_those_of_the_annotations(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in bake(*arguments)[1]


def test_help_is_the_docstring_under_the_setting() -> None:
    text = " ".join(bake("--help")[1].split())
    assert "--time SECONDS How long, in seconds. [default: 60.0; x>0]" in text and "--secret" not in text


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"loaves": True}, "oven: loaves is True; it should be a valid integer"),
        ({"loaves": 0}, "oven: loaves is 0; it should be greater than or equal to 1"),
        ({"time": 1.0}, "oven: 'time' is not known; the keys are dish, fan, heat_k, loaves, recipe, time_s"),
        ({"secret": "x"}, "secret is a setting of the controller, not of this file"),
    ],
)
def test_a_table_is_refused_by_the_same_limits(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        from_table(Oven, table, {"secret": ""})


def test_a_table_becomes_settings() -> None:
    assert from_table(Oven, {"recipe": "a/b", "time_s": 5}) == Oven(recipe=Path("a/b"), time_s=5.0)


@dataclass(frozen=True)
class Party(Checked):
    """Settings."""

    guests: Annotated[tuple[str, ...], Flag(allowed=("ann", "bob"))] = ()
    """Who comes."""
    tables: tuple[int, ...] = (4, 6)
    room: tuple[FromOne, Positive] | None = None
    """Number and length."""
    house: Annotated[Path | None, Flag(folder=True)] = None


def invite(*arguments: str) -> tuple[dict[str, Any], str]:
    seen: dict[str, Any] = {}

    @click.command()
    @options_of(Party)
    def party(**given: Any) -> None:
        seen.update(given)

    return seen, CliRunner().invoke(party, arguments).output


def test_lists_are_given_with_commas_and_short_tuples_value_by_value(tmp_path: Path) -> None:
    assert Party(**invite()[0]) == Party()
    seen, _ = invite("--guests", "ann, bob,", "--tables", "2", "--room", "3", "4.5", "--house", str(tmp_path))
    assert Party(**seen) == Party(("ann", "bob"), (2,), (3, 4.5), tmp_path)
    assert "Comma list of ann,bob. Who comes." in " ".join(invite("--help")[1].split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--tables", "two"), "'two' is no list of whole numbers"),
        (("--room", "0", "4.5"), "x>=1"),
        (("--house", __file__), "is a file"),
    ],
)
def test_parts_of_lists_and_tuples_are_checked(arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in invite(*arguments)[1]

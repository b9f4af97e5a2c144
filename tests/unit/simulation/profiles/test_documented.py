"""docs/profiles.md names every column, every family of points and every option."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
import pytest

from docs.tables import TABLES
from simulation.profiles.fit.rows import COLUMNS
from simulation.profiles.measure.gpu import FAMILIES
from simulation.profiles.measure.in_pass import FAMILY as IN_PASS
from simulation.profiles.measure.measurement_plan import Family
from simulation.profiles.measure.transitions import KINDS
from smoe.commands.profiling import profile

PAGE = (Path(__file__).parents[4] / "docs" / "profiles.md").read_text()
OPTIONS = [option.opts[0] for option in profile.params if isinstance(option, click.Option)]


@pytest.mark.parametrize("name", [*get_args(Family), *KINDS, *FAMILIES, "pass", IN_PASS])
def test_families_are_described(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_every_column_is_described() -> None:
    assert [name for name, _ in TABLES["profile-columns"]()[1]] == list(COLUMNS)


def test_options_are_described() -> None:
    assert {row[0].split(", ")[0] for row in TABLES["options-lab-profile"]()[1]} == set(OPTIONS)

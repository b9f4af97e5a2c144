"""``docs/environment.md`` against the code: every number of state and action, every argument and setting."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from autoscaler.contract import ConfigurationSpace
from rl.agent.contract import CONFIGURATION_FEATURES
from rl.agent.policy import MakingSettings
from rl.env import PipelineEnv
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Feature
from rl.reward import RewardSettings

PAGE = (Path(__file__).parents[4] / "docs" / "environment.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Marks of the first table below a line that begins with ``heading``."""
    lines = PAGE.split(f"\n{heading}", 1)[1].splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


CATALOGUES = pytest.mark.parametrize(
    ("of", "features"), [("a node", NODE_FEATURES), ("the pipeline", PIPELINE_FEATURES)]
)


def is_flag(feature: Feature) -> bool:
    return feature.name.endswith("_unknown")


def numbers(table: list[list[str]]) -> dict[int, list[str]]:
    """Index → name, meaning, unit, range and flag; a row of several indices states ``name_N: 2, 5``."""
    spelt = {}
    for indices, names, meaning, *rest in table:
        name, _, spans = names.partition(": ")
        for index, span in zip(indices.split(", "), spans.split(", "), strict=True):
            each = name.replace("_N", f"_{span}"), meaning.replace("last N", f"last {span}")
            assert int(index) not in spelt
            spelt[int(index)] = [*each, *rest]
    return spelt


@CATALOGUES
def test_every_number_of_a_state_is_in_its_table_by_index(of: str, features: tuple[Feature, ...]) -> None:
    expected = {}
    for index, feature in enumerate(features):
        bounds = (-1.0, 1.0) if feature.log else (feature.low, feature.high)
        assert feature.bounds == bounds, "the page states these bounds for all numbers"
        if not is_flag(feature):
            span = f"{feature.low:g} … {feature.high:g}" + (" log" if feature.log else "")
            flag = f"`{feature.flag}`" if feature.flag else "–"
            expected[index] = [f"`{feature.name}`", feature.meaning, feature.unit, span, flag]
    assert numbers(rows(f"### Numbers of {of}")) == expected


@CATALOGUES
def test_every_flag_of_a_state_is_in_its_table_by_index(of: str, features: tuple[Feature, ...]) -> None:
    flags = [(index, feature) for index, feature in enumerate(features) if is_flag(feature)]
    assert {feature.flag for feature in features} - {None} == {flag.name for _, flag in flags}
    assert all((flag.unit, flag.low, flag.high, flag.log) == ("0 or 1", 0, 1, False) for _, flag in flags)
    table = rows(f"### Flags of {of}")
    assert [[*row[:2], f"1: {row[2]}"] for row in table] == [[str(i), f"`{f.name}`", f.meaning] for i, f in flags]


def test_sizes_and_features_of_a_configuration_are_those_of_the_code() -> None:
    sizes = f"F = {len(NODE_FEATURES)} numbers of a node, G = {len(PIPELINE_FEATURES)} of the pipeline, "
    assert sizes + f"C = {len(CONFIGURATION_FEATURES)} of a configuration" in PAGE
    table_rows = rows("Numbers of a configuration")
    assert [row[:2] for row in table_rows] == [[str(i), f"`{name}`"] for i, name in enumerate(CONFIGURATION_FEATURES)]


def test_the_action_s_ranges_are_the_space_s() -> None:
    space = ConfigurationSpace()
    lengths = [
        len(axis) for axis in (space.memory_sizes_mb, space.resources, space.replica_counts, space.concurrencies)
    ]
    assert [row[3] for row in rows("## Action")] == [f"0 … {length - 1}" for length in lengths]


def test_the_observation_s_keys_are_those_of_the_space() -> None:
    assert {row[0].strip("`") for row in rows("## Observation")} == set(PipelineEnv("bert-4").observation_space)


def test_every_argument_of_the_environment_is_listed_with_its_default() -> None:
    known = list(inspect.signature(PipelineEnv).parameters.values())
    expected = [(f"`{one.name}`", f"`{one.default!r}`".replace("'", '"')) for one in known]
    assert [(row[0], row[1]) for row in rows("`rl.env:` imports")] == expected


@pytest.mark.parametrize(
    ("heading", "settings"), [("## Reward", RewardSettings), ("## In the controller", MakingSettings)]
)
def test_every_setting_is_listed_with_its_default(heading: str, settings: type) -> None:
    expected = [(f"`{entry.name}`", f"`{entry.default!r}`".replace("'", '"')) for entry in fields(settings)]
    assert [(row[0], row[1]) for row in rows(heading)] == expected

"""``docs/environment.md`` against the code: every number of state and action, every argument."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from autoscaler.contract import ConfigurationSpace
from docs.tables import TABLES
from rl.agent.contract import CONFIGURATION_FEATURES
from rl.env import PipelineEnv
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Feature

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


@pytest.mark.parametrize(
    ("table", "features"), [("features-node", NODE_FEATURES), ("features-pipeline", PIPELINE_FEATURES)]
)
def test_bounds_and_flags_of_a_state_s_numbers_are_those_that_the_page_states(
    table: str, features: tuple[Feature, ...]
) -> None:
    assert [row[1] for row in TABLES[table]()[1]] == [f"`{feature.name}`" for feature in features]
    flags = {feature.name: feature for feature in features if feature.name.endswith("_unknown")}
    assert {feature.flag for feature in features} - {None} == set(flags)
    assert all((flag.unit, flag.low, flag.high, flag.log) == ("0 or 1", 0, 1, False) for flag in flags.values())
    for feature in features:
        assert feature.bounds == ((-1.0, 1.0) if feature.log else (feature.low, feature.high))


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
    listed = {name: (default, meaning) for name, default, meaning in TABLES["environment"]()[1]}
    assert list(listed) == list(inspect.signature(PipelineEnv).parameters)
    assert listed["pattern"] == ('`"bursty"`', "`slow`, `normal`, `bursty` or `diurnal`.")

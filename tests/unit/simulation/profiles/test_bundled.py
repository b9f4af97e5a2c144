"""Profiles of this tree are found for their pipeline and machine, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.topology import load_topology
from simulation.profiles.model.bundled import committed, find, open_profile
from simulation.profiles.model.errors import ProfileMismatchError
from simulation.profiles.model.storage import load, save
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import MACHINE, Truth


@pytest.fixture
def folder(tmp_path: Path, minilm_pipeline: Path) -> Path:
    topology = load_topology(minilm_pipeline)
    made = truth.profile(truth.rows(Truth())[:3])
    right = replace(made.metadata, pipeline="minilm", manifest_sha256=topology.manifest_sha256)
    save(made, tmp_path / "a-other.parquet")
    save(replace(made, metadata=right), tmp_path / "b-right.parquet")
    return tmp_path


def test_the_profile_that_fits_is_found(folder: Path, minilm_pipeline: Path) -> None:
    assert find(minilm_pipeline, MACHINE, folder).metadata.pipeline == "minilm"


def test_any_machine_will_do_when_none_is_named(folder: Path, minilm_pipeline: Path) -> None:
    assert find(minilm_pipeline, None, folder).metadata.machine == MACHINE


def test_where_none_fits_every_reason_is_reported(folder: Path, minilm_pipeline: Path) -> None:
    with pytest.raises(ProfileMismatchError) as caught:
        find(minilm_pipeline, replace(MACHINE, cpu_cores=64), folder)
    assert "a-other.parquet: the profile is of pipeline 'made', not of 'minilm'" in str(caught.value)
    assert "b-right.parquet: the profile was measured on another machine: cpu_cores was 2 and is 64" in str(
        caught.value
    )


def test_without_bundled_profiles_the_error_states_it(tmp_path: Path, minilm_pipeline: Path) -> None:
    with pytest.raises(ProfileMismatchError, match="There is none"):
        find(minilm_pipeline, MACHINE, tmp_path)


def test_a_profile_of_another_split_is_refused(folder: Path, minilm_pipeline: Path) -> None:
    loaded = load(folder / "b-right.parquet")
    save(replace(loaded, metadata=replace(loaded.metadata, manifest_sha256="cd" * 32)), folder / "c.parquet")
    with pytest.raises(ProfileMismatchError, match="another split of minilm"):
        open_profile(folder / "c.parquet", minilm_pipeline, MACHINE)


@pytest.mark.parametrize("path", committed(), ids=lambda path: path.stem)
def test_profiles_of_this_tree_are_small_whole_and_say_how_good_they_are(path: Path) -> None:
    loaded = load(path)
    assert path.stat().st_size < 600_000
    assert path.with_suffix(".png").is_file()
    assert {row.family for row in loaded.rows} >= {"alone", "busy", "concurrency", "surface", "memory", "cold_start"}
    assert loaded.metadata.findings
    assert loaded.metadata.fit["cross_validated"]["all"]["p50"] < 0.35

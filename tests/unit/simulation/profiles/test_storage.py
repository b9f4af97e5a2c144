"""A profile on disk says everything it depends on, and is refused for anything else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulation.profiles.fit.rows import COLUMNS, SCHEMA, spread
from simulation.profiles.model.errors import ProfileError, ProfileMismatchError
from simulation.profiles.model.storage import Profile, check_machine, check_pipeline, load, save
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK, MACHINE, Truth


@pytest.fixture
def profile() -> Profile:
    killed = replace(BLANK, family="memory", memory_mib=8, feasible=False, note="killed", n=0, quantiles_s=None)
    return truth.profile([*truth.rows(Truth())[:20], killed])


def test_comes_back_as_it_was_written(profile: Profile, tmp_path: Path) -> None:
    save(profile, tmp_path / "a.parquet")
    back = load(tmp_path / "a.parquet")
    assert back.metadata == profile.metadata
    for ours, theirs in zip(profile.rows, back.rows, strict=True):
        assert replace(theirs, quantiles_s=None) == replace(ours, quantiles_s=None)
        if ours.quantiles_s is not None:
            assert theirs.quantiles_s == pytest.approx(ours.quantiles_s, rel=1e-6)


def test_the_columns_are_the_fields_of_a_row() -> None:
    assert tuple(SCHEMA.names) == COLUMNS


def test_a_file_that_is_not_there_is_refused_with_what_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="smoe lab profile PIPELINE --out"):
        load(tmp_path / "none.parquet")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("tokens,seconds\n")
    with pytest.raises(ProfileError, match="not a parquet file"):
        load(tmp_path / "a.parquet")


def test_a_parquet_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ProfileError, match="without the metadata of a profile"):
        load(tmp_path / "a.parquet")


def test_a_profile_of_another_version_is_refused(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    save(profile, path)
    document = json.dumps({**profile.metadata.as_json(), "version": 99}).encode()
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"smoe.profile": document}), path)
    with pytest.raises(ProfileError, match="version is 99; it should be 1"):
        load(path)


@pytest.mark.parametrize(
    ("document", "named"),
    [(b"{", "cannot be read"), (b"[1]", "cannot be read"), (b'{"version": 1, "machine": 3}', "machine is 3")],
    ids=["no JSON", "no object", "keys missing"],
)
def test_metadata_that_are_damaged_are_refused_with_the_file(
    profile: Profile, tmp_path: Path, document: bytes, named: str
) -> None:
    path = tmp_path / "a.parquet"
    save(profile, path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"smoe.profile": document}), path)
    with pytest.raises(ProfileError, match=named) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_machine_that_is_not_described_whole_is_refused(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    save(profile, path)
    table = pq.read_table(path)
    document = json.loads(table.schema.metadata[b"smoe.profile"])
    del document["machine"]["tick_s"]
    pq.write_table(table.replace_schema_metadata({b"smoe.profile": json.dumps(document).encode()}), path)
    with pytest.raises(ProfileError, match=r"metadata cannot be read.*tick_s"):
        load(path)


def test_a_column_of_another_type_is_refused_by_name(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    save(profile, path)
    table = pq.read_table(path)
    place = table.column_names.index("tokens")
    words = pa.array([str(value) for value in table.column("tokens").to_pylist()])
    pq.write_table(table.set_column(place, "tokens", words), path)
    with pytest.raises(ProfileError, match="column 'tokens' holds string; a profile's holds int32"):
        load(path)


@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(profile: Profile, tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.parquet"
    save(profile, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(ProfileError, match="not a parquet file"):
        load(path)


def test_another_pipeline_is_named(profile: Profile) -> None:
    with pytest.raises(ProfileMismatchError, match="of pipeline 'made', not of 'minilm'"):
        check_pipeline(profile.metadata, "minilm", profile.metadata.manifest_sha256)


def test_another_split_of_the_pipeline_is_named(profile: Profile) -> None:
    with pytest.raises(ProfileMismatchError, match="sha256 abababababab…, this one cdcdcdcdcdcd…"):
        check_pipeline(profile.metadata, "made", "cd" * 32)


def test_the_same_machine_passes_with_another_kernel(profile: Profile) -> None:
    other = replace(MACHINE, kernel="6.2.0", memory_mib=16100)
    assert other != MACHINE
    check_machine(profile.metadata, other)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"cpu_model": "Other CPU"}, "cpu_model was 'Made CPU @ 2.50GHz' and is 'Other CPU'", id="cpu"),
        pytest.param({"cpu_cores": 8}, "cpu_cores was 2 and is 8", id="cores"),
        pytest.param({"cgroup_version": 2}, "cgroup_version was 1 and is 2", id="cgroups"),
        pytest.param({"tick_s": 0.001}, "tick_s was 0.004 and is 0.001", id="tick"),
        pytest.param({"memory_mib": 64000}, "memory_mib was 16000 and is 64000", id="memory"),
        pytest.param({"gpu": "H200"}, "gpu was '' and is 'H200'", id="gpu"),
    ],
)
def test_another_machine_is_refused_with_the_difference_named(
    profile: Profile, change: dict[str, object], named: str
) -> None:
    with pytest.raises(ProfileMismatchError, match="another machine") as caught:
        check_machine(profile.metadata, replace(MACHINE, **change))  # type: ignore[arg-type]
    assert named in str(caught.value)


def test_every_difference_of_a_machine_is_named(profile: Profile) -> None:
    with pytest.raises(ProfileMismatchError) as caught:
        check_machine(profile.metadata, replace(MACHINE, cpu_cores=8, tick_s=0.001))
    assert "cpu_cores" in str(caught.value)
    assert "tick_s" in str(caught.value)


def test_a_spread_by_hand() -> None:
    placed = spread([4.0, 1.0, 2.0, 3.0])
    assert (placed.n, placed.mean_s, placed.p50_s) == (4, 2.5, 2.5)
    assert placed.p95_s == pytest.approx(3.85)
    assert placed.sd_s == pytest.approx(1.29099, rel=1e-5)
    assert placed.quantiles_s is None


def test_no_calls_have_no_spread() -> None:
    assert spread([]).mean_s is None

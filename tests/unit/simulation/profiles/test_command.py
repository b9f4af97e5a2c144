"""``smoe lab profile``: its help, its refusals, and a whole quick run on a tiny pipeline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.backends.process.cgroup.limits import Cgroups
from gateway.backends.process.cgroup.mounts import detect
from moe.preset import byte_tokenizer
from moe.split import split
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.measure.measurement_plan import ProfileSettings
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.storage import check_machine, load
from smoe.cli import cli
from smoe.commands import profiling
from smoe.commands.profiling import require_limits
from tests.unit.moe import tiny


def test_the_help_says_what_it_measures() -> None:
    shown = CliRunner().invoke(cli, ["profile", "--help"])
    assert shown.exit_code == 0
    for word in ("real workers under real limits", "--quick", "--out", "--shares", "--gpu-shares", "--requests-again"):
        assert word in shown.output


def test_it_is_listed_among_the_commands() -> None:
    assert "profile" in CliRunner().invoke(cli, ["--help"]).output


@pytest.mark.parametrize("text", ["", "1,x", "0", "-1,2", "1,,2", "nan", "inf"])
def test_axes_that_are_no_numbers_are_refused(text: str, tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["profile", "--out", str(tmp_path / "a.parquet"), "--tokens", text])
    assert shown.exit_code == 2
    assert "is not a comma list of whole numbers above 0" in shown.output


def test_an_output_is_asked_for() -> None:
    shown = CliRunner().invoke(cli, ["profile"])
    assert shown.exit_code == 2
    assert "--out" in shown.output


@pytest.mark.slow
def test_gpu_shares_end_with_a_sentence(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["profile", "--out", str(tmp_path / "a.parquet"), "--gpu-shares", "0.5"])
    assert isinstance(shown.exception, ProfileError)
    assert "GPU shares were asked for" in str(shown.exception)
    assert not (tmp_path / "a.parquet").exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown = CliRunner().invoke(cli, ["profile", "--quick", "--out", str(tmp_path / "file" / "a.parquet")])
    assert isinstance(shown.exception, ProfileError)
    assert "cannot be written to" in str(shown.exception) and "a.parquet" in str(shown.exception)


def test_a_machine_without_limits_is_refused() -> None:
    with pytest.raises(ProfileError, match="needs limits that hold"):
        require_limits(["cgroup v1 not writable here: cpu (Permission denied); those limits are not enforced."])
    require_limits(["One configured CPU core is 0.5 of a real one (cpu_scale)."])


@pytest.fixture
def enforced() -> None:
    """Skips where this machine lets us write no cgroups."""
    cgroups = detect(Path("/sys/fs/cgroup"), Path("/proc"), 999_998, 0.01)
    notes = cgroups.notes
    cgroups.close()
    if type(cgroups) is Cgroups or notes:
        pytest.skip(f"limits cannot be enforced here: {' '.join(notes)}")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_tiny_pipeline_is_profiled_from_start_to_end(
    enforced: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pipelines" / "tiny"
    checkpoint = tiny.store(tiny.build("bert", vocab_size=300, max_position_embeddings=2048), tmp_path / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    split(checkpoint, folder, "tiny", 2, 2)
    out = tmp_path / "tiny.parquet"
    given = [str(folder), "--seconds", "0.05", "--out", str(out), "--state", str(tmp_path)]
    few = ["--quick", "--shares", "0.12,1", "--tokens", "1,128", "--concurrency", "2"]
    done = CliRunner().invoke(cli, ["profile", *given, *few], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    loaded = load(out)
    assert loaded.metadata.pipeline == "tiny"
    check_machine(loaded.metadata, this_machine())
    families = {row.family for row in loaded.rows}
    assert families >= {"alone", "busy", "concurrency", "surface", "memory", "cold_start", "drain", "cpu_up"}
    assert families >= {"pass", "overlap", "idle", "in_pass", "stopped"}
    assert any(not row.feasible and "out of memory" in row.note for row in loaded.rows if row.family == "memory")
    limited = [row for row in loaded.of("busy") if row.share < 0.3]
    assert limited
    assert all(row.throttled_part is not None for row in limited)  # how much hangs on what else the machine does
    stopped = {row.share: row.stops_per_call or 0.0 for row in loaded.of("stopped") if row.concurrency == 8}
    assert set(stopped) == {1.0, 0.12} and stopped[0.12] > stopped[1.0] == 0.0
    assert loaded.metadata.fit["cross_validated"]["all"]["points"] > 20
    assert out.with_suffix(".png").stat().st_size > 10_000
    monkeypatch.setattr(profiling, "ProfileSettings", partial(ProfileSettings, volley_rounds=3, idle_rounds=3))
    few = ["--requests-again", "--repeats", "1", "--shares", "1"]
    again = CliRunner().invoke(cli, ["profile", *given, *few], catch_exceptions=False)
    assert again.exit_code == 0, again.output
    measured_again = load(out)
    again_s = ("overlap", "idle", "in_pass", "stopped")
    assert [row for row in measured_again.rows if row.family not in again_s] == [
        row for row in loaded.rows if row.family not in again_s
    ]
    assert len(measured_again.of("overlap")) == 9 and len(measured_again.of("idle")) == 15
    assert "measured again from" in measured_again.metadata.notes[-1]

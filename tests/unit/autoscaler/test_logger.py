"""The function logger: what goes in comes out, files appear whole, nothing is written twice or over another."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from autoscaler.contract import Cost, Decision, LayerObservation, TickReport
from autoscaler.errors import LogError
from autoscaler.log_bound import taken_bytes
from autoscaler.logger import (
    SCHEMA_VERSION,
    FunctionLogger,
    read_contexts,
    read_decisions,
    read_pipeline,
    read_windows,
)
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

LAYER = LayerObservation(0, 40.0, 0.5, 0.01, 4e4, 0.2)
CONTEXT = {"policy": "hpa", "prices": {"currency": "USD"}, "manifest_sha256": "ab"}


def report(number: int = 0) -> TickReport:
    """Window ``number`` of 10 s; one decision that was made, one that failed."""
    end_s = NOW_S + 10 * number
    seen = observation(
        {"expert-0-0": {"tokens_per_s": 30.0, "token_share": 0.75}, "segment-0": {"configuration": None}},
        start_s=end_s - 10,
        end_s=end_s,
        layers=(LAYER,),
        problems=("something is missing",),
    )
    made = Decision("m-expert-0-0", "expert-0-0", configuration(1), configuration(9), configuration(3), "busy", ("x",))
    failed = Decision("m-expert-0-1", "expert-0-1", configuration(1), configuration(2), configuration(2), "busy")
    return TickReport(
        seen,
        (made, failed),
        ("m-expert-0-0",),
        {"m-expert-0-1": "broken"},
        Cost(1.0, 2.0),
        {"expert-0-0": Cost(0.1, 0.2)},
        decision_s=0.001,
        policy="hpa",
    )


def logger(folder: Path, windows_per_file: int = 2) -> FunctionLogger:
    return FunctionLogger(folder, CONTEXT, 0.25, windows_per_file)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        log.add(report())
    windows = {row["node"]: row for row in read_windows(tmp_path).to_pylist()}
    assert len(windows) == 9
    expert, segment = windows["expert-0-0"], windows["segment-0"]
    assert (expert["tokens_per_s"], expert["token_share"], expert["layer"], expert["expert"]) == (30.0, 0.75, 0, 0)
    assert (expert["replicas"], expert["memory_mb"], expert["concurrency"]) == (1, 256, 4)
    assert (expert["layer_token_routing_entropy"], expert["layer_barrier_p95_s"]) == (0.5, 0.2)
    assert (expert["cost_busy"], expert["cost_provisioned"]) == (0.1, 0.2)
    assert segment["replicas"] is None and segment["latency_p95_s"] is None and segment["cost_busy"] is None
    (row,) = read_pipeline(tmp_path).to_pylist()
    assert (row["latency_p95_s"], row["slo_s"], row["policy"], row["cost_provisioned"]) == (0.2, 0.25, "hpa", 2.0)
    assert row["problems"] == ["something is missing"] and row["stale"] is False
    made, failed = read_decisions(tmp_path).to_pylist()
    assert (made["present_replicas"], made["wish_replicas"], made["target_replicas"]) == (1, 9, 3)
    assert made["applied"] and made["limits_hit"] == ["x"] and made["failure"] is None and made["policy"] == "hpa"
    assert not failed["applied"] and failed["failure"] == "broken"


def test_a_file_is_written_when_it_is_full_and_the_rest_at_the_end(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        for number in range(5):
            log.add(report(number))
        assert list(tmp_path.glob("pipeline-*.parquet"))  # the second is begun when the first is there
    assert len(list(tmp_path.glob("pipeline-*.parquet"))) == 3
    assert [row["end_s"] for row in read_pipeline(tmp_path).to_pylist()] == [NOW_S + 10 * i for i in range(5)]
    assert not list(tmp_path.glob("*.part"))


def test_flushing_twice_writes_nothing_twice(tmp_path: Path) -> None:
    log = logger(tmp_path)
    log.add(report())
    log.flush()
    log.flush()
    assert read_windows(tmp_path).num_rows == 9


def test_runs_that_end_at_the_same_moment_do_not_write_over_each_other(tmp_path: Path) -> None:
    for _ in range(3):
        with logger(tmp_path) as log:
            log.add(report())
    assert read_pipeline(tmp_path).num_rows == 3


def test_a_file_left_half_written_by_a_crash_is_not_read(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        log.add(report())
    (tmp_path / "windows-000000000000001.part").write_bytes(b"PAR1 half")
    assert read_windows(tmp_path).num_rows == 9


def test_what_a_run_was_made_with_is_in_every_file(tmp_path: Path) -> None:
    for policy in ("hpa", "hpa", "static"):
        with FunctionLogger(tmp_path, {**CONTEXT, "policy": policy}, None) as log:
            log.add(report())
    contexts = read_contexts(tmp_path)
    assert [context["policy"] for context in contexts] == ["hpa", "static"]
    assert contexts[0]["schema_version"] == SCHEMA_VERSION and contexts[0]["manifest_sha256"] == "ab"


def test_an_empty_folder_gives_empty_tables_with_all_columns(tmp_path: Path) -> None:
    assert read_windows(tmp_path).num_rows == 0 and "token_share" in read_windows(tmp_path).column_names
    assert read_contexts(tmp_path) == []


def test_columns_that_an_older_file_lacks_are_null(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        log.add(report())
    (path,) = tmp_path.glob("pipeline-*.parquet")
    pq.write_table(pq.read_table(path).drop_columns(["policy"]), path)
    assert read_pipeline(tmp_path).to_pylist()[0]["policy"] is None


def test_a_damaged_file_is_reported_by_name(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        log.add(report())
    (path,) = tmp_path.glob("decisions-*.parquet")
    path.write_bytes(b"not parquet")
    with pytest.raises(LogError, match="decisions-"):
        read_decisions(tmp_path)


def test_a_file_of_other_types_is_reported(tmp_path: Path) -> None:
    pq.write_table(pa.table({"end_s": ["yesterday"]}), tmp_path / "pipeline-1.parquet")
    with pytest.raises(LogError, match="do not fit together"):
        read_pipeline(tmp_path)


def test_a_folder_that_cannot_be_written_is_reported_and_the_rows_are_given_up(tmp_path: Path) -> None:
    log = logger(tmp_path / "log", windows_per_file=1)
    (tmp_path / "log").rmdir()
    log.add(report())
    with pytest.raises(LogError, match="could not write"):
        log.flush()
    (tmp_path / "log").mkdir()
    log.add(report(1))
    log.flush()
    assert [row["end_s"] for row in read_pipeline(tmp_path / "log").to_pylist()] == [NOW_S + 10]


def test_a_file_that_could_not_be_written_is_reported_with_the_next_one(tmp_path: Path) -> None:
    log = logger(tmp_path / "log", windows_per_file=1)
    (tmp_path / "log").rmdir()
    log.add(report())
    with pytest.raises(LogError, match="could not write"):
        log.add(report(1))
    with suppress(LogError):
        log.flush()
    (tmp_path / "log").mkdir()
    log.add(report(2))
    log.flush()
    assert [row["end_s"] for row in read_pipeline(tmp_path / "log").to_pylist()] == [NOW_S + 20]


def test_a_window_without_decisions_is_logged_too(tmp_path: Path) -> None:
    with logger(tmp_path) as log:
        log.add(replace(report(), decisions=()))
    assert read_decisions(tmp_path).num_rows == 0 and read_pipeline(tmp_path).num_rows == 1


def bounded(folder: Path, windows: int, most_mb: int) -> list[float]:
    """Ends of the windows that are there after ``windows`` files of a window were written, newest last."""
    with FunctionLogger(folder, CONTEXT, 0.25, windows_per_file=1, most_mb=most_mb) as log:
        for number in range(windows):
            log.add(report(number))
    return [row["end_s"] for row in read_pipeline(folder).to_pylist()]


def test_beyond_its_bound_the_oldest_files_go_those_of_other_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded(tmp_path, 3, most_mb=0)
    each = sum(map(taken_bytes, tmp_path.iterdir())) // 3
    (tmp_path / "windows-000000000000001.part").write_bytes(b"PAR1 half")
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("autoscaler.log_bound.MIB", 9 * each // 2)
    assert bounded(tmp_path, 9, most_mb=1) == [NOW_S + 10 * number for number in (5, 6, 7, 8)]
    assert (tmp_path / "notes.txt").exists() and not list(tmp_path.glob("*.part"))
    assert read_windows(tmp_path).num_rows == 4 * 9 and read_decisions(tmp_path).num_rows == 4 * 2


def test_without_a_bound_all_stays_and_the_newest_file_always_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoscaler.log_bound.MIB", 1)
    assert len(bounded(tmp_path / "all", 5, most_mb=0)) == 5
    assert bounded(tmp_path / "bound", 5, most_mb=1) == [NOW_S + 40]


def test_a_file_that_goes_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logger(tmp_path, windows_per_file=1) as log:
        for number in range(2):
            log.add(report(number))
    gone = min(tmp_path.glob("pipeline-*"))
    listed = sorted(tmp_path.glob("pipeline-*"))
    gone.unlink()
    monkeypatch.setattr("autoscaler.logger._files", lambda folder, kind: listed)
    assert [row["end_s"] for row in read_pipeline(tmp_path).to_pylist()] == [NOW_S + 10]
    assert len(read_contexts(tmp_path)) == 1

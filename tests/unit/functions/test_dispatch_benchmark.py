"""The arithmetic of ``benchmarks.dispatch``: what a row makes of its turns."""

from __future__ import annotations

import os
import urllib.error
from pathlib import Path

import pytest

from benchmarks.dispatch import Counted, Row, ask
from benchmarks.harness.local_pipeline import LocalPipeline, WorkerProcess
from moe.reference import WholeModel
from tests.unit.functions.test_pass import TEXTS, assert_close


def counted(passes: float, cpu: float) -> Counted:
    return Counted(passes, 6 * passes, 3 * passes, 4 * passes, 5 * passes, 8000 * passes, cpu, 2 * cpu)


def test_a_row_says_what_one_pass_costs_and_takes_the_median_of_processor_time() -> None:
    row = Row("aebs", "direct", WorkerProcess("m", os.getpid(), 1))
    row.turns = [counted(10, 0.1), counted(10, 0.2), counted(20, 20.0)]
    row.taken_ms = [1.0, 3.0, 200.0]
    figures = row.figures(layers=3)
    assert (figures["passes"], figures["fullest"], figures["remote"], figures["messages"]) == (40, 2.0, 4.0, 5.0)
    assert (figures["kB"], figures["ingress_cpu_ms"], figures["workers_cpu_ms"]) == (8.0, 20.0, 40.0)
    assert (figures["p50_ms"], figures["scatters_a_pass"]) == (3.0, 1.0)


def test_counters_are_what_came_since() -> None:
    assert counted(12, 3.0).since(counted(2, 1.0)) == counted(10, 2.0)


def test_a_pipeline_with_a_key_answers_those_who_show_it_and_its_ingress_shows_it_to_workers(
    bert: Path, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("k" * 32)
    environ = {"smoe_caller_key_file": str(file), "smoe_transfer": "two-phase"}
    with LocalPipeline(bert, max_functions=3, nodes=("a", "b"), environ=environ) as pipeline:
        row = Row("auto", "two-phase", pipeline.ingress, pipeline.key)
        assert_close(ask(row, TEXTS)["embeddings"], WholeModel(bert).embed(TEXTS))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            ask(Row("auto", "two-phase", pipeline.ingress), TEXTS)

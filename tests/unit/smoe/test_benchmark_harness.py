"""What benchmarks share: comma lists, tables stored, what clients saw."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.harness.options import benchmark, listed
from benchmarks.harness.report import write_csv
from benchmarks.harness.steady_load import WRONG, Answers


@benchmark
@click.option("--seeds", callback=listed(int), default="0,1", help="Comma list.")
@click.option("--rows", callback=listed(choices=("a", "b")), default="a,b", help="Comma list.")
def command(seeds: tuple[int, ...], rows: tuple[str, ...]) -> None:
    click.echo(f"{seeds} {rows}")


@pytest.mark.parametrize(
    ("given", "exit_code", "words"),
    [
        pytest.param([], 0, "(0, 1) ('a', 'b')", id="defaults"),
        pytest.param(["--seeds", " 3, 4,", "--rows", "b"], 0, "(3, 4) ('b',)", id="spaces and an empty end"),
        pytest.param(["--seeds", "one"], 2, "one", id="no number"),
        pytest.param(["--rows", "a,c"], 2, "'c' is none of a, b", id="no row"),
        pytest.param(["--help"], 0, "What benchmarks share: comma lists", id="its module's docstring is its help"),
    ],
)
def test_comma_lists_are_read_and_checked(given: list[str], exit_code: int, words: str) -> None:
    result = CliRunner().invoke(command, given)
    assert result.exit_code == exit_code and words in result.output


def test_a_table_is_stored_with_the_columns_of_its_first_row_or_those_asked_for(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 2.5}, {"a": 3, "b": "x"}]
    write_csv(tmp_path / "all.csv", iter(rows))
    write_csv(tmp_path / "some.csv", rows, ("b",))
    assert (tmp_path / "all.csv").read_text() == "a,b\n1,2.5\n3,x\n"
    assert (tmp_path / "some.csv").read_text() == "b\n2.5\nx\n"


def test_clients_see_gaps_and_failures_in_order_of_the_answers_ends() -> None:
    answers = Answers.of(np.array([[3.0, 4.0, 200], [0.0, 1.0, 200], [1.0, 2.0, 503], [2.0, 3.0, WRONG]]))
    assert answers.ended_s.tolist() == [1.0, 2.0, 3.0, 4.0] and answers.failed == 2
    assert answers.longest_gap_s(0.0, 5.0) == 3.0
    assert answers.per_second(0.0, 5.0) == pytest.approx(0.4)
    assert answers.between(2.0, 4.0).status.tolist() == [503, WRONG]

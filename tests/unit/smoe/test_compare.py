"""``smoe lab compare`` on a grid that takes seconds: tuned, compared, resumed, or refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaler.stored_deployment import load_plan
from evaluation import compared
from evaluation.comparison import run
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid
from evaluation.tuning.sweep import Swept
from smoe.cli import cli
from smoe.commands import compare as module
from smoe.commands.compare import OPPONENTS, compare
from smoe.errors import SmoeError

SHORT = {
    "--patterns": "normal", "--seeds": "0", "--seconds": "240", "--tune-seconds": "150", "--mean-rps": "30",
    "--world": "cores-only", "--relative-slo": "1.5", "--trials": "12", "--workers": "1",
}  # fmt: skip


def options(tmp_path: Path, **more: str) -> list[str]:
    (tmp_path / "data").mkdir(exist_ok=True)  # no public traces: synthetic arrivals
    given = SHORT | {"--out": str(tmp_path / "out"), "--data": str(tmp_path / "data")}
    return [part for option in (given | more).items() for part in option]


@pytest.mark.slow
def test_opponents_are_tuned_on_validation_hours_and_compared_with_the_bound_and_a_second_call_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [*options(tmp_path, **{"--policies": "constant,constant-per-layer"}), "--json"]
    answer = CliRunner().invoke(compare, given, catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout)
    assert [cell["policy"] for cell in result["cells"]] == ["constant", "constant-per-layer"]
    assert all(cell["over_bound"]["provisioned"] and cell["violations"] for cell in result["cells"])
    assert result["beyond_cluster"] == 0 and result["refused"] == {}
    assert set(result["searches"]) == {"constant.bert-4.normal", "constant-per-layer.bert-4.normal"}
    assert all(search["trials"] <= 12 for search in result["searches"].values())
    plan = load_plan(tmp_path / "out" / "plans" / "constant.bert-4.normal.0.json")
    assert len(set(plan.configurations.values())) == 1 and len(plan.configurations) == 48
    assert (
        plan.made_by["profile"]
        != json.loads(next((tmp_path / "out" / "runs").glob("*.constant.json")).read_text())["source"]
    )
    monkeypatch.setattr(run, "run_policy", None)
    again = CliRunner().invoke(compare, given, catch_exceptions=False)
    assert json.loads(again.stdout) == result


OWN = "autoscaler.policy.attainment:make"


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ("all", OPPONENTS),
        (f"all,{OWN}", (*OPPONENTS, OWN)),
        ("hpa,all", ("hpa", *(name for name in OPPONENTS if name != "hpa"))),
    ],
)
def test_all_stands_for_the_opponents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: str, expected: tuple[str, ...]
) -> None:
    grids: list[Grid] = []

    def stopped(grid: Grid, *_: object) -> None:
        grids.append(grid)
        raise EvaluationError("stopped")

    monkeypatch.setattr(module, "run_all", stopped)
    answer = CliRunner().invoke(compare, options(tmp_path, **{"--policies": policies}))
    assert isinstance(answer.exception, SmoeError)
    assert grids[0].policies == expected and (grids[0].world, grids[0].relative_slo) == ("cores-only", 1.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"--policies": "best"}, "policies are static, hpa"),
        ({"--patterns": "wild"}, "patterns are slow, normal, bursty, diurnal; got 'wild'"),
        ({"--seconds": "100"}, "at least one is needed"),
        ({"--policies": "constant", "--relative-slo": "100"}, "does not bind"),
    ],
)
def test_what_nothing_can_be_measured_with_is_refused_in_a_sentence(
    tmp_path: Path, more: dict[str, str], sentence: str
) -> None:
    answer = CliRunner().invoke(compare, options(tmp_path, **more))
    assert isinstance(answer.exception, SmoeError) and sentence in str(answer.exception)


def test_policies_settings_are_a_folder_and_the_options_settings_a_file(tmp_path: Path) -> None:
    """``--policy-settings`` and ``--settings`` of one command."""
    (tmp_path / "options.toml").write_text('patterns = "wild"\n')
    given = ["lab", "evaluate", "--policy-settings", str(tmp_path), "--out", str(tmp_path / "out")]
    answer = CliRunner().invoke(cli, [*given, "--settings", str(tmp_path / "options.toml")])
    assert isinstance(answer.exception, SmoeError) and "got 'wild'" in str(answer.exception)


def test_plans_are_searched_apart_from_each_other_by_what_they_share() -> None:
    grid = Grid(("bert-4",), ("normal", "bursty"), (0,), (*OPPONENTS, "tuned-hpa"), (0,))
    parts = [(one.patterns, one.policies) for one in compared.searches_of(grid)]
    families = [OPPONENTS[:6], ("tuned-hpa",)]
    assert parts == [((pattern,), family) for pattern in ("normal", "bursty") for family in families]


def test_a_policy_that_no_validation_hour_can_tune_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [Swept("hpa", "bert-4", {}, 0.0, 0, 0), Swept("kpa", "bert-4", {}, 1.0, 0, 20)]
    monkeypatch.setattr(compared, "sweep", lambda *_: chosen)
    monkeypatch.setattr(compared, "evaluate", lambda *_: [])
    grid = Grid(("bert-4",), ("normal",), (0,), ("hpa", "kpa"), (0,))
    _, _, refused = compared.compare(grid, compared.Tuning(("bert-4",), 3, 600.0), tmp_path, 1, lambda *_: None)
    assert refused == {"hpa.bert-4": "untuned: no validation hour can be measured"}

"""Whole evaluations of a small grid: paired, resumable, refused where they would measure nothing."""

from __future__ import annotations

import csv
import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from autoscaler.contract import Capacity
from autoscaler.prices import load_prices
from autoscaler.settings import ELSEWHERE
from evaluation.bound.physics import Physics
from evaluation.comparison import episode, learnt_files, run
from evaluation.comparison.episode import BOUND, beyond_cluster, check_binding, prepare, run_policy
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid
from evaluation.comparison.report import heading, write_report
from evaluation.comparison.run import evaluate
from evaluation.comparison.store import write_windows
from evaluation.comparison.tables import rows, runs_of
from simulation.workloads.paper import PAPER_PRICES
from smoe.cli import cli
from smoe.errors import SmoeError


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    return Grid(
        ("bert-4",),
        ("bursty",),
        (0,),
        ("static", "hpa"),
        (0, 1),
        window_s=10.0,
        seconds=60.0,
        mean_rps=8.0,
        warm_up_windows=2,
        data=tmp_path_factory.mktemp("no-traces"),
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("evaluation")


@pytest.fixture(scope="module")
def summaries(grid: Grid, out: Path) -> list[dict[str, Any]]:
    return evaluate(grid, out, workers=1)


@pytest.mark.slow
def test_policies_of_a_group_meet_the_same_requests_and_other_seeds_meet_others(
    summaries: list[dict[str, Any]],
) -> None:
    hashes = {seed: {run["requests_sha256"] for run in summaries if run["seed"] == seed} for seed in (0, 1)}
    assert all(len(found) == 1 for found in hashes.values())
    assert hashes[0] != hashes[1]
    assert [run["policy"] for run in summaries] == [BOUND, "static", "hpa"] * 2


@pytest.mark.slow
def test_no_policy_that_keeps_the_slo_costs_less_than_the_bound(summaries: list[dict[str, Any]]) -> None:
    for found in runs_of(summaries):
        assert (found["busy_over_bound"] is not None) == found["binds"]["busy"]
        if found["violated_windows"] == 0:
            assert found["provisioned_over_bound"] >= 0


@pytest.mark.slow
def test_what_is_stored_is_not_simulated_again_but_another_grid_is(
    grid: Grid, out: Path, summaries: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated: list[str] = []
    real = episode.run_policy

    def counted(*given: Any) -> Any:
        simulated.append(given[-1])
        return real(*given)

    monkeypatch.setattr(run, "run_policy", counted)
    shown: list[tuple[str, int]] = []
    assert evaluate(grid, out, workers=1, progress=lambda what, runs: shown.append((what, runs))) == summaries
    first = "bert-4.bursty.0.0"
    names = [f"{first}.{BOUND}", f"{first}.static", f"{first}.hpa", first]
    assert shown[:4] == list(zip(names, (0, 1, 1, 1), strict=True)) and sum(runs for _, runs in shown) == 6
    assert simulated == []
    evaluate(replace(grid, policies=("static", "kpa"), seeds=(0,)), out, workers=1)
    assert simulated == ["kpa"]
    evaluate(replace(grid, warm_up_windows=3, bound=False, seeds=(0,)), out / "other", workers=1)
    assert simulated == ["kpa", "static", "hpa"]


@pytest.mark.slow
def test_several_processes_find_the_same_as_one(grid: Grid, summaries: list[dict[str, Any]], tmp_path: Path) -> None:
    timing = ("play_s", "decision_ms_p50", "decision_ms_p99")
    plain = [{key: value for key, value in found.items() if key not in timing} for found in summaries]
    parallel = evaluate(grid, tmp_path, workers=2)
    assert [{key: value for key, value in found.items() if key not in timing} for found in parallel] == plain


@pytest.mark.slow
def test_the_report_holds_every_run(grid: Grid, out: Path, summaries: list[dict[str, Any]]) -> None:
    paths = write_report(grid, summaries, out)
    assert len(paths.csv.read_text().splitlines()) == 1 + 4
    assert {row.policy for row in rows(summaries)} == {"static", "hpa"}
    assert all(name in paths.markdown.read_text() for name in ("static", "hpa", "made, not measured"))
    page = paths.html.read_text()
    assert "data:image/png" in page and page.index("Cheapest of those") < page.index("<table>") < page.index("<li")
    assert len(json.loads(paths.json.read_text())["runs"]) == 6
    assert all(path.stat().st_size > 10_000 for path in paths.figures)


def test_the_costs_of_the_burstiest_pattern_are_drawn(summaries: list[dict[str, Any]], tmp_path: Path) -> None:
    from evaluation.comparison.figures import figure_7

    calm = [{**run, "pattern": "normal", "provisioned_experts": 9.0} for run in runs_of(summaries)]
    both, alone = tmp_path / "both.png", tmp_path / "alone.png"
    figure_7(both, [*summaries, *calm], {})
    figure_7(alone, summaries, {})
    assert both.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_every_result_says_what_its_seconds_are_of_and_shows_costs_and_decision_times(
    grid: Grid, out: Path, summaries: list[dict[str, Any]]
) -> None:
    runs = runs_of(summaries)
    assert {(run["measured_part"], run["coupled"]) for run in runs} == {(0.0, False)}
    assert all(run["latency"].startswith("modelled (roofline)") for run in runs)
    paths = write_report(grid, summaries, out)
    text = paths.markdown.read_text()
    assert "modelled (roofline)" in text and "at least 0% of a run's calls lie where it was measured" in text
    (static,) = (row for row in rows(summaries) if row.policy == "static")
    paid = [run["provisioned_experts"] for run in runs if run["policy"] == "static"]
    assert static.cost["provisioned"].value == pytest.approx(sum(paid) / 2)
    (line,) = (line for line in text.splitlines() if line.startswith("| bursty | static |"))
    assert f"| ${sum(paid) / 2:#.3g} (" in line and f"| {static.decision_ms:.1f} ms |" in line
    assert "measured_part" in paths.csv.read_text().splitlines()[0].split(",")


def test_the_heading_states_how_bursty_the_replay_of_each_pattern_was(
    grid: Grid, summaries: list[dict[str, Any]]
) -> None:
    of_pattern = [{**run, "cv": 3.5 + run["seed"]} for run in summaries if run["policy"] != BOUND]
    assert "as replayed: bursty 3.5 to 4.5." in heading(grid, of_pattern)
    calmer = [{**run, "cv": 0.75 + 3 * run["seed"]} for run in of_pattern]
    assert "bursty 0.75 to 3.8, not always of their pattern: bursty." in heading(grid, calmer)


def test_groups_in_which_the_slo_does_not_bind_have_no_part_in_that_meters_costs(
    grid: Grid, summaries: list[dict[str, Any]]
) -> None:
    loose = {0: {"busy": False, "provisioned": True}, 1: {"busy": True, "provisioned": True}}
    marked = [{**run, "binds": loose[run["seed"]]} for run in summaries]
    (static,) = (row for row in rows(marked) if row.policy == "static")
    (other,) = (run for run in summaries if run["policy"] == "static" and run["seed"] == 1)
    assert static.cost["busy"].value == pytest.approx(other["busy_experts"])
    assert static.runs == 2 and static.cost["provisioned"].low < static.cost["provisioned"].high
    assert "On the busy meter the SLO does not bind in 1 of 2 groups" in heading(grid, marked)
    none = [{**run, "binds": loose[0]} for run in summaries]
    assert {row.over_bound["busy"] for row in rows(none)} == {None}


@pytest.mark.slow
def test_every_window_is_in_a_table_with_its_costs_and_its_decisions_seconds(
    grid: Grid, out: Path, summaries: list[dict[str, Any]]
) -> None:
    paths = write_report(grid, summaries, out)
    with paths.windows.open(newline="") as file:
        windows = list(csv.DictReader(file))
    for simulated in (one for one in summaries if one["policy"] != BOUND):
        own = [row for row in windows if (row["policy"], int(row["seed"])) == (simulated["policy"], simulated["seed"])]
        assert len(own) == simulated["windows"]
        assert sum(float(row["provisioned_experts"]) for row in own) == pytest.approx(simulated["provisioned_experts"])
        assert sum(row["violated"] == "true" for row in own) == simulated["violated_windows"]
        assert all(float(row["decision_s"]) > 0 for row in own)
        over = [max(0.0, float(row["p95_s"]) - simulated["slo_s"]) for row in own if row["p95_s"]]
        assert simulated["mean_excess"] * simulated["slo_s"] * len(over) == pytest.approx(sum(over))
    assert any(one.get("violated_windows") for one in summaries), "or nothing is said of an excess"


@pytest.mark.slow
def test_a_window_in_which_requests_wait_and_none_is_answered_breaks_the_slo(grid: Grid) -> None:
    short = replace(grid, window_s=0.05, seconds=4.0, seeds=(0,))
    summary, table = run_policy(short, prepare(short, next(short.groups())), "static")
    silent = [row for row in table.to_pylist() if row["p95_s"] is None]
    assert {bool(row["in_flight"]) for row in silent} == {True, False}, "or nothing waits, or nothing is at rest"
    assert all(row["violated"] == (True if row["in_flight"] else None) for row in silent)
    judged = [row["violated"] for row in table.to_pylist() if row["violated"] is not None]
    assert (summary["judged_windows"], summary["violated_windows"]) == (len(judged), sum(judged))


def test_the_report_says_which_policies_nobody_tuned(
    grid: Grid, summaries: list[dict[str, Any]], tmp_path: Path
) -> None:
    assert "With their default settings, not tuned: static, hpa." in heading(grid, summaries)
    (tmp_path / "hpa.toml").write_text("cpu_target = 0.5\n")
    tuned = replace(grid, policies=("hpa", "smoe"), settings=tmp_path)
    assert "default settings" not in heading(tuned, summaries)


def test_runs_are_marked_that_want_more_than_the_papers_cluster(summaries: list[dict[str, Any]]) -> None:
    """Eight nodes of 52 cores, one GPU and 128 GiB."""
    assert beyond_cluster({"peak_cores": 416.0, "peak_gpus": 8.1, "peak_memory_mb": 1.0}, None) == ["gpus"]
    peaks = {"peak_cores": 417.0, "peak_gpus": 8.0, "peak_memory_mb": 2e6}
    assert beyond_cluster(peaks, None) == ["cores", "memory_mb"]
    assert beyond_cluster(peaks, Capacity(500.0, 3e6)) == ["gpus"]
    marked = [{**run, "beyond_cluster": ["gpus"] * run["seed"]} for run in summaries]
    assert {(row.policy, row.beyond) for row in rows(marked)} == {("static", 1), ("hpa", 1)}
    for simulated in (one for one in summaries if one["policy"] == "static"):
        assert simulated["peak_cores"] + simulated["peak_gpus"] > 0 and simulated["peak_memory_mb"] > 0


@pytest.mark.slow
def test_runs_that_answered_nothing_are_drawn_without_a_tail(
    grid: Grid, out: Path, summaries: list[dict[str, Any]]
) -> None:
    """The figure has a gap there, and NumPy nothing to warn of (warnings are errors here)."""
    silent = [{**run, "p95_over_slo": None} if run["policy"] == "hpa" else run for run in summaries]
    paths = write_report(grid, silent, out)
    (row,) = (row for row in rows(silent) if row.policy == "hpa")
    assert row.p95 is None and paths.figures[1].is_file()


def test_an_slo_that_does_not_bind_is_refused_with_the_reason(grid: Grid) -> None:
    easy = replace(grid, world="unlimited", tokens=(1,), mean_rps=0.5, seeds=(0,))
    with pytest.raises(EvaluationError, match="does not bind"):
        evaluate(easy, Path("unused"), workers=1)


def test_without_a_bound_an_slo_that_does_not_bind_is_refused_all_the_same(grid: Grid, tmp_path: Path) -> None:
    easy = replace(grid, world="unlimited", tokens=(1,), mean_rps=0.5, seeds=(0,), bound=False)
    with pytest.raises(EvaluationError, match="does not bind"):
        evaluate(easy, tmp_path, workers=1)


def test_groups_that_nothing_can_be_measured_with_are_left_out_where_that_is_asked_for(
    grid: Grid, tmp_path: Path
) -> None:
    refused: dict[str, str] = {}
    easy = replace(grid, world="unlimited", tokens=(1,), mean_rps=0.5, seeds=(0,))
    assert evaluate(easy, tmp_path, workers=1, refused=refused) == []
    assert list(refused) == ["bert-4.bursty.1.0"] and "does not bind" in refused["bert-4.bursty.1.0"]


def test_a_group_is_found_to_be_unmeasurable_once_whatever_settings_are_tried_on_it(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding it out simulates, and a sweep asks for every setting."""
    easy = replace(grid, world="unlimited", tokens=(1,), mean_rps=0.5, seeds=(1,))
    refused: list[dict[str, str]] = [{}, {}]
    evaluate(easy, tmp_path, workers=1, refused=refused[0])
    monkeypatch.setattr(episode, "check_binding", None)
    evaluate(replace(easy, policies=("kpa",)), tmp_path, workers=1, refused=refused[1])
    assert refused[0] == refused[1] != {}


@pytest.mark.slow
def test_tables_are_built_once_for_start_and_bound_and_not_at_all_for_what_is_stored(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    real = Physics

    def counted(*given: Any) -> Any:
        built.append(1)
        return real(*given)

    monkeypatch.setattr(episode, "Physics", counted)
    one = replace(grid, seeds=(7,), policies=("static",))
    for _ in range(2):
        episode.prepared_once.cache_clear()
        evaluate(one, tmp_path, workers=1)
    assert len(built) == 1


@pytest.mark.parametrize("name", ELSEWHERE)
def test_short_names_stand_for_makers_that_are_there(name: str) -> None:
    module, _, maker = ELSEWHERE[name].partition(":")
    assert callable(getattr(importlib.import_module(module), maker))


def test_a_policys_file_runs_once_for_all_grids_and_again_when_its_text_is_another(grid: Grid, tmp_path: Path) -> None:
    file, runs = tmp_path / "mine.py", tmp_path / "runs"
    text = f"with open({str(runs)!r}, 'a') as file: file.write('x')\ndef make(making): ...\n"
    file.write_text(text)
    mine = replace(grid, policies=(f"{file}:make",))
    for seed in range(3):
        replace(mine, seeds=(seed,))
    assert runs.read_text() == "x"
    file.write_text(text + "# another\n")
    replace(mine, seeds=(5,))
    assert runs.read_text() == "xx"


def test_other_weights_are_another_run(grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learnt_files, "FAASCONF", tmp_path)
    group = next(grid.groups())
    without = grid.fingerprint(group, "faasconf", "0")
    (tmp_path / "bert-4.safetensors").write_bytes(b"1")
    first = grid.fingerprint(group, "faasconf", "0")
    (tmp_path / "bert-4.safetensors").write_bytes(b"2")
    assert len({without, first, grid.fingerprint(group, "faasconf", "0")}) == 3


def test_another_actor_is_another_run(grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published one, that of the other meter, and one that the settings file names."""
    published, own = tmp_path / "published.safetensors", tmp_path / "own.safetensors"
    asked: list[tuple[str, str]] = []

    def found_at(workload: str, meter: str) -> Path:
        asked.append((workload, meter))
        return published

    monkeypatch.setattr(learnt_files, "published_actor", found_at)
    published.write_bytes(b"1")
    own.write_bytes(b"2")
    group = next(grid.groups())
    found = [grid.fingerprint(group, "smoe", "0")]
    published.write_bytes(b"3")
    found.append(grid.fingerprint(group, "smoe", "0"))
    (tmp_path / "smoe.toml").write_text('meter = "busy"')
    with_file = replace(grid, settings=tmp_path)
    found.append(with_file.fingerprint(group, "smoe", "0"))
    for content in (b"2", b"4"):
        own.write_bytes(content)
        (tmp_path / "smoe.toml").write_text(f'actor = "{own}"')
        found.append(with_file.fingerprint(group, "smoe", "0"))
    assert len(set(found)) == 5
    assert asked == [("bert-4", "provisioned")] * 2 + [("bert-4", "busy")]


@pytest.mark.slow
def test_a_policy_that_cannot_serve_a_workload_is_left_out_with_the_reason(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learnt_files, "FAASCONF", tmp_path)
    both = replace(grid, policies=("static", "faasconf"), bound=False, seeds=(7,))
    refused: dict[str, str] = {}
    runs = evaluate(both, tmp_path, workers=1, refused=refused)
    assert [summary["policy"] for summary in runs] == ["static"]
    assert list(refused) == ["bert-4.bursty.0.7.faasconf"] and "no weights of bert-4" in next(iter(refused.values()))
    with pytest.raises(EvaluationError, match="no weights of bert-4"):
        evaluate(both, tmp_path, workers=1)
    write_windows(tmp_path / "windows.parquet", runs, tmp_path)
    table = pq.read_table(tmp_path / "windows.parquet")
    assert table.num_rows == runs[0]["windows"] and set(table.column("policy").to_pylist()) == {"static"}
    assert sum(table.column("violated").to_pylist()) == runs[0]["violated_windows"]


def test_an_episode_without_requests_after_the_warm_up_is_refused(grid: Grid, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no window after the warm-up"):
        check_binding([], prepare(replace(grid, seeds=(0,)), next(grid.groups())))
    early = tmp_path / "early.csv"
    early.write_text("arrival_s\n" + "".join(f"{second / 2}\n" for second in range(30)) + "100\n")
    given = replace(grid, patterns=("file",), trace=early, seconds=60.0, mean_rps=0.0, seeds=(0,), bound=False)
    with pytest.raises(EvaluationError, match=r"early\.csv.*no window after the warm-up has a request"):
        evaluate(given, tmp_path, workers=1)


def test_the_slo_binds_where_the_simulated_window_misses_it_whatever_the_model_says(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = prepare(replace(grid, seeds=(0,)), next(grid.groups()))
    easy = replace(work, workload=replace(work.workload, slo_s=60.0))
    loads = [load for load in easy.loads() if load.count]
    with pytest.raises(EvaluationError, match="does not bind"):
        check_binding(loads, easy)
    monkeypatch.setattr(episode, "simulate_numbers", lambda *arguments: (1.0, 61.0))
    assert check_binding(loads, easy) == {"busy": True, "provisioned": True}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"workloads": ("bert-5",)}, "bert-5"),
        ({"patterns": ("spiky",)}, "spiky"),
        ({"policies": ("best",)}, "best"),
        ({"policies": ("hpa", "hpa")}, "each once"),
        ({"world": "flat"}, "world is flat"),
        ({"hop_factor": 0.0}, "hop_factor is 0.0; allowed are numbers above 0"),
        ({"policies": ("hpa", "nowhere.py:make")}, "nowhere.py:make.*cannot be loaded"),
        ({"policies": ("hpa", "json:make+burst")}, "json:make.*cannot be loaded.*make"),
        ({"seeds": ()}, "seeds"),
        ({"tokens": (1000,)}, "512"),
        ({"seconds": 25.0}, "at least one"),
        ({"warm_up_windows": 0}, "profile"),
    ],
)
def test_a_grid_that_cannot_be_simulated_is_refused_by_name(grid: Grid, change: dict[str, Any], word: str) -> None:
    with pytest.raises(EvaluationError, match=word):
        replace(grid, **change)


def test_the_command_says_what_is_wrong() -> None:
    result = CliRunner().invoke(cli, ["evaluate", "--policies", "best"])
    assert isinstance(result.exception, SmoeError)
    assert "best" in str(result.exception)
    assert CliRunner().invoke(cli, ["evaluate", "--seeds", "one"]).exit_code == 2
    part = CliRunner().invoke(cli, ["evaluate", "--row", "f"])
    assert "none is given (--trace)" in str(part.exception)
    nowhere = CliRunner().invoke(cli, ["evaluate", "--trace", "nowhere", "--workers", "1"])
    assert "neither a file nor a data set that is there; there are: " in str(nowhere.exception)
    prices = CliRunner().invoke(cli, ["evaluate", "--prices", "nowhere.toml"])
    assert prices.exit_code == 2 and "price sheet nowhere.toml cannot be read" in " ".join(prices.output.split())
    for option in ("--plans", "--policy-settings"):
        outcome = CliRunner().invoke(cli, ["evaluate", option, "no-such-folder"])
        assert outcome.exit_code == 2 and "no-such-folder" in outcome.output


@pytest.mark.slow
def test_runs_of_other_code_or_prices_are_simulated_again_which_is_logged_once(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = replace(grid, policies=("static",), bound=False)

    def said(changed: Grid) -> tuple[list[dict[str, Any]], list[str]]:
        caplog.clear()
        runs = evaluate(changed, tmp_path, workers=1)
        return runs, [record.message for record in caplog.records if record.name == "smoe.evaluate"]

    first, nothing = said(one)
    assert not nothing and len(first) == 2
    monkeypatch.setattr("evaluation.comparison.grid.code_sha256", lambda *entry_points: "another")
    again, lines = said(one)
    assert lines == [f"{tmp_path}: stored runs were made by other code; they are simulated again"]
    assert {run["code_sha256"] for run in again} == {"another"} and "another" not in {
        run["code_sha256"] for run in first
    }
    assert said(one) == (again, [])
    sheet = load_prices(PAPER_PRICES)
    twice = replace(
        sheet, **{key: 2 * getattr(sheet, key) for key in ("cpu_core_s", "memory_gib_s", "gpu_s")}, name="2"
    )
    dear, lines = said(replace(one, prices=twice))
    assert lines == [f"{tmp_path}: stored runs were made with other prices; they are simulated again"]
    for before, after in zip(again, dear, strict=True):
        assert after["prices"] == "2" and after["p95_over_slo"] == before["p95_over_slo"]
        assert after["provisioned"] == pytest.approx(2 * before["provisioned"])
    assert said(replace(one, prices=twice, warm_up_windows=3))[1] == []  # asked for, so no news


def test_a_stored_run_that_is_no_json_is_named(grid: Grid, tmp_path: Path) -> None:
    one = replace(grid, seeds=(0,), policies=("static",), bound=False)
    evaluate(one, tmp_path, workers=1)
    broken = next((tmp_path / "runs").glob("*.json"))
    broken.write_text("{")
    with pytest.raises(EvaluationError, match=broken.name):
        evaluate(one, tmp_path, workers=1)

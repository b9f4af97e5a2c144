"""What the closed loop's benchmark concludes from its runs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest

from benchmarks.closed_loop import contenders
from benchmarks.closed_loop.__main__ import (
    Setting,
    cheapest,
    half_width,
    metrics,
    print_policies,
    recorded,
    steady_replicas,
    summaries,
)
from benchmarks.closed_loop.contenders import BURST, CPU_TARGET, check_names, contender, turns
from benchmarks.closed_loop.runs import Outcome, Run, call_cpu_ms, windows_over
from traces import generate

SETTING = Setting(600.0, 10.0, 0.01, 10.0, 2.0, 1.7, None, None, 0, False, "this")


def cell(policy: str, over: float, cost: float, failed: int = 0, repeat: int = 0) -> dict[str, Any]:
    outcome = asdict(Outcome(10.0, 30.0, over, 0.0, cost, 1.0, None, cost, 100, failed, 5))
    simulated = outcome | {"provisioned": 2 * cost}
    met = SETTING.met(policy)
    return {"policy": policy, "repeat": repeat, "measured": outcome, "simulated": simulated, "setting": met}


@pytest.mark.parametrize(
    ("cells", "first"),
    [
        ([cell("smoe", 0.9, 2.0), cell("hpa", 0.9, 3.0)], "smoe"),
        ([cell("smoe", 0.9, 2.0), cell("hpa", 0.9, 1.0)], "hpa"),
        ([cell("smoe", 0.9, 2.0), cell("hpa", 1.1, 1.0)], "smoe"),
        ([cell("smoe", 1.1, 2.0), cell("smoe", 0.9, 2.0), cell("smoe", 0.9, 9.0), cell("hpa", 1.1, 1.0)], "smoe"),
        ([cell("smoe", 1.1, 1.0), cell("hpa", 1.2, 3.0)], None),
        ([cell("smoe", 0.9, 1.0, failed=6), cell("hpa", 0.9, 3.0, failed=5)], "hpa"),
    ],
    ids=["both within", "another", "one within", "median of its repeats", "none within", "too many failed"],
)
def test_the_cheapest_of_those_within_the_target_is_first(cells: list[dict[str, Any]], first: str | None) -> None:
    assert cheapest(cells) == first


def test_a_record_goes_on_with_what_is_asked_for_and_only_under_its_own_setting(tmp_path: Path) -> None:
    file = tmp_path / "cells.jsonl"
    cells = [cell("hpa", 0.9, 1.0), cell("kpa", 0.9, 1.0), cell("hpa", 0.9, 1.0, repeat=2)]
    file.write_text("".join(json.dumps(one) + "\n" for one in cells))
    assert recorded(file, ("hpa", "static"), 2, SETTING) == cells[:1]
    with pytest.raises(click.ClickException, match=r"hpa, repeat 1, met .*'slo_factor': 1\.7.*another --record"):
        recorded(file, ("hpa",), 2, replace(SETTING, slo_factor=2.0))
    with pytest.raises(click.ClickException, match=r"asked for is .*'revision': 'other'"):
        recorded(file, ("hpa",), 2, replace(SETTING, revision="other"))


def test_a_record_does_not_go_on_where_its_policy_has_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps(cell("static-1+burst", 0.9, 1.0)))
    assert recorded(file, ("static-1+burst",), 1, SETTING)
    monkeypatch.setattr(contenders, "BURST", {**BURST, "spare": 0.1})
    with pytest.raises(click.ClickException, match=r"'spare': 0\.3.*asked for is .*'spare': 0\.1"):
        recorded(file, ("static-1+burst",), 1, SETTING)


def test_each_policy_begins_a_repeat_in_its_turn() -> None:
    orders = [turns(("a", "b", "c"), repeat) for repeat in range(4)]
    assert orders == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]


@pytest.mark.parametrize(
    ("name", "replicas"),
    [("hpa", [4, 4, 4]), ("static", [4, 4, 4]), ("static-3", [3, 3, 3]), ("static-by-load-3", [3, 2, 1])],
)
def test_constants_by_load_give_no_replica_more_tokens_than_the_busiest_expert_has(
    name: str, replicas: list[int]
) -> None:
    assert contender(name, 2.0, 4).start((1.0, 0.4, 0.01)) == replicas


def test_all_start_from_the_fewest_replicas_that_keep_the_target() -> None:
    assert steady_replicas(lambda replicas: 2.5 / replicas, 0.8) == 3


@pytest.mark.parametrize(
    ("over", "sentence"), [(0.9, r"800 ms does not bind.*0\.90 of it"), (9.0, r"no number of replicas keeps.*800 ms")]
)
def test_a_target_that_nothing_keeps_or_the_cheapest_does_is_refused(over: float, sentence: str) -> None:
    with pytest.raises(click.ClickException, match=sentence):
        steady_replicas(lambda replicas: over, 0.8)


def test_a_policys_row_has_means_and_intervals_over_its_repeats() -> None:
    rows = summaries([cell("hpa", 1.0, 2.0), cell("hpa", 1.0, 4.0), cell("static", 1.0, 5.0)])
    assert [row["policy"] for row in rows] == ["hpa", "static"] and [row["repeats"] for row in rows] == [2, 1]
    assert (rows[0]["provisioned_measured"], rows[0]["provisioned_simulated"]) == (3.0, 6.0)
    # Two values, 2 apart: t of one degree of freedom (12.706) times the standard error 1.
    assert rows[0]["provisioned_half_width"] == pytest.approx(12.706, abs=1e-3)
    assert rows[1]["provisioned_half_width"] is None
    assert rows[0]["steady_measured"] is None and rows[0]["steady_half_width"] is None


def test_a_run_on_a_full_machine_is_named_under_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell("hpa", 1.0, 2.0), cell("static", 1.0, 2.0)]
    cells[0]["measured"]["full_machine"], cells[1]["measured"]["full_machine"] = 0.2, 0.01
    print_policies(summaries(cells), 1.0)
    assert "5% of the seconds of hpa: such a run judges the machine" in capsys.readouterr().out


def test_equal_repeats_have_no_width() -> None:
    assert half_width(np.array([3.0, 3.0, 3.0])) == 0.0


def test_a_name_of_no_policy_is_refused_before_anything_is_started() -> None:
    check_names(("staffing", "static", "static-3", "static-by-load-4", "hpa", "mine.py:make"))
    for name in ("stafing", "static-0", "by-load"):
        with pytest.raises(click.BadParameter, match=f"no policy '{name}'; allowed are static, hpa"):
            check_names(("hpa", name))


def test_a_name_with_burst_is_the_same_policy_with_standbys() -> None:
    plain, bursting = contender("hpa", 2.0, 3), contender("hpa+burst", 2.0, 3)
    assert bursting == replace(plain, replicas=1, table={**plain.table, "cpu_target": CPU_TARGET, "burst": BURST})
    assert contender("static-2+burst", 2.0, 3) == replace(contender("static-2", 2.0, 3), table={"burst": BURST})
    check_names(["hpa+burst", "static-2+burst"])
    with pytest.raises(click.BadParameter, match="no policy 'nobody\\+burst'"):
        check_names(["nobody+burst"])


def test_a_prometheus_that_cannot_be_had_is_named_with_what_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    served: Any = SimpleNamespace(
        client=SimpleNamespace(url=""), gateway=SimpleNamespace(settings=SimpleNamespace(state=Path()))
    )
    with (
        pytest.raises(click.ClickException, match="no Prometheus is on PATH; --no-prometheus"),
        metrics(replace(SETTING, prometheus=True), served),
    ):
        pass
    with metrics(SETTING, served) as address:
        assert address is None


@pytest.mark.parametrize(
    ("sent_s", "ends_s", "answered", "over"),
    [
        ([0.0, 4.5], [0.1, 4.9], [True, True], [False, False]),
        ([0.0, 0.1], [0.1, 9.0], [True, True], [False, True, True, True, True]),
        ([0.5, 4.5], [2.5, 4.9], [False, True], [True, True, False]),
    ],
    ids=["nothing waits in between", "one waits and is late", "one waits and fails"],
)
def test_a_window_in_which_requests_wait_or_fail_without_an_answer_is_over(
    tmp_path: Path, sent_s: list[float], ends_s: list[float], answered: list[bool], over: list[bool]
) -> None:
    run = Run(generate.synthetic(3, 2.0, 0.5, 0), (), 1, 1.0, 2.0, 1.0, tmp_path, 0, 120.0, 30.0)
    assert windows_over(run, np.array(sent_s), np.array(ends_s), np.array(answered)) == over


def test_cpu_time_is_of_the_experts_calls_in_windows_with_readings() -> None:
    def node(kind: str, cpu_s: float | None, requests_per_s: float | None) -> SimpleNamespace:
        return SimpleNamespace(kind=kind, cpu_s=cpu_s, requests_per_s=requests_per_s)

    windows = [
        (2.0, [node("expert", 0.03, 5.0), node("expert", 0.01, 0.0), node("segment", 9.0, 5.0)]),
        (1.0, [node("expert", 0.02, 10.0), node("expert", None, 50.0), node("expert", 0.5, None)]),
    ]
    reports: list[Any] = [
        SimpleNamespace(observation=SimpleNamespace(window_s=window_s, nodes=nodes)) for window_s, nodes in windows
    ]
    assert call_cpu_ms(reports) == pytest.approx(1000 * 0.06 / 20)
    assert call_cpu_ms([]) is None

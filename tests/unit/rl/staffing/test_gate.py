"""The gate before an actor is published: what it has to beat, and which runs it takes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from autoscaler.policy.static import StaticPolicy
from benchmarks.agent import __main__ as gate
from benchmarks.agent.opponents import Opponent, best_rule, from_start
from benchmarks.agent.replayed import Replayed, under, variety
from benchmarks.agent.trained import Trained, ValidationHour, read
from rl.episodes import Clip
from rl.staffing.settings import StaffingSettings
from rl.staffing.training import train
from tests.unit.rl.staffing.test_env import episodes
from tests.unit.rl.staffing.test_training import tiny

CLIP = Clip("bert-4", "normal", 0, "validation", 30.0)


def replayed(cost: float, over: int) -> Replayed:
    """Three windows with three configurations each, at a time and one after the other."""
    decided = [np.arange(15).reshape(3, 5) + 100 * window for window in range(3)]
    return Replayed(CLIP, cost * 90 / 3600, 3, over, decided)


def test_an_actor_passes_only_where_it_beats_the_best_constant_and_the_best_rule() -> None:
    def passed(constant: Opponent, rule: Opponent) -> bool:
        return bool(gate.row_of([replayed(2.0, 1)], constant, constant, rule)["passed"])

    cheaper, dearer, kept = Opponent("staffing", 1.9, 1), Opponent("staffing", 2.1, 1), Opponent("staffing", 2.1, 0)
    assert passed(dearer, dearer)
    for constant, rule in ((cheaper, dearer), (dearer, cheaper), (kept, dearer), (dearer, kept)):
        assert not passed(constant, rule)
    row = gate.row_of([replayed(2.0, 1)], dearer, dearer, cheaper)
    assert row["cheaper_than_best_rule"] == pytest.approx(1 - 2 / 1.9, abs=1e-4)
    assert row["over"] == {"actor": 1, "constant": 1, "constant_of_rate": 1, "best_rule": 1}


def test_standbys_count_as_configurations() -> None:
    same = np.zeros((2, 3, 5), dtype=int)
    assert variety(same) == {"across_experts": 1.0, "across_windows": 1.0}
    same[:, 1, 4], same[1, :, 4] = 2, 3
    assert variety(same) == {"across_experts": 1.5, "across_windows": 2.0}


def run_of(hours: dict[str, list[ValidationHour]]) -> Trained:
    return Trained("staffing-learnt", Path(), hours, 1, "provisioned", None, 0)


def test_what_is_held_costs_its_price_on_either_meter_and_rules_are_compared_on_the_same_hour() -> None:
    hour = ValidationHour(CLIP, lambda: next(episodes()), None)  # type: ignore[arg-type]
    episode = from_start(hour.begin())
    experts = {node.function: episode.present[node.function] for node in episode.workload.experts}
    price = sum(one.replicas * episode.workload.prices.unit_per_s(one) for one in experts.values())
    run = run_of({})
    held = under(StaticPolicy(experts), episode, CLIP, run)
    assert held.per_hour == pytest.approx(3600 * price) and len(held.decided) == 3
    busy = under(StaticPolicy(experts), from_start(hour.begin()), CLIP, Trained(**{**vars(run), "meter": "busy"}))
    assert 0 < busy.per_hour < held.per_hour and busy.over == held.over
    rule = best_rule(run, [hour])
    assert rule.name in ("hpa", "hpa+burst", "staffing") and rule.cost > 0


def test_a_run_of_several_workloads_has_a_row_for_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hour = ValidationHour(CLIP, lambda: None, None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(gate, "read", lambda folder, hours: run_of({"bert-4": [hour], "bert-6": [hour]}))
    monkeypatch.setattr(gate, "replay", lambda run, hours: ([replayed(2.0, 0)], 0.01))
    monkeypatch.setattr(gate, "best_constant", lambda run, hours, trials: Opponent("constant", 3.0, 0))
    monkeypatch.setattr(gate, "best_rule", lambda run, hours: Opponent("hpa", 2.5, 2))
    shown = CliRunner().invoke(gate.main, ["--run", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    last: dict[str, Any] = json.loads(shown.output.splitlines()[-1])
    names = ["bert-4 normal", "bert-6 normal"]
    assert list(last["gate"]) == names and last["cheaper_than_best_rule"] == dict.fromkeys(names, 0.2)
    assert last["windows_over"]["bert-6 normal"]["best_rule"] == 2 and last["passed"]


def test_a_folder_without_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    shown = CliRunner().invoke(gate.main, ["--run", str(tmp_path)])
    assert shown.exit_code == 1 and "has no run.json" in shown.output


def test_settings_come_back_from_json() -> None:
    settings = tiny()
    assert StaffingSettings.from_json(json.loads(json.dumps(asdict(settings)))) == settings


@pytest.mark.slow
def test_a_run_of_train_staffing_goes_through_the_gate(tmp_path: Path) -> None:
    (tmp_path / "no-traces").mkdir()
    train(tiny(), tmp_path / "run", tmp_path / "no-traces")
    run = read(tmp_path / "run", 1)
    assert run.policy == "staffing-learnt" and list(run.hours) == ["bert-4"]
    shown = CliRunner().invoke(gate.main, ["--run", str(tmp_path / "run"), "--hours", "1", "--trials", "3"])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    last = SimpleNamespace(**json.loads(shown.output.splitlines()[-1]))
    assert last.policy == "staffing-learnt" and last.opponent == "constant-per-expert+burst"
    assert set(last.gate) == set(last.cheaper_than_constant) == set(last.windows_over) and last.seconds > 0

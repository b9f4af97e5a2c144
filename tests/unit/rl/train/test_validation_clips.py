"""Which clips validation judges on: without public traces, and where a cluster cannot keep a workload's SLO."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rl.episodes import Clip, work_of
from rl.train.commands import train
from rl.train.errors import TrainingError
from rl.train.validation import MOST_TRIED, MOST_UNSERVED, Validator
from tests.unit.rl.train.test_rounds import SETTINGS
from traces.traffic import REPLAYED_PATTERNS

NO_TRACES = Path(__file__).parent
"""A folder without public traces: arrivals are made."""
BOTH = replace(SETTINGS, workloads=("bert-4", "gpt2-4"))


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """(workload, pattern) in which no configuration keeps λ; :data:`Validator._served` without its search of seconds,
    and how often it was asked in ``Validator.asked``."""
    none_keeps: set[tuple[str, str]] = set()
    asked: Counter[tuple[str, str]] = Counter()

    def served(self: Validator, clip: Clip) -> bool:
        asked[clip.workload, clip.pattern] += 1
        return (clip.workload, clip.pattern) not in none_keeps

    monkeypatch.setattr(Validator, "_served", served)
    monkeypatch.setattr(Validator, "asked", asked, raising=False)
    return none_keeps


def test_without_public_traces_validation_is_of_arrivals_that_training_never_sees_and_notes_it(
    tmp_path: Path, unserved: set[tuple[str, str]]
) -> None:
    validator = Validator(SETTINGS, tmp_path, NO_TRACES)
    clips = validator.clips["bert-4"]
    assert [clip.pattern for clip in clips] == list(REPLAYED_PATTERNS)
    assert {clip.split for clip in clips} == {"validation"}
    for clip in clips:
        judged, trained = validator.work(clip), work_of(replace(clip, split="train"), NO_TRACES)
        assert "synthetic" in judged.requests.source and "synthetic" in trained.requests.source
        assert not np.array_equal(judged.requests.arrival_s, trained.requests.arrival_s)
        assert judged.seed != trained.seed
    (note,) = validator.notes()
    assert note.startswith("no public traces here: training and validation hours are both synthetic")


@pytest.mark.slow
def test_each_workload_is_heard_of_when_its_clips_are_chosen(tmp_path: Path, unserved: set[tuple[str, str]]) -> None:
    unserved |= {("gpt2-4", pattern) for pattern in REPLAYED_PATTERNS}
    heard: list[tuple[str, int]] = []
    validator = Validator(BOTH, tmp_path, NO_TRACES, lambda workload, clips: heard.append((workload, clips)))
    assert heard == [("bert-4", len(validator.clips["bert-4"])), ("gpt2-4", 0)]


def test_with_public_traces_there_is_nothing_to_note(
    tmp_path: Path, unserved: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    validator = Validator(SETTINGS, tmp_path, NO_TRACES)
    monkeypatch.setattr("rl.train.validation.has_sources", lambda data: data is None)
    validator.data = None
    assert validator.notes() == []


@pytest.mark.slow
def test_a_workload_whose_slo_nothing_keeps_is_left_out_and_named(
    tmp_path: Path, unserved: set[tuple[str, str]]
) -> None:
    unserved |= {("gpt2-4", pattern) for pattern in REPLAYED_PATTERNS}
    validator = Validator(BOTH, tmp_path, NO_TRACES)
    assert set(validator.clips) == {"bert-4"} and len(validator.clips["bert-4"]) == len(REPLAYED_PATTERNS)
    assert {validator.asked["gpt2-4", pattern] for pattern in REPLAYED_PATTERNS} == {MOST_UNSERVED}
    assert "left out: gpt2-4: no configuration" in validator.notes()[-1]
    assert [kind.name for kind in validator.trained] == ["bert-4"]


@pytest.mark.slow
def test_a_pattern_that_nothing_keeps_is_left_out_and_named(tmp_path: Path, unserved: set[tuple[str, str]]) -> None:
    unserved.add(("bert-4", "bursty"))
    validator = Validator(BOTH, tmp_path, NO_TRACES)
    assert {clip.pattern for clip in validator.clips["bert-4"]} == {*REPLAYED_PATTERNS} - {"bursty"}
    assert {clip.pattern for clip in validator.clips["gpt2-4"]} == {*REPLAYED_PATTERNS}
    assert MOST_UNSERVED < validator.asked["bert-4", "bursty"] <= MOST_TRIED
    assert "left out: bert-4 (bursty): " in validator.notes()[-1]
    assert [kind.name for kind in validator.trained] == ["bert-4", "gpt2-4"]
    judged = validator.judge(lambda episodes, states: [state.present for state in states])
    assert len(judged.clips) == 2 * len(REPLAYED_PATTERNS) - 1


@pytest.mark.slow
def test_with_no_workload_left_training_ends_with_what_would_help(
    tmp_path: Path, unserved: set[tuple[str, str]]
) -> None:
    unserved |= {(name, pattern) for name in BOTH.workloads for pattern in REPLAYED_PATTERNS}
    with pytest.raises(TrainingError, match=r"bert-4, gpt2-4: .*--relative-slo .*; nothing is left to validate on"):
        Validator(BOTH, tmp_path, NO_TRACES)


@pytest.mark.slow
def test_a_run_of_seconds_in_a_clone_without_traces_stores_an_actor_and_states_what_it_was_judged_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the real search: the cluster's eight GPUs are too few for six layers of twelve experts within 80 ms."""
    monkeypatch.delenv("SMOE_TRACES", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rl.train.validation.REPLAYED_PATTERNS", ("slow",))
    arguments = ["--workload", "bert-4", "--workload", "bert-6", "--minutes", "60", "--out", "run"]
    arguments += ["--set", "validation.seconds=300.0", "--set", "variants=[]", "--episode-windows", "4"]
    done = CliRunner().invoke(train, [*arguments, "--warm-start", "0", "--windows", "8"])
    assert done.exit_code == 0, done.output
    shown = " ".join(done.stderr.split())
    assert "training and validation hours are both synthetic" in shown
    assert "left out: bert-6: no configuration, the same for all experts, was found" in shown
    clips = [json.loads(line) for line in (tmp_path / "run" / "clips.jsonl").read_text().splitlines()]
    assert {clip["workload"] for clip in clips} == {"bert-4"}
    assert (tmp_path / "run" / "actor.safetensors").is_file() and "best score" in done.stdout

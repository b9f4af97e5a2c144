"""What is recommended: the simplest way that comes near the cheapest, in numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from evaluation.regimes import commands
from evaluation.regimes.advice import NAMES, advice
from evaluation.regimes.commands import advise
from evaluation.regimes.ways import Ways, ways

SAME = Ways(10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, judged=5, unmet=0, changes=0.0, burst="")


@pytest.mark.parametrize(
    ("ways", "way"),
    [
        pytest.param(SAME, "constant", id="nothing saves anything"),
        pytest.param(replace(SAME, window_per_expert_burst=9.6), "constant", id="4 % are not worth scaling"),
        pytest.param(
            replace(SAME, constant_per_expert=7.0, constant_per_expert_burst=6.9), "constant_per_expert", id="own"
        ),
        pytest.param(
            replace(SAME, constant_burst=5.0, constant_per_expert_burst=4.9, window_per_expert_burst=4.8),
            "constant_burst",
            id="bursts",
        ),
        pytest.param(replace(SAME, window=6.0, window_per_expert=5.9), "window", id="windows, one for all"),
        pytest.param(replace(SAME, window_per_expert=4.0, window_per_expert_burst=4.0), "window_per_expert", id="each"),
        pytest.param(replace(SAME, constant=None, constant_per_layer=None), "constant_per_expert", id="none for all"),
    ],
)  # fmt: skip
def test_the_simplest_way_near_the_cheapest_is_recommended(ways: Ways, way: str) -> None:
    recommended = advice(ways, "USD")
    assert recommended.way == way
    assert recommended.sentences[0].lower().startswith(NAMES[way])
    assert f": ${getattr(ways, way):#.3g} an hour" in recommended.sentences[0]


def test_bounds_and_windows_that_nothing_keeps_are_named() -> None:
    sentences = " ".join(advice(replace(SAME, window_per_expert=4.0, unmet=3), "USD").sentences)
    assert "60% less than one constant" in sentences
    assert "knows each window beforehand" in sentences and "3 of 8 windows" in sentences


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s\n" + "".join(f"{i * 0.25}\n" for i in range(36)))
    return path


def call(trace: Path, *more: str) -> Result:
    return CliRunner().invoke(advise, ["--trace", str(trace), "--window", "3", *more])


@pytest.mark.slow
def test_a_trace_gets_an_answer_for_people_and_as_json(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[Ways | None] = []

    def once(*given: Any) -> Ways | None:
        simulated.extend([ways(*given)] if not simulated else [])
        return simulated[0]

    monkeypatch.setattr(commands, "ways", once)
    options = ("--workload", "bert-4", "--world", "cores-only", "--relative-slo", "3")
    answer = json.loads(call(trace, *options, "--json").stdout)
    assert answer["simulated"] and answer["way"] in NAMES and answer["judged"] + answer["unmet"] == 2
    assert answer["window_per_expert_burst"] <= answer["window_per_expert"] <= answer["window"] <= answer["constant"]
    people = call(trace, *options)
    assert people.exit_code == 0 and answer["sentences"][0] in people.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--workload", "bert-4", "--slo-ms", "1"), "1 ms"),
        ((), "--workload"),
        (("--workload", "bert-4", "--windows", "1"), "--windows"),
        (("--workload", "bert-4", "--window", "60"), "after the first window"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_a_sentence(trace: Path, options: tuple[str, ...], sentence: str) -> None:
    refused = call(trace, *options)
    assert refused.exit_code != 0 and sentence in refused.output and "Traceback" not in refused.output


@pytest.mark.slow
def test_a_pipeline_on_one_machine_gets_an_answer(trace: Path, minilm_pipeline: Path) -> None:
    options = ("--pipeline", str(minilm_pipeline), "--slo-ms", "400", "--cpu-scale", "0.015", "--other-machine")
    answer = json.loads(call(trace, *options, "--speed", "1", "--mean-rps", "0", "--json").stdout)
    assert answer["way"] in NAMES
    with_standbys, without = answer["constant_burst"], answer["constant"]
    assert without is None or with_standbys <= without
    assert bool(answer["burst"]) == (with_standbys is not None and (without is None or with_standbys < without))

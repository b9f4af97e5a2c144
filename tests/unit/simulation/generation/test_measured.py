"""Times fitted to a decoder's iterations: a known instance is found again, and simulated as it is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from functions.scheduling.settings import SchedulingError, Targets
from simulation.generation.engine import Request
from simulation.generation.measured import FitError, Measured, Sample, chunks, errors, fit
from simulation.generation.replayed import simulate
from simulation.profiles.generation.measure import Settings
from simulation.profiles.generation.storage import GenerationProfile, load, save
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.errors import ProfileError
from smoe.cli import cli

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TRUE = Measured(
    KNOTS, tuple(0.05 + 0.003 * knot**0.9 for knot in KNOTS), 0.002, 1e-5, 3e-7, 0.004, (1.0, 1.0), 256, 50_000
)
TARGETS = Targets(1.0, 0.2)


def samples_of(true: Measured, noise: float = 0.0, seed: int = 0, repeats: int = 1) -> list[Sample]:
    """What measuring ``true`` would give, each time off by a part of about ``noise``."""
    drawn = np.random.default_rng(seed)
    settings, samples = Settings(), []
    for _ in range(repeats):
        samples += [Sample(0, n, true.prefill_s(n) + true.front_s) for n in settings.prompts]
        samples += [
            Sample(texts, texts * (n + step), true.iteration(texts, texts * (n + step), ()))
            for texts, n in settings.decodes
            for step in range(settings.tokens)
        ]
    return [replace(one, seconds=one.seconds * float(np.exp(noise * drawn.standard_normal()))) for one in samples]


def test_an_instance_is_found_again_in_iterations_that_were_not_measured() -> None:
    found = fit(samples_of(TRUE), 256, 50_000)
    assert max(errors(found, samples_of(TRUE)).values()) < 0.01
    for decodes, context, parts in ((3, 900, []), (6, 1200, [(0, 100)]), (12, 3000, [(256, 200), (0, 44)])):
        assert found.iteration(decodes, context, parts) == pytest.approx(
            TRUE.iteration(decodes, context, parts), rel=0.06
        )


def test_noise_in_what_was_measured_becomes_jitter_and_no_bias() -> None:
    found = fit(samples_of(TRUE, noise=0.1, repeats=5), 256, 50_000)
    assert found.jitter[2] == pytest.approx(np.exp(0.1 * -1.28), abs=0.05)
    assert found.jitter[-3] == pytest.approx(np.exp(0.1 * 1.28), abs=0.05)
    drawing = found.drawing(1)
    drawn = [drawing.iteration(4, 400, ()) for _ in range(2000)]
    assert np.mean(drawn) == pytest.approx(TRUE.iteration(4, 400, ()), rel=0.05)
    assert [found.drawing(1).iteration(4, 400, ()) for _ in range(3)] == drawn[:1] * 3


def test_a_fit_needs_prompts_and_decodes_of_several_sizes() -> None:
    with pytest.raises(FitError, match="three lengths"):
        fit([Sample(0, 10, 0.1), Sample(1, 10, 0.1)], 256, 1000)


def test_lone_requests_take_their_iterations_and_what_comes_before_them() -> None:
    outcome = simulate([Request(0.0, 300, 4)], TRUE, TARGETS)
    assert chunks(300, 256) == [(0, 256), (256, 44)]
    assert outcome.ttft_s == pytest.approx([TRUE.prefill_s(300) + TRUE.front_s], rel=1e-6)
    steps = [TRUE.iteration(1, 301 + step, ()) for step in range(3)]
    assert outcome.tpot_s == pytest.approx([np.mean(steps)], rel=1e-6)


def test_a_prompt_shares_iterations_with_those_that_decode() -> None:
    outcome = simulate([Request(0.0, 16, 6), Request(0.01, 255, 2)], TRUE, TARGETS)
    mixed = TRUE.iteration(1, 17, [(0, 255)])
    assert outcome.ttft_s[1] == pytest.approx(TRUE.prefill_s(16) + mixed - 0.01 + TRUE.front_s, rel=1e-6)


def test_schedules_with_roles_need_two_instances() -> None:
    with pytest.raises(SchedulingError, match="two instances"):
        simulate([Request(0.0, 5, 5)], TRUE, TARGETS, "arrow")
    outcome = simulate([Request(0.1 * at, 50, 5) for at in range(20)], TRUE, TARGETS, "arrow", 3)
    assert outcome.lost == 0


def test_by_what_is_due_one_instance_gives_prompts_the_room_that_decodes_leave() -> None:
    requests = [Request(0.0, 16, 40), Request(0.01, 2000, 2)]
    alone_s = TRUE.iteration(1, 100, ())
    tight = Targets(TARGETS.ttft_s, 2 * alone_s)
    paced, whole = (simulate(requests, TRUE, tight, schedule) for schedule in ("deadline", "colocated"))
    assert paced.tpot_s[0] <= tight.tpot_s < whole.tpot_s[0]
    assert paced.lost == 0 and paced.ttft_s[1] > whole.ttft_s[1]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    samples = samples_of(TRUE, noise=0.05)
    found = fit(samples, 256, 50_000)
    path = tmp_path / "decoder.parquet"
    facts = ("tiny", "0" * 64, this_machine(), found, errors(found, samples), "2026-01-01T00:00:00+00:00", 0.1)
    save(GenerationProfile(*facts, tuple(samples)), path)
    return path


def test_a_profile_is_read_as_it_was_written(stored: Path) -> None:
    profile = load(stored)
    assert profile.measured == fit(profile.samples, 256, 50_000)
    assert profile.machine == this_machine() and profile.pipeline == "tiny"


def test_what_is_no_profile_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="does not exist"):
        load(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(ProfileError, match="not a parquet file"):
        load(tmp_path / "text.parquet")
    with pytest.raises(ProfileError, match="no profile of a decoder"):
        load(Path("simulation/profiles/data/minilm-epyc-2.6ghz-2-cores.parquet"))


def test_lab_replay_simulates_a_trace_and_reports_as_the_live_one(stored: Path) -> None:
    asked = ["lab", "replay", str(stored), "--trace", "made-llm", "--length-divisor", "8", "--ttft-ms", "2000"]
    result = CliRunner().invoke(cli, [*asked, "--json"], env={"SMOE_TRACES": ""})
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert summary["simulated"] is True and summary["lost"] == 0
    assert 0 < summary["ttft_s"]["p50"] <= summary["ttft_s"]["p99"] and 0 <= summary["goodput"] <= 1
    again = CliRunner().invoke(cli, [*asked, "--json"], env={"SMOE_TRACES": ""})
    assert again.output == result.output
    table = CliRunner().invoke(cli, asked, env={"SMOE_TRACES": ""})
    assert "TTFT" in table.output and "goodput" in table.output


def test_lab_replay_refuses_what_cannot_be_simulated(stored: Path) -> None:
    asked = ["lab", "replay", str(stored), "--trace", "made-llm", "--schedule", "arrow"]
    result = CliRunner().invoke(cli, asked, env={"SMOE_TRACES": ""})
    assert result.exit_code != 0 and "two instances" in str(result.exception or result.output)

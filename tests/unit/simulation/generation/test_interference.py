"""What a busy neighbour costs: medians of turns, CPU time of a tree of processes, and what a simulation makes of it."""

from __future__ import annotations

import json
import os
import time

import pytest
from click.testing import CliRunner

from benchmarks.arrow import interference
from simulation.profiles.generation.interference import Turn, cpu_of, measure_interference, slowdown
from simulation.profiles.generation.measure import Decoder
from simulation.profiles.model.errors import ProfileError


def test_slowdowns_are_medians_of_ratios_within_a_repeat_and_at_least_one() -> None:
    alone = [1.0, 2.0, 4.0]
    turns = [Turn(own, None, cpu, 2 * cpu) for own in ("prefill", "decode") for cpu in alone]
    factors = {("prefill", "prefill"): 1.5, ("prefill", "decode"): 0.9, ("decode", "prefill"): 1.2}
    for (own, other), factor in {**factors, ("decode", "decode"): 1.1}.items():
        turns += [Turn(own, other, cpu * factor, cpu) for cpu in alone]
    turns[-1] = Turn("decode", "decode", 100.0, 1.0)  # one outlier moves no median
    assert slowdown(turns) == pytest.approx((1.5, 1.0, 1.2, 1.1))
    assert slowdown(turns, lambda turn: turn.wall_s) == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.slow
def test_the_cpu_time_of_a_process_and_its_children_counts_work_and_not_waiting() -> None:
    begun_s = cpu_of(os.getpid())
    time.sleep(0.2)
    waited_s = cpu_of(os.getpid()) - begun_s
    end_s = time.process_time() + 0.2
    while time.process_time() < end_s:
        pass
    assert waited_s < 0.1
    assert cpu_of(os.getpid()) - begun_s - waited_s == pytest.approx(0.2, abs=0.1)


def test_what_does_not_answer_is_refused_in_a_sentence() -> None:
    nobody = Decoder("http://127.0.0.1:1", "none", 10, 512)
    with pytest.raises(ProfileError, match="cannot be measured"):
        measure_interference(nobody, nobody, lambda: 0.0, 1)


@pytest.mark.slow
def test_the_command_compares_schedules_with_and_without_it() -> None:
    result = CliRunner().invoke(interference.main, ["--requests", "30"], env={"SMOE_TRACES": ""})
    assert result.exit_code == 0, result.output
    last = json.loads(result.output.splitlines()[-1])
    for cases in last["requests_s"].values():
        alone, twice = cases["alone"], cases["decodes next to prompts twice as long"]
        assert all(0 < twice[which] <= alone[which] for which in alone)
        assert twice["deadline"] < alone["deadline"]
    wrong = CliRunner().invoke(interference.main, ["--slowdown", "1,2"], env={"SMOE_TRACES": ""})
    assert "takes four numbers, got 2" in wrong.output

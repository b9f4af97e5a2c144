"""How far above the work a measured pipeline is staffed: less while P95 keeps λ, more after a window over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from autoscaler.contract import Burst, Observation
from rl.staffing.env import StaffingEnv
from rl.staffing.hours import encoder_of
from rl.staffing.margin import BACK, NUMBERS, START, STEPS, WINDOWS, Margin
from rl.staffing.policy import Remembered, StaffingRule
from rl.staffing.work import Work
from tests.unit.autoscaler import builders
from tests.unit.rl.staffing.test_env import VALUES, episodes

SLO_S = 2.0
VIEW = builders.observation({})


def after(over_slo: Sequence[float | None], margin: Margin | None = None) -> Margin:
    """What windows with these P95 over λ leave of the first margin, or of ``margin``."""
    margin = margin or Margin()
    for times in over_slo:
        p95_s = None if times is None else times * SLO_S
        margin = margin.after(replace(VIEW, latency_p95_s=p95_s), SLO_S)
    return margin


def test_it_is_given_up_a_step_at_a_time_while_p95_keeps_the_slo() -> None:
    assert [START - after([0.5] * count).size for count in (0, WINDOWS - 1, WINDOWS, 2 * WINDOWS)] == [0, 0, 1, 2]
    assert after([0.5] * WINDOWS * (START + 2)).size == 0


def test_a_window_close_to_the_slo_keeps_it_for_as_many_again() -> None:
    close = after([0.5] * (WINDOWS - 1) + [0.95])
    assert close.size == START and after([0.5] * (WINDOWS - 1), close).size == START
    assert after([0.5] * WINDOWS, close).size == START - 1


@pytest.mark.parametrize(("times", "steps"), [(0.9, 0), (1.0, 0), (1.01, BACK), (50.0, BACK)])
def test_it_grows_by_two_steps_in_the_second_window_over_the_slo(times: float, steps: int) -> None:
    assert after([times], Margin(1)).size == 1
    assert after([times, times], Margin(1)).size == 1 + steps
    assert after([times, times], Margin(STEPS - 1)).size == STEPS - 1 + bool(steps)
    assert after([times, 0.5, times, 0.5, times], Margin(1)).size == 1


def test_windows_without_answers_and_stale_ones_say_nothing() -> None:
    half = after([0.2] * (WINDOWS // 2))
    assert after([None] * WINDOWS, half) == half
    stale: Observation = replace(VIEW, stale=True, latency_p95_s=9 * SLO_S)
    assert half.after(stale, SLO_S) == half


@pytest.mark.parametrize(("size", "place"), [(0, 0), (START, 1), (STEPS, 2)])
def test_the_numbers_are_those_of_the_ends_and_of_the_start(size: int, place: int) -> None:
    assert Margin(size).numbers == {name: values[place] for name, values in NUMBERS.items()}


def test_a_larger_margin_never_wants_fewer_replicas() -> None:
    """At any rate that all look-backs show alike."""
    numbers = [Margin(size).numbers for size in range(STEPS + 1)]
    bursts = [Burst(round(one.pop("standbys")), **one) for one in numbers]
    wanted = [one.wanted(np.geomspace(1, 1e4), 0.01) for one in bursts]
    assert all((more >= less).all() for less, more in pairwise(wanted))
    assert (wanted[-1] > wanted[0])[wanted[0] > 1].all()
    for others in ([one.hold_s for one in bursts], [one.standbys for one in bursts]):
        assert others == sorted(others)


def test_another_policys_memory_is_none() -> None:
    assert Remembered.of({"hpa": 1}) == Remembered.of(None) == Remembered(Work(), Margin(START))


@pytest.mark.parametrize("measured", [True, False])
def test_the_rule_on_a_measured_pipeline_takes_its_numbers_from_it_but_for_those_that_were_given(
    measured: bool,
) -> None:
    env = StaffingEnv(episodes())
    env.reset()
    view = replace(env.episode.observation, latency_p95_s=0.1 * env.episode.workload.slo_s)
    workload = replace(env.episode.workload, measured=measured)
    rule = StaffingRule(workload, encoder_of(workload), {**VALUES, "hold_s": 2.0}, following=("spare", "look_back_s"))
    memory, orders = None, []
    for _ in range(START * WINDOWS):
        proposal = rule.propose(view, view.end_s, memory)
        memory = proposal.memory
        orders.append({(b.look_back_s, b.spare, b.hold_s) for one in proposal.desired.values() if (b := one.burst)})
    first = (NUMBERS["look_back_s"][1], NUMBERS["spare"][1], 2.0)
    least = (NUMBERS["look_back_s"][0], NUMBERS["spare"][0], 2.0)
    given = (VALUES["look_back_s"], VALUES["spare"], 2.0)
    assert (orders[0], orders[-1]) == (({first}, {least}) if measured else ({given}, {given}))

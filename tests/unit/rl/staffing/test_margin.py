"""How far above the work a measured pipeline is staffed: less while P95 keeps λ, more after a window over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Burst, Observation
from autoscaler.policy.work import Work
from rl.staffing.action import burst_of
from rl.staffing.env import StaffingEnv
from rl.staffing.hours import encoder_of
from rl.staffing.margin import AGAIN, BACK, LONGEST, NUMBERS, QUICK, RULE, START, STEPS, WINDOWS, Margin
from rl.staffing.policy import Remembered, StaffingRule
from tests.unit.autoscaler import builders
from tests.unit.rl.staffing.test_env import VALUES, episodes

SLO_S = 2.0
VIEW = builders.observation({})


QUIET, BUSY = 100.0, 800.0
"""Tokens a second, three levels apart."""


def seen(windows: Sequence[tuple[float, float | None]], margin: Margin | None = None) -> Margin:
    """What windows of (tokens a second, P95 over λ) leave of the first margin, or of ``margin``."""
    margin = margin or Margin()
    for tokens_per_s, times in windows:
        p95_s = None if times is None else times * SLO_S
        margin = margin.after(replace(VIEW, tokens_per_s=tokens_per_s, latency_p95_s=p95_s), SLO_S)
    return margin


def after(over_slo: Sequence[float | None], margin: Margin | None = None) -> Margin:
    """The same of quiet windows alone."""
    return seen([(QUIET, times) for times in over_slo], margin)


@pytest.mark.parametrize(("times", "windows"), [(0.8, 24), (0.75, 23), (0.5, 15), (0.1, 15)])
def test_it_is_given_up_a_step_at_a_time_the_sooner_the_further_p95_is_within_the_slo(
    times: float, windows: int
) -> None:
    counts = (0, windows - 1, windows, 2 * windows, (START + 2) * windows)
    assert [START - after([times] * count).size for count in counts] == [0, 0, 1, 2, START]


def test_a_window_close_to_the_slo_keeps_it_for_as_many_again() -> None:
    close = after([0.5] * 14 + [0.95])
    assert close.size == START and after([0.5] * 14, close).size == START
    assert after([0.5] * 15, close).size == START - 1


@pytest.mark.parametrize(("times", "steps"), [(0.9, 0), (1.0, 0), (1.01, BACK), (50.0, BACK)])
def test_it_grows_by_two_steps_in_the_second_window_over_the_slo(times: float, steps: int) -> None:
    assert after([times], Margin(1)).size == 1
    assert after([times, times], Margin(1)).size == 1 + steps
    assert after([times, times], Margin(STEPS - 1)).size == STEPS - 1 + bool(steps)
    assert after([times, 0.5, times, 0.5, times], Margin(1)).size == 1


def test_it_grows_once_for_two_windows_over_the_slo_which_are_late_for_what_it_grew_by() -> None:
    assert [after([2.0] * count, Margin(1)).size for count in (1, 2, 3, 4)] == [1, 3, 3, 5]


def test_windows_that_overlap_count_once() -> None:
    def sixths(times: float, count: int, margin: Margin) -> Margin:
        """Windows of 30 s that are read every 5 s."""
        for _ in range(count):
            one = replace(VIEW, tokens_per_s=QUIET, latency_p95_s=times * SLO_S, news=1 / 6)
            margin = margin.after(one, SLO_S)
        return margin

    assert sixths(0.1, 6, sixths(2.0, 6, Margin(1))).size == 1, "one burst in six windows"
    assert [sixths(2.0, count, Margin(1)).size for count in (11, 12, 23, 24)] == [1, 1 + BACK, 1 + BACK, 1 + 2 * BACK]
    assert [sixths(0.5, count, Margin()).size for count in (89, 91)] == [START, START - 1]


def test_a_size_that_was_too_small_is_not_tried_again_for_long() -> None:
    grown = after([2.0, 2.0], Margin(1))
    again = round(AGAIN / QUICK)
    assert [after([0.5] * count, grown).size for count in (again - 1, again, 2 * again)] == [3, 2, 1]
    assert after([0.5] * (again - 1) + [0.95] + [0.5] * (again - 1), grown).size == 3


@pytest.mark.parametrize(("broken", "times"), [(1, 1), (2, 2), (3, 4), (4, LONGEST), (6, LONGEST)])
def test_a_level_that_breaks_the_slo_again_and_again_waits_the_longer_until_it_tries(broken: int, times: int) -> None:
    margin = Margin(1)
    for _ in range(broken):
        while margin.size > 1:
            margin = after([0.5], margin)
        margin = after([2.0, 2.0], margin)
    windows = round(times * AGAIN / QUICK)
    assert [after([0.5] * count, margin).size for count in (windows - 1, windows)] == [3, 2]


def test_what_was_too_small_at_one_level_of_the_load_is_not_at_another() -> None:
    margin = seen([(BUSY, 2.0)] * 2 + [(QUIET, 0.5)] * 100)
    assert margin.size == 0 and seen([(BUSY, 0.5)], margin).size == START + BACK
    assert seen([(2 * BUSY, 0.5)], margin).size == seen([(BUSY / 2, 0.5)], margin).size == START + BACK
    assert seen([(4 * BUSY, 0.5)], margin).size == 0


def test_the_first_window_of_a_level_is_due_to_the_size_of_the_level_before() -> None:
    step = seen([(QUIET, 0.6)] * 3 + [(BUSY, 2.0)] * 2)
    assert step.size == START
    assert seen([(BUSY, 2.0)], step).size == START + BACK


@pytest.mark.parametrize("tokens_per_s", [None, 0.0])
def test_windows_without_tokens_say_nothing(tokens_per_s: float | None) -> None:
    half = after([0.6] * 3)
    idle: Observation = replace(VIEW, tokens_per_s=tokens_per_s, latency_p95_s=9 * SLO_S)
    assert half.after(idle, SLO_S) == half


def test_windows_without_answers_and_stale_ones_say_nothing() -> None:
    half = after([0.6] * 3)
    assert after([None] * WINDOWS, half) == half
    stale: Observation = replace(VIEW, stale=True, tokens_per_s=QUIET, latency_p95_s=9 * SLO_S)
    assert half.after(stale, SLO_S) == half


@given(st.lists(st.tuples(st.floats(1e-3, 1e9), st.one_of(st.none(), st.floats(0.0, 1e3))), max_size=200))
def test_it_stays_within_its_sizes_whatever_comes(windows: list[tuple[float, float | None]]) -> None:
    margin = seen(windows)
    assert 0 <= margin.size <= STEPS and len(margin.floors) <= 41  # from 2 ** -10 to 2 ** 30


@pytest.mark.parametrize(("size", "place"), [(0, 0), (START, 1), (STEPS, 2)])
def test_the_numbers_are_those_of_the_ends_and_of_the_start(size: int, place: int) -> None:
    assert Margin(size).numbers == {name: values[place] for name, values in NUMBERS.items()}


def test_a_larger_margin_never_wants_fewer_replicas() -> None:
    """At any rate that all look-backs show alike."""
    numbers = [Margin(size).numbers for size in range(STEPS + 1)]
    bursts = [burst_of(round(one["standbys"]), one) for one in numbers]
    wanted = [one.wanted(np.geomspace(1, 1e4), 0.01) for one in bursts]
    assert all((more >= less).all() for less, more in pairwise(wanted))
    assert (wanted[-1] > wanted[0])[wanted[0] > 1].all()
    for others in ([one.hold_s for one in bursts], [one.standbys for one in bursts], [one["load"] for one in numbers]):
        assert others == sorted(others)


def test_replicas_sleep_at_every_size_and_the_later_the_more_p95_has_broken_the_slo() -> None:
    """Whether they sleep at all makes them standbys: from window to window that would be other replicas."""
    bursts = [burst_of(2, Margin(size).numbers) for size in range(STEPS + 1)]
    sleeps_s = [burst.sleep_s for burst in bursts if burst.sleep_s is not None]
    assert sleeps_s == sorted(sleeps_s) and len(sleeps_s) == STEPS + 1
    assert sleeps_s[Margin().size] == 0.5 < sleeps_s[START + 1]


def test_windows_that_another_policy_decided_say_nothing_but_their_level() -> None:
    margin = seen([(QUIET, 2.0), (BUSY, 2.0)])
    for times in (0.1, 2.0):
        other: Observation = replace(VIEW, tokens_per_s=BUSY, latency_p95_s=times * SLO_S, decided_by="hpa")
        assert margin.after(other, SLO_S) == replace(margin, level=round(log2(BUSY)), over=None)


def test_another_policys_memory_is_none() -> None:
    memories = [Remembered.of(memory, VIEW, NUMBERS) for memory in ({"hpa": 1}, None)]
    assert memories == [Remembered(Work(), Margin())] * 2


@pytest.mark.parametrize("size", [0, 1, START, STEPS - 1, STEPS])
@pytest.mark.parametrize("following", [tuple(NUMBERS), ("spare",)])
def test_a_size_is_recognised_by_the_rules_that_functions_have(size: int, following: tuple[str, ...]) -> None:
    numbers = Margin(size).numbers
    ordered = Burst(12, **{name: round(numbers[name], 3) for name in RULE})
    assert Margin.ordered([Burst(3), ordered], following) == Margin(size)
    assert Margin.ordered([ordered], ()) == Margin.ordered([Burst(3)], following) == Margin()


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


def test_a_controller_that_starts_again_goes_on_with_the_margin_and_the_costs_that_it_had_ordered() -> None:
    env = StaffingEnv(episodes())
    env.reset()
    workload = replace(env.episode.workload, measured=True)
    view = replace(env.episode.observation, latency_p95_s=0.1 * workload.slo_s)
    rule = StaffingRule(workload, encoder_of(workload), VALUES, following=NUMBERS)
    memory = None
    for _ in range(WINDOWS):
        before = rule.propose(view, view.end_s, memory)
        memory = before.memory
    nodes = tuple(one._replace(configuration=before.desired.get(one.function, one.configuration)) for one in view.nodes)
    again = rule.propose(replace(view, nodes=nodes, latency_p95_s=None), view.end_s, None)
    assert isinstance(memory, Remembered) and isinstance(again.memory, Remembered)
    assert again.memory.margin.size == memory.margin.size < START
    assert again.memory.work.token_s == memory.work.token_s

"""What an instance computes next: against every order, and against the times that were predicted."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.scheduling.pacing import Pacing, Prompt, in_time_first
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import Targets

PROMPTS = st.lists(
    st.builds(Prompt, st.integers(0, 99), st.integers(0, 30).map(float), st.integers(0, 9).map(float)), max_size=6
)
PACING = Pacing(Profile(PrefillModel(0.01, 1e-3, 1e-6), DecodeModel(0.02, 1e-5)), Targets(2.0, 0.1))


def in_time(order: tuple[Prompt, ...], now_s: float) -> int:
    ends_s = [now_s + sum(one.work_s for one in order[: place + 1]) for place in range(len(order))]
    return sum(end_s <= one.due_s for end_s, one in zip(ends_s, order, strict=True))


@given(PROMPTS, st.integers(0, 10))
def test_no_order_has_more_prompts_in_time(prompts: list[Prompt], now_s: int) -> None:
    ordered = in_time_first(prompts, now_s)
    assert sorted(ordered, key=id) == sorted(prompts, key=id)
    assert in_time(tuple(ordered), now_s) == max(in_time(order, now_s) for order in permutations(prompts))


@given(PROMPTS)
def test_prompts_that_can_all_be_in_time_keep_the_order_in_which_they_are_due(prompts: list[Prompt]) -> None:
    by_due = sorted(prompts, key=lambda one: one.due_s)
    if in_time(tuple(by_due), 0.0) == len(prompts):
        assert in_time_first(prompts, 0.0) == by_due


def test_one_long_prompt_gives_way_to_two_short_ones() -> None:
    long, short, other = Prompt(0, 10.0, 9.0), Prompt(1, 11.0, 2.0), Prompt(2, 12.0, 2.0)
    assert in_time_first([long, short, other], 0.0) == [short, other, long]
    assert Pacing(PACING.profile, PACING.targets, reorder=False).order([other, long], 0.0) == [long, other]


@given(st.integers(0, 20_000), st.floats(-0.5, 5), st.integers(0, 5000), st.integers(0, 2048))
def test_an_iteration_ends_when_its_decodes_are_due_and_no_token_more_would_fit(
    context: int, slack_s: float, start: int, most: int
) -> None:
    def seconds(tokens: int) -> float:
        return PACING.profile.decode.seconds(context) + tokens * 1e-3 + 1e-6 * ((start + tokens) ** 2 - start**2)

    room = PACING.room(most, context, slack_s, start)
    assert 0 <= room <= most
    assert room == 0 or seconds(room) <= slack_s + 1e-9
    assert room == most or seconds(room + 1) > slack_s - 1e-9


def test_decodes_that_are_late_beyond_help_hold_no_prompt_back() -> None:
    assert PACING.room(256, 1000, -0.5, 0) == 0
    assert PACING.room(256, 1000, -1.5, 0) == 256


def test_work_is_what_is_left_of_a_prompt() -> None:
    whole, half = PACING.work_s(0, 1000), PACING.work_s(500, 1000)
    assert whole == pytest.approx(PACING.profile.prefill.seconds(1000))
    assert whole / 2 < half < whole  # later tokens look at more

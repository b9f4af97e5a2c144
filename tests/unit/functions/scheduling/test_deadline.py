"""Instances without roles: who computes a prompt, and where its text goes on."""

from __future__ import annotations

import pytest

from functions.scheduling.deadline import Deadline
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import SchedulingError, Targets

PROFILE = Profile(PrefillModel(0.0, 1e-3, 0.0), DecodeModel(0.01, 1e-5))
LONG, SHORT = Targets(2.0, 0.2), Targets(2.0, 0.02)
"""Ten milliseconds an iteration are a twentieth of one TPOT and half of the other."""


def deadline(targets: Targets, instances: int = 3) -> Deadline:
    return Deadline(dict.fromkeys(range(instances), PROFILE), targets)


def decoding(scheduler: Deadline, request: int, tokens: int = 100) -> int:
    """A text that has come to its decode; the instance's name."""
    scheduler.prefill(request, tokens, 0.0)
    return scheduler.decode(request, 0.0)


def test_a_prompt_goes_where_its_first_token_comes_soonest() -> None:
    scheduler = deadline(LONG)
    assert [scheduler.prefill(request, tokens, 0.0) for request, tokens in enumerate((900, 500, 100, 100, 100))] == [
        0, 1, 2, 2, 2,
    ]  # fmt: skip


def test_decodes_slow_prompts_down_where_they_are() -> None:
    scheduler = deadline(LONG, 2)
    scheduler.instances[0].decodes[9] = scheduler.instances[0].decode_tokens = 9000  # 0.1 s of each 0.2 s
    assert scheduler.share(scheduler.instances[0]) == pytest.approx(0.5)
    assert [scheduler.prefill(request, 100, 0.0) for request in range(4)] == [1, 0, 1, 1]  # 0.1, 0.2, 0.2, 0.3 of 0.4 s


def test_a_text_stays_where_tpot_is_long_also_where_prompts_wait() -> None:
    scheduler = deadline(LONG)
    for request in range(9):
        scheduler.prefill(request, 100, 0.0)
    assert [scheduler.decode(request, 0.0) for request in range(3)] == [0, 1, 2]


def test_decodes_are_packed_where_tpot_is_short_and_prompts_wait() -> None:
    scheduler = deadline(SHORT)
    for request in range(9):
        scheduler.prefill(request, 100, 0.0)
    names = [scheduler.decode(request, 0.0) for request in range(3)]
    assert len(set(names)) == 1


def test_an_idle_instance_keeps_its_text() -> None:
    scheduler = deadline(SHORT)
    assert [decoding(scheduler, request) for request in range(3)] == [0, 1, 2]


def test_prompts_go_to_instances_without_decodes_where_tpot_is_short_while_those_are_in_time() -> None:
    scheduler = deadline(SHORT, 2)
    assert decoding(scheduler, 0) == 0
    assert [scheduler.prefill(request, 900, 0.0) for request in (1, 2)] == [1, 1]
    assert scheduler.prefill(3, 900, 0.0) == 0  # 2.7 s there, 1.8 s here: half of the time is left
    assert scheduler.prefill(4, 900, 0.0) == 1  # late everywhere


def test_an_instance_is_filled_up_to_a_part_of_tpot() -> None:
    scheduler = deadline(LONG, 2)
    # 0.8 · 0.2 s are 15,000 tokens
    scheduler.instances[1].prefill_s = 1e6
    names = [decoding(scheduler, request, 1010) for request in range(15)]
    assert names == [0] * 14 + [1]


def test_with_one_instance_everything_is_there_and_without_any_nothing_is() -> None:
    assert decoding(deadline(SHORT, 1), 0) == 0
    empty = deadline(SHORT, 0)
    with pytest.raises(SchedulingError, match="no instance"):
        empty.prefill(0, 10, 0.0)

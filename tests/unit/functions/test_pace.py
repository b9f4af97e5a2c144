"""What an ingress lets an instance compute next, by when its texts are due."""

from __future__ import annotations

from typing import Any

from functions.generation.phases import Phases
from functions.generation.sampling import Sampler, Sampling
from functions.generation.texts import Gathered, Text
from functions.scheduling.deadline import Deadline
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import Targets

RUN: Any = object()
PROFILE = Profile(PrefillModel(0.0, 1e-3, 0.0), DecodeModel(0.02, 1e-9))


def text(tokens: int, arrived_s: float = 0.0) -> Text:
    sampler = Sampler(Sampling(temperature=0.0))
    return Text([1] * tokens, 9, sampler, Gathered(), frozenset(), "r", 10_000, arrived_s)


def phases(*, paced: bool = True) -> Phases:
    made = Phases(Deadline({}, Targets(1.0, 0.1)), 1.0, paced=paced)
    made.join(made.reserve(), RUN, PROFILE)
    return made


async def test_prompts_that_can_be_in_time_go_first_in_the_room_that_decodes_leave() -> None:
    made = phases()
    decoding, long, short = text(50), text(900, 0.0), text(200, 0.1)
    assert made.dispatch(decoding, 0.0) is RUN and made.token(RUN, decoding, 0.2, 0.0) is RUN
    assert made.pace(RUN, [], [long, short], 256, 0.2) == ([short, long], 256)
    # Its second token is due at 0.295 s; the decode itself takes 20 ms of the 45 that are left.
    ordered, room = made.pace(RUN, [decoding], [long, short], 256, 0.25)
    assert ordered == [short, long] and 24 <= room <= 25
    made.token(RUN, decoding, 0.25, 0.25)  # it came early: the next one is due at 0.39 s
    assert 119 <= made.pace(RUN, [decoding], [short], 256, 0.25)[1] <= 120


async def test_a_late_text_does_not_switch_off_what_another_is_due() -> None:
    made = phases()
    late, in_time, prompt = text(50), text(50, 4.0), text(200, 4.9)
    for decoding, first_s in ((late, 0.2), (in_time, 5.0)):
        made.dispatch(decoding, first_s)
        made.token(RUN, decoding, first_s, 0.0)
    assert made.pace(RUN, [late], [prompt], 256, 5.05)[1] == 256
    alone = made.pace(RUN, [in_time], [prompt], 256, 5.05)[1]
    assert made.pace(RUN, [late, in_time], [prompt], 256, 5.05)[1] == alone <= 25


async def test_a_text_that_was_written_in_part_is_due_after_its_last_token_not_its_arrival() -> None:
    made = phases()
    again, new = text(100, 0.0), text(100, 4.5)
    again.moved_s, again.written = 5.0, 20
    assert made.pace(RUN, [], [new, again], 256, 5.1) == ([new, again], 256)  # both in time, the new one first


async def test_other_schedules_keep_prompts_as_they_came() -> None:
    long, short = text(900, 0.0), text(200, 0.1)
    assert phases(paced=False).pace(RUN, [], [long, short], 256, 0.2) == ([long, short], 256)

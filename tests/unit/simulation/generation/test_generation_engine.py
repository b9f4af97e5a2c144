"""Text generation event by event: times worked by hand, and that no request or room is lost under any scheduler."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.scheduling.arrow import Arrow
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import Colocated, MinimalLoad, RoundRobin
from functions.scheduling.settings import Targets
from simulation.generation.engine import GenerationSimulation, Outcome, Request
from simulation.generation.hardware import Hardware
from tests.parameters import examples

# An iteration takes 1 s and 10 ms a computed token; 100 tokens an iteration; a token moves in 1 ms.
ROUND = Hardware(1.0, 0.01, 0.0, 0.0, 100, 10_000, 1, 1000.0)
TARGETS = Targets(10.0, 2.0)


def run(rule, requests: list[Request], hardware: Hardware = ROUND, instances: int = 2) -> GenerationSimulation:
    scheduler = rule(dict.fromkeys(range(instances), hardware.profile(10)), TARGETS, 1)
    return GenerationSimulation(requests, scheduler, hardware)


def test_one_request_over_two_instances_takes_prefill_transfer_and_its_iterations() -> None:
    outcome = run(MinimalLoad, [Request(3.0, 200, 3)]).run()
    assert outcome.ttft_s == pytest.approx([2 * (1 + 100 * 0.01)])
    assert outcome.tpot_s == pytest.approx([(200 * 1e-3 + 2 * (1 + 0.01)) / 2])
    assert (outcome.transfers, outcome.lost) == (1, 0)


def test_colocated_decodes_share_iterations_with_the_next_prompt() -> None:
    requests = [Request(0.0, 50, 2), Request(0.1, 300, 1)]
    simulation = run(Colocated, requests)
    simulation._scheduler.instances[1].decode_tokens = 10**6  # all goes to instance 0
    outcome = simulation.run()
    # 1.5 s; then one decode with 99 tokens of the prompt: 1 + 0.01 + 0.99; then 100, 100 and 1 tokens.
    assert outcome.tpot_s[0] == pytest.approx(2.0)
    assert outcome.ttft_s[1] == pytest.approx(1.5 + 2.0 + 2.0 + 2.0 + 1.01 - 0.1)
    assert outcome.transfers == 0


def paced(requests: list[Request], tpot_s: float) -> Outcome:
    """One instance by what is due."""
    targets = Targets(10.0, tpot_s)
    pacing = Pacing(ROUND.profile(10), targets)
    return GenerationSimulation(requests, Deadline({0: ROUND.profile(10)}, targets), ROUND, pacing=pacing).run()


def test_prompts_get_the_room_that_decodes_leave() -> None:
    requests = [Request(0.0, 50, 11), Request(0.1, 300, 1)]
    outcome = paced(requests, 1.5)
    # A decode alone takes 1.01 s, with a whole part of 100 tokens 2 s.
    assert 1.2 < outcome.tpot_s[0] <= 1.5
    assert outcome.ttft_s[1] > 1.5 + 2 + 2 + 2 + 1.01 - 0.1


def test_a_late_decode_does_not_switch_off_what_another_is_due() -> None:
    # Each iteration makes the first text later by half a second; the second one joins when it is late by more than 1 s.
    outcome = paced([Request(0.0, 50, 30), Request(6.0, 50, 30), Request(6.1, 300, 1)], 0.5)
    # At 6.55 s both prompts' first parts; three iterations until the second text is as late; then 98, 98 and 55 tokens.
    assert outcome.ttft_s[2] == pytest.approx(6.55 + 2.0 + 3 * 1.02 + 2.0 + 2.0 + 1.57 - 6.1)


def test_of_prompts_that_cannot_all_be_in_time_the_long_one_waits() -> None:
    outcome = paced([Request(0.0, 400, 1), *(Request(0.1, 100, 1) for _ in range(3))], 1.5)
    assert [ttft_s <= 10 for ttft_s in outcome.ttft_s] == [False, True, True, True]


def test_a_run_that_is_given_up_would_have_missed_as_many() -> None:
    requests = [Request(0.1 * at, 200, 3) for at in range(30)]
    missed = 30 - round(30 * run(Colocated, requests).run().attainment(10.0, 2.0))
    assert missed > 3
    for most in (missed - 1, missed):
        scheduler = Colocated(dict.fromkeys(range(2), ROUND.profile(10)), TARGETS, 1)
        outcome = GenerationSimulation(requests, scheduler, ROUND, give_up=(TARGETS, most)).run()
        assert (outcome.lost > 0) == (most < missed)


def test_context_makes_iterations_longer() -> None:
    hardware = Hardware(1.0, 0.0, 0.0, 0.01, 100, 10_000, 1, 1e9)
    outcome = run(Colocated, [Request(0.0, 10, 3)], hardware).run()
    assert outcome.tpot_s == pytest.approx([(1.11 + 1.12) / 2])


def test_a_request_that_fits_nowhere_is_lost_and_the_others_are_not() -> None:
    assert run(MinimalLoad, [Request(0.0, 20_000, 2), Request(0.0, 10, 2)]).run().lost == 1


@pytest.mark.parametrize("rule", [Arrow, MinimalLoad, RoundRobin, Colocated])
@pytest.mark.parametrize("paced", [False, True])
@given(
    work=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 400), st.integers(1, 20)), min_size=1, max_size=25),
    instances=st.integers(2, 4),
)
@settings(max_examples=examples(40), deadline=None)
def test_every_request_ends_and_all_room_is_given_back(rule, paced: bool, work, instances: int) -> None:
    requests = sorted((Request(*one) for one in work), key=lambda one: one.arrival_s)
    scheduler = rule(dict.fromkeys(range(instances), ROUND.profile(10)), TARGETS, 1)
    pacing = Pacing(ROUND.profile(10), TARGETS) if paced else None
    simulation = GenerationSimulation(requests, scheduler, ROUND, pacing=pacing)
    outcome = simulation.run()
    assert outcome.lost == 0
    for at, request in enumerate(requests):
        assert outcome.ttft_s[at] >= ROUND.prefill_s(request.prompt) - 1e-6
        assert request.output == 1 or outcome.tpot_s[at] >= 1.01 - 1e-6
    assert all(one.free_kv == ROUND.kv_tokens and one.context == 0 for one in simulation._instances.values())
    assert all(not one.prefills and one.decode_tokens == 0 for one in simulation._scheduler.instances.values())


def test_attainment_needs_both_targets_and_counts_the_lost() -> None:
    assert Outcome([1.0, 1.0, 5.0, None], [1.0, 3.0, 1.0, None]).attainment(2.0, 2.0) == 0.25

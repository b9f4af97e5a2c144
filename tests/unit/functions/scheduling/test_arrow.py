"""Algorithms 1 to 3 of Arrow: cases worked by hand, choices against the paper's costs written out a second time, and
what must hold after any sequence of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.scheduling.arrow import Arrow, flip_cost
from functions.scheduling.cluster import Instance, Role, Scheduler
from functions.scheduling.peers import Colocated, MinimalLoad, RoundRobin
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import ArrowSettings, SchedulingError, Targets
from tests.parameters import examples

# A prompt of n tokens takes n ms; 1000 tokens at once keep TPOT.
PROFILE = Profile(PrefillModel(0.0, 1e-3, 0.0), DecodeModel(0.0, 1e-4))
TARGETS = Targets(ttft_s=1.0, tpot_s=0.1)


def arrow(instances: int = 4, prefill: int = 2, **changes: float) -> Arrow:
    return Arrow(dict.fromkeys(range(instances), PROFILE), TARGETS, prefill, ArrowSettings(**changes))


def roles(scheduler: Scheduler) -> str:
    return "".join(one.role.value[0] for one in scheduler.instances.values())


def test_a_prefill_goes_to_the_shortest_queue() -> None:
    scheduler = arrow()
    assert [scheduler.prefill(at, tokens, 0.0) for at, tokens in enumerate([300, 100, 100, 50])] == [0, 1, 1, 1]


def test_a_prefill_avoids_decodes_before_it_avoids_a_queue() -> None:
    scheduler = arrow()
    scheduler.prefill(0, 500, 0.0)
    scheduler.instances[1].decode_tokens = 1
    assert scheduler.prefill(1, 400, 0.0) == 0


def test_a_prefill_that_would_miss_ttft_flips_a_decode_instance_at_once() -> None:
    scheduler = arrow()
    scheduler.prefill(0, 900, 0.0)
    scheduler.prefill(1, 900, 0.0)
    assert scheduler.prefill(2, 200, 0.0) == 2
    assert roles(scheduler) == "pppd" and scheduler.flips == 1


def test_a_prefill_that_just_keeps_ttft_flips_nothing() -> None:
    scheduler = arrow()
    scheduler.prefill(0, 900, 0.0)
    scheduler.prefill(1, 900, 0.0)
    assert scheduler.prefill(2, 100, 0.0) == 0 and scheduler.flips == 0


def test_no_decode_instance_is_flipped_while_decode_load_is_high() -> None:
    scheduler = arrow(cooldown_s=1e6)
    scheduler.prefill(0, 900, 0.0)
    scheduler.prefill(1, 950, 0.0)
    for one in (2, 3):
        scheduler.generated(one, 1, 0.0801)
    scheduler.update(1.0)
    assert scheduler.decode_load == pytest.approx(0.801)
    assert scheduler.prefill(2, 200, 1.0) == 0 and roles(scheduler) == "ppdd"


def test_texts_that_wait_for_room_keep_their_instances_though_no_interval_shows_them() -> None:
    scheduler = arrow(cooldown_s=1e6)
    for request in range(4):
        scheduler.prefill(request, 900, 0.0)
        scheduler.decode(request, 0.0)
    scheduler.update(1.0)
    assert roles(scheduler) == "dpdd"  # the second text found no room
    assert scheduler.decode_load == pytest.approx(1.2)  # 1,200 tokens each, 1,000 keep TPOT, none has come
    scheduler.flips = 0
    for request in range(4, 7):
        scheduler.prefill(request, 900, 1.0)
    assert scheduler.flips == 0


def test_the_last_instance_of_a_phase_is_never_flipped() -> None:
    scheduler = arrow(instances=2, prefill=1)
    assert [scheduler.prefill(at, 900, 0.0) for at in range(3)] == [0, 0, 0]
    assert roles(scheduler) == "pd"


def test_a_decode_stays_where_its_prefill_instance_has_become_a_decode_instance() -> None:
    scheduler = arrow()
    for request in (8, 9):
        scheduler.prefill(request, 100, 0.0)
        scheduler.decode(request, 0.0)
    assert scheduler.prefill(0, 2000, 0.0) == 2  # flipped, as no queue keeps TTFT; it goes on with what it decodes
    assert scheduler.flip(Role.DECODE, 100.0) is scheduler.instances[2]  # the flip under way is revoked first
    assert scheduler.decode(0, 100.0) == 2


def test_a_decode_beyond_the_most_tokens_flips_a_prefill_instance_after_the_cooldown_only() -> None:
    scheduler = arrow(instances=3, prefill=2, cooldown_s=5.0)
    for request, now in ((0, 0.0), (1, 0.0), (2, 4.0), (3, 6.0)):
        scheduler.prefill(request, 600, now)
        scheduler.decode(request, now)
    # 0 → instance 2; 1 does not fit (1200 > 1000): flips 0; 2 and 3 fit nowhere: cooldown, then the last of its pool.
    assert roles(scheduler) == "dpd" and scheduler.flips == 1
    assert sum(one.decode_tokens for one in scheduler.instances.values()) == 2400


def test_the_cooldown_ends_on_time() -> None:
    scheduler = arrow(instances=5, prefill=4, cooldown_s=5.0)
    flips = [scheduler.flip(Role.DECODE, now) is not None for now in (0.0, 4.99, 5.0, 9.0, 10.0)]
    assert flips == [True, False, True, False, True]


def test_a_flip_to_prefill_needs_no_cooldown_but_starts_one() -> None:
    scheduler = arrow(instances=4, prefill=1, cooldown_s=5.0)
    assert scheduler.flip(Role.PREFILL, 0.0) and scheduler.flip(Role.PREFILL, 0.0)
    assert scheduler.flip(Role.DECODE, 1.0) is None


@pytest.mark.parametrize(
    ("prefill_s", "intervals", "flipped"),
    [
        (0.9, 0.0901, True),  # L_D ≥ L_EXPAND
        (0.9, 0.05, False),  # prefill is busy, decode is not full
        (0.2, 0.0201, True),  # L_P = L_SHRINK < L_D
        (0.1, 0.01, False),  # decode is idle too
    ],
)
def test_the_monitoring_loop_flips_to_decode(prefill_s: float, intervals: float, flipped: bool) -> None:
    scheduler = arrow()
    for one in (0, 1):
        scheduler.instances[one].begin_prefill(one, round(prefill_s * 1000))
    for one in (2, 3):
        scheduler.generated(one, 10, intervals)
    scheduler.update(1.0)
    assert (scheduler.flips == 1) is flipped


def test_an_instance_that_stalls_keeps_its_interval_and_an_idle_one_loses_it() -> None:
    scheduler = arrow(cooldown_s=1e6)
    scheduler.prefill(0, 10, 0.0)
    assert scheduler.decode(0, 0.0) == 2
    scheduler.generated(2, 1, 0.05)
    for now in (1.0, 2.0):
        scheduler.update(now)
        assert scheduler.instances[2].interval_s == 0.05
    scheduler.finish(0, 1)
    scheduler.update(3.0)
    assert scheduler.instances[2].interval_s == 0.0


def test_a_decode_leaves_an_instance_that_was_retired_though_its_role_is_decode() -> None:
    scheduler = arrow()
    assert scheduler.prefill(0, 100, 0.0) == 0
    scheduler.instances[0].role = Role.DECODE
    scheduler.retire(0)
    assert scheduler.decode(0, 0.0) == 2


STATES = st.tuples(
    st.sampled_from(Role),
    st.lists(st.integers(1, 900), max_size=3),
    st.lists(st.integers(1, 900), max_size=3),
)


def in_state(states: list[tuple[Role, list[int], list[int]]], **changes: float) -> Arrow:
    scheduler = arrow(len(states), 1, **changes)
    request = 100
    for one, (role, prefills, decodes) in zip(scheduler.instances.values(), states, strict=True):
        one.role = role
        for tokens in prefills:
            one.begin_prefill(request, tokens)
            request += 1
        for tokens in decodes:
            one.decodes[request], request = tokens, request + 1
        one.decode_tokens = sum(decodes)
    return scheduler


SEVERAL = st.lists(STATES, min_size=2, max_size=6).filter(lambda all_: len({role for role, *_ in all_}) == 2)


@given(SEVERAL, st.integers(1, 1500), st.booleans())
def test_the_choice_is_what_brute_force_over_instances_gives(states, tokens: int, low: bool) -> None:
    scheduler = in_state(states)
    scheduler.decode_load = 0.0 if low else 1.0
    costs = {
        at: (sum(decodes), round(sum(prefills) + tokens))
        for at, (role, prefills, decodes) in enumerate(states)
        if role is Role.PREFILL
    }
    decoding = [at for at, (role, *_) in enumerate(states) if role is Role.DECODE]
    keeps = [at for at in costs if costs[at][1] <= 1000]
    if keeps:
        expected = min(keeps, key=lambda at: (costs[at], at))
    elif low and len(decoding) > 1:
        expected = min(decoding, key=lambda at: (0 if states[at][1] else 1, sum(states[at][2]), at))
    else:
        expected = min(costs, key=lambda at: (costs[at], at))
    chosen = scheduler.choose_prefill(tokens, 0.0).name
    assert chosen == expected or costs.get(chosen) == costs.get(expected) is not None


@given(SEVERAL, st.integers(1, 1500))
def test_a_decode_is_chosen_as_brute_force_does(states, tokens: int) -> None:
    scheduler = in_state(states)
    source = next(one for one in scheduler.instances.values() if one.role is Role.PREFILL)
    costs = {
        at: (sum(prefills), sum(decodes) + tokens - 1000)
        for at, (role, prefills, decodes) in enumerate(states)
        if role is Role.DECODE
    }
    prefilling = [at for at, (role, *_) in enumerate(states) if role is Role.PREFILL]
    keeps = [at for at in costs if costs[at][1] <= 0]
    if keeps:
        expected = min(keeps, key=lambda at: (costs[at], at))
    elif len(prefilling) > 1:
        expected = min(prefilling, key=lambda at: (0 if states[at][2] else 1, sum(states[at][1]), at))
    else:
        expected = min(costs, key=lambda at: (costs[at], at))
    assert scheduler.choose_decode(tokens, source, 0.0).name == expected


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["prefill", "decode", "token", "finish", "update", "abandon", "lose"]), st.integers(0, 99)
    ),
    max_size=60,
)
RULES = (Arrow, MinimalLoad, RoundRobin, Colocated)


@pytest.mark.parametrize("rule", RULES)
@given(events=EVENTS)
@settings(max_examples=examples(60))
def test_after_any_events_every_request_is_on_one_present_instance_and_sums_hold(rule, events) -> None:
    scheduler: Scheduler = rule(dict.fromkeys(range(4), PROFILE), TARGETS, 2)
    prefilling: dict[int, int] = {}
    decoding: dict[int, tuple[int, int]] = {}
    last_flip, request = -math.inf, 0
    for now, (event, number) in enumerate(events):
        before, flips = roles(scheduler), scheduler.flips
        if event == "prefill":
            request += 1
            prefilling[request] = 1 + number * 20
            assert scheduler.prefill(request, prefilling[request], float(now)) in scheduler.instances
        elif event in ("decode", "abandon") and prefilling:
            one = sorted(prefilling)[number % len(prefilling)]
            if event == "abandon":
                scheduler.abandon(one)
                del prefilling[one]
            else:
                assert scheduler.decode(one, float(now)) in scheduler.instances
                decoding[one] = (prefilling.pop(one), 0)
        elif event in ("token", "finish") and decoding:
            one = sorted(decoding)[number % len(decoding)]
            if event == "finish":
                scheduler.finish(one, decoding.pop(one)[1])
            else:
                scheduler.generated(holder(scheduler, one), 1, number / 1000)
                decoding[one] = (decoding[one][0], decoding[one][1] + 1)
        elif event == "update":
            scheduler.update(float(now))
        elif event == "lose" and len(scheduler.instances) > 2:
            for one in scheduler.lose(sorted(scheduler.instances)[number % len(scheduler.instances)]):
                assert (prefilling.pop(one, None) is None) is not (decoding.pop(one, None) is None)
        if scheduler.flips > flips:
            assert scheduler.flips == flips + 1
            if roles(scheduler).count("d") > before.count("d"):
                assert now - last_flip >= 5.0
            last_flip = now
        assert {"p", "d"} == set(roles(scheduler))
        held = [one for each in scheduler.instances.values() for one in (*each.prefills, *each.decodes)]
        assert sorted(held) == sorted([*prefilling, *decoding])
        for each in scheduler.instances.values():
            assert each.decode_tokens == sum(sum(decoding[one]) for one in each.decodes)


def holder(scheduler: Scheduler, request: int) -> int:
    return next(one.name for one in scheduler.instances.values() if request in one.decodes)


def test_flips_under_way_are_revoked_first() -> None:
    busy = Instance(0, PROFILE, Role.PREFILL, prefills={1: (900, 0.9)}, decodes={2: 5}, decode_tokens=5)
    idle = Instance(1, PROFILE, Role.PREFILL)
    assert flip_cost(busy) < flip_cost(idle)


def test_round_robin_takes_turns_and_minimal_load_the_lightest() -> None:
    profiles = dict.fromkeys(range(4), PROFILE)
    turns, lightest = RoundRobin(profiles, TARGETS, 2), MinimalLoad(profiles, TARGETS, 2)
    assert [turns.prefill(at, 500 - at, 0.0) for at in range(4)] == [0, 1, 0, 1]
    assert [lightest.prefill(at, tokens, 0.0) for at, tokens in enumerate([500, 100, 100, 100])] == [0, 1, 1, 1]


def test_colocated_decodes_where_it_prefilled() -> None:
    scheduler = Colocated(dict.fromkeys(range(3), PROFILE), TARGETS, 1)
    assert [scheduler.prefill(at, 100, 0.0) for at in range(3)] == [0, 1, 2]
    assert [scheduler.decode(at, 0.0) for at in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: arrow(2, 2), "at least one instance for each phase"),
        (lambda: arrow().decode(1, 0.0), "prefilled nowhere"),
        (lambda: arrow().finish(1, 1), "decoded nowhere"),
        (lambda: arrow().prefill(1, 0, 0.0), "at least one token"),
        (lambda: arrow().generated(9, 1, 0.1), "no instance 9"),
        (lambda: arrow(2, 1).add(0, PROFILE), "instance 0 already"),
        (lambda: Arrow({}, Targets(1, 1), 1).prefill(1, 1, 0.0), "no instance"),
        (lambda: arrow(shrink_load=0.95), "must not be above"),
        (lambda: arrow(update_s=0), "positive"),
        (lambda: arrow(cooldown_s=math.nan), "finite"),
        (lambda: Targets(0, 1), "ttft_s must be positive"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, why: str) -> None:
    with pytest.raises(SchedulingError, match=why):
        call()


def test_a_request_in_flight_is_not_taken_twice() -> None:
    scheduler = arrow()
    scheduler.prefill(1, 10, 0.0)
    with pytest.raises(SchedulingError, match="in flight already"):
        scheduler.prefill(1, 10, 0.0)

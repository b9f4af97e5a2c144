"""An instance that is resized, by each way: times by hand, and nothing lost."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.live_scaling.baselines import MODELS, USABLE_GB, Change, Model, recovery_s
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import Hardware
from simulation.generation.resized import WAYS, ResizedSimulation, Way

SLOW = Hardware(iteration_s=1.0, token_s=0.0, attention_s=0.0, context_s=1e-12, chunk_tokens=100, kv_tokens=1000)
FAST = Hardware(iteration_s=0.5, token_s=0.0, attention_s=0.0, context_s=1e-12, chunk_tokens=100, kv_tokens=2000)
TARGETS = Targets(1.0, 1.0)
FIRST = Request(0.0, 10, 5)
"""Alone: its tokens come at 1, 2, 3, 4 and 5 s."""


def run(way: Way, *requests: Request) -> tuple[ResizedSimulation, list[float | None], list[float | None]]:
    """Ordered at 2.5 s, ready at 3.5 s; with the seconds of each request's first token and end."""
    simulation = ResizedSimulation([FIRST, *requests], SLOW, FAST, way, 2.5, 1.0, TARGETS)
    outcome = simulation.run()
    firsts = [
        None if ttft is None else round(ttft + one.arrival_s, 6)  # a token of context takes 1e-12 s
        for ttft, one in zip(outcome.ttft_s, [FIRST, *requests], strict=True)
    ]
    return simulation, firsts, [None if end is None else round(end, 6) for end in simulation.ended_s]


def test_nothing_ordered_nothing_changes() -> None:
    simulation, firsts, ended = run("none")
    assert (firsts, ended, simulation.ready_s) == ([1.0], [5.0], None)


def test_elastic_goes_on_with_its_texts_and_takes_nothing_new_meanwhile() -> None:
    simulation, firsts, ended = run("elastic", Request(2.6, 10, 2), Request(2.7, 10, 1))
    assert ended[0] == 4.5  # the iteration from 3 to 4 was begun before
    assert firsts[1:] == [4.5, 4.5]
    assert (simulation.ready_s, simulation.left_s, simulation.restarted) == (3.5, 3.5, 0)


def test_a_cold_restart_begins_again() -> None:
    simulation, firsts, ended = run("cold-restart", Request(2.6, 10, 1))
    assert simulation.restarted == 1
    assert (firsts, ended) == ([4.0, 4.5], [6.0, 4.5])


def test_extravagant_lets_the_old_one_end_its_texts_beside_the_new_one() -> None:
    simulation, firsts, ended = run("extravagant", Request(3.6, 10, 3))
    assert (ended[0], simulation.left_s) == (5.0, pytest.approx(5.0))
    assert (firsts[1], ended[1]) == (4.1, 5.1)


def test_concurrent_takes_twice_as_long_while_both_have_texts() -> None:
    simulation, firsts, ended = run("concurrent", Request(3.6, 10, 4))
    assert (ended[0], simulation.left_s) == (6.0, pytest.approx(6.0))
    assert firsts[1] == 4.6
    assert ended[1] == 7.1  # 5.6 and 6.6 slowed, as that was begun before the old one left


def test_a_replica_is_one_more_of_the_old_kind() -> None:
    simulation, firsts, ended = run("replica", Request(3.6, 10, 2))
    assert (ended[0], firsts[1], ended[1], simulation.left_s) == (5.0, 4.6, 5.6, None)


def test_prompts_that_wait_for_room_go_to_the_new_one() -> None:
    large = Request(0.5, 993, 3)  # does not fit next to the first on the old one
    assert run("none", large)[1][1] == 6.0 + 9
    assert run("extravagant", large)[1][1] == 3.5 + 10 * 0.5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("old", "new"), [(SLOW, FAST), (FAST, SLOW)])
def test_every_way_ends_every_request(way: Way, old: Hardware, new: Hardware) -> None:
    draw = np.random.default_rng(5)
    requests = [
        Request(float(at), int(draw.integers(1, 300)), int(draw.integers(1, 60)))
        for at in np.sort(draw.uniform(0, 90, 40))
    ]
    simulation = ResizedSimulation(requests, old, new, way, 30.0, 20.0, TARGETS)
    outcome = simulation.run()
    assert outcome.lost == 0
    assert all(ttft is not None and ttft > 0 for ttft in outcome.ttft_s)
    room = {name: simulation._kinds[name].kv_tokens for name in simulation._instances}
    assert {name: one.free_kv for name, one in simulation._instances.items()} == room


# What the benchmark counts


def test_room_is_what_weights_leave_and_concurrent_halves_what_two_sets_leave() -> None:
    model = Model(experts_gb=40.0, shared_gb=4.0, token_bytes=100_000)
    assert model.weights_gb(4) == 48.0
    assert model.room(4) == int((4 * USABLE_GB - 48.0) * 1e9 / 100_000)
    on_four_gb = 4 * (USABLE_GB - 48.0 / 4 - 52.0 / 6) / 2
    assert model.room(4, 6) == int(on_four_gb * 1e9 / 100_000)
    assert model.room(6, 4) == int((on_four_gb + 2 * (USABLE_GB - 52.0 / 6)) * 1e9 / 100_000)


def test_two_copies_of_the_largest_model_leave_next_to_nothing() -> None:
    model, old, new = MODELS["DeepSeek V3, 1 byte a weight"]
    assert 0 < model.room(old, new) < 0.03 * model.room(old)


@pytest.mark.parametrize(
    ("way", "held"),
    [
        ("none", [(4, 100.0)]),
        ("replica", [(8, 100.0)]),
        ("elastic", [(6, 75.0), (6, 25.0)]),
        ("cold-restart", [(6, 100.0)]),
        ("concurrent", [(6, 75.0), (6, 25.0)]),
        ("extravagant", [(10, 75.0), (6, 25.0)]),
    ],
)
def test_accelerators_are_held_from_the_order_on(way: Way, held: list[tuple[int, float]]) -> None:
    assert Change(4, 6, 50.0, 1.0, 60.0).held(way, 125.0, 150.0) == held


@pytest.mark.parametrize("way", ["elastic", "concurrent"])
def test_fewer_are_held_once_the_old_one_has_left(way: Way) -> None:
    assert Change(6, 4, 50.0, 1.0, 60.0).held(way, 125.0, 150.0) == [(6, 75.0), (4, 25.0)]


def test_recovery_ends_with_the_last_window_below_nine_tenths() -> None:
    arrival_s = np.arange(0.0, 60.0, 0.5)
    kept = np.ones(len(arrival_s), bool)
    assert recovery_s(arrival_s, kept, 10.0) == 0.0
    kept[(arrival_s >= 24.0) & (arrival_s < 26.0)] = False
    assert recovery_s(arrival_s, kept, 10.0) == 20.0
    kept[-10:] = False
    assert recovery_s(arrival_s, kept, 10.0) is None

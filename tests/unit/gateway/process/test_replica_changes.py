from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process.replica_changes import Backoff, Member, next_change
from gateway.backends.process.settings import BackoffSettings
from gateway.contract import ReplicaState

STATES: list[ReplicaState] = ["starting", "ready", "draining"]
replicas = st.lists(st.tuples(st.sampled_from(STATES), st.integers(0, 2)), max_size=8).map(
    lambda rows: [Member(f"r{index}", state, generation, index) for index, (state, generation) in enumerate(rows)]
)


def test_starts_what_is_missing() -> None:
    assert next_change([], 3, 0).start == 3


def test_the_newest_ready_replica_goes_first_but_starting_ones_before_it() -> None:
    seen = [Member("a", "ready", 0, 0), Member("b", "ready", 0, 1), Member("c", "starting", 0, 2)]
    assert next_change(seen, 1, 0).stop == ("c", "b")


def test_a_new_replica_is_ready_before_an_old_one_drains() -> None:
    old = [Member("a", "ready", 0, 0), Member("b", "ready", 0, 1)]
    first = next_change(old, 2, 1)
    assert (first.start, first.stop) == (1, ())
    waiting = next_change([*old, Member("c", "starting", 1, 2)], 2, 1)
    assert (waiting.start, waiting.stop) == (0, ())
    assert next_change([*old, Member("c", "ready", 1, 2)], 2, 1).stop == ("a",)


@given(replicas, st.integers(0, 5))
def test_a_step_never_leaves_fewer_ready_than_desired_or_than_there_were(seen: list[Member], desired: int) -> None:
    step = next_change(seen, desired, 2)
    before = sum(one.state == "ready" for one in seen)
    after = sum(one.state == "ready" and one.id not in step.stop for one in seen)
    assert after >= min(before, desired)
    assert not {one.id for one in seen if one.state == "draining"} & set(step.stop)
    assert len(set(step.stop)) == len(step.stop)


@given(replicas, st.integers(0, 5))
def test_repeated_steps_end_with_exactly_the_desired_replicas(seen: list[Member], desired: int) -> None:
    order = 100
    for _ in range(60):
        step = next_change(seen, desired, 2)
        if step.start:
            alive = sum(one.state != "draining" for one in seen)
            assert alive + step.start <= desired + 1
        # Everything stopped is gone and everything started is ready by the next step.
        seen = [
            Member(one.id, "ready", one.generation, one.order)
            for one in seen
            if one.id not in step.stop and one.state != "draining"
        ]
        for _ in range(step.start):
            order += 1
            seen.append(Member(f"n{order}", "starting", 2, order))
    assert [one.generation for one in seen] == [2] * desired
    assert next_change(seen, desired, 2) == next_change([], 0, 2)


def test_three_ends_before_being_ready_are_hopeless_and_a_ready_replica_or_a_change_are_not() -> None:
    backoff = Backoff(BackoffSettings())
    seen = []
    for ready_for_s in (None, None, 1.0, None, None, None):
        backoff.crashed(0.0, ready_for_s)
        seen.append(backoff.hopeless)
    assert seen == [False] * 5 + [True]
    backoff.ready()
    assert not backoff.hopeless
    for _ in range(3):
        backoff.crashed(0.0, None)
    backoff.reset()
    assert not backoff.hopeless


def test_delays_grow_by_a_scripted_clock_and_a_stable_run_resets_them() -> None:
    backoff = Backoff(BackoffSettings(first_s=1.0, factor=2.0, limit_s=5.0, stable_after_s=10.0))
    assert [backoff.crashed(100.0, None) for _ in range(6)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.wait_s(103.0) == 2.0
    assert backoff.wait_s(105.0) == 0.0
    assert backoff.crashed(200.0, ready_for_s=9.9) == 5.0
    assert backoff.crashed(300.0, ready_for_s=10.0) == 0.0
    assert backoff.crashed(300.5, ready_for_s=0.1) == 1.0


def test_a_change_of_the_function_ends_the_waiting() -> None:
    backoff = Backoff(BackoffSettings())
    for _ in range(9):
        backoff.crashed(0.0, None)
    assert backoff.wait_s(0.0) > 0
    backoff.reset()
    assert backoff.wait_s(0.0) == 0
    assert backoff.crashed(0.0, None) == 0


def test_a_thousand_crashes_stay_at_the_limit() -> None:
    backoff = Backoff(BackoffSettings(limit_s=30.0))
    assert [backoff.crashed(0.0, None) for _ in range(1000)][-1] == 30.0

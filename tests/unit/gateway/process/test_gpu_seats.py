"""The book of GPU tenths: what fits, where, and that no GPU is ever promised or held beyond ten tenths."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.process.gpu.seats import Gpu, Seats, binding
from gateway.contract import ConflictError
from platform_words.resources import GPU_TENTHS

A, B = Gpu("GPU-a", "made up", 80_000), Gpu("GPU-b", "made up", 80_000)


def never() -> None:
    raise AssertionError("nobody was to be called again")


def test_a_share_is_put_where_least_is_left_over() -> None:
    seats = Seats((A, B))
    seats.reserve("large", 6, 1)
    seats.reserve("other", 3, 1)
    seats.reserve("small", 1, 1)
    seats.reserve("whole", 10, 1)
    assert [seats.promised(gpu) for gpu in (A, B)] == [10, 10]
    held = seats.hold("whole", "w", never)
    assert held == B


def test_what_does_not_fit_is_refused_in_a_sentence_and_changes_nothing() -> None:
    seats = Seats((A, B))
    seats.reserve("f", 6, 2)
    with pytest.raises(ConflictError, match=r"g would need 5 tenths .* 1 replicas, .* left over are 4 tenths of GPU-a"):
        seats.reserve("g", 5, 1)
    with pytest.raises(ConflictError, match="each of 3 replicas, 1 more than now"):
        seats.reserve("f", 6, 3)
    assert (seats.promised(A), seats.promised(B)) == (6, 6)
    seats.reserve("g", 4, 2)


def test_a_seat_is_held_until_the_process_is_gone_though_it_is_promised_to_another() -> None:
    seats, called = Seats((A,)), []
    seats.reserve("f", 8, 1)
    assert seats.hold("f", "old", never) == A
    seats.forget("f")
    seats.reserve("g", 9, 1)
    assert seats.hold("g", "new", lambda: called.append("g")) is None
    assert seats.held(A) == 8
    seats.gone("old")
    assert called == ["g"]
    assert seats.hold("g", "new", never) == A


def test_a_crashed_replica_leaves_its_seat_to_its_successor() -> None:
    seats = Seats((A,))
    seats.reserve("f", 10, 1)
    seats.hold("f", "first", never)
    seats.gone("first")
    with pytest.raises(ConflictError):
        seats.reserve("g", 1, 1)
    assert seats.hold("f", "second", never) == A


def test_fewer_replicas_give_their_tenths_back_once_those_that_go_are_chosen() -> None:
    seats = Seats((A,))
    seats.reserve("f", 5, 2)
    for replica in ("one", "two"):
        seats.hold("f", replica, never)
    seats.reserve("f", 5, 1)
    seats.drains("two")
    assert seats.promised(A) == 5
    seats.reserve("g", 5, 1)
    assert seats.hold("g", "three", lambda: None) is None
    seats.gone("two")
    assert seats.hold("g", "three", never) == A


def test_a_new_share_goes_next_to_the_old_one_where_a_gpu_has_room_for_both() -> None:
    seats = Seats((A, B))
    seats.reserve("f", 8, 1)
    assert seats.hold("f", "old", never) == A
    seats.reserve("f", 5, 1, replace_all=True)
    assert seats.hold("f", "new", never) == B
    seats.drains("old")
    seats.gone("old")
    assert (seats.promised(A), seats.promised(B)) == (0, 5)


def test_a_new_share_may_need_the_place_of_the_old_one() -> None:
    seats = Seats((A,))
    seats.reserve("f", 8, 1)
    seats.hold("f", "old", never)
    seats.reserve("f", 9, 1, replace_all=True)
    assert seats.hold("f", "new", lambda: None) is None
    seats.drains("old")
    seats.gone("old")
    assert seats.hold("f", "new", never) == A


@pytest.mark.parametrize("tenths", range(1, 11))
def test_one_gpu_takes_as_many_replicas_as_fit_into_ten_tenths(tenths: int) -> None:
    seats = Seats((A,))
    seats.reserve("f", tenths, GPU_TENTHS // tenths)
    with pytest.raises(ConflictError):
        seats.reserve("f", tenths, GPU_TENTHS // tenths + 1)


def possible(wanted: list[int], gpus: int) -> bool:
    """By trying every way to put the shares on the GPUs."""
    ways = product(range(gpus), repeat=len(wanted))
    return any(all(load <= GPU_TENTHS for load in _loads(wanted, way).values()) for way in ways)


def _loads(wanted: list[int], way: tuple[int, ...]) -> Counter[int]:
    loads: Counter[int] = Counter()
    for tenths, gpu in zip(wanted, way, strict=True):
        loads[gpu] += tenths
    return loads


@settings(deadline=None)
@given(st.lists(st.integers(1, 10), max_size=6))
def test_what_is_accepted_fits_and_on_one_gpu_what_fits_is_accepted(wanted: list[int]) -> None:
    for gpus in ((A,), (A, B)):
        seats, accepted = Seats(gpus), []
        for number, tenths in enumerate(wanted):
            try:
                seats.reserve(f"f{number}", tenths, 1)
            except ConflictError:
                if len(gpus) == 1:
                    assert not possible([*accepted, tenths], 1)
            else:
                accepted.append(tenths)
        assert possible(accepted, len(gpus))


Step = tuple[str, int, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(("reserve", "replace_all", "hold", "drain", "gone", "forget")),
        st.integers(0, 3),
        st.integers(0, 10),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(steps)
def test_no_order_of_events_takes_more_than_ten_tenths_of_a_gpu_or_loses_some(history: list[Step]) -> None:
    seats, living, count = Seats((A, B)), dict[str, str](), 0
    for what, which, number in history:
        function = f"f{which}"
        try:
            if what in ("reserve", "replace_all"):
                seats.reserve(function, number, 1 + which, replace_all=what == "replace_all")
            elif what == "hold":
                count += 1
                if seats.hold(function, f"r{count}", lambda: None):
                    living[f"r{count}"] = function
            elif what == "forget":
                seats.forget(function)
            elif living:
                replica = sorted(living)[number % len(living)]
                seats.drains(replica)
                if what == "gone":
                    seats.gone(replica)
                    del living[replica]
        except ConflictError:
            pass
        for gpu in (A, B):
            assert seats.promised(gpu) <= GPU_TENTHS
            assert seats.held(gpu) <= GPU_TENTHS
    for function in ("f0", "f1", "f2", "f3"):
        seats.reserve(function, 0, 0)
    for replica in list(living):
        seats.gone(replica)
    assert [seats.promised(gpu) + seats.held(gpu) for gpu in (A, B)] == [0, 0]


def test_a_replica_is_bound_to_its_percentage_and_its_part_of_the_memory() -> None:
    environment = binding(Gpu("GPU-1", "made up", 143_771), 3)
    assert environment == {
        "smoe_device": "cuda",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=43131M",
    }

"""Capacity: what fits, what is left, and how growth is shared out where not all of it fits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.capacity import load_capacity, needs, total_needs
from autoscaler.contract import Capacity, Configuration, Decision, Machine, MemoryNeed, Proposal, Resources
from autoscaler.decision.capacity import within_capacity
from autoscaler.decision.limits import LimitSettings, LimitState, decide
from autoscaler.errors import SettingsError
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation, topology

ANY_MEMORY = MemoryNeed(0, 0, 0.0)


def on_cores(replicas: int, cores: float = 1.0, memory_mb: int = 128) -> Configuration:
    return Configuration(memory_mb, cores, 0.0, replicas, 1)


def on_gpu(replicas: int, share: float = 0.1, memory_mb: int = 128) -> Configuration:
    return Configuration(memory_mb, 0.0, share, replicas, 1)


def room(cores: float = 1e6, memory_mb: float = 1e9, gpu_tenths: int = 10**6) -> Capacity:
    return Capacity(cores, memory_mb, gpu_tenths)


def limited(
    pairs: dict[str, tuple[Configuration, Configuration]], capacity: Capacity, others: tuple[Configuration, ...] = ()
) -> dict[str, Decision]:
    """Function → (present, target); ``others`` run and are not decided."""
    decisions = [Decision(name, name, now, target, target, "") for name, (now, target) in pairs.items()]
    present = {name: now for name, (now, _) in pairs.items()} | {f"other-{i}": one for i, one in enumerate(others)}
    result = within_capacity(decisions, present, dict.fromkeys(pairs, ANY_MEMORY), capacity)
    return {decision.function: decision for decision in result}


def test_what_is_used_and_left_counts_every_replica_of_each_resource() -> None:
    every = (on_cores(3, 2.0, 256), on_gpu(4, 0.3, 512))
    assert total_needs(every) == Resources(6.0, 3 * 256 + 4 * 512, 12)
    assert Capacity(10.0, 4096.0, 12).left(every) == Resources(4.0, 4096.0 - 2816.0, 0)
    assert Capacity(6.0, 2816.0, 12).fits(every)
    for short, name in ((Capacity(5.9, 2816.0, 12), "cores"), (Capacity(6.0, 2815.0, 12), "memory"),
                        (Capacity(6.0, 2816.0, 11), "GPUs")):  # fmt: skip
        assert not short.fits(every) and short.beyond(every) == (name,)


def test_a_share_between_two_tenths_takes_the_larger() -> None:
    assert needs(on_gpu(1, 0.3)).gpu_tenths == 3 and needs(on_gpu(1, 0.25)).gpu_tenths == 3


def test_machines_must_also_have_a_place_for_each_replica() -> None:
    machines = (Machine(4.0, 1024.0, 0, 2),)
    assert Capacity(machines=machines).total == Resources(8.0, 2048.0, 0)
    assert Capacity(machines=machines).fits([on_cores(2, 3.0), on_cores(2, 1.0)])
    three = [on_cores(2, 2.0), on_cores(1, 3.0)]
    assert Capacity(7.0, 2048.0).fits(three) and Capacity(machines=machines).fits([*three, on_cores(1, 1.0)])
    assert Capacity(machines=machines).beyond([on_cores(1, 4.0), on_cores(1, 2.0), on_cores(1, 3.0)]) == ("cores",)
    assert Capacity(machines=(Machine(4.0, 1024.0, 0, 3),)).beyond([on_cores(4, 3.0)]) == ("machines",)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from((1.0, 2.0, 3.0))), max_size=4))
def test_what_first_fit_accepts_has_a_place(pairs: list[tuple[int, float]]) -> None:
    """Brute force over all assignments of replicas to two machines."""
    configurations = [on_cores(replicas, cores) for replicas, cores in pairs]
    sizes = [cores for replicas, cores in pairs for _ in range(replicas)]
    if Capacity(machines=(Machine(4.0, 1e6, 0, 2),)).fits(configurations):
        splits = itertools.product((0, 1), repeat=len(sizes))
        assert any(
            all(sum(size for size, at in zip(sizes, split, strict=True) if at == side) <= 4.0 for side in (0, 1))
            for split in splits
        )


def test_growth_is_shared_in_equal_parts_of_what_is_desired() -> None:
    result = limited({"a": (on_cores(1), on_cores(8)), "b": (on_cores(1), on_cores(4))}, room(cores=6.0))
    assert (result["a"].target.replicas, result["b"].target.replicas) == (4, 2)
    assert result["a"].limits_hit == result["b"].limits_hit == ("capacity: cores",)


def test_what_runs_is_kept_even_beyond_the_capacity() -> None:
    result = limited({"a": (on_cores(5), on_cores(8)), "b": (on_cores(5), on_cores(4))}, room(cores=3.0))
    assert (result["a"].target, result["b"].target) == (on_cores(5), on_cores(4))


def test_what_others_give_up_is_free_at_once() -> None:
    result = limited({"a": (on_cores(1), on_cores(4)), "b": (on_cores(5), on_cores(2))}, room(cores=6.0))
    assert result["a"].target == on_cores(4) and result["a"].limits_hit == ()


def test_a_short_gpu_stops_nobody_who_wants_cores() -> None:
    result = limited({"a": (on_gpu(1), on_gpu(8)), "b": (on_cores(1), on_cores(8))}, room(gpu_tenths=2))
    assert result["a"].target == on_gpu(2) and result["a"].limits_hit == ("capacity: GPUs",)
    assert result["b"].target == on_cores(8) and result["b"].limits_hit == ()


def test_functions_that_are_not_decided_take_room_too() -> None:
    result = limited({"a": (on_cores(1), on_cores(8))}, room(cores=6.0), others=(on_cores(2),))
    assert result["a"].target == on_cores(4)


def test_part_of_a_growth_holds_its_tokens() -> None:
    """Less memory for each of more replicas: two of them could not hold the tokens that three can."""
    now, target = on_cores(1, memory_mb=512), on_cores(4, memory_mb=256)
    need = MemoryNeed(0, 1, 0.9 * 256 * 1024 * 1024 * 3 / 2)
    decision = Decision("a", "a", now, target, target, "")
    cut, _ = (within_capacity([decision], {"a": now}, {"a": need}, room(cores=cores))[0].target for cores in (3.0, 2.0))
    assert cut == target.with_replicas(3)
    assert within_capacity([decision], {"a": now}, {"a": need}, room(cores=2.0))[0].target == now


CONFIGURATIONS = st.builds(
    lambda gpu, size, memory, replicas: Configuration(
        128 * memory, 0.0 if gpu else float(size), size / 10 if gpu else 0.0, replicas, 1
    ),
    st.booleans(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6),
)  # fmt: skip
PAIRS = st.lists(st.tuples(CONFIGURATIONS, CONFIGURATIONS), min_size=1, max_size=5)
CAPACITIES = st.builds(Capacity, st.integers(0, 40).map(float), st.integers(0, 6000).map(float), st.integers(0, 40))


@given(PAIRS, CAPACITIES)
def test_no_decision_takes_more_than_there_is_and_none_takes_what_runs(
    pairs: list[tuple[Configuration, Configuration]], capacity: Capacity
) -> None:
    result = list(limited({str(i): pair for i, pair in enumerate(pairs)}, capacity).values())
    present = [now for now, _ in pairs]
    targets = [decision.target for decision in result]
    if capacity.fits(present):
        assert capacity.fits(targets)
    for before, after, most in zip(total_needs(present), total_needs(targets), capacity.total, strict=True):
        assert after <= max(before, most) + 1e-9
    for decision in result:
        kept = min(decision.present.replicas, decision.desired.replicas)
        assert decision.target == decision.present or decision.target.replicas >= kept
        if capacity.fits([decision.desired for decision in result]):
            assert decision.target == decision.desired and not decision.limits_hit


@given(PAIRS, CAPACITIES, st.permutations(range(5)))
def test_names_of_functions_change_nothing(
    pairs: list[tuple[Configuration, Configuration]], capacity: Capacity, names: list[int]
) -> None:
    one = limited({str(i): pair for i, pair in enumerate(pairs)}, capacity)
    other = limited({f"f{names[i]}": pair for i, pair in enumerate(pairs)}, capacity)
    assert [decision.target for decision in one.values()] == [decision.target for decision in other.values()]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 8)), min_size=1, max_size=5), st.integers(0, 20))
def test_a_larger_capacity_takes_nothing_from_anyone(pairs: list[tuple[int, int]], cores: int) -> None:
    """Replicas of equal size: no function gets less where there is more."""
    growths = {str(i): (on_cores(now), on_cores(now + more)) for i, (now, more) in enumerate(pairs)}
    less, more = (limited(growths, room(cores=float(number))) for number in (cores, cores + 1))
    assert all(less[name].target.replicas <= more[name].target.replicas for name in growths)


def test_decide_applies_it_after_all_other_limits() -> None:
    present = {"m-expert-0-0": configuration(1), "m-expert-0-1": configuration(1)}
    proposal = Proposal(dict.fromkeys(present, configuration(4)), dict.fromkeys(present, "scripted"))
    cores = present["m-expert-0-0"].cpu_cores
    settings = LimitSettings(capacity=room(cores=4 * cores))
    every = decide(topology(), observation(), proposal, present, NOW_S, LimitState(), settings, PRICES)
    assert [one.target.replicas for one in every] == [2, 2]
    assert all(one.limits_hit == ("capacity: cores",) for one in every)
    same = decide(topology(), observation(), proposal, present, NOW_S, LimitState(), LimitSettings(), PRICES)
    wide = replace(settings, capacity=room())
    assert same == decide(topology(), observation(), proposal, present, NOW_S, LimitState(), wide, PRICES)


def test_a_file_holds_totals_or_machines(tmp_path: Path) -> None:
    path = tmp_path / "capacity.toml"
    path.write_text("cores = 8\nmemory_mb = 4096\n")
    assert load_capacity(path) == Capacity(8.0, 4096.0)
    path.write_text("[[machines]]\ncores = 52\nmemory_mb = 131072\ngpu_tenths = 10\ncount = 8\n")
    assert load_capacity(path).total == Resources(416.0, 8 * 131072.0, 80)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cores = -1\n", "cores is -1"),
        ("cpus = 8\n", "'cpus' is not known"),
        ("cores = 8\n[[machines]]\ncores = 8\n", "totals or machines, not both"),
        ("cores = = 8\n", "cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "capacity.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=sentence):
        load_capacity(path)

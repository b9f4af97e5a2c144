"""The configuration space of the paper: its size, its numbering, Eq. (2) and Eq. (4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import MIB, Configuration, ConfigurationSpace, MemoryNeed
from autoscaler.errors import ConfigurationError
from tests.unit.autoscaler.builders import configuration

PAPER = ConfigurationSpace()
SMALL = ConfigurationSpace(128, 320, 64, (1, 2.5), (0.5,), 1, 3, 2, 4)

desired = st.builds(
    lambda memory, resource, replicas, concurrency: Configuration(memory, *resource, replicas, concurrency),
    st.integers(1, 20_000),
    st.one_of(
        st.tuples(st.floats(0.01, 64), st.just(0.0)),
        st.tuples(st.just(0.0), st.floats(0.01, 1)),
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)


def test_the_paper_s_space_has_203520_configurations() -> None:
    assert len(PAPER) == 159 * 16 * 8 * 10 == 203_520


def test_every_configuration_of_the_space_is_a_member_and_none_comes_twice() -> None:
    configurations = list(SMALL)
    assert len(configurations) == len(set(configurations)) == len(SMALL) == 4 * 3 * 3 * 3
    assert all(one in SMALL for one in configurations)


@given(st.integers(0, len(PAPER) - 1))
def test_numbers_and_configurations_go_both_ways(number: int) -> None:
    assert PAPER.index(PAPER[number]) == number


def test_numbers_follow_the_order_of_iteration() -> None:
    assert [SMALL[i] for i in range(len(SMALL))] == list(SMALL)


@given(desired)
def test_the_nearest_configuration_is_a_member_and_never_has_less_memory_while_there_is_more(
    configuration: Configuration,
) -> None:
    for space in (PAPER, SMALL):
        nearest = space.nearest(configuration)
        assert nearest in space
        assert nearest.memory_mb >= min(configuration.memory_mb, space.memory_sizes_mb[-1])
        if configuration in space:
            assert nearest == configuration


@pytest.mark.parametrize(
    ("space", "desired"),
    [
        pytest.param(ConfigurationSpace(gpu_shares=()), configuration(cpu_cores=0.0, gpu_share=0.4), id="no GPU"),
        pytest.param(ConfigurationSpace(cpu_cores=()), configuration(), id="no CPU"),
    ],
)
def test_a_space_with_one_kind_of_resource_takes_any_configuration(
    space: ConfigurationSpace, desired: Configuration
) -> None:
    assert space.nearest(desired) in space


@pytest.mark.parametrize(
    "outside",
    [
        configuration(memory_mb=250),
        configuration(memory_mb=64),
        configuration(memory_mb=10304),
        configuration(cpu_cores=1.5),
        configuration(cpu_cores=7.0),
        configuration(cpu_cores=0.0, gpu_share=0.15),
        configuration(replicas=9),
        configuration(replicas=0),
        configuration(concurrency=11),
        configuration(concurrency=0),
        "not a configuration",
    ],
)
def test_what_is_off_the_space_is_no_member(outside: object) -> None:
    assert outside not in PAPER


@pytest.mark.parametrize(
    "fields",
    [
        {"cpu_cores": 1.0, "gpu_share": 0.5},
        {"cpu_cores": 0.0, "gpu_share": 0.0},
        {"cpu_cores": -1.0},
        {"cpu_cores": float("nan")},
        {"cpu_cores": float("inf")},
        {"cpu_cores": 0.0, "gpu_share": 1.1},
        {"memory_mb": 0},
        {"memory_mb": 256.0},
        {"replicas": -1},
        {"concurrency": True},
    ],
)
def test_numbers_that_make_no_configuration_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        configuration(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"memory_step_mb": 0}, "memory_step_mb"),
        ({"memory_min_mb": 512, "memory_max_mb": 256}, "memory_min_mb"),
        ({"cpu_cores": (), "gpu_shares": ()}, "cpu_cores"),
        ({"gpu_shares": (1.2,)}, "gpu_shares"),
        ({"replicas_min": 0}, "replicas_min"),
        ({"concurrency_max": 0}, "concurrency_min"),
    ],
)
def test_bounds_that_hold_nothing_are_refused_by_name(fields: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigurationError, match=key):
        ConfigurationSpace(**fields)  # type: ignore[arg-type]


def test_the_memory_that_equation_2_asks_for_is_that_counted_by_hand() -> None:
    # alpha · memory >= M_e + 2 · D · P / replicas: (100 MiB + 2 · 1 MiB · 90 / 3) / 0.8 = 200 MiB
    need = MemoryNeed(100 * MIB, MIB, 90, 0.8)
    assert need.required_mb(3) == pytest.approx(200)
    assert PAPER.least_memory_mb(need, 3) == 256
    assert need.holds(configuration(3)) and not need.holds(configuration(1))


@given(st.integers(0, 2000), st.floats(0, 1e7), st.floats(0.1, 1))
def test_the_mask_allows_exactly_what_equation_2_allows(weights_mb: int, peak: float, alpha: float) -> None:
    need = MemoryNeed(weights_mb * MIB, 256, peak, alpha)
    mask = SMALL.mask(need)
    for one in SMALL:
        floor = mask[one.replicas]
        assert (floor is not None and one.memory_mb >= floor) == need.holds(one)


def test_configurations_are_values() -> None:
    one = configuration()
    assert one.with_replicas(3) == replace(one, replicas=3) and one.replicas == 1

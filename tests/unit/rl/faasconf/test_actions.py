"""Outputs to configurations: by hand, there and back, and never against Eq. (2) or (4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import MIB, Configuration, ConfigurationSpace, MemoryNeed
from rl.faasconf.actions import configuration, outputs_of
from rl.faasconf.safe import History, noisy

PAPER = ConfigurationSpace()
SMALL = MemoryNeed(0, 0, 0.0)
unit = st.floats(0.0, 1.0, width=32)


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        pytest.param([0.0, 0.0, 0.0, 0.0, 0.0], Configuration(128, 1.0, 0.0, 1, 1), id="least"),
        pytest.param([1.0, 1.0, 1.0, 1.0, 1.0], Configuration(10240, 0.0, 1.0, 8, 10), id="most"),
        pytest.param([0.5, 0.5, 0.5, 0.5, 0.5], Configuration(128 + 79 * 64, 4.0, 0.0, 5, 6), id="half is a CPU"),
        pytest.param([0.51, 0.25, 0.01, 0.374, 0.31], Configuration(192, 0.0, 0.3, 3, 4), id="parts of the axes"),
    ],
)
def test_outputs_are_cut_into_equal_parts(outputs: list[float], expected: Configuration) -> None:
    assert configuration(np.array(outputs, np.float32), PAPER, SMALL) == expected


def test_memory_is_raised_to_the_least_of_eq_2() -> None:
    """100 MiB and 2 · 1 MiB · 400 tokens / 4 replicas at α = 0.9: 333.3 MiB, so 384 of the lattice."""
    need = MemoryNeed(100 * MIB, MIB, 400.0, 0.9)
    configured = configuration(np.array([0, 0, 0, 0.4, 0], np.float32), PAPER, need)
    assert (configured.replicas, configured.memory_mb) == (4, 384)


def test_where_no_memory_is_enough_there_are_more_replicas() -> None:
    """Alone it needs 22,222 MiB, with three replicas 7,407."""
    need = MemoryNeed(0, MIB, 10_000.0, 0.9)
    configured = configuration(np.zeros(5, np.float32), PAPER, need)
    assert configured.replicas == 3 and need.holds(configured)
    hopeless = configuration(np.zeros(5, np.float32), PAPER, MemoryNeed(10**12, 0, 0.0))
    assert (hopeless.memory_mb, hopeless.replicas) == (10240, 8)


@given(st.lists(unit, min_size=5, max_size=5), st.integers(0, 12_000 * MIB), st.floats(0, 1e5))
def test_no_outputs_break_eq_2_or_4_where_they_can_be_kept(outputs: list[float], runtime: int, peak: float) -> None:
    need = MemoryNeed(runtime, 3072, peak)
    configured = configuration(np.array(outputs, np.float32), PAPER, need)
    assert configured in PAPER and (configured.cpu_cores > 0) != (configured.gpu_share > 0)
    assert need.holds(configured) or all(size is None for size in PAPER.mask(need).values())


@given(st.integers(0, len(PAPER) - 1))
def test_a_configuration_comes_back_from_its_own_outputs(number: int) -> None:
    assert configuration(outputs_of(PAPER[number], PAPER), PAPER, SMALL) == PAPER[number]


@given(st.lists(unit, min_size=5, max_size=5))
def test_a_space_with_one_kind_of_compute_gives_that_kind(outputs: list[float]) -> None:
    given_outputs = np.array(outputs, np.float32)
    assert configuration(given_outputs, ConfigurationSpace(gpu_shares=()), SMALL).gpu_share == 0
    assert configuration(given_outputs, ConfigurationSpace(cpu_cores=()), SMALL).cpu_cores == 0


def test_prices_outside_two_deviations_are_not_safe() -> None:
    """Prices 2 and 4: mean 3, deviation 1."""
    history = History(np.zeros((2, 1, 5), np.float32), np.array([2.0, 4.0]))
    assert [history.is_safe(price) for price in (0.99, 1.0, 3.0, 5.0, 5.01)] == [False, True, True, True, False]
    assert history.mean_price == 3.0


def test_a_replayed_action_is_one_of_the_history_with_little_noise() -> None:
    actions = np.stack([np.full((3, 5), 0.2), np.full((3, 5), 0.8)]).astype(np.float32)
    history = History(actions, np.array([1.0, 2.0]))
    rng = np.random.default_rng(0)
    drawn = np.stack([history.replay(rng) for _ in range(300)])
    near = np.abs(drawn[:, None] - actions[None]).mean(axis=(2, 3)).min(axis=1)
    assert near.max() < 0.1 and 0.03 < np.abs(drawn - np.where(drawn > 0.5, 0.8, 0.2)).std() * 2 < 0.1
    assert {bool(row.mean() > 0.5) for row in drawn} == {True, False}


@given(st.lists(unit, min_size=5, max_size=5), st.floats(0, 3))
def test_noise_stays_within_the_outputs_range(outputs: list[float], deviation: float) -> None:
    noised = noisy(np.array(outputs, np.float32), deviation, np.random.default_rng(0))
    assert noised.dtype == np.float32 and noised.min() >= 0 and noised.max() <= 1

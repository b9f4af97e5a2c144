"""Statistics of routing over a sliding window, against a count token by token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.activations import activations_of
from functions.dispatch import activations
from functions.dispatch.activations import PERIODS, ActivationWindow, entropy_bits
from placement.cluster import entropy

EXPERTS, LAYERS, K = 5, 2, 3


def choices(tokens: int, seed: int) -> np.ndarray:
    """[tokens, layers, k] of distinct experts."""
    rng = np.random.default_rng(seed)
    return np.stack([[rng.permutation(EXPERTS)[:K] for _ in range(LAYERS)] for _ in range(tokens)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 3)), min_size=1, max_size=12))
def test_sums_are_those_of_placement_for_what_the_window_holds(calls: list[tuple[int, float]]) -> None:
    window = ActivationWindow([EXPERTS] * LAYERS, window_s=10.0)
    now_s, kept = 100.0, []
    for number, (tokens, pause_s) in enumerate(calls):
        now_s += pause_s
        part = choices(tokens, number)
        for layer in range(LAYERS):
            window.add(layer, part[:, layer], now_s)
        kept.append((now_s, part))
    inside = [part for at_s, part in kept if at_s // 1.0 > now_s // 1.0 - PERIODS]
    expected = activations_of(np.concatenate(inside), EXPERTS)
    tokens_seen, together = window.totals(now_s)
    assert np.array_equal(tokens_seen, expected.tokens)
    assert np.array_equal(together, expected.together)


def test_old_choices_leave_the_window_even_when_nothing_new_comes() -> None:
    window = ActivationWindow([EXPERTS], 10.0)
    window.add(0, np.array([[0, 1]]), 5.0)
    assert window.totals(14.9)[0].sum() == 2
    assert window.totals(15.0)[0].sum() == 0


def test_layers_with_fewer_experts_have_zeros_at_the_end() -> None:
    window = ActivationWindow([2, 4], 10.0)
    window.add(0, np.array([[1]]), 0.0)
    window.add(1, np.array([[3]]), 0.0)
    tokens, together = window.totals(0.0)
    assert tokens.tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]
    assert not together.any()


def test_choices_are_summed_now_and_then_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "FOLD_TOKENS", 7)
    window = ActivationWindow([EXPERTS], 10.0)
    for _ in range(50):
        window.add(0, np.array([[0, 2], [1, 2]]), 1.0)
        assert window._pending_tokens <= 8
    tokens, together = window.totals(1.0)
    assert tokens.tolist() == [[50, 50, 100, 0, 0]]
    assert together[0, 2].tolist() == [50, 50, 0, 0, 0]


def test_kept_choices_do_not_change_with_the_message_they_came_in() -> None:
    window = ActivationWindow([EXPERTS], 10.0)
    ids = np.array([[0]])
    window.add(0, ids, 0.0)
    ids[0] = 4
    assert window.totals(0.0)[0][0].tolist() == [1, 0, 0, 0, 0]


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=4))
def test_entropy_is_placements(tokens: list[list[int]]) -> None:
    counted = np.array(tokens)
    assert entropy_bits(counted) == pytest.approx(entropy(counted[None].astype(np.float64))[0])

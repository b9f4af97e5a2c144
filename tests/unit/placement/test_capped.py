"""Tokens first, then co-activation: EPLB's limit is kept, nothing stands twice, and the search only improves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from benchmarks.placement.activations import Activations
from benchmarks.placement.oracles import coactivation_load, token_load
from benchmarks.placement.peers import balanced
from placement.janus import Nodes, place
from placement.layout import Held, copies, once
from placement.levelled import Layout, even_out
from tests.parameters import examples
from tests.unit.placement.conftest import Known
from tests.unit.placement.layouts import check

SHAPES = st.tuples(st.integers(2, 6), st.integers(2, 5), st.integers(0, 8), st.integers(0, 10_000))


def pairs(held: Held, known: Activations) -> np.ndarray:
    """[layers]: Eq. (1) of the fullest node."""
    return coactivation_load(held, known.together).max(axis=1)


def tokens(held: Held, known: Activations) -> np.ndarray:
    """[layers]: of the fullest node."""
    return token_load(held, known.tokens).max(axis=1)


@pytest.mark.slow
@settings(max_examples=examples(15), deadline=None)
@given(SHAPES)
def test_no_expert_stands_twice_and_no_node_bears_more_than_eplbs_fullest(
    shape: tuple[int, int, int, int],
) -> None:
    nodes, slots, fewer, seed = shape
    experts = max(2, nodes * slots - fewer)
    rng = np.random.default_rng(seed)
    together = np.triu(rng.integers(0, 40, (3, experts, experts)), 1).astype(np.float32)
    known = Activations(
        rng.uniform(1.0, 60.0, (3, experts)),  # ties may be broken otherwise
        np.ascontiguousarray(together + together.transpose(0, 2, 1)),
    )
    placed = place(known.tokens, known.together, Nodes(nodes, slots), effort=30)
    check(placed.held, experts)
    assert np.array_equal(copies(placed.held, experts).sum(axis=1), placed.counts)
    theirs = once(balanced(known.tokens, nodes, slots))
    assert (tokens(placed.held, known) <= tokens(theirs, known) * (1 + 1e-6)).all()


def test_no_node_bears_more_than_the_slack_allows() -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        nodes, slots, slack = int(rng.integers(2, 5)), int(rng.integers(2, 4)), 0.3
        experts = max(2, nodes * slots - int(rng.integers(1, nodes * slots)))
        load = rng.uniform(1.0, 60.0, (1, experts))
        together = np.triu(rng.integers(0, 40, (1, experts, experts)), 1).astype(np.float32)
        together = np.ascontiguousarray(together + together.transpose(0, 2, 1))
        placed = place(load, together, Nodes(nodes, slots), slack=slack, effort=30)
        theirs = token_load(once(balanced(load, nodes, slots)), load).max()
        allowed = max(theirs, (1 + slack) * load.sum() / nodes)
        assert token_load(placed.held, load).max() <= allowed * (1 + 1e-6)


def test_a_second_replica_that_only_adds_co_activation_gives_way() -> None:
    """Experts 1 and 2 must each share a node with a replica of 0 unless one of these goes: then they share one."""
    together = np.zeros((1, 3, 3), dtype=np.float32)
    together[0, 0, 1] = together[0, 1, 0] = 100
    together[0, 0, 2] = together[0, 2, 0] = 1
    load = np.array([[10.0, 1.0, 1.0]])
    placed = place(load, together, Nodes(2, 2), slack=1.0, effort=50)
    assert pairs(placed.held, Activations(load, together)).tolist() == [0.0]


def test_more_effort_is_never_worse(known: Known) -> None:
    stats = known(6, 24, k=4, tokens=1000)
    loads = [
        pairs(place(stats.tokens, stats.together, Nodes(6, 5), effort=effort).held, stats) for effort in (0, 3, 60)
    ]
    assert (loads[1] <= loads[0]).all()
    assert (loads[2] <= loads[1]).all()
    assert (loads[2] < loads[0]).all()


@pytest.mark.parametrize("seed", range(5))
def test_much_effort_ends_at_the_least_load_that_any_layout_of_the_same_tokens_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    together = np.triu(rng.integers(1, 30, (1, 5, 5)), 1).astype(np.float32)
    together = np.ascontiguousarray(together + together.transpose(0, 2, 1))
    load = np.full((1, 5), 10.0)
    placed = place(load, together, Nodes(3, 2), slack=1.0, effort=3000)
    best = np.inf  # every way to put two of five experts (or one twice-free slot) on three nodes
    choices = [*itertools.combinations(range(5), 2), *((expert,) for expert in range(5))]
    for chosen in itertools.product(choices, repeat=3):
        if len(set(itertools.chain(*chosen))) == 5:
            best = min(best, max(float(together[0][pair]) if len(pair) == 2 else 0.0 for pair in chosen))
    assert pairs(placed.held, Activations(load, together)).max() == best


@njit
def evened(layout: Layout, limit: float) -> float:
    """Only compiled code can call it."""
    return even_out(layout, limit)


@pytest.mark.slow
def test_the_fullest_node_gives_what_leaves_the_fuller_of_both_least_tokens() -> None:
    held, load = np.array([[0, 1], [2, 3]], dtype=np.int32), np.array([7.0, 3.0])
    layout = Layout(held, np.ones(4, dtype=np.int32), np.array([4.0, 3.0, 2.0, 1.0]), load, np.zeros((2, 2)), load * 0)
    assert evened(layout, 5.0) == 5.0
    assert held.tolist() == [[2, 1], [0, 3]] and load.tolist() == [5.0, 5.0]


def test_an_expert_that_eplb_puts_twice_on_a_node_stands_there_once() -> None:
    load = np.array([[10.0, 1.0, 1.0]])
    together = np.ones((1, 3, 3), dtype=np.float32)
    together[:, range(3), range(3)] = 0
    assert (copies(balanced(load, 3, 3), 3) > 1).any()
    placed = place(load, together, Nodes(3, 3))
    check(placed.held, 3)
    assert token_load(placed.held, load).max() <= token_load(once(balanced(load, 3, 3)), load).max() + 1e-6


@pytest.mark.parametrize("seed", range(8))
def test_a_layout_without_any_co_activation_is_kept_once_it_is_met(seed: int) -> None:
    """Few pairs of eight experts on four nodes of two: where a pairing apart from all of them exists, it is the result,
    and not what a further perturbation made of it."""
    rng = np.random.default_rng(seed)
    together = np.triu((rng.random((1, 8, 8)) < 0.25) * rng.integers(1, 9, (1, 8, 8)), 1).astype(np.float32)
    together = np.ascontiguousarray(together + together.transpose(0, 2, 1))

    def apart(rest: list[int]) -> bool:
        """Whether these experts can be paired without a co-activation."""
        return not rest or any(
            not together[0, rest[0], other] and apart([one for one in rest[1:] if one != other]) for other in rest[1:]
        )

    placed = place(np.full((1, 8), 10.0), together, Nodes(4, 2), slack=1.0, effort=3000)
    worst = pairs(placed.held, Activations(np.full((1, 8), 10.0), together)).max()
    assert (worst == 0) == apart(list(range(8)))

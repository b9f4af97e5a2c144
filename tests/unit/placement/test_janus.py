"""Counts and placement on like nodes: limits, optimum on small instances, against EPLB, movement."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.activations import Activations, activations_of
from benchmarks.placement.oracles import coactivation_load, least_pairs, token_load
from benchmarks.placement.peers import balanced
from placement.errors import InfeasibleError, PlacementError
from placement.janus import OBJECTIVES, Nodes, Placement, place
from placement.layout import arrivals, copies, keep_in_place, once
from tests.parameters import examples
from tests.unit.placement.conftest import Known
from tests.unit.placement.layouts import check

SHAPES = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(0, 1000))


def made(layers: int, experts: int, seed: int, largest: int = 50) -> Activations:
    rng = np.random.default_rng(seed)
    together = np.triu(rng.integers(0, largest, (layers, experts, experts)), 1).astype(np.float32)
    return Activations(
        rng.integers(0, largest, (layers, experts)).astype(float), together + together.transpose(0, 2, 1)
    )


def brute_force(placed: Placement, together: np.ndarray, nodes: Nodes) -> float:
    """Least greatest Eq. (1) load over every way to give the counts' replicas to nodes."""
    counts = placed.counts[0]
    choices = [list(itertools.combinations(range(nodes.count), int(count))) for count in counts]
    best = np.inf
    for chosen in itertools.product(*choices):
        on = [[e for e, where in enumerate(chosen) if node in where] for node in range(nodes.count)]
        if max(map(len, on)) <= nodes.slots:
            best = min(best, max(sum(together[i, j] for i, j in itertools.combinations(held, 2)) for held in on))
    return float(best)


@pytest.mark.slow
@settings(max_examples=examples(10), deadline=None)
@given(SHAPES, st.sampled_from(OBJECTIVES))
def test_every_instance_that_fits_gets_a_layout_within_all_limits(shape: tuple[int, ...], objective: str) -> None:
    nodes, spare, experts, seed = shape
    slots = -(-experts // nodes) + spare - 1
    known = made(2, experts, seed)
    placed = place(known.tokens, known.together, Nodes(nodes, slots), objective=objective, effort=20)  # type: ignore[arg-type]
    check(placed.held, experts)
    assert np.array_equal(copies(placed.held, experts).sum(axis=1), placed.counts)
    assert placed.counts.max() <= nodes
    full = min(nodes * slots, nodes * experts)
    assert (placed.counts.sum(axis=1) <= full).all()
    if objective != "tokens-first":  # which leaves a slot free where any replica would raise the greatest load
        assert (placed.counts.sum(axis=1) == full).all()


@pytest.mark.parametrize("seed", range(25))
def test_search_is_within_two_percent_of_the_optimum_of_eq_2(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = Nodes(int(rng.integers(2, 4)), int(rng.integers(3, 4)))
    known = made(1, int(rng.integers(4, nodes.count * nodes.slots + 1)), seed)
    placed = place(known.tokens, known.together, nodes, objective="coactivation", effort=2000)
    best = brute_force(placed, known.together[0], nodes)
    assert coactivation_load(placed.held, known.together).max() <= 1.02 * best
    assert least_pairs(placed.counts[0], known.together[0], nodes.count, nodes.slots) == pytest.approx(best)


def test_search_starts_from_algorithm_2_and_only_improves_it(known: Known) -> None:
    stats, nodes = known(3, 24, k=4), Nodes(6, 5)
    loads = [
        coactivation_load(
            place(stats.tokens, stats.together, nodes, objective="coactivation", effort=effort).held, stats.together
        ).max(axis=1)
        for effort in (0, 12, 400)
    ]
    assert (loads[1] <= loads[0]).all()
    assert (loads[2] <= loads[1]).all()
    assert (loads[2] < loads[0]).all()


def test_algorithm_2_by_hand() -> None:
    # shares 9, 8, 7, 6 go in this order; 2 joins 1 (2 together) rather than 0 (5), 3 must go to 0's free slot
    together = np.zeros((1, 4, 4), dtype=np.float32)
    for i, j, value in ((0, 1, 9), (0, 2, 5), (1, 2, 2), (0, 3, 4), (1, 3, 1)):
        together[0, i, j] = together[0, j, i] = value
    placed = place(np.array([[9.0, 8.0, 7.0, 6.0]]), together, Nodes(2, 2), objective="coactivation", effort=0)
    assert [sorted(node) for node in placed.held[0].tolist()] == [[0, 3], [1, 2]]


def test_counts_go_to_the_most_tokens_per_replica_up_to_one_a_node() -> None:
    placed = place(np.array([[100.0, 30.0, 20.0, 1.0]]), None, Nodes(3, 3), objective="tokens")
    assert placed.counts.tolist() == [[3, 3, 2, 1]]


@pytest.mark.parametrize(("experts", "nodes"), [(32, Nodes(8, 5)), (16, Nodes(4, 6)), (8, Nodes(8, 2))])
def test_no_worse_than_eplb_on_tokens(known: Known, experts: int, nodes: Nodes) -> None:
    stats = known(8, experts, k=2, tokens=2000)
    ours = place(stats.tokens, stats.together, nodes).held
    theirs = once(balanced(stats.tokens, nodes.count, nodes.slots))
    mine, peers = (token_load(held, stats.tokens).max(axis=1) for held in (ours, theirs))
    assert mine.mean() <= peers.mean() + 1e-6
    assert mine.max() <= peers.max() + 1e-6


@pytest.mark.parametrize(("experts", "nodes"), [(32, Nodes(8, 5)), (16, Nodes(4, 6)), (8, Nodes(8, 2))])
def test_better_than_eplb_on_coactivation(known: Known, experts: int, nodes: Nodes) -> None:
    stats = known(8, experts, k=2, tokens=2000)
    held = place(stats.tokens, stats.together, nodes, effort=100).held, balanced(stats.tokens, nodes.count, nodes.slots)
    ours, theirs = (coactivation_load(part, stats.together).max(axis=1).mean() for part in held)
    assert ours < theirs


def test_grouped_experts_stay_within_one_group_of_nodes(known: Known) -> None:
    stats, nodes = known(3, 24), Nodes(6, 6, groups=3)
    placed = place(stats.tokens, stats.together, nodes, expert_groups=6)
    check(placed.held, 24)
    assert np.array_equal(copies(placed.held, 24).sum(axis=1), placed.counts)
    on = copies(placed.held, 24).reshape(3, 3, 2, 6, 4).sum(axis=(2, 4)) > 0  # layer, node group, expert group
    assert (on.sum(axis=1) == 1).all()
    assert (on.sum(axis=2) == 2).all()


def test_same_statistics_give_the_same_layout(known: Known) -> None:
    stats = known(2, 16)
    first, second = (place(stats.tokens, stats.together, Nodes(4, 5)).held for _ in range(2))
    assert np.array_equal(first, second)


def test_kept_in_place_equals_the_best_renaming_of_nodes(known: Known) -> None:
    one, two = (known(1, 8, seed=seed) for seed in (0, 1))
    before, after = (place(part.tokens, part.together, Nodes(4, 3)).held for part in (one, two))
    fewest = min(arrivals(before, after[:, list(order)]) for order in itertools.permutations(range(4)))
    kept = keep_in_place(after, before)
    assert arrivals(before, kept) == fewest
    assert sorted(map(sorted, kept[0].tolist())) == sorted(map(sorted, after[0].tolist()))


def test_renaming_keeps_groups_of_nodes_together(known: Known) -> None:
    one, two = (known(2, 16, seed=seed) for seed in (0, 1))
    nodes = Nodes(4, 5, groups=2)
    before = place(one.tokens, one.together, nodes, expert_groups=4).held
    placed = place(two.tokens, two.together, nodes, expert_groups=4, previous=before).held
    on = copies(placed, 16).reshape(2, 2, 2, 4, 4).sum(axis=(2, 4)) > 0
    assert (on.sum(axis=1) == 1).all()
    assert arrivals(before, placed) <= arrivals(before, place(two.tokens, two.together, nodes, expert_groups=4).held)


def test_same_layout_moves_nothing(known: Known) -> None:
    stats = known(2, 12)
    placed = place(stats.tokens, stats.together, Nodes(4, 4)).held
    assert arrivals(placed, placed[:, ::-1]) > 0
    assert arrivals(placed, keep_in_place(placed[:, ::-1], placed)) == 0


def test_slack_buys_coactivation_with_tokens(known: Known) -> None:
    stats, nodes = known(4, 32, k=4, tokens=2000), Nodes(8, 5)
    tight, loose = (place(stats.tokens, stats.together, nodes, slack=slack).held for slack in (0.0, 0.2))
    assert (
        coactivation_load(loose, stats.together).max(axis=1).mean()
        < coactivation_load(tight, stats.together).max(axis=1).mean()
    )
    load = token_load(loose, stats.tokens)
    assert (load.max(axis=1) / load.mean(axis=1)).max() <= 1.2 + 1e-6


def test_activations_count_tokens_and_pairs_by_hand() -> None:
    stats = activations_of(np.array([[[0, 1]], [[1, 2]], [[0, 1]]]), 4)
    assert stats.tokens.tolist() == [[2, 3, 1, 0]]
    assert stats.together[0].tolist() == [[0, 2, 0, 0], [2, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes": Nodes(2, 1)}, "need as many slots"),
        ({"nodes": Nodes(0, 4)}, "at least 1"),
        ({"nodes": Nodes(3, 4, groups=2)}, "divide evenly"),
        ({"objective": "fast"}, "objective must be one of"),
        ({"slack": -0.1}, "not be negative"),
        ({"slack": np.nan}, "finite"),
        ({"slack": np.inf}, "finite"),
        ({"together": None}, "together must be"),
        ({"together": np.ones((1, 4, 4), dtype=np.float32)}, "zero diagonal"),
        ({"together": np.full((1, 4, 4), np.nan)}, "finite"),
        ({"together": np.where(np.eye(4)[None, ::-1] > 0, np.inf, 0.0)}, "finite"),
        ({"together": np.eye(4)[None] - 1}, "not negative"),
        ({"together": np.triu(np.ones((1, 4, 4)), 1)}, "symmetric"),
        ({"tokens": np.array([[1.0, -1.0, 0.0, 0.0]])}, "not negative"),
        ({"tokens": np.array([[1.0, np.nan, 0.0, 0.0]])}, "finite"),
    ],
)
def test_bad_input_gets_a_sentence(change: dict[str, object], message: str) -> None:
    stats = made(1, 4, 0)
    arguments: dict[str, object] = {"tokens": stats.tokens, "together": stats.together, "nodes": Nodes(2, 3), **change}
    with pytest.raises(PlacementError, match=message):
        place(**arguments)  # type: ignore[arg-type]


def test_too_few_slots_is_an_infeasible_instance() -> None:
    stats = made(1, 9, 0)
    with pytest.raises(InfeasibleError, match="slots: 9 experts"):
        place(stats.tokens, stats.together, Nodes(2, 4))


def test_slots_that_no_further_replica_may_take_stay_free() -> None:
    held = place(np.array([[2.0, 1.0]]), None, Nodes(2, 3), objective="tokens").held
    assert sorted(held[0, 0].tolist()) == sorted(held[0, 1].tolist()) == [-1, 0, 1]


def test_replica_count_that_fits_nowhere_is_infeasible_for_the_exact_search() -> None:
    with pytest.raises(InfeasibleError):
        least_pairs(np.array([3, 1]), np.zeros((2, 2)), nodes=2, slots=2)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([[[0, 0], [1, 2]]], "expert 0 stands 2 times on node 0"),
        ([[[0, 1], [1, 0]]], "expert 2 has no replica"),
        ([[[0, 1], [2, 3]]], "must hold experts 0 to 2"),
        ([[0, 1]], "layers, nodes, slots"),
    ],
)
def test_check_names_what_is_wrong(held: list[object], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        check(np.array(held, dtype=np.int32), 3)


@pytest.mark.parametrize(
    ("tokens", "nodes", "slots", "message"),
    [
        ([[1.0, float("nan")]], 2, 1, "finite and not negative"),
        ([[1.0, -1.0]], 2, 1, "finite and not negative"),
        ([1.0, 1.0], 2, 1, r"must be \[layers, experts\].* got shape \(2,\)"),
        ([[1.0, 1.0]], 0, 2, "at least 1, got 0 and 2"),
        ([[1.0, 1.0]], 1, 1, "do not fit"),
    ],
)
def test_the_peer_refuses_what_the_placement_refuses(
    tokens: list[object], nodes: int, slots: int, message: str
) -> None:
    with pytest.raises(PlacementError, match=message):
        balanced(np.array(tokens), nodes, slots)


def test_eplb_statement_by_hand() -> None:
    # expert 0 gets both spare places (6 → 3 → 2); shares 2, 2, 2, 2, 1 1: first to node 0, next to node 1, …
    held = balanced(np.array([[6.0, 2.0, 1.0, 1.0]]), 2, 3)
    assert np.bincount(held.ravel()).tolist() == [3, 1, 1, 1]
    assert sorted(token_load(held, np.array([[6.0, 2.0, 1.0, 1.0]]))[0].tolist()) == [5.0, 5.0]

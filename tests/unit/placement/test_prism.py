"""Unlike nodes: feasible instances get plans within all limits, improved plans are optimal, peers obey limits."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.peers import eplb, redundance, smartmoe, uniform
from benchmarks.prism.comparison import show_table
from placement import prism
from placement.cluster import (
    Cluster,
    PlanArray,
    entropy,
    local_ratio,
    make_cluster,
    remote_calls,
)
from placement.errors import InfeasibleError, PlacementError
from placement.migration import Scale, decide, migration_s
from placement.prism import METHODS, assign, fewest_remote, layer_counts, plan
from tests.parameters import examples

PEERS: dict[str, Callable[[np.ndarray, Cluster, int], np.ndarray]] = {
    "uniform": lambda f, c, b: uniform(c, f.shape[1], f.shape[2], b, 0),
    "redundance": lambda f, c, b: redundance(c, f.shape[1], f.shape[2], b, 0),
    "smartmoe": lambda f, c, b: smartmoe(c, f, b),
    "eplb": lambda f, c, b: eplb(c, f, b),
    "published": lambda f, c, b: plan(f, c, b, method="published"),
    "improved": lambda f, c, b: plan(f, c, b),
    "exact": lambda f, c, b: plan(f, c, b, method="exact"),
}


def check_plan(plan: PlanArray, cluster: Cluster, expert_bytes: int) -> None:
    """Raises PlacementError: a GPU over its memory, or an expert without a place."""
    over = np.flatnonzero(plan.sum(axis=(1, 2)) > cluster.slots(expert_bytes))
    if over.size:
        gpu = int(over[0])
        raise PlacementError(
            f"GPU {gpu} of node {cluster.node[gpu]} holds {int(plan[gpu].sum())} experts, "
            f"{int(cluster.slots(expert_bytes)[gpu])} fit in its memory"
        )
    missing = np.argwhere(~plan.any(axis=0))
    if missing.size:
        raise PlacementError(f"layer {missing[0][0]}: expert {missing[0][1]} is on no GPU")


@st.composite
def instances(draw: st.DrawFn) -> tuple[Cluster, np.ndarray, int]:
    """Unlike clusters from exactly enough places to plenty, memory that no whole expert can use, skewed or no calls."""
    gpus = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    layers, experts = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    places = rng.multinomial(layers * experts + draw(st.integers(0, 12)), rng.dirichlet(np.ones(sum(gpus))))
    starts = np.cumsum([0, *gpus[:-1]])
    usable = np.minimum(np.add.reduceat(places, starts), layers * experts).sum()
    places[0] += layers * experts if usable < layers * experts else 0
    expert_bytes = draw(st.sampled_from([1, 7]))
    memory = places * expert_bytes + rng.integers(0, expert_bytes, size=len(places))
    cluster = make_cluster(
        gpus,
        memory.tolist(),
        speed=rng.uniform(0.5, 2, size=len(places)).tolist(),
        load_bytes_per_s=1.0,
        bytes_per_s=1.0,
    )
    frequency = rng.integers(0, draw(st.sampled_from([1, 3, 100])), (len(gpus), layers, experts)).astype(float)
    return cluster, frequency, expert_bytes


def cluster_of(slots: list[list[int]]) -> Cluster:
    """GPUs by node with so many slots of one byte."""
    return make_cluster(
        [len(node) for node in slots], [s for node in slots for s in node], load_bytes_per_s=2.0, bytes_per_s=1.0
    )


def fewest(cluster: Cluster, frequency: np.ndarray) -> float:
    """Brute force over everything that each node may hold (one layer)."""
    experts = frequency.shape[2]
    every = range(experts)
    choices = [list(itertools.combinations(every, min(int(s), experts))) for s in cluster.node_slots(1)]
    best = np.inf
    for chosen in itertools.product(*choices):
        if len(set().union(*chosen)) == experts:
            best = min(
                best, sum(frequency[n, 0, [e for e in every if e not in held]].sum() for n, held in enumerate(chosen))
            )
    return float(best)


@settings(max_examples=examples(120), deadline=None)
@given(instances(), st.sampled_from(sorted(PEERS)))
def test_every_feasible_instance_gets_a_plan_within_memory_that_covers_all(
    instance: tuple[Cluster, np.ndarray, int], name: str
) -> None:
    cluster, frequency, expert_bytes = instance
    check_plan(PEERS[name](frequency, cluster, expert_bytes), cluster, expert_bytes)


@settings(max_examples=examples(80), deadline=None)
@given(instances())
def test_improved_equals_the_linear_program_and_published_is_no_better(
    instance: tuple[Cluster, np.ndarray, int],
) -> None:
    cluster, frequency, size = instance
    calls = {m: remote_calls(plan(frequency, cluster, size, method=m), cluster, frequency).sum() for m in METHODS}
    assert calls["improved"] == calls["auto"] == pytest.approx(calls["exact"])
    assert calls["published"] >= calls["exact"] - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_linear_program_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = cluster_of([[2], [1, 1], [3]])
    frequency = rng.integers(0, 20, (3, 1, 5)).astype(float)
    held = fewest_remote(frequency[:, 0], cluster.node_slots(1))
    assert np.where(held, 0, frequency[:, 0]).sum() == fewest(cluster, frequency)
    assert (held.sum(axis=1) <= cluster.node_slots(1)).all()


@pytest.mark.parametrize(("cells", "method"), [(1000, "improved"), (24, "exact")])
def test_auto_is_the_exchanges_on_small_instances_and_the_linear_program_on_large_ones(
    cells: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prism, "EXACT_CELLS", cells)
    cluster, frequency = cluster_of([[7], [8]]), np.ones((2, 3, 4))  # all ties, which each breaks in its own way
    by_method = {name: plan(frequency, cluster, 1, method=name) for name in METHODS}
    assert np.array_equal(by_method["auto"], by_method[method])  # type: ignore[index]
    assert not np.array_equal(by_method["improved"], by_method["exact"])


@pytest.mark.parametrize("shape", [(1, 2, 4), (3, 2, 4), (2, 2, 8), (4, 2, 2), (2, 8)])
def test_previous_plan_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(PlacementError, match=r"previous must be bool \[gpus, layers, experts\] = \(2, 2, 4\)"):
        plan(np.ones((2, 2, 4)), cluster_of([[6], [6]]), 1, previous=np.zeros(shape, dtype=np.bool_))


def test_previous_plan_of_numbers_is_refused() -> None:
    with pytest.raises(PlacementError, match="got int64"):
        plan(np.ones((2, 2, 4)), cluster_of([[6], [6]]), 1, previous=np.zeros((2, 2, 4), dtype=np.int64))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bytes_per_s": np.nan}, "bandwidth between nodes must be finite and above 0"),
        ({"bytes_per_s": np.array([[1.0, 2.0], [-1.0, 1.0]])}, "bandwidth between nodes must be finite and above 0"),
        ({"bytes_per_s": np.ones((3, 3))}, r"bandwidth must be one number or \[2, 2\] of them, got shape \(3, 3\)"),
        ({"bytes_per_s": np.ones(2)}, r"bandwidth must be one number or \[2, 2\]"),
        ({"speed": np.nan}, "speed must be one number or one for each of 3 GPUs"),
        ({"speed": 0.0}, "above 0"),
        ({"memory_bytes": [1, 2]}, "memory_bytes must be one number or one for each of 3 GPUs"),
    ],
)
def test_cluster_of_impossible_numbers_gets_a_sentence(change: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"memory_bytes": 3, "load_bytes_per_s": 1.0, "bytes_per_s": 1.0, **change}
    with pytest.raises(PlacementError, match=message):
        make_cluster([1, 2], **given)  # type: ignore[arg-type]


def test_cluster_takes_numbers_of_numpy_and_a_diagonal_that_means_nothing() -> None:
    bandwidth = np.array([[np.nan, 2.0], [3.0, 0.0]])
    cluster = make_cluster([1, 1], np.int64(3), load_bytes_per_s=np.float32(2.0), bytes_per_s=bandwidth)  # type: ignore[arg-type]
    assert cluster.memory_bytes.tolist() == [3, 3]
    assert cluster.bandwidth[0, 1] == 2.0


@pytest.mark.parametrize(
    ("frequency", "scale", "message"),
    [
        (np.full((2, 1, 2), np.nan), Scale(1.0, 1.0, 1.0), "finite"),
        (np.ones((2, 1, 2)), Scale(np.nan, 1.0, 1.0), "finite and above 0"),
        (np.ones((2, 1, 3)), Scale(1.0, 1.0, 1.0), "before must be bool"),
        (np.ones((1, 1, 2)), Scale(1.0, 1.0, 1.0), r"\[2 nodes, layers, experts\]"),
    ],
)
def test_decision_on_impossible_statistics_is_refused(frequency: np.ndarray, scale: Scale, message: str) -> None:
    held = np.ones((2, 1, 2), dtype=np.bool_)
    with pytest.raises(PlacementError, match=message):
        decide(held, held, cluster_of([[2], [2]]), frequency, 1, scale)


@pytest.mark.parametrize("peer", [smartmoe, eplb])
@pytest.mark.parametrize("value", [np.nan, -1.0])
def test_peers_refuse_impossible_loads(peer: Callable[..., np.ndarray], value: float) -> None:
    with pytest.raises(PlacementError, match="finite and not negative"):
        peer(cluster_of([[4], [4]]), np.full((2, 1, 4), value), 1)


@settings(max_examples=examples(40), deadline=None)
@given(instances())
def test_eplb_with_one_copy_a_node_has_just_that(instance: tuple[Cluster, np.ndarray, int]) -> None:
    cluster, frequency, size = instance
    made = eplb(cluster, frequency, size, one_a_node=True)
    check_plan(made, cluster, size)
    for node in range(cluster.nodes):
        assert made[cluster.node == node].sum(axis=0).max() <= 1


@pytest.mark.parametrize("method", METHODS)
def test_node_never_holds_an_expert_twice_and_uses_all_its_places(method: str) -> None:
    cluster = cluster_of([[3], [4], [2, 5]])
    frequency = np.random.default_rng(1).random((3, 2, 6))
    made = plan(frequency, cluster, 1, method=method)  # type: ignore[arg-type]
    assert made[2:].sum(axis=0).max() == 1
    assert np.array_equal(made.sum(axis=(1, 2)), [3, 4, 2, 5])


def test_algorithm_1_shares_places_by_entropy() -> None:
    # node 0: layer 0 even over four experts (2 bits), layer 1 even over two (1 bit): places 2 to 1
    frequency = np.zeros((2, 2, 4))
    frequency[0, 0], frequency[0, 1, :2], frequency[1] = 5.0, 5.0, 1.0
    assert entropy(frequency).tolist() == [[2.0, 1.0], [2.0, 2.0]]
    assert layer_counts(frequency, np.array([3, 6])).tolist() == [[2, 1], [3, 3]]


def test_algorithm_1_borrows_from_the_largest_node_first() -> None:
    # entropies give layer 0 nothing but its rest; it needs two places a node less than it gets
    frequency = np.zeros((2, 2, 4))
    frequency[:, 0, 0], frequency[:, 1] = 9.0, 1.0
    counts = layer_counts(frequency, np.array([3, 5]))
    assert counts.sum(axis=0).tolist() == [4, 4]
    assert counts.sum(axis=1).tolist() == [3, 5]


def test_algorithm_2_replaces_the_least_used_duplicate() -> None:
    frequency = np.array([[[9.0, 5.0, 1.0]], [[8.0, 7.0, 2.0]]])
    held = assign(frequency, np.array([[2], [2]]))
    assert held[:, 0].tolist() == [[True, False, True], [True, True, False]]


def test_layer_without_any_calls_is_planned() -> None:
    made = plan(np.zeros((2, 3, 4)), cluster_of([[6], [6]]), 1)
    check_plan(made, cluster_of([[6], [6]]), 1)


def test_memory_of_two_gpus_is_not_one() -> None:
    cluster = make_cluster([2], [15, 15], load_bytes_per_s=1.0, bytes_per_s=1.0)
    with pytest.raises(InfeasibleError, match=r"expert coverage.*have 2"):
        plan(np.ones((1, 1, 3)), cluster, 10)


def test_infeasible_instance_names_memory_and_coverage() -> None:
    with pytest.raises(InfeasibleError, match=r"GPU memory: 2 × 4 experts.*expert coverage"):
        plan(np.ones((2, 2, 4)), cluster_of([[3], [4]]), 1)
    with pytest.raises(InfeasibleError, match="expert coverage"):
        fewest_remote(np.ones((2, 8)), np.array([3, 4]))


def test_expert_that_stays_on_a_node_stays_on_its_gpu() -> None:
    cluster = cluster_of([[3, 3], [4]])
    rng = np.random.default_rng(0)
    before = plan(rng.random((2, 2, 4)), cluster, 1)
    later = rng.random((2, 2, 4))
    after = plan(later, cluster, 1, previous=before)
    stays = cluster.by_node(before)[0] & cluster.by_node(after)[0]
    assert stays.any()
    assert np.array_equal(before[:2, stays], after[:2, stays])


def test_faster_gpu_gets_more_of_a_nodes_calls() -> None:
    cluster = make_cluster([2], [8, 8], speed=[1.0, 3.0], load_bytes_per_s=1.0, bytes_per_s=1.0)
    made = plan(np.ones((1, 1, 8)), cluster, 1)
    assert made.sum(axis=(1, 2)).tolist() == [2, 6]


def test_statistics_by_hand() -> None:
    cluster = cluster_of([[1], [2]])
    made = np.array([[[True, False, False]], [[False, True, True]]])
    frequency = np.array([[[6.0, 1.0, 1.0]], [[0.0, 0.0, 0.0]]])
    assert remote_calls(made, cluster, frequency).tolist() == [2.0, 0.0]
    assert local_ratio(made, cluster, frequency).tolist() == [0.75, 1.0]


def test_both_readings_of_eq_3() -> None:
    cluster = cluster_of([[1], [1]])
    before = np.array([[[True, False]], [[False, True]]])
    assert migration_s(before, ~before, cluster, 10) == 2 * 10 / 2.0
    assert migration_s(before, ~before, cluster, 10, "published") == 4 * 10 / 2.0
    assert migration_s(before, before, cluster, 10, "published") == 0.0


@pytest.mark.parametrize(
    ("shapes", "kind", "expert_bytes", "reading", "message"),
    [
        (((1, 1, 2), (2, 1, 2)), bool, 10, "arrivals", r"before must be bool .* = \(2, 1, 2\), got bool \(1, 1, 2\)"),
        (((2, 1, 2), (2, 1, 3)), bool, 10, "arrivals", r"before must be bool .* = \(2, 1, 3\)"),
        (((2, 2), (2, 2)), bool, 10, "arrivals", r"got bool \(2, 2\)"),
        (((2, 1, 2), (2, 1, 2)), int, 10, "arrivals", "got int64"),
        (((2, 1, 2), (2, 1, 2)), bool, 0, "arrivals", "expert_bytes must be at least 1, got 0"),
        (((2, 1, 2), (2, 1, 2)), bool, 10, "both", "reading must be one of arrivals, published, got 'both'"),
    ],
)
def test_seconds_of_a_move_are_of_two_plans_for_the_cluster(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], kind: type, expert_bytes: int, reading: Any, message: str
) -> None:
    before, after = (np.zeros(shape, dtype=kind) for shape in shapes)
    with pytest.raises(PlacementError, match=message):
        migration_s(before, after, cluster_of([[1], [1]]), expert_bytes, reading)


@pytest.mark.parametrize(("horizon_s", "worth"), [(100.0, False), (101.0, True)])
def test_eq_4_weighs_saved_calls_until_the_horizon_against_the_move(horizon_s: float, worth: bool) -> None:
    cluster = cluster_of([[1], [1]])
    before = np.array([[[True, False]], [[False, True]]])
    frequency = np.array([[[0.0, 50.0]], [[50.0, 0.0]]])  # all calls remote now, none then
    verdict = decide(before, ~before, cluster, frequency, 10, Scale(0.01, window_s=10.0, horizon_s=horizon_s))
    assert verdict.move_s == 10.0
    assert verdict.copied == 2
    assert verdict.then_s == 0.0
    assert verdict.now_s == pytest.approx(100 * 0.01 * horizon_s / 10)
    assert verdict.worth is worth


def test_scale_must_be_positive() -> None:
    cluster = cluster_of([[1]])
    with pytest.raises(PlacementError, match="above 0"):
        decide(*(np.ones((1, 1, 1), dtype=bool),) * 2, cluster, np.ones((1, 1, 1)), 1, Scale(0.0, 1.0, 1.0))


@pytest.mark.parametrize("comparable", [True, False])
def test_a_gain_that_is_not_comparable_with_the_papers_says_so_next_to_it(
    comparable: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    show_table("Table", {"rows": {"EPLB": [1.0, 2.0, 3.0, 2.0, 0.4]}, "below_eplb": 0.528}, comparable)
    (row,) = [line for line in capsys.readouterr().err.splitlines() if "52.8%" in line]
    assert ("not comparable" in row) is not comparable


def test_redundance_uses_memory_that_uniform_leaves() -> None:
    cluster = cluster_of([[5], [5], [5, 5]])
    once, more = uniform(cluster, 2, 6, 1, 0), redundance(cluster, 2, 6, 1, 0)
    assert once.sum() == 12
    assert once.sum(axis=(1, 2)).tolist() == [3, 3, 3, 3]
    assert more.sum() == 20
    assert more[2:].sum(axis=0).max() == 1
    assert (more | ~once).all()


def test_smartmoe_evens_load_and_eplb_copies_the_hottest() -> None:
    cluster = cluster_of([[3], [3]])
    frequency = np.array([[[8.0, 1.0, 1.0, 3.0]], [[0.0, 1.0, 1.0, 0.0]]])
    load = frequency.sum(axis=(0, 1))
    smart = smartmoe(cluster, frequency, 1)
    assert smart.sum() == 4
    assert sorted((smart[:, 0] @ load).tolist()) == [5.0, 10.0]
    assert eplb(cluster, frequency, 1)[:, 0].sum(axis=0).tolist() == [2, 1, 1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": []}, "at least one GPU"),
        ({"gpus": [1, 0]}, "at least one GPU"),
        ({"memory_bytes": [1]}, "one for each of 3 GPUs"),
        ({"memory_bytes": -1}, "not negative"),
        ({"speed": 0.0}, "above 0"),
        ({"bytes_per_s": 0.0}, "above 0"),
    ],
)
def test_bad_clusters_get_a_sentence(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"gpus": [1, 2], "memory_bytes": 4, "load_bytes_per_s": 1.0, "bytes_per_s": 1.0}
    with pytest.raises(PlacementError, match=message):
        make_cluster(**{**arguments, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("frequency", "settings_", "message"),
    [
        (np.ones((3, 1, 2)), {}, "2 nodes"),
        (-np.ones((2, 1, 2)), {}, "not negative"),
        (np.full((2, 1, 2), np.inf), {}, "finite"),
        (np.ones((2, 1, 2)), {"method": "best"}, "method must be one of"),
    ],
)
def test_bad_statistics_get_a_sentence(frequency: np.ndarray, settings_: dict[str, str], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        plan(frequency, cluster_of([[2], [2]]), 1, **settings_)  # type: ignore[arg-type]


def test_check_plan_names_the_full_gpu_and_the_missing_expert() -> None:
    cluster = cluster_of([[1], [1]])
    with pytest.raises(PlacementError, match="GPU 0 of node 0 holds 2 experts, 1 fit"):
        check_plan(np.ones((2, 1, 2), dtype=bool), cluster, 1)
    with pytest.raises(PlacementError, match="expert 1 is on no GPU"):
        check_plan(np.array([[[True, False]]] * 2), cluster, 1)

"""Replay on unlike nodes: hand-worked times, conservation, order."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.placement.replay_log import Costs, PlanChange, Requests, replay
from placement.cluster import Cluster, make_cluster
from placement.errors import PlacementError

COSTS = Costs(dense_s=1.0, dense_token_s=0.1, expert_s=2.0, expert_token_s=0.5, token_bytes=10, message_s=0.25)
HALVES = np.array([[[True, False]], [[False, True]]])
"""Two nodes of one GPU, one layer, an expert each."""


def two_nodes(speed: float | list[float] = 1.0) -> Cluster:
    return make_cluster([1, 1], 5, speed=speed, load_bytes_per_s=1.0, bytes_per_s=20.0)


def calls(arrivals: list[tuple[float, int]], experts: list[list[int]], tokens: int = 4) -> Requests:
    """Requests of one pass and one layer; every expert is chosen by all tokens."""
    times, nodes = zip(*arrivals, strict=True)
    sizes = np.array([len(chosen) for chosen in experts])
    return Requests(
        np.array(times),
        np.array(nodes),
        np.arange(len(experts) + 1),
        np.full(len(experts), tokens),
        np.concatenate(([0], np.cumsum(sizes))),
        np.array([expert for chosen in experts for expert in chosen], dtype=np.int32),
        np.full(sizes.sum(), tokens, dtype=np.int32),
    )


def simulate(requests: Requests, plan: np.ndarray = HALVES, cluster: Cluster | None = None) -> np.ndarray:
    done = replay(requests, [PlanChange(0.0, plan)], cluster or two_nodes(), COSTS, bin_s=10.0, bins=3)
    return done.latency_s


def test_local_call_costs_dense_part_and_expert() -> None:
    assert simulate(calls([(3.0, 0)], [[0]])).tolist() == pytest.approx([1.4 + 4.0])


def test_remote_call_adds_bytes_and_messages_both_ways() -> None:
    assert simulate(calls([(0.0, 0)], [[1]])).tolist() == pytest.approx([1.4 + 2 * (40 / 20 + 0.25) + 4.0])


def test_layer_waits_for_its_slowest_part() -> None:
    assert simulate(calls([(0.0, 0)], [[0, 1]])) == pytest.approx(simulate(calls([(0.0, 0)], [[1]])))


def test_node_serves_its_requests_one_after_another() -> None:
    assert simulate(calls([(0.0, 0), (1.0, 0)], [[0], [0]])).tolist() == pytest.approx([5.4, 5.4 + 5.4 - 1.0])


def test_gpu_serves_a_remote_call_after_what_came_before() -> None:
    # node 1 computes for itself until 1.4 + 4 = 5.4; the message is there at 1.4 + 2 + .25
    latency = simulate(calls([(0.0, 0), (0.0, 1)], [[1], [1]]))
    assert latency.tolist() == pytest.approx([5.4 + 4.0 + 2.0 + 0.25, 5.4])


def test_faster_gpu_computes_faster() -> None:
    assert simulate(calls([(0.0, 0)], [[0]]), cluster=two_nodes([2.0, 1.0])).tolist() == pytest.approx([5.4 / 2])


def test_own_copy_is_preferred_and_else_the_gpu_that_is_free_first() -> None:
    three = make_cluster([1, 1, 1], 5, load_bytes_per_s=1.0, bytes_per_s=20.0)
    everywhere = np.array([[[False]], [[True]], [[True]]])
    requests = calls([(0.0, 1), (0.0, 0)], [[0], [0]])
    assert simulate(requests, everywhere, three).tolist() == pytest.approx([5.4, 1.4 + 2 * 2.25 + 4.0])


def test_passes_and_layers_add_up() -> None:
    both = np.ones((2, 3, 2), dtype=bool)
    requests = Requests(
        np.array([0.0]),
        np.array([0]),
        np.array([0, 2]),
        np.array([4, 1]),
        np.arange(7),
        np.zeros(6, dtype=np.int32),
        np.array([4, 4, 4, 1, 1, 1], dtype=np.int32),
    )
    assert simulate(requests, both).tolist() == pytest.approx([3 * 5.4 + 3 * (1.1 + 2.5)])


def test_new_plan_holds_from_its_time_on() -> None:
    requests = calls([(0.0, 0), (20.0, 0)], [[1], [1]])
    changes = [PlanChange(0.0, HALVES), PlanChange(15.0, np.ones_like(HALVES))]
    done = replay(requests, changes, two_nodes(), COSTS, bin_s=10.0, bins=3)
    assert done.latency_s.tolist() == pytest.approx([9.9, 5.4])
    assert done.messages == 2
    assert done.local_ratio.tolist() == pytest.approx([0.0, np.nan, 1.0], nan_ok=True)
    assert done.local[0].tolist() == [0.0, 0.0, 4.0]
    assert done.calls.sum() == 8


def test_every_call_is_counted_once_and_latency_is_at_least_the_service() -> None:
    rng = np.random.default_rng(0)
    arrivals = sorted((float(t), int(n)) for t, n in zip(rng.uniform(0, 50, 30), rng.integers(2, size=30), strict=True))
    requests = calls(arrivals, [sorted({0, int(e)}) for e in rng.integers(2, size=30)])
    done = replay(requests, [PlanChange(0.0, HALVES)], two_nodes(), COSTS, bin_s=10.0, bins=3)
    assert done.calls.sum() == requests.count.sum()
    assert (done.latency_s >= done.served_s - 1e-9).all()
    assert (done.served_s >= 5.4 - 1e-9).all()


def test_frequency_counts_pairs_by_node_of_chosen_requests() -> None:
    requests = calls([(0.0, 0), (1.0, 1), (2.0, 1)], [[0], [0, 1], [1]])
    measured = requests.frequency(2, 1, 2, requests.arrival_s < 2)
    assert measured[:, 0].tolist() == [[4, 0], [4, 4]]


def test_plans_must_come_in_order() -> None:
    changes = [PlanChange(5.0, HALVES), PlanChange(0.0, HALVES)]
    with pytest.raises(PlacementError, match="in order"):
        replay(calls([(0.0, 0)], [[0]]), changes, two_nodes(), COSTS, bin_s=1.0, bins=1)

"""AEBS: optimal, deterministic, no memory taken; peers obey the table."""

from __future__ import annotations

import importlib
import itertools
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from benchmarks.placement.oracles import least_fullest
from benchmarks.replica_rules import RULES, ReplicaRule, activated_by_node
from functions.dispatch.aebs import ActivatedExpertBalance, ReplicaTable, assign, replica_table
from tests.parameters import examples

HOSTS = st.integers(2, 6).flatmap(
    lambda nodes: st.tuples(
        st.just(nodes),
        st.lists(st.sets(st.integers(0, nodes - 1), min_size=1, max_size=3), min_size=1, max_size=12),
    )
)


def table_of(hosts: list[set[int]], nodes: int) -> ReplicaTable:
    slots = np.full((nodes, len(hosts)), -1)
    for expert, held in enumerate(hosts):
        for node in held:
            slots[node, expert] = expert
    return replica_table(slots, len(hosts))


def brute_force(hosts: list[set[int]], nodes: int) -> list[int]:
    """Loads, falling, of the choice whose fullest node is least, then the next, and so on."""
    loads = (np.bincount(choice, minlength=nodes) for choice in itertools.product(*hosts))
    return min(sorted(load.tolist(), reverse=True) for load in loads)


def choose(table: ReplicaTable, ids: np.ndarray, repair: bool = True) -> tuple[int, np.ndarray]:
    out = np.empty(ids.shape, dtype=np.int32)
    return ActivatedExpertBalance(table, repair=repair).choose(ids, out), out


def random_table(seed: int, nodes: int, experts: int, slots: int) -> ReplicaTable:
    rng = np.random.default_rng(seed)
    held = np.full((nodes, slots + experts), -1)
    for expert in range(experts):
        held[expert % nodes, slots + expert] = expert
    for node in range(nodes):
        others = np.setdiff1d(np.arange(experts), held[node])
        held[node, :slots] = rng.choice(others, size=slots, replace=False)
    return replica_table(held, experts)


@settings(max_examples=examples(150), deadline=None)
@given(HOSTS)
def test_loads_are_those_of_the_best_choice_there_is(case: tuple[int, list[set[int]]]) -> None:
    nodes, hosts = case
    hosts = hosts[:9]
    table = table_of(hosts, nodes)
    fullest, out = choose(table, np.arange(len(hosts)).reshape(-1, 1))
    loads = sorted(activated_by_node(out, table).tolist(), reverse=True)
    assert loads == brute_force(hosts, nodes)
    assert fullest == loads[0]


@pytest.mark.parametrize("seed", range(8))
def test_fullest_node_equals_the_maximum_flow_bound_on_large_batches(seed: int) -> None:
    table = random_table(seed, 16, 256, 5)
    ids = np.random.default_rng(seed).zipf(1.2, size=(40 * (seed + 1), 8)) % 256
    hosts = [table.node[table.start[e] : table.start[e + 1]].tolist() for e in np.unique(ids)]
    assert choose(table, ids)[0] == least_fullest(hosts, 16)


def test_greedy_as_published_can_end_above_the_optimum_and_the_repair_closes_it() -> None:
    hosts = [{0, 1}, {0, 2}, {0, 2}]
    table, ids = table_of(hosts, 3), np.arange(3).reshape(-1, 1)
    assert choose(table, ids, repair=False)[0] > brute_force(hosts, 3)[0] == choose(table, ids)[0]


@settings(max_examples=examples(60), deadline=None)
@given(HOSTS, st.integers(0, 2**32 - 1))
def test_every_token_gets_the_one_replica_of_its_expert(case: tuple[int, list[set[int]]], seed: int) -> None:
    nodes, hosts = case
    table = table_of(hosts, nodes)
    ids = np.random.default_rng(seed).integers(len(hosts), size=(7, 2))
    _, out = choose(table, ids)
    for expert in np.unique(ids):
        served = np.unique(out[ids == expert])
        places = table.replica[table.start[expert] : table.start[expert + 1]]
        assert len(served) == 1
        assert served[0] in places
        assert served[0] // len(hosts) in hosts[expert]


def test_order_of_tokens_and_former_calls_do_not_matter() -> None:
    table = random_table(1, 8, 64, 4)
    rng = np.random.default_rng(0)
    balance, ids = ActivatedExpertBalance(table), rng.integers(64, size=(50, 6))
    first, second, shuffled = (np.empty((50, 6), dtype=np.int32) for _ in range(3))
    balance.choose(ids, first)
    balance.choose(rng.integers(64, size=(50, 6)), second)
    order = rng.permutation(50)
    balance.choose(ids[order], shuffled)
    assert np.array_equal(shuffled, first[order])


def test_no_memory_is_taken_in_a_call() -> None:
    table = random_table(2, 16, 256, 5)
    balance, ids = ActivatedExpertBalance(table), np.random.default_rng(0).integers(256, size=(512, 8))
    out = np.empty((512, 8), dtype=np.int32)
    balance.choose(ids, out)
    tracemalloc.start()
    balance.choose(ids, out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2048


def compiled_allocations(times: int) -> int:
    """How often compiled code takes memory, which tracemalloc does not see, while the rule is asked so many times from
    compiled code (its arguments' handles are taken once)."""
    table = random_table(2, 16, 256, 5)
    ids = np.random.default_rng(0).integers(256, size=4096)
    out = np.empty(4096, dtype=np.int32)
    seen, by_expert = np.zeros(256, dtype=np.uint8), np.zeros((3, 256), dtype=np.int32)
    by_node = np.zeros((7, 16), dtype=np.int32)
    arguments = (ids, out, table.start, table.node, table.replica, seen, by_expert, by_node, True)
    repeated(0, *arguments)
    runtime: Any = importlib.import_module("numba.core.runtime._nrt_python")
    runtime.memsys_enable_stats()
    before = runtime.memsys_get_stats_alloc()
    repeated(times, *arguments)
    after = runtime.memsys_get_stats_alloc()
    runtime.memsys_disable_stats()
    return int(after - before)


@njit
def repeated(times, ids, out, start, node, replica, seen, by_expert, by_node, repair):  # type: ignore[no-untyped-def]
    for _ in range(times):
        assign(ids, out, start, node, replica, seen, by_expert, by_node, repair)


def test_compiled_code_takes_no_memory_either() -> None:
    assert compiled_allocations(50) == compiled_allocations(1)


@pytest.mark.parametrize("wrong", [-1, 3])
def test_unknown_expert_is_refused(wrong: int) -> None:
    table = table_of([{0}, {1}, {0, 1}], 2)
    with pytest.raises(ValueError, match="0 to 2"):
        choose(table, np.array([[0, wrong]]))


def test_shapes_must_agree() -> None:
    balance = ActivatedExpertBalance(table_of([{0}], 1))
    with pytest.raises(ValueError, match="one shape"):
        balance.choose(np.zeros((2, 1), dtype=np.int64), np.zeros((1, 1), dtype=np.int32))


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ([[0, 0], [1, 2]], "expert 0 stands twice on node 0"),
        ([[0, -1], [2, -1]], "expert 1 has no replica"),
        ([[0, 1], [2, 3]], "expert 3"),
        ([[0, 1], [2, -2]], "a slot holds -2"),
        ([0, 1, 2], r"\[nodes, slots\]"),
    ],
)
def test_bad_tables_are_refused(slots: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replica_table(np.array(slots), 3)


@pytest.mark.parametrize("rule", RULES)
def test_peers_choose_replicas_of_the_right_expert(rule: str) -> None:
    table = random_table(3, 6, 20, 4)
    ids = np.random.default_rng(1).integers(20, size=(40, 3))
    out = np.empty((40, 3), dtype=np.int32)
    ReplicaRule(table, rule).choose(ids, out)  # type: ignore[arg-type]
    expert_of = {int(table.replica[p]): e for e in range(20) for p in range(table.start[e], table.start[e + 1])}
    assert np.array_equal(np.vectorize(expert_of.__getitem__)(out), ids)


def test_round_robin_takes_replicas_in_turn() -> None:
    table = table_of([{0, 1, 2}], 3)
    out = np.empty((4, 1), dtype=np.int32)
    ReplicaRule(table, "round-robin").choose(np.zeros((4, 1), dtype=np.int64), out)
    assert out.ravel().tolist() == [0, 1, 2, 0]


def test_token_balanced_evens_tokens_where_order_of_numbers_does_not() -> None:
    table = table_of([{0, 1}, {0, 1}, {0, 1}], 2)
    ids = np.repeat([0, 1, 2], [2, 2, 4]).reshape(-1, 1)
    shares = {}
    for rule in ("least-loaded", "token-balanced"):
        out = np.empty(ids.shape, dtype=np.int32)
        ReplicaRule(table, rule).choose(ids, out)
        shares[rule] = np.bincount(out.ravel() // 3, minlength=2).max()
    assert shares == {"least-loaded": 6, "token-balanced": 4}


def test_random_rules_follow_their_seed() -> None:
    table = random_table(4, 4, 10, 3)
    ids = np.random.default_rng(1).integers(10, size=(60, 2))
    outs = [np.empty((60, 2), dtype=np.int32) for _ in range(3)]
    for out, seed in zip(outs, (5, 5, 6), strict=True):
        ReplicaRule(table, "random", seed).choose(ids, out)
    assert np.array_equal(outs[0], outs[1])
    assert not np.array_equal(outs[0], outs[2])

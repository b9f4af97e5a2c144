"""Iterations of several texts, dispatched at once or text by text, counted by hand and against all choices."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from benchmarks.aebs_batch import draw, in_parts, measured, ways
from functions.dispatch.aebs import ReplicaTable, replica_table

PROMPTS = np.repeat([3, 5, 9, 11], [4, 1, 6, 2])


def least(table: ReplicaTable, activated: set[int]) -> int:
    """The fullest node's experts by the best of all choices."""
    hosts = [table.node[table.start[e] : table.start[e + 1]].tolist() for e in sorted(activated)]
    return min(max(Counter(choice).values()) for choice in product(*hosts))


def random_table(seed: int) -> ReplicaTable:
    """Seven experts on one to three of three nodes."""
    rng = np.random.default_rng(seed)
    slots = np.full((3, 7), -1)
    for expert in range(7):
        slots[rng.choice(3, rng.integers(1, 4), replace=False), expert] = expert
    return replica_table(slots, 7)


@pytest.mark.parametrize("seed", range(20))
def test_the_batch_at_once_is_the_best_of_all_choices_and_no_other_way_beats_it(seed: int) -> None:
    table, rng = random_table(seed), np.random.default_rng(seed)
    ids = np.stack([rng.choice(7, 2, replace=False) for _ in range(5)])
    fullest = {
        name: measured(choose(ids, (1, 2, 5)), table)[0] for name, choose in ways(table, instances=2, seed=seed).items()
    }
    assert fullest["aebs, batch"] == least(table, set(ids.ravel().tolist()))
    assert fullest["aebs, batch"] == min(fullest.values())


def test_texts_that_choose_alone_pile_up_on_the_same_node() -> None:
    """Four experts on both of two nodes: each text alone takes node 0, together they take two each."""
    table = replica_table(np.array([[0, 1, 2, 3], [0, 1, 2, 3]]), 4)
    ids = np.array([[0], [1], [2], [3]])
    ends = (1, 2, 3, 4)
    assert measured(in_parts(table, 0)(ids, ends), table) == (4, 4, 4)
    assert measured(in_parts(table, 1)(ids, ends), table) == (2, 4, 4)
    assert measured(in_parts(table, 2)(ids, ends), table)[0] == 2


def test_a_replica_that_two_texts_chose_counts_once_and_rows_by_node() -> None:
    table = replica_table(np.array([[0, 1], [2, -1]]), 3)
    chosen = np.array([[0, 1], [0, 2], [0, 1]], np.int32)  # replicas: experts 0 and 1 on node 0, 2 on node 1
    assert measured(chosen, table) == (2, 3, 4)


def test_one_text_alone_is_the_batch() -> None:
    table, ids = random_table(3), np.array([[1, 4]])
    assert np.array_equal(in_parts(table, 0)(ids, (1,)), in_parts(table, 1)(ids, (1,)))


def test_an_iteration_has_a_token_of_each_text_and_a_part_of_one_more_prompt() -> None:
    for seed in range(30):
        one = draw(PROMPTS, 3, 3, np.random.default_rng(seed))
        assert one.ends == (1, 2, 3, 6)
        of = PROMPTS[one.rows]
        assert len(set(of[:3].tolist()) | {int(of[3])}) == 4
        assert set(of[3:].tolist()) <= {3, 9}
        assert len(set(of[3:].tolist())) == 1
        assert np.diff(one.rows[3:]).tolist() == [1, 1]
    assert draw(PROMPTS, 2, 0, np.random.default_rng(0)).ends == (1, 2)
    with pytest.raises(ValueError, match="4 prompts cannot give 4 texts and 2 tokens"):
        draw(PROMPTS, 4, 2, np.random.default_rng(0))

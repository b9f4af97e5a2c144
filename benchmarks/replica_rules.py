"""The simpler ways to choose replicas, as peers of :mod:`functions.dispatch.aebs`: same table, same numbers, compiled.

``round-robin`` and ``random`` decide token by token, as engines with redundant experts commonly do: an expert's tokens
spread over its replicas, so several replicas of one expert may be activated. ``random-expert``, ``least-loaded`` and
``token-balanced`` (:mod:`functions.dispatch.token_balanced`) send all tokens of an expert to one replica, as an ingress
does that makes one call per expert: to any, to the one whose node has the fewest tokens so far in order of expert
number, and the same in order of falling tokens.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from functions.dispatch.aebs import Ints, Places, ReplicaTable
from functions.dispatch.token_balanced import TokenBalanced, lightest_places

Rule = Literal["round-robin", "random", "random-expert", "least-loaded", "token-balanced"]
RULES: tuple[Rule, ...] = get_args(Rule)
_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


class ReplicaRule:
    """One rule for one layer; round robin and random go on where the last call ended."""

    def __init__(self, table: ReplicaTable, rule: Rule, seed: int = 0) -> None:
        self.table = table
        self._rule = rule
        self._turn = np.zeros(table.experts, dtype=np.int64)
        self._random = np.array([seed], dtype=np.uint64)

    def choose(self, expert_ids: Ints, replicas: Places) -> None:
        """Write the replica of every (token, choice): [tokens, k] int64 → [tokens, k] int32, experts of the table."""
        table = self.table
        ids, out = expert_ids.reshape(-1), replicas.reshape(-1)
        if self._rule == "token-balanced":
            TokenBalanced(table).choose(expert_ids, replicas)
        elif self._rule in ("round-robin", "random"):
            _by_token(ids, out, table.start, table.replica, self._turn, self._random, self._rule == "random")
        elif self._rule == "random-expert":
            out[:] = table.replica[_random_places(table.start, self._random)[ids]]
        else:
            tokens = np.bincount(ids, minlength=table.experts)
            places = lightest_places(np.arange(table.experts), tokens, table.start, table.node, table.nodes)
            out[:] = table.replica[places[ids]]


def activated_by_node(replicas: Places, table: ReplicaTable) -> NDArray[np.int64]:
    """[nodes] int64: distinct replicas with at least one token, by node."""
    return np.bincount(node_of(np.unique(replicas), table), minlength=table.nodes)


def node_of(replicas: Places, table: ReplicaTable) -> NDArray[np.int32]:
    """Node of each replica of the table: [...] in, [...] int32 out."""
    place_of = np.argsort(table.replica)
    nodes: NDArray[np.int32] = table.node[place_of[np.searchsorted(table.replica[place_of], replicas)]]
    return nodes


@njit(cache=True, nogil=True)
def _drawn(random, below):  # type: ignore[no-untyped-def]
    """A number from 0 to ``below`` - 1 (linear congruential, upper bits)."""
    random[0] = random[0] * _MULTIPLIER + _INCREMENT
    return np.int64((random[0] >> np.uint64(33)) % np.uint64(below))


@njit(cache=True, nogil=True)
def _by_token(ids, out, start, replica, turn, random, at_random):  # type: ignore[no-untyped-def]
    for at in range(ids.size):
        expert = ids[at]
        count = start[expert + 1] - start[expert]
        if at_random:
            step = _drawn(random, count)
        else:
            step = turn[expert]
            turn[expert] = step + 1 if step + 1 < count else 0
        out[at] = replica[start[expert] + step]


@njit(cache=True, nogil=True)
def _random_places(start, random):  # type: ignore[no-untyped-def]
    """[experts] int64: a place of the table for each expert."""
    chosen = np.zeros(len(start) - 1, np.int64)
    for expert in range(len(chosen)):
        chosen[expert] = start[expert] + _drawn(random, start[expert + 1] - start[expert])
    return chosen

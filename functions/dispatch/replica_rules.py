"""The simpler ways to choose replicas, next to :mod:`functions.dispatch.aebs`: same table, same numbers, compiled.

``round-robin`` and ``random`` decide token by token, as engines with redundant experts commonly do: an expert's tokens
spread over its replicas, so several replicas of one expert may be activated. ``random-expert``, ``least-loaded`` and
``token-balanced`` send all tokens of an expert to one replica, as an ingress does that makes one call per expert:
to any, to the one whose node has the fewest tokens so far in order of expert number, and the same in order of falling
tokens.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numba import njit
from numpy.typing import NDArray

from functions.dispatch.aebs import Ints, Places, ReplicaTable

Rule = Literal["round-robin", "random", "random-expert", "least-loaded", "token-balanced"]
RULES: tuple[Rule, ...] = get_args(Rule)
ROUND_ROBIN, RANDOM, RANDOM_EXPERT, LEAST_LOADED, TOKEN_BALANCED = range(5)
_MULTIPLIER, _INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


class ReplicaRule:
    """One rule for one layer; round robin and random go on where the last call ended."""

    def __init__(self, table: ReplicaTable, rule: Rule, seed: int = 0) -> None:
        self.table = table
        self._number = RULES.index(rule)
        self._turn = np.zeros(table.experts, dtype=np.int64)
        self._tokens = np.zeros(table.experts, dtype=np.int64)
        self._load = np.zeros(table.nodes, dtype=np.int64)
        self._random = np.array([seed], dtype=np.uint64)

    def choose(self, expert_ids: Ints, replicas: Places) -> None:
        """Write the replica of every (token, choice): [tokens, k] int64 → [tokens, k] int32, experts of the table."""
        table = self.table
        ids, out = expert_ids.reshape(-1), replicas.reshape(-1)
        if self._number in (ROUND_ROBIN, RANDOM):
            _by_token(ids, out, table.start, table.replica, self._turn, self._random, self._number == RANDOM)
            return
        self._tokens[:] = 0
        _count(ids, self._tokens)
        order = np.argsort(-self._tokens, kind="stable") if self._number == TOKEN_BALANCED else None
        self._load[:] = 0
        _by_expert(
            np.arange(table.experts) if order is None else order,
            self._tokens,
            table.start,
            table.node,
            self._turn,
            self._load,
            self._random,
            self._number == RANDOM_EXPERT,
        )
        out[:] = table.replica[self._turn[ids]]


def activated_by_node(replicas: Places, table: ReplicaTable) -> NDArray[np.int64]:
    """[nodes] int64: distinct replicas with at least one token, by node."""
    place_of = np.argsort(table.replica)
    places = place_of[np.searchsorted(table.replica[place_of], np.unique(replicas))]
    return np.bincount(table.node[places], minlength=table.nodes)


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
def _count(ids, tokens):  # type: ignore[no-untyped-def]
    for at in range(ids.size):
        tokens[ids[at]] += 1


@njit(cache=True, nogil=True)
def _by_expert(order, tokens, start, node, place_of, load, random, at_random):  # type: ignore[no-untyped-def]
    for expert in order:
        if tokens[expert] == 0:
            continue
        best = start[expert]
        if at_random:
            best += _drawn(random, start[expert + 1] - start[expert])
        else:
            for place in range(start[expert] + 1, start[expert + 1]):
                if load[node[place]] < load[node[best]]:
                    best = place
        place_of[expert] = best
        load[node[best]] += tokens[expert]

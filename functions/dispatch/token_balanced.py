"""The rule ``token-balanced``, next to :mod:`functions.dispatch.aebs`: same table, same replica numbers, compiled.

All tokens of an expert go to one replica, as an ingress makes one call per expert: in order of falling tokens, to the
replica whose node has the fewest tokens so far.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from functions.dispatch.aebs import Ints, Places, ReplicaTable


class TokenBalanced:
    """The rule for one layer."""

    def __init__(self, table: ReplicaTable) -> None:
        self.table = table

    def choose(self, expert_ids: Ints, replicas: Places) -> None:
        """Write the replica of every (token, choice): [tokens, k] int64 → [tokens, k] int32, experts of the table."""
        table = self.table
        ids = expert_ids.reshape(-1)
        tokens = np.bincount(ids, minlength=table.experts)
        # The largest experts first: what is left for the end is small, so it can even out what they left uneven.
        places = lightest_places(np.argsort(-tokens, kind="stable"), tokens, table.start, table.node, table.nodes)
        replicas.reshape(-1)[:] = table.replica[places[ids]]


@njit(cache=True, nogil=True)
def lightest_places(order, tokens, start, node, nodes):  # type: ignore[no-untyped-def]
    """[experts] int64: the place in the table that serves each expert, chosen in ``order`` [experts]; experts without
    ``tokens`` [experts] have place 0."""
    load = np.zeros(nodes, np.int64)
    chosen = np.zeros(len(order), np.int64)
    for expert in order:
        if tokens[expert] == 0:
            continue
        best = start[expert]
        for place in range(start[expert] + 1, start[expert + 1]):
            if load[node[place]] < load[node[best]]:
                best = place
        chosen[expert] = best
        load[node[best]] += tokens[expert]
    return chosen

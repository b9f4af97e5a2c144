"""The compiled heart of Janus's placement: replica counts, two greedy starts, and a bounded local search.

One layer at a time; ``State`` is all that is known of it. All loads are in whatever unit the statistics have.
The local search exchanges two replicas (or moves one to a free slot) of the node that bears most and another, takes
the exchange that leaves the smaller of the larger of both, and stops when there is none; then a few exchanges at random
and down again (iterated local search) as long as its budget of looked-at exchanges lasts. The best layout is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placement.layer_state import Experts, Floats, Ints, Pairs, State, compiled, fullest, inner

KICKS = 3
"""Exchanges at random between two descents."""
RELATIVE = 1e-9
"""Improvements smaller than this part of the load count as none (rounding)."""
EVENING = 64
"""Scans that evening out tokens has at least; it seldom needs any."""
LEVEL = 1.002
"""Tokens are level enough when the fullest node is at most this many times the mean."""


MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


@inner
def replicate(tokens: Floats, order: Ints, spare: int, most: int, counts: Experts, share: Floats) -> None:
    """One replica each, then ``spare`` more one by one to the greatest tokens per replica, at most ``most`` an expert.

    Janus 3.4, and EPLB's counts where ``most`` is not reached. ``order``: experts by falling tokens, so the next one
    with one replica is the greatest of its kind. Of equals the lower number. Fills ``counts`` and ``share`` [experts].
    """
    counts[:] = 1
    share[:] = tokens
    copied, ahead = 0, np.empty(len(order), dtype=np.int64)
    for _ in range(spare):
        best = -1
        for at in range(copied):
            expert = ahead[at]
            # Only those that have copies already, and the first in order that has none, can be the greatest.
            if counts[expert] < most and (
                best < 0 or share[expert] > share[best] or (share[expert] == share[best] and expert < best)
            ):
                best = expert
        if copied < len(order) and most > 1:
            first = order[copied]
            if best < 0 or share[first] > share[best] or (share[first] == share[best] and first < best):
                best = first
                ahead[copied] = first
                copied += 1
        if best < 0:
            return
        counts[best] += 1
        share[best] = tokens[best] / counts[best]


@inner
def _by_share(share: Floats, order: Ints) -> None:
    """Sort ``order`` [experts] by falling share, equal ones by number; by insertion."""
    for at in range(1, len(order)):
        expert, to = order[at], at
        while to > 0 and (
            share[order[to - 1]] < share[expert] or (share[order[to - 1]] == share[expert] and order[to - 1] > expert)
        ):
            order[to] = order[to - 1]
            to -= 1
        order[to] = expert


@inner
def _put(state: State, node: int, slot: int, expert: int, share: Floats, together: Pairs) -> None:
    """Place ``expert`` in a slot; what was there (or -1) is taken out first."""
    out = state.held[node, slot]
    if out >= 0:
        state.on[node, out] = 0
        state.tokens[node] -= share[out]
        state.pairs[node] -= state.near[node, out]
        for other in range(together.shape[0]):
            state.near[node, other] -= together[out, other]
    state.held[node, slot] = expert
    if expert >= 0:
        state.on[node, expert] = 1
        state.tokens[node] += share[expert]
        state.pairs[node] += state.near[node, expert]
        for other in range(together.shape[0]):
            state.near[node, other] += together[expert, other]


@inner
def _fill(state: State, held: Experts, share: Floats, together: Pairs) -> None:
    """Begin again with ``held`` [nodes, slots]; all -1 is an empty layout."""
    for node in range(state.near.shape[0]):
        state.tokens[node] = state.pairs[node] = 0.0
        for expert in range(state.near.shape[1]):
            state.near[node, expert] = 0.0
            state.on[node, expert] = 0
        for slot in range(held.shape[1]):
            state.held[node, slot] = -1
        for slot in range(held.shape[1]):
            if held[node, slot] >= 0:
                _put(state, node, slot, held[node, slot], share, together)


@inner
def greedy(state: State, counts: Experts, share: Floats, together: Pairs, by_tokens: bool) -> None:
    """Replicas (``counts`` [experts]) by falling ``share`` [experts] to the node that bears least: in co-activation
    (Algorithm 2; ``together`` [experts, experts]) or in tokens."""
    nodes, slots = state.held.shape
    used = np.zeros(nodes, dtype=np.int64)
    order: Any = np.arange(len(share))
    _by_share(share, order)
    for expert in order:
        for _ in range(counts[expert]):
            best = -1
            for node in range(nodes):
                if used[node] < slots and state.on[node, expert] == 0:
                    bears = state.tokens[node] if by_tokens else state.near[node, expert]
                    least = 0.0 if best < 0 else (state.tokens[best] if by_tokens else state.near[best, expert])
                    if best < 0 or bears < least:
                        best = node
            if best >= 0:
                _put(state, best, used[best], expert, share, together)
                used[best] += 1
            else:  # every node with a free slot holds the expert already: another has to move there
                best = _make_room(state, used, expert, share, together)
                used[best] += 1


@inner
def _make_room(state: State, used: Ints, expert: int, share: Floats, together: Pairs) -> int:
    """Algorithm 2, lines 11 to 20: j goes from g to h with a free slot, the expert takes its place; the node h.

    Always possible while the expert has fewer replicas than there are nodes: g is full and h is not, so g holds an
    expert that h does not.
    """
    nodes, slots = state.held.shape
    from_node, from_slot, to_node, least = -1, -1, -1, 0.0
    for node in range(nodes):
        if state.on[node, expert]:
            continue
        for slot in range(slots):
            leaving = state.held[node, slot]
            for other in range(nodes):
                if used[other] < slots and leaving >= 0 and state.on[other, leaving] == 0:
                    cost = state.near[node, expert] + state.near[other, leaving] - state.near[node, leaving]
                    if len(together) > 0:  # what leaves is no neighbour of the expert any more
                        cost -= together[expert, leaving]
                    if to_node < 0 or cost < least:
                        from_node, from_slot, to_node, least = node, slot, other, cost
    leaving = state.held[from_node, from_slot]
    _put(state, from_node, from_slot, expert, share, together)
    _put(state, to_node, used[to_node], leaving, share, together)
    return to_node


@inner
def _exchange(state: State, first: int, slot: int, second: int, other: int, share: Floats, together: Pairs) -> None:
    leaving, coming = state.held[first, slot], state.held[second, other]
    _put(state, first, slot, coming, share, together)
    _put(state, second, other, leaving, share, together)


@inner
def _level(state: State, share: Floats, together: Pairs, goal: float, budget: int) -> int:
    """Exchanges of the node with most tokens while they lower it and it has more than ``goal``."""
    nodes, slots = state.held.shape
    while budget > 0:
        full = fullest(state.tokens)
        most = state.tokens[full]
        if most <= goal:
            break
        best, from_slot, to_node, to_slot = most * (1 - RELATIVE), -1, -1, -1
        for node in range(nodes):
            if node == full:
                continue
            for slot in range(slots):
                leaving = state.held[full, slot]
                if leaving < 0 or state.on[node, leaving]:
                    continue
                for other in range(slots):
                    coming = state.held[node, other]
                    if coming >= 0 and state.on[full, coming]:
                        continue
                    shift = share[leaving] - (share[coming] if coming >= 0 else 0.0)
                    larger = max(most - shift, state.tokens[node] + shift)
                    if larger < best:
                        best, from_slot, to_node, to_slot = larger, slot, node, other
        budget -= nodes * slots * slots
        if from_slot < 0:
            break
        _exchange(state, full, from_slot, to_node, to_slot, share, together)
    return budget


@inner
def _descend(state: State, share: Floats, together: Pairs, budget: int) -> int:
    """Exchanges of the node with the greatest co-activation load while they lower it."""
    nodes, slots = state.held.shape
    while budget > 0:
        full = fullest(state.pairs)
        most = state.pairs[full]
        best, from_slot, to_node, to_slot = most * (1 - RELATIVE), -1, -1, -1
        for slot in range(slots):
            leaving = state.held[full, slot]
            if leaving < 0:
                continue
            without = most - state.near[full, leaving]
            for node in range(nodes):
                if node == full or state.on[node, leaving]:
                    continue
                grown = state.pairs[node] + state.near[node, leaving]
                for other in range(slots):
                    coming = state.held[node, other]
                    if coming < 0:
                        larger = max(without, grown)
                    elif state.on[full, coming]:
                        continue
                    else:
                        # ``near`` of the coming expert still counts the leaving one, and the other way round.
                        both = together[leaving, coming]
                        larger = max(without + state.near[full, coming] - both, grown - state.near[node, coming] - both)
                    if larger < best:
                        best, from_slot, to_node, to_slot = larger, slot, node, other
        budget -= nodes * slots * slots
        if from_slot < 0:
            break
        _exchange(state, full, from_slot, to_node, to_slot, share, together)
    return budget


@inner
def iterate(state: State, share: Floats, together: Pairs, on_tokens: bool, goal: float, budget: int) -> int:
    """Iterated local search on the greatest tokens of a node, or on its greatest Eq. (1) load, until it is ``goal``.

    ``share`` [experts], ``together`` [experts, experts]. ``state`` ends at the best layout found; returns what is left
    of the budget.
    """
    nodes, slots = state.held.shape
    bears = state.tokens if on_tokens else state.pairs
    best = state.held.copy()
    least = bears.max()
    random = np.uint64(nodes * 8191 + slots)  # of the shape alone, so the same statistics give the same layout
    while True:
        if on_tokens:  # noqa: SIM108 (two searches, not two values)
            budget = _level(state, share, together, goal, budget)
        else:
            budget = _descend(state, share, together, budget)
        now = bears.max()
        if now < least * (1 - RELATIVE):
            least = now
            best[:] = state.held
        elif now > least:  # the kick led to a worse minimum: start the next one from the best layout again
            _fill(state, best, share, together)
        if budget <= 0 or nodes < 2 or least <= goal:
            _fill(state, best, share, together)
            return budget
        done = 0
        for _ in range(8 * KICKS):  # exchanges that may not be are drawn again, a bounded number of times
            random = random * MULTIPLIER + INCREMENT
            draw = np.int64(random >> np.uint64(20))
            # Only what leaves the fullest node can lower the maximum, so the first exchange is one of its slots.
            first = fullest(bears) if done == 0 else draw % nodes
            second = (first + 1 + (draw >> 10) % (nodes - 1)) % nodes
            slot, other = (draw >> 20) % slots, (draw >> 30) % slots
            if _may_exchange(state, first, slot, second, other):
                _exchange(state, first, slot, second, other, share, together)
                done += 1
                if done == KICKS:
                    break
        budget -= nodes


@inner
def _may_exchange(state: State, first: int, slot: int, second: int, other: int) -> bool:
    leaving, coming = state.held[first, slot], state.held[second, other]
    return not (
        leaving == coming or (leaving >= 0 and state.on[second, leaving]) or (coming >= 0 and state.on[first, coming])
    )


@inner
def even_tokens(state: State, tokens: Floats, counts: Experts, goal: float, budget: int) -> None:
    """Greedy and exchanges on tokens; while the fullest node has more than ``goal``, other counts are tried too.

    One of the fullest node's experts gets a replica, the expert that suffers least gives one up. ``state`` and
    ``counts`` [experts] end at the best found.
    """
    nodes, slots = state.held.shape
    nothing = np.zeros((0, 0), dtype=np.float32)
    empty = np.full((nodes, slots), -1, dtype=np.int32)
    share = tokens / counts
    _fill(state, empty, share, nothing)
    greedy(state, counts, share, nothing, True)
    budget = budget // 2 + iterate(state, share, nothing, True, goal, budget - budget // 2)
    best, least = state.held.copy(), state.tokens.max()
    improved = True
    while improved and least > goal and budget > 0:
        improved = False
        full = fullest(state.tokens)
        for gains in best[full].copy():
            if gains < 0 or counts[gains] == nodes:
                continue
            gives = -1
            for expert in range(len(tokens)):
                if counts[expert] > 1 and expert != gains:
                    after = tokens[expert] / (counts[expert] - 1)
                    if gives < 0 or after < tokens[gives] / (counts[gives] - 1):
                        gives = expert
            if gives < 0:  # no expert has a replica to spare
                continue
            counts[gains] += 1
            counts[gives] -= 1
            share = tokens / counts
            _fill(state, empty, share, nothing)
            greedy(state, counts, share, nothing, True)
            budget = _level(state, share, nothing, goal, budget - nodes * slots)
            if state.tokens.max() < least * (1 - RELATIVE):
                best[:] = state.held
                least = state.tokens.max()
                improved = True
                break
            counts[gains] -= 1  # no better: the counts are as before, and the next expert is tried
            counts[gives] += 1
        if not improved:
            _fill(state, best, tokens / counts, nothing)


@compiled
def place_layers(tokens: Floats, together: Pairs, by_tokens: bool, scans: int, held: Experts, counts: Experts) -> None:
    """Fill ``held`` [layers, nodes, slots] and ``counts`` [layers, experts].

    ``by_tokens``: even out tokens, ``together`` is not read; else Algorithm 2 and a search on co-activation,
    ``together`` [layers, experts, experts] float32. ``scans``: looks at all exchanges of the fullest node.
    """
    layers, nodes, slots = held.shape
    experts, look = tokens.shape[1], nodes * slots * slots
    empty = np.full((nodes, slots), -1, dtype=np.int32)
    state = State(
        np.empty((nodes, slots), dtype=np.int32),
        np.empty((nodes, experts), dtype=np.uint8),
        np.empty(nodes),
        np.empty((nodes, experts)),
        np.empty(nodes),
    )
    order, share = np.empty(experts, dtype=np.int64), np.empty(experts)
    for layer in range(layers):
        order[:] = np.arange(experts)
        _by_share(tokens[layer], order)
        replicate(tokens[layer], order, nodes * slots - experts, nodes, counts[layer], share)
        if by_tokens:
            goal = LEVEL * tokens[layer].sum() / nodes
            even_tokens(state, tokens[layer], counts[layer], goal, max(scans, EVENING) * look)
        else:
            _fill(state, empty, tokens[layer], together[layer])
            greedy(state, counts[layer], share, together[layer], False)
            iterate(state, share, together[layer], False, 0.0, scans * look)
        held[layer] = state.held

"""Least co-activation under a limit on tokens: what ``tokens-first`` does, compiled and for all layers in one call.

Start: EPLB's flat mode without second copies of an expert on a node (:mod:`~placement.levelled`), whose
fullest node's tokens are the limit. Then the node with the greatest co-activation load, Eq. (1), gives an expert away,
in exchange for another or into a free slot, the expert that costs it most first; where that lowers nothing, one of its
replicas gives way to another expert's, or to nothing; then a few exchanges at random and down again (iterated local
search) while the budget of looked-at exchanges lasts. Free slots are filled where no node gets above the limits.

No matrix of nodes by experts is kept: ``bears`` holds what each replica adds to its own node, and an exchange reads two
rows of co-activations. So a look costs little and large layouts stay in the processor's caches.
"""

from __future__ import annotations

import numpy as np

from placement.layer_state import Experts, Floats, Ints, Marks, Pairs, compiled, fullest, inner
from placement.levelled import (
    RELATIVE,
    Layout,
    even_out,
    give_up_doubles,
    recount,
    sort_falling,
    spread,
    weigh,
)
from placement.search import INCREMENT, KICKS, MULTIPLIER, replicate


@inner
def _pair(layout: Layout, together: Pairs) -> None:
    """``bears`` and ``pairs``, computed again from ``held``."""
    nodes, slots = layout.held.shape
    for node in range(nodes):
        layout.bears[node] = 0.0
        layout.pairs[node] = 0.0
        for slot in range(1, slots):
            one = layout.held[node, slot]
            if one < 0:
                continue
            for before in range(slot):
                other = layout.held[node, before]
                if other >= 0:
                    both = together[one, other]
                    layout.bears[node, slot] += both
                    layout.bears[node, before] += both
                    layout.pairs[node] += both


@inner
def _set(layout: Layout, node: int, slot: int, expert: int, together: Pairs) -> None:
    """Put ``expert`` (-1: nothing) into a slot instead of what is there; counts and shares stay."""
    leaving, total = layout.held[node, slot], 0.0
    for other in range(layout.held.shape[1]):
        held = layout.held[node, other]
        if other == slot or held < 0:
            continue
        if leaving >= 0:
            layout.bears[node, other] -= together[leaving, held]
        if expert >= 0:
            layout.bears[node, other] += together[expert, held]
            total += together[expert, held]
    layout.pairs[node] += total - layout.bears[node, slot]
    layout.bears[node, slot] = total
    layout.held[node, slot] = expert
    if leaving >= 0:
        layout.load[node] -= layout.share[leaving]
    if expert >= 0:
        layout.load[node] += layout.share[expert]


@inner
def _read(layout: Layout, node: int, together: Pairs, near: Floats, here: Marks) -> None:
    """``near`` [experts]: co-activation with what the node holds; ``here`` [experts]: 1 where it holds the expert."""
    near[:] = 0.0
    here[:] = 0
    for slot in range(layout.held.shape[1]):
        expert = layout.held[node, slot]
        if expert >= 0:
            here[expert] = 1
            for other in range(len(near)):
                near[other] += together[expert, other]


@inner
def _best_exchange(
    layout: Layout, full: int, slot: int, cap: float, together: Pairs, near: Floats, here: Marks
) -> tuple[int, int]:
    """The greater of both nodes' Eq. (1) load after the best exchange of a slot, its node and slot (-1: none)."""
    held, share, load = layout.held, layout.share, layout.load
    nodes, slots = held.shape
    leaving = held[full, slot]
    row, given = together[leaving], share[leaving]
    without, gap = layout.pairs[full] - layout.bears[full, slot], cap - load[full] + given
    best, to_node, to_slot = layout.pairs[full] * (1 - RELATIVE), -1, -1
    for node in range(nodes):
        if node == full:
            continue
        grown, twice = layout.pairs[node], False  # the node's Eq. (1) load with the leaving expert added
        for other in range(slots):
            coming = held[node, other]
            if coming >= 0:
                grown += row[coming]
                twice = twice or coming == leaving
        if twice:
            continue
        room = cap - load[node] - given
        for other in range(slots):
            coming = held[node, other]
            if coming < 0:
                larger = max(without, grown) if room >= 0 else best
            else:
                # The coming expert leaves that node, so it adds nothing there to the one that comes for it.
                larger = grown - layout.bears[node, other] - row[coming]
                if larger >= best or room + share[coming] < 0 or share[coming] > gap or here[coming]:
                    continue
                larger = max(larger, without + near[coming] - row[coming])
            if larger < best:
                best, to_node, to_slot = larger, node, other
    return to_node, to_slot


@inner
def _give_way(
    layout: Layout, full: int, slot: int, cap: float, tokens: Floats, together: Pairs, near: Floats, here: Marks
) -> bool:
    """One replica of the fullest node gives way to another expert's, or to none, where that lowers its load."""
    nodes, slots = layout.held.shape
    leaving = layout.held[full, slot]
    if layout.counts[leaving] < 2:
        return False
    # The replicas that stay take its tokens over, which must not lift their nodes over the limit.
    more = tokens[leaving] / (layout.counts[leaving] - 1) - layout.share[leaving]
    for node in range(nodes):
        for other in range(slots):
            if node != full and layout.held[node, other] == leaving and layout.load[node] + more > cap:
                return False
    gap = cap - layout.load[full] + layout.share[leaving]
    least, coming = layout.bears[full, slot] - RELATIVE * layout.pairs[full], -1
    for expert in range(len(tokens)):
        added = near[expert] - together[leaving, expert]
        if added < least and not here[expert] and tokens[expert] / (layout.counts[expert] + 1) <= gap:
            least, coming = added, expert
    if coming < 0 and layout.bears[full, slot] <= RELATIVE * layout.pairs[full]:
        return False
    _set(layout, full, slot, -1, together)
    recount(layout, leaving, layout.counts[leaving] - 1, tokens)
    if coming >= 0:
        recount(layout, coming, layout.counts[coming] + 1, tokens)
        _set(layout, full, slot, coming, together)
    return True


@inner
def _descend(
    layout: Layout, cap: float, budget: int, tokens: Floats, together: Pairs, near: Floats, here: Marks
) -> int:
    """Until no change lowers the node with the greatest Eq. (1) load; what is left of the budget."""
    nodes, slots = layout.held.shape
    tried = np.empty(slots, dtype=np.uint8)
    while budget > 0:
        full = fullest(layout.pairs)
        _read(layout, full, together, near, here)
        changed = False
        # Exchanges first: they keep the counts. A replica goes only where no exchange lowers the load.
        for giving_way in range(2):
            tried[:] = 0
            for _ in range(slots):
                slot = -1
                for at in range(slots):
                    if not tried[at] and (slot < 0 or layout.bears[full, at] > layout.bears[full, slot]):
                        slot = at
                tried[slot] = 1
                leaving = layout.held[full, slot]
                if leaving < 0:
                    continue
                budget -= nodes * slots
                if giving_way:
                    changed = _give_way(layout, full, slot, cap, tokens, together, near, here)
                else:
                    node, other = _best_exchange(layout, full, slot, cap, together, near, here)
                    changed = node >= 0
                    if changed:
                        _set(layout, full, slot, layout.held[node, other], together)
                        _set(layout, node, other, leaving, together)
                if changed or budget <= 0:
                    break
            if changed or budget <= 0:
                break
        if not changed:
            break
    return budget


@inner
def _kick(layout: Layout, cap: float, random: np.uint64, together: Pairs) -> np.uint64:
    """A few exchanges at random, the first of the fullest node; the next random number."""
    nodes, slots = layout.held.shape
    done = 0
    for _ in range(8 * KICKS):
        random = random * MULTIPLIER + INCREMENT
        draw = np.int64(random >> np.uint64(20))
        first = fullest(layout.pairs) if done == 0 else draw % nodes
        second = (first + 1 + (draw >> 10) % (nodes - 1)) % nodes
        slot, other = (draw >> 20) % slots, (draw >> 30) % slots
        leaving, coming = layout.held[first, slot], layout.held[second, other]
        if leaving == coming:
            continue
        twice, shift = False, 0.0  # an expert may not stand on a node twice
        for at in range(slots):
            twice = twice or (leaving >= 0 and layout.held[second, at] == leaving)
            twice = twice or (coming >= 0 and layout.held[first, at] == coming)
        shift += layout.share[leaving] if leaving >= 0 else 0.0
        shift -= layout.share[coming] if coming >= 0 else 0.0
        if twice or layout.load[first] - shift > cap or layout.load[second] + shift > cap:
            continue
        _set(layout, first, slot, coming, together)
        _set(layout, second, other, leaving, together)
        done += 1
        if done == KICKS:
            break
    return random


@inner
def _fill_free(layout: Layout, cap: float, tokens: Floats, together: Pairs, near: Floats, here: Marks) -> None:
    """A further replica into every free slot where neither the greatest Eq. (1) load nor ``cap`` is exceeded."""
    nodes, slots = layout.held.shape
    for node in range(nodes):
        for slot in range(slots):
            if layout.held[node, slot] >= 0:
                continue
            _read(layout, node, together, near, here)
            most, best = layout.pairs.max(), -1
            for expert in range(len(tokens)):
                fits = layout.load[node] + tokens[expert] / (layout.counts[expert] + 1) <= cap
                fits = fits and not here[expert] and layout.pairs[node] + near[expert] <= most
                if fits and (best < 0 or layout.share[expert] > layout.share[best]):
                    best = expert
            if best >= 0:
                recount(layout, best, layout.counts[best] + 1, tokens)
                _set(layout, node, slot, best, together)


@inner
def _search(
    layout: Layout, cap: float, budget: int, tokens: Floats, together: Pairs, near: Floats, here: Marks
) -> None:
    """Iterated local search; ``layout`` ends at the best found."""
    nodes, slots = layout.held.shape
    _pair(layout, together)
    best, counts, least = layout.held.copy(), layout.counts.copy(), layout.pairs.max()
    random = np.uint64(nodes * 8191 + slots)
    while budget > 0 and nodes > 1 and least > 0:
        budget = _descend(layout, cap, budget, tokens, together, near, here) - nodes
        now = layout.pairs.max()
        if now < least * (1 - RELATIVE):
            least = now
            best[:] = layout.held
            counts[:] = layout.counts
        elif now > least:
            layout.held[:] = best
            layout.counts[:] = counts
            weigh(layout, tokens)
            _pair(layout, together)
        if budget > 0 and least > 0:
            random = _kick(layout, cap, random, together)


@compiled
def place_capped(
    tokens: Floats,
    order: Ints,
    together: Pairs,
    allowed: Floats,
    per_layer: int,
    scans: int,
    held: Experts,
    counts: Experts,
) -> None:
    """Fill ``held`` [parts, nodes, slots] and ``counts`` [parts, experts]; a part is a layer or one of its node groups.

    ``order`` [parts, experts]: by falling ``tokens``. ``per_layer`` neighbouring parts are one layer and share its
    limit: EPLB's fullest node among them, with its doubles or without, or ``allowed`` [parts]. ``scans``: looks at all
    exchanges of the fullest node.
    """
    parts, nodes, slots = held.shape
    experts, look = tokens.shape[1], nodes * slots * slots
    falling, share, load = np.empty(experts, dtype=np.int64), np.empty((parts, experts)), np.empty((parts, nodes))
    bears, pairs = np.empty((nodes, slots)), np.empty(nodes)
    near, here = np.empty(experts), np.empty(experts, dtype=np.uint8)
    for first in range(0, parts, per_layer):
        limit = least = allowed[first]
        for part in range(first, first + per_layer):
            replicate(tokens[part], order[part], nodes * slots - experts, nodes * slots, counts[part], share[part])
            sort_falling(order[part], share[part], falling)
            limit = max(limit, spread(falling, counts[part], share[part], held[part], load[part]))
            layout = Layout(held[part], counts[part], share[part], load[part], bears, pairs)
            least = max(least, allowed[part], give_up_doubles(layout, tokens[part]))
        limit = min(limit, least)  # the stricter of EPLB's two layouts, but never under what the caller allows
        for part in range(first, first + per_layer):
            layout = Layout(held[part], counts[part], share[part], load[part], bears, pairs)
            limit = max(limit, even_out(layout, limit))
        limit *= 1 + RELATIVE  # sums of shares are rounded: what is at the limit must not count as above it
        for part in range(first, first + per_layer):
            layout = Layout(held[part], counts[part], share[part], load[part], bears, pairs)
            _search(layout, limit, scans * look, tokens[part], together[part], near, here)
            _fill_free(layout, limit, tokens[part], together[part], near, here)

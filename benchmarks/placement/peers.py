"""Peers of Janus and Prism: DeepSeek's load balancer EPLB on homogeneous machines, and on heterogeneous ones Uniform,
Redundance, SmartMoE's placement and EPLB.

:func:`balanced` is EPLB's flat mode in NumPy, the peer for speed and balance: replicas one by one to the expert with
most tokens per replica; then replicas by falling tokens, each to the node with the fewest tokens that still has a free
slot, every node equally many. Tokens only, layers side by side in every array operation. As in the original, a node may
get two replicas of one expert.

The others give [gpus, layers, experts] bool, respect the memory of every GPU and cover every expert. *Uniform*: every
layer's experts at random, equally many on each GPU (as far as memory allows), once. *Redundance*: that, and random
copies wherever memory is left. *SmartMoE* (the placement module alone): once, equally many, so that every GPU gets the
same load for its speed. *EPLB*: copies for the experts with most load per copy, then by falling load to the GPU that
has least for its speed; each GPU gives every layer its share of places. None of the last two looks at where calls
arise.
"""

from __future__ import annotations

import heapq

import numpy as np

from placement.cluster import Cluster, PlanArray, Whole, check_fits, check_frequency
from placement.errors import PlacementError
from placement.layout import Floats, Held


def replicate(tokens: Floats, replicas: int) -> tuple[Held, Floats]:
    """Expert of each replica [layers, replicas] int32 and its share of tokens [layers, replicas] float64."""
    layers, experts = tokens.shape
    expert = np.empty((layers, replicas), dtype=np.int32)
    expert[:, :experts] = np.arange(experts)
    counts, share, rows = np.ones_like(tokens), tokens.copy(), np.arange(layers)
    for replica in range(experts, replicas):
        most = share.argmax(axis=1)
        expert[:, replica] = most
        counts[rows, most] += 1
        share[rows, most] = tokens[rows, most] / counts[rows, most]
    return expert, np.take_along_axis(share, expert.astype(np.int64), axis=1)


def balanced(tokens: Floats, nodes: int, slots: int) -> Held:
    """``held`` [layers, nodes, slots] int32. Raises PlacementError, also where the experts do not fit."""
    if tokens.ndim != 2 or not tokens.size or not np.isfinite(tokens).all() or tokens.min() < 0:
        raise PlacementError(f"tokens must be [layers, experts], finite and not negative, got shape {tokens.shape}")
    if min(nodes, slots) < 1:
        raise PlacementError(f"nodes and slots must be at least 1, got {nodes} and {slots}")
    layers, experts = tokens.shape
    if nodes * slots < experts:
        raise PlacementError(f"{experts} experts do not fit in {nodes} nodes of {slots} slots")
    expert, share = replicate(tokens, nodes * slots)
    order = np.argsort(-share, axis=1, kind="stable")
    expert, share = np.take_along_axis(expert, order, axis=1), np.take_along_axis(share, order, axis=1)
    held = np.empty((layers, nodes, slots), dtype=np.int32)
    load, used = np.zeros((layers, nodes)), np.zeros((layers, nodes), dtype=np.int64)
    rows = np.arange(layers)
    for replica in range(nodes * slots):
        node = load.argmin(axis=1)
        held[rows, node, used[rows, node]] = expert[:, replica]
        load[rows, node] += share[:, replica]
        used[rows, node] += 1
        load[rows, node] += np.where(used[rows, node] == slots, np.inf, 0.0)
    return held


def uniform(cluster: Cluster, layers: int, experts: int, expert_bytes: int, seed: int) -> PlanArray:
    """Every expert once, at random."""
    rng = np.random.default_rng(seed)
    quotas = _once(cluster, layers, experts, expert_bytes)
    plan = np.zeros((cluster.gpus, layers, experts), dtype=np.bool_)
    for layer in range(layers):
        gpu = np.repeat(np.arange(cluster.gpus), quotas[:, layer])
        plan[gpu, layer, rng.permutation(experts)] = True
    return plan


def redundance(cluster: Cluster, layers: int, experts: int, expert_bytes: int, seed: int) -> PlanArray:
    """Uniform, then every GPU filled at random with experts that its node lacks."""
    plan = uniform(cluster, layers, experts, expert_bytes, seed)
    rng = np.random.default_rng(seed + 1)
    slots = cluster.slots(expert_bytes)
    for gpu in range(cluster.gpus):
        mates = cluster.node == cluster.node[gpu]
        lacking = np.argwhere(~plan[mates].any(axis=0))
        chosen = rng.permutation(len(lacking))[: max(0, int(slots[gpu] - plan[gpu].sum()))]
        plan[gpu, lacking[chosen, 0], lacking[chosen, 1]] = True
    return plan


def smartmoe(cluster: Cluster, frequency: Floats, expert_bytes: int) -> PlanArray:
    """Every expert once, loads even for the GPUs' speed; ``frequency`` [nodes, layers, experts]. Raises
    PlacementError."""
    _, layers, experts = check_frequency(frequency, cluster).shape
    quotas = _once(cluster, layers, experts, expert_bytes)
    plan = np.zeros((cluster.gpus, layers, experts), dtype=np.bool_)
    for layer, load in enumerate(frequency.sum(axis=0)):
        _pack(plan[:, layer], np.arange(experts), load, quotas[:, layer], cluster.speed, np.arange(cluster.gpus))
    return plan


def eplb(cluster: Cluster, frequency: Floats, expert_bytes: int, *, one_a_node: bool = False) -> PlanArray:
    """Copies by load, packed to even loads for the GPUs' speed; ``frequency`` [nodes, layers, experts].
    ``one_a_node``: GPUs of one node hold no expert twice. Raises PlacementError."""
    _, layers, experts = check_frequency(frequency, cluster).shape
    check_fits(cluster, layers, experts, expert_bytes)
    quotas = _shares(np.minimum(cluster.slots(expert_bytes), layers * experts), layers, experts)
    short = quotas.sum(axis=0) < experts
    if short.any():
        quotas = _once(cluster, layers, experts, expert_bytes)
    plan = np.zeros((cluster.gpus, layers, experts), dtype=np.bool_)
    for layer, load in enumerate(frequency.sum(axis=0)):
        copies, share = _copies(load, int(quotas[:, layer].sum()), cluster.nodes if one_a_node else cluster.gpus)
        mates = cluster.node if one_a_node else np.arange(cluster.gpus)
        _pack(plan[:, layer], copies, share, quotas[:, layer], cluster.speed, mates)
    return plan


def _once(cluster: Cluster, layers: int, experts: int, expert_bytes: int) -> Whole:
    """Places [gpus, layers] that add up to ``experts`` in every layer: as equal as memory allows."""
    check_fits(cluster, layers, experts, expert_bytes)
    left = cluster.slots(expert_bytes).astype(np.int64)
    quotas: Whole = np.zeros((cluster.gpus, layers), dtype=np.int64)
    wanted = layers * experts
    total = np.zeros(cluster.gpus, dtype=np.int64)
    while wanted:  # level the GPUs' totals, small memories full first
        room = np.flatnonzero(left > total)
        step = max(1, wanted // len(room))
        grown = np.minimum(total[room] + step, left[room])
        grown = grown[:wanted] if step == 1 else grown
        wanted -= int((grown - total[room[: len(grown)]]).sum())
        total[room[: len(grown)]] = grown
    left = total
    for layer in range(layers):  # each layer takes its part of what every GPU still has to give
        ideal = left * (experts / left.sum())
        taken = np.minimum(np.floor(ideal), experts).astype(np.int64)
        order = np.argsort(taken - ideal, kind="stable")
        order = order[left[order] > taken[order]]
        taken[order[: experts - int(taken.sum())]] += 1
        quotas[:, layer] = taken
        left = left - taken
    return quotas


def _shares(slots: Whole, layers: int, experts: int) -> Whole:
    """Places [gpus, layers]: a GPU's ``slots`` spread evenly over layers, the rest to different layers by GPU."""
    quotas: Whole = np.minimum(slots[:, None] // layers, experts) * np.ones(layers, dtype=np.int64)
    start = 0
    for gpu, rest in enumerate(slots % layers):
        if quotas[gpu, 0] < experts:
            quotas[gpu, (start + np.arange(rest)) % layers] += 1
            start += int(rest)
    return quotas


def _copies(load: Floats, places: int, most: int) -> tuple[Whole, Floats]:
    """Expert and load of each copy, [copies] both: one each, then to the greatest load per copy, ``most`` at most."""
    counts = np.ones(len(load), dtype=np.int64)
    queue = [(-value, expert) for expert, value in enumerate(load)]
    heapq.heapify(queue)
    for _ in range(places - len(load)):
        if not queue:
            break
        _, expert = heapq.heappop(queue)
        counts[expert] += 1
        if counts[expert] < most:
            heapq.heappush(queue, (-load[expert] / counts[expert], expert))
    experts = np.repeat(np.arange(len(load)), counts)
    return experts, (load / counts)[experts]


def _pack(plan: PlanArray, experts: Whole, load: Floats, quota: Whole, speed: Floats, mates: Whole) -> None:
    """Fill one layer's ``plan`` [gpus, experts]: by falling load, to the least loaded GPU with a place. GPUs of one
    number in ``mates`` [gpus] hold no expert twice.

    A copy is left out where every GPU with a place holds the expert already, and where the places that are left are
    needed by experts that have none yet.
    """
    bears, left = np.zeros(len(quota)), quota.copy()
    first = np.ones(len(experts), dtype=np.bool_)
    first[1:] = experts[1:] != experts[:-1]
    reserved = int(first.sum())
    for at in np.lexsort((~first, -load)):
        expert = experts[at]
        if not first[at] and left.sum() <= reserved:
            continue
        open_gpus = np.flatnonzero((left > 0) & ~np.isin(mates, mates[plan[:, expert]]))
        if open_gpus.size:
            gpu = open_gpus[np.argmin(bears[open_gpus])]
            plan[gpu, expert] = True
            bears[gpu] += load[at] / speed[gpu]
            left[gpu] -= 1
        reserved -= int(first[at])

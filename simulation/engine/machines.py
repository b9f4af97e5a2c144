"""Replicas on several machines: which replica serves a call, and what a call to another machine costs.

A machine is what placement and the ingress call a node. Requests reach the ingresses of machines in turn. A replica of
another machine replies ``hop_s`` and its bytes over ``bytes_per_s`` later; its slot is free when the service ends.
Rules:

- *least-loaded*: fewest calls in service, the oldest of equals: what a simulation without machines does;
- *local-first* (Prism): the least loaded of the ingress's own machine, where none has a free slot of all;
- *aebs* (Janus): machines such that the fullest one has fewest of the experts that the pass activates; ties turn with
  the number of the request. Segments go by load;
- *random*: any replica, whoever is busy.

The last two choose a machine for each expert of a pass before it starts, by who is ready when the window begins; where
that machine has no free slot the call goes to the least loaded of all. Only with them can ``meeting`` be above 0:
every further expert that a pass activates on the same machine makes its calls there take that part of their seconds
more. 1 is a machine that reads its activated experts one after the other (Janus, takeaway 2: seconds are linear in
activated experts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import NodeInfo
from functions.dispatch.aebs import assign
from simulation.arrays import Calls, Floats, Ints, Keys, Tokens
from simulation.engine.compiled import compiled, inner
from simulation.engine.draws import DISPATCH, draw_bits, stream_key
from simulation.engine.errors import SimulationError
from simulation.engine.replicas import COUNT, DRAIN, NO_LIMIT, RANK, RANK_BITS, READY, SITE, choose
from simulation.workloads.workload import Workload

Dispatch = Literal["least-loaded", "local-first", "aebs", "random"]
RULES: tuple[Dispatch, ...] = get_args(Dispatch)
LEAST_LOADED, LOCAL_FIRST, AEBS, RANDOM = range(4)
MOST_MACHINES = 127
Small = NDArray[np.int8]
Places = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Machines:
    """Where replicas are and how they are reached. Raises SimulationError."""

    count: int
    dispatch: Dispatch = "least-loaded"
    hop_s: float = 0.0
    """Seconds of a call to another machine and its reply, without their bytes."""
    bytes_per_s: float = float("inf")
    """Between two machines."""
    meeting: float = 0.0
    """See above; 0 to 1."""
    ingresses: int = 1
    """Machines 0 … have an ingress; requests go to them in turn."""
    placement: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Function → machines of its replicas: each new one goes to the first of those with fewest of the function.
    Functions that are not named are spread over all, beginning with one machine after the other."""

    def __post_init__(self) -> None:
        fixed = self.dispatch in ("aebs", "random")
        rules = (
            (1 <= self.count <= MOST_MACHINES, f"there are 1 to {MOST_MACHINES} machines, not {self.count}"),
            (self.dispatch in RULES, f"dispatch is one of {', '.join(RULES)}, not {self.dispatch!r}"),
            (0 <= self.hop_s < 1e6, f"hop_s is {self.hop_s}; it takes 0 or more"),
            (self.bytes_per_s > 0, f"bytes_per_s is {self.bytes_per_s}; it must be above 0"),
            (0 <= self.meeting <= 1, f"meeting is {self.meeting}; it takes 0 to 1"),
            (not self.meeting or fixed, f"meeting above 0 needs the dispatch aebs or random, not {self.dispatch}"),
            (1 <= self.ingresses <= self.count, f"{self.ingresses} ingresses do not fit {self.count} machines"),
        )
        for holds, sentence in rules:
            if not holds:
                raise SimulationError(sentence)
        for function, machines in self.placement.items():
            if not machines or min(machines) < 0 or max(machines) >= self.count:
                raise SimulationError(f"{function} is placed on {list(machines)}; machines are 0 to {self.count - 1}")

    def sites(self, nodes: Sequence[NodeInfo]) -> list[tuple[int, ...]]:
        """For each of the simulation's nodes the machines of its replicas."""
        every = range(self.count)
        turned = [tuple(every)[number % self.count :] + tuple(every)[: number % self.count] for number in every]
        return [tuple(self.placement.get(node.function, turned[k % self.count])) for k, node in enumerate(nodes)]


class Sited(NamedTuple):
    """What compiled code reads of the machines; ``chosen`` and ``met`` are filled stage by stage."""

    rule: int
    home: Small
    """[requests]: machine of its ingress."""
    hop_s: float
    byte_s: float
    """Seconds a byte."""
    token_bytes: Floats
    """[nodes]: both ways."""
    meeting: float
    desired: Small
    """[nodes, requests]: machine that aebs or random has chosen; -1: none."""
    met: Small
    """[nodes, requests]: experts that the request activates there, this one included; 1 where none was chosen."""


def sited(machines: Machines, workload: Workload, nodes: Sequence[NodeInfo], requests: int) -> Sited:
    """For a simulation of these nodes."""
    fixed = machines.dispatch in ("aebs", "random")
    shape = (len(nodes), requests) if fixed else (0, 0)
    costs = [workload.costs[node.id] for node in nodes]
    return Sited(
        RULES.index(machines.dispatch),
        (np.arange(requests) % machines.ingresses).astype(np.int8),
        machines.hop_s,
        1.0 / machines.bytes_per_s,
        np.array([cost.bytes_in_per_token + cost.bytes_out_per_token for cost in costs]),
        machines.meeting,
        np.full(shape, -1, dtype=np.int8),
        np.ones(shape, dtype=np.int8),
    )


def plan_stage(
    tables: Sited, machines: int, nodes: Ints, due: Calls, counts: Tokens, source: Ints, clock: Floats, slot: Ints,
    orders: Ints, now_s: float, seed: int,
) -> None:  # fmt: skip
    """Choose machines for the calls of ``due`` to a stage's ``nodes``, by the replicas that are ready at ``now_s``.
    ``due`` [calls]."""
    if due.size == 0 or tables.rule not in (AEBS, RANDOM) or (tables.rule == AEBS and nodes.size == 1):
        return
    held: list[list[int]] = []
    for node in nodes:
        count = orders[node, COUNT]
        ready = (clock[node, READY, :count] <= now_s) & (clock[node, DRAIN, :count] > now_s)
        held.append(slot[node, SITE, :count][ready].tolist())
    if tables.rule == RANDOM:
        keys = np.array([stream_key(seed, DISPATCH, int(node)) for node in nodes], dtype=np.uint64)
        start, site = _table([sorted(sites) for sites in held])
        _at_random(keys, nodes, due, counts, source, start, site, machines, tables.desired, tables.met)
        return
    start, _ = _table([sorted(set(sites)) for sites in held])
    every = range(machines)
    turned = [_table([sorted({(site - turn) % machines for site in sites}) for sites in held])[1] for turn in every]
    _by_activation(nodes, due, counts, source, start, np.stack(turned), machines, tables.desired, tables.met)


def _table(held: Sequence[Sequence[int]]) -> tuple[Places, Places]:
    """``start [experts + 1]`` and machines of each expert's replicas, one after the other."""
    start = np.concatenate([[0], np.cumsum([len(sites) for sites in held])]).astype(np.int32)
    return start, np.array([site for sites in held for site in sites], dtype=np.int32)


@compiled
def _at_random(
    keys: Keys, nodes: Ints, due: Calls, counts: Tokens, source: Ints, start: Places, site: Places,
    machines: int, desired: Small, met: Small,
) -> None:  # fmt: skip
    load = np.zeros(machines, dtype=np.int8)
    for request in due:
        load[:] = 0
        for k in range(nodes.size):
            many = start[k + 1] - start[k]
            if counts[source[nodes[k]], request] > 0 and many > 0:
                drawn = np.int64((draw_bits(keys[k], request) >> np.uint64(33)) % np.uint64(many))
                desired[nodes[k], request] = site[start[k] + drawn]
                load[site[start[k] + drawn]] += 1
        _meet(nodes, request, load, desired, met)


@compiled
def _by_activation(
    nodes: Ints, due: Calls, counts: Tokens, source: Ints, start: Places, turned: Places, machines: int, desired: Small,
    met: Small,
) -> None:  # fmt: skip
    """Janus, Algorithm 1 with repair (:mod:`functions.dispatch.aebs`). ``turned [machines, places]``: the places'
    machines, each number less by the turn, so that ties go to another machine with every request."""
    experts = nodes.size
    ids, out = np.empty(experts, dtype=np.int64), np.empty(experts, dtype=np.int32)
    marks, by_expert = np.zeros(experts, dtype=np.uint8), np.zeros((3, experts), dtype=np.int32)
    by_node, load = np.zeros((7, machines), dtype=np.int32), np.zeros(machines, dtype=np.int8)
    for request in due:
        turn, size = np.int64(request) % machines, 0
        for k in range(experts):
            if counts[source[nodes[k]], request] > 0 and start[k + 1] > start[k]:
                ids[size] = k
                size += 1
        node = turned[turn]
        assign(ids[:size], out[:size], start, node, node, marks, by_expert, by_node, True)
        load[:] = 0
        for at in range(size):
            here = (out[at] + turn) % machines
            desired[nodes[ids[at]], request] = here
            load[here] += 1
        _meet(nodes, request, load, desired, met)


@inner
def _meet(nodes: Ints, request: np.uint32, load: Small, desired: Small, met: Small) -> None:
    for k in range(nodes.size):
        if desired[nodes[k], request] >= 0:
            met[nodes[k], request] = load[desired[nodes[k], request]]


@inner
def choose_at(tables: Sited, node: int, request: np.uint32, active: Ints, room: Ints, site: Ints, count: int) -> int:
    """Replica for a call by the rule; -1 where none has a free slot. Arrays [replicas]."""
    wanted = -1
    if tables.rule == LOCAL_FIRST:
        wanted = int(tables.home[request])
    elif tables.rule != LEAST_LOADED:
        wanted = int(tables.desired[node, request])
    if wanted >= 0:
        least = NO_LIMIT
        for r in range(count):
            if site[r] == wanted and active[r] < room[r]:
                least = min(least, (active[r] << RANK_BITS) + r)
        if least < NO_LIMIT:
            return least & RANK
    return choose(active, room, count)


@inner
def reply_s(tables: Sited, node: int, request: np.uint32, length: int, site: int) -> float:
    """Seconds on the way to another machine and back; 0 on the ingress's own."""
    if tables.home[request] == site:
        return 0.0
    return float(tables.hop_s + length * tables.token_bytes[node] * tables.byte_s)


@inner
def slowed(tables: Sited, node: int, request: np.uint32) -> float:
    """How many times its seconds a call takes because of the pass's other experts on its machine."""
    if tables.meeting == 0.0:
        return 1.0
    return float(1.0 + tables.meeting * (tables.met[node, request] - 1))

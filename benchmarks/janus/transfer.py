"""Janus, section 3.2 (Fig. 4): a layer's rows from attention to expert instances and back, as messages on links.

A *way* is a list of phases for each direction; messages of a phase are under way at once, and the next one begins when
the last has arrived. Ways of one direction:

- ``routed`` (Fig. 4, left; gate on the attention side): every attention instance sends every expert instance the rows
  that are routed there, and their expert ids and weights in a second message. Up to 2 · A · E messages.
- ``direct`` (gate on the expert side): every attention instance sends all its rows to every expert instance: A · E.
- ``aggregated`` (two phases, the paper's Case-1): attention instances of a node exchange their rows; then each of them
  sends the node's rows to its part of the expert instances: one message for each attention node and expert instance.
- ``one-to-one`` (two phases, Case-2): the same exchange; then for each expert node one attention instance sends the
  node's rows to one instance there, which multicasts them to its siblings: one message for each pair of nodes.
- ``sliced`` (not the paper's): no exchange; every attention instance sends its own rows to one instance of each expert
  node, which multicasts them: A messages for each expert node, and no link carries another instance's rows.

Back, ``routed`` and ``direct`` send each attention instance the rows that an expert instance computed anything for, and
two phases sum on the expert node first, so that one row travels for each token and node: ``aggregated`` (all-reduce,
then to every attention instance), ``one-to-one`` (all-reduce, then through one instance of each attention node),
``sliced`` (reduce-scatter, then to every attention instance). ``adaptive`` is the less expensive of the paper's two
cases, for each direction.

What the paper leaves open and is decided here: which instance of a node sends to which (they take turns), and that the
cases are compared by :meth:`Fabric.seconds`, a LogGP model of ports: a phase lasts one latency and as long as its
busiest port, which takes ``message_s`` for each message and its bytes over ``bytes_per_s``. Every instance has one port
on either link, each way; a multicast leaves its sender once (NVSwitch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Where = Literal["inside", "between"]
METADATA_BYTES = 8
"""A routed row's int32 id and float32 weight, as if it had one expert of the instance (in favour of ``routed``)."""


@dataclass(frozen=True, eq=False)
class Message:
    """``rows`` [n], numbers of tokens, from one instance to others. With ``adds`` they are summed to what is there."""

    source: int
    targets: tuple[int, ...]
    rows: Ints
    adds: bool = False
    metadata_bytes: int = 0
    """In a message of its own, where above 0."""


@dataclass(frozen=True)
class Phase:
    """Messages at the same time, inside nodes or between them."""

    where: Where
    messages: list[Message]


@dataclass(frozen=True, eq=False)
class Layout:
    """Attention instances 0 … A - 1 and expert instances A … A + E - 1, on nodes of their own kind."""

    owner: Ints
    """[tokens] int64: attention instance of each token."""
    needs: Flags
    """[tokens, E] bool: some expert that the token is routed to is served by this expert instance."""
    attention: int
    per_node: int = 8

    @property
    def experts(self) -> int:
        return int(self.needs.shape[1])

    def attention_nodes(self) -> list[range]:
        return _nodes(0, self.attention, self.per_node)

    def expert_nodes(self) -> list[range]:
        return _nodes(self.attention, self.experts, self.per_node)

    def rows(self, instance: int) -> Ints:
        """[n] int64: tokens of an attention instance."""
        return np.flatnonzero(self.owner == instance)

    def rows_of(self, node: range) -> Ints:
        """[n] int64: tokens of an attention node."""
        return np.flatnonzero((self.owner >= node.start) & (self.owner < node.stop))


def layout(served: Ints, attention: int, experts: int, per_node: int = 8) -> Layout:
    """``served`` [tokens, k] int64: expert instance, from 0, of each choice. Tokens go to attention instances evenly,
    in their order. Raises ValueError."""
    if min(attention, experts, per_node) < 1 or not served.size or served.min() < 0 or served.max() >= experts:
        raise ValueError(f"{attention}A{experts}E on nodes of {per_node} cannot serve choices {served.shape}")
    needs = np.zeros((len(served), experts), bool)
    needs[np.arange(len(served))[:, None], served] = True
    return Layout(np.arange(len(served)) * attention // len(served), needs, attention, per_node)


def _nodes(first: int, count: int, per_node: int) -> list[range]:
    return [range(at, min(at + per_node, first + count)) for at in range(first, first + count, per_node)]


def _exchange(node: range, rows_of: Callable[[int], Ints]) -> Iterator[Message]:
    """All-gather: every member's rows to its siblings."""
    for member in node:
        siblings = tuple(other for other in node if other != member)
        if siblings and len(rows := rows_of(member)):
            yield Message(member, siblings, rows)


def routed(given: Layout) -> list[Phase]:
    """Rows where they are routed, with their metadata."""
    sent = []
    for instance in range(given.attention):
        rows = given.rows(instance)
        for expert in range(given.experts):
            wanted = rows[given.needs[rows, expert]]
            if len(wanted):
                metadata = len(wanted) * METADATA_BYTES
                sent.append(Message(instance, (given.attention + expert,), wanted, metadata_bytes=metadata))
    return [Phase("between", sent)]


def direct(given: Layout) -> list[Phase]:
    """All rows everywhere, one by one."""
    owned = [(one, rows) for one in range(given.attention) if len(rows := given.rows(one))]
    experts = [expert for node in given.expert_nodes() for expert in node]
    return [Phase("between", [Message(one, (expert,), rows) for one, rows in owned for expert in experts])]


def aggregated(given: Layout) -> list[Phase]:
    """Case-1: exchange within attention nodes, then from some member of the node to every expert instance."""
    experts = [expert for node in given.expert_nodes() for expert in node]
    sent = [
        Message(node[number % len(node)], (expert,), rows)
        for node in given.attention_nodes()
        if len(rows := given.rows_of(node))
        for number, expert in enumerate(experts)
    ]
    return [_gathered(given), Phase("between", sent)]


def one_to_one(given: Layout) -> list[Phase]:
    """Case-2: exchange within attention nodes, one message for each pair of nodes, multicast within expert nodes."""
    sent = [
        Message(node[number % len(node)], (there[from_node % len(there)],), rows)
        for from_node, node in enumerate(given.attention_nodes())
        if len(rows := given.rows_of(node))
        for number, there in enumerate(given.expert_nodes())
    ]
    return [_gathered(given), Phase("between", sent), _multicast(given, sent)]


def sliced(given: Layout) -> list[Phase]:
    """Every attention instance's own rows to one instance of each expert node, multicast there."""
    sent = [
        Message(one, (there[one % len(there)],), rows)
        for one in range(given.attention)
        if len(rows := given.rows(one))
        for there in given.expert_nodes()
    ]
    return [Phase("between", sent), _multicast(given, sent)]


def _gathered(given: Layout) -> Phase:
    return Phase("inside", [one for node in given.attention_nodes() for one in _exchange(node, given.rows)])


def _multicast(given: Layout, arrived: list[Message]) -> Phase:
    """What came to an expert instance, on to its siblings."""
    node_of = {member: node for node in given.expert_nodes() for member in node}
    onward = []
    for one in arrived:
        siblings = tuple(other for other in node_of[one.targets[0]] if other != one.targets[0])
        if siblings:
            onward.append(Message(one.targets[0], siblings, one.rows))
    return Phase("inside", onward)


def results_direct(given: Layout) -> list[Phase]:
    """Every expert instance's sums to the tokens' attention instances, which add them up."""
    sent = []
    for expert in range(given.experts):
        for instance in range(given.attention):
            rows = given.rows(instance)
            rows = rows[given.needs[rows, expert]]
            if len(rows):
                sent.append(Message(given.attention + expert, (instance,), rows, adds=True))
    return [Phase("between", sent)]


def results_aggregated(given: Layout) -> list[Phase]:
    """All-reduce within expert nodes, then from some member of the node to every attention instance."""
    return [*_reduced(given, whole=True), Phase("between", _to_owners(given))]


def results_sliced(given: Layout) -> list[Phase]:
    """Reduce-scatter within expert nodes by the member that sends to the token's attention instance."""
    return [*_reduced(given, whole=False), Phase("between", _to_owners(given))]


def results_one_to_one(given: Layout) -> list[Phase]:
    """All-reduce within expert nodes, one message for each pair of nodes, spread within attention nodes."""
    sent, spread = [], []
    for number, node in enumerate(given.expert_nodes()):
        for to_node, there in enumerate(given.attention_nodes()):
            if not len(rows := given.rows_of(there)):
                continue
            head = there[number % len(there)]
            sent.append(Message(node[to_node % len(node)], (head,), rows, adds=True))
            spread += [
                Message(head, (other,), rows, adds=True)
                for other in there
                if other != head and len(rows := given.rows(other))
            ]
    # A head adds up what all expert nodes sent it before it spreads, so it sends each sibling its rows once.
    once = {(one.source, one.targets): one for one in spread}
    return [*_reduced(given, whole=True), Phase("between", sent), Phase("inside", list(once.values()))]


def _to_owners(given: Layout) -> list[Message]:
    return [
        Message(node[instance % len(node)], (instance,), rows, adds=True)
        for node in given.expert_nodes()
        for instance in range(given.attention)
        if len(rows := given.rows(instance))
    ]


def _reduced(given: Layout, whole: bool) -> list[Phase]:
    """Sums over an expert node's instances, in equal parts of the tokens and then everywhere (``whole``), or those of
    attention instance a at member a mod size."""
    scattered, gathered = [], []
    for node in given.expert_nodes():
        for place, member in enumerate(node):
            part = np.arange(len(given.owner)) if whole else given.owner
            rows = np.flatnonzero(part % len(node) == place)
            siblings = tuple(other for other in node if other != member)
            if len(rows) and siblings:
                scattered += [Message(other, (member,), rows, adds=True) for other in siblings]
                gathered.append(Message(member, siblings, rows))
    phases = [Phase("inside", scattered)]
    return [*phases, Phase("inside", gathered)] if whole else phases


@dataclass(frozen=True)
class Port:
    """One instance's way onto a link."""

    latency_s: float
    """A phase's, whatever is sent."""
    message_s: float
    """Each message's, at its sender and its receiver."""
    bytes_per_s: float


@dataclass(frozen=True)
class Fabric:
    """Links inside nodes and between them, and the bytes of a row."""

    inside: Port
    between: Port
    row_bytes: int

    def seconds(self, phases: list[Phase]) -> float:
        """The phases one after the other."""
        return sum(self._phase_s(phase) for phase in phases)

    def _phase_s(self, phase: Phase) -> float:
        port = self.inside if phase.where == "inside" else self.between
        out: dict[int, float] = {}
        into: dict[int, float] = {}
        for one in phase.messages:
            size = len(one.rows) * self.row_bytes + one.metadata_bytes
            taken_s = (2 if one.metadata_bytes else 1) * port.message_s + size / port.bytes_per_s
            out[one.source] = out.get(one.source, 0.0) + taken_s
            for target in one.targets:
                into[target] = into.get(target, 0.0) + taken_s
        return port.latency_s + max(*out.values(), *into.values()) if out else 0.0


def traffic(phases: list[Phase], row_bytes: int) -> dict[str, int]:
    """Messages and bytes on either link; a multicast counts once."""
    counted = {f"{what}_{where}": 0 for where in ("between", "inside") for what in ("messages", "bytes")}
    for phase in phases:
        for one in phase.messages:
            counted[f"messages_{phase.where}"] += 2 if one.metadata_bytes else 1
            counted[f"bytes_{phase.where}"] += len(one.rows) * row_bytes + one.metadata_bytes
    return counted


Way = Callable[[Layout], list[Phase]]
WAYS: Mapping[str, tuple[Way, Way]] = {
    "routed": (routed, results_direct),
    "direct": (direct, results_direct),
    "aggregated": (aggregated, results_aggregated),
    "one-to-one": (one_to_one, results_one_to_one),
    "sliced": (sliced, results_sliced),
}
"""There and back."""
CASES = ("aggregated", "one-to-one")


def adaptive(given: Layout, fabric: Fabric) -> tuple[str, str]:
    """The paper's case that is less expensive, there and back; Case-1 of equals."""
    there, back = (min(CASES, key=lambda name: fabric.seconds(WAYS[name][direction](given))) for direction in (0, 1))
    return there, back


def transfer_s(given: Layout, fabric: Fabric, way: str) -> float:
    """Seconds there and back by one of ``WAYS`` or ``adaptive``."""
    there, back = adaptive(given, fabric) if way == "adaptive" else (way, way)
    return fabric.seconds(WAYS[there][0](given)) + fabric.seconds(WAYS[back][1](given))

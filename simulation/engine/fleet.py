"""All replicas of all nodes, and what an order (a new configuration) does to them. Rules: ``docs/simulator.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from simulation.arrays import Floats, Ints
from simulation.engine import kernel
from simulation.engine.errors import SimulationError
from simulation.engine.replicas import (
    ACTIVE,
    BURST,
    CALLS,
    CHANGE_AT,
    COUNT,
    DRAIN,
    FAR,
    GENERATION,
    HELD,
    LAST,
    LEVEL,
    LIMIT,
    NEXT,
    NEXT_LIMIT,
    NEXT_ROW,
    NOW_GENERATION,
    READY,
    ROW,
    SITE,
    STANDBY,
    TURN,
    Replicas,
)
from simulation.engine.tables import ResourceTables, atoms_of
from simulation.workloads.workload import Workload

MOST_CORES = 8
"""A replica on a shared machine is woken on one of so many at most; more would add little and cost memory."""


class Fleet:
    """State arrays of ``replicas`` for the given nodes, changed by :meth:`order`.

    ``clock``, ``slot``, ``end``, ``call``, ``orders``, ``orders_s`` and ``room`` are those of
    :class:`simulation.engine.replicas.Replicas`.
    """

    def __init__(
        self,
        workload: Workload,
        nodes: tuple[NodeInfo, ...],
        tables: ResourceTables,
        seed: int,
        most_calls: int,
        sites: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """``sites``: machines of each node's replicas, see :class:`simulation.engine.machines.Machines`."""
        count, slots = len(nodes), 1 << max(0, most_calls - 1).bit_length()
        self.nodes = nodes
        self.most_calls = most_calls
        self.configurations: list[Configuration | None] = [None] * count
        cores = 1 if workload.host is None else int(min(max(1.0, workload.host.cores), MOST_CORES))
        self.clock = np.zeros((count, HELD + cores, 8))
        self.slot = np.zeros((count, TURN + 1, 8), dtype=np.int64)
        self.end = np.zeros((count, 8, slots))
        self.call = np.zeros((count, 8, slots), dtype=np.uint32)
        self.orders = np.zeros((count, CALLS + 1), dtype=np.int64)
        self.orders_s = np.full((count, 1), FAR)
        self.room = np.zeros((count, 8), dtype=np.int64)
        self._workload = workload
        self._tables = tables
        self._seed = seed
        self._sites = sites
        self._row_now = [-1] * count
        self._row_next = [-1] * count
        self._started = [0] * count
        self._activated_from_s: dict[tuple[int, int], float] = {}
        self._activated: list[tuple[int, float, float]] = []
        self._cold_noise = atoms_of(workload.lifecycle.noise)

    @property
    def replicas(self) -> Replicas:
        """What compiled code works on."""
        return Replicas(self.clock, self.slot, self.end, self.call, self.orders, self.orders_s, self.room)

    def deploy(self, node: int, configuration: Configuration, now_s: float) -> None:
        """Put a node up with its replicas ready."""
        self._check(node, configuration)
        self.configurations[node] = configuration
        self._row_now[node] = self._row_next[node] = self._tables.row(self.nodes[node], configuration)
        self.orders[node, LIMIT] = self.orders[node, NEXT_LIMIT] = configuration.concurrency
        self.orders[node, NEXT_ROW] = -1
        for _ in range(configuration.running):
            self._add(node, [now_s])

    def order(self, node: int, target: Configuration, now_s: float) -> None:
        """Bring ``target`` about, beginning now; an order replaces what of the last one has not come about yet.

        Ordering the same twice changes nothing. Raises SimulationError for a configuration that cannot be simulated.
        """
        present = self.configurations[node]
        if target == present or present is None:
            return
        self._check(node, target)
        row = self._tables.row(self.nodes[node], target)
        if self.orders_s[node, CHANGE_AT] >= FAR:
            self._row_now[node] = self._row_next[node]
        self.configurations[node] = target
        self.orders[node, NEXT_LIMIT] = target.concurrency
        if target.gpu_share != present.gpu_share:
            self._replace(node, target.running, row, now_s)
        else:
            self._row_next[node] = row
            self.orders[node, NEXT_ROW] = row if row != self._row_now[node] else -1
            self._scale(node, target.running, now_s)
        changes = self.orders[node, NEXT_ROW] >= 0 or self.orders[node, LIMIT] != target.concurrency
        self.orders_s[node, CHANGE_AT] = now_s + self._workload.lifecycle.resize_s if changes else FAR

    def compact(self, now_s: float, nodes: slice = slice(None)) -> None:
        """Forget replicas of ``nodes`` that are gone: drained by now, with nothing left to do."""
        gone = (self.clock[nodes, DRAIN] <= now_s) & (self.slot[nodes, ACTIVE] == 0)
        gone &= np.arange(gone.shape[1]) < self.orders[nodes, COUNT, None]
        for row in np.flatnonzero(gone.any(axis=1)):
            node = row + (nodes.start or 0)
            kept = np.flatnonzero(~gone[row, : self.orders[node, COUNT]])
            for array in (self.clock, self.slot):
                array[node, :, : kept.size] = array[node][:, kept]
            for ring in (self.end, self.call):
                ring[node, : kept.size] = ring[node, kept]
            self.orders[node, COUNT] = kept.size

    def follow(self, node: int, spans: Sequence[tuple[int, float | None, float | None]], activation_s: float) -> None:
        """Let standbys take calls as ``spans`` say (:meth:`functions.dispatch.activation.Standbys.spans`), each from
        ``activation_s`` after its activation on, with what the node's replicas have by then."""
        for standby, begun_s, released_s in spans:
            if begun_s is None and released_s is not None:
                self.release(node, standby, released_s)
        begun = [(standby, begun_s, released_s) for standby, begun_s, released_s in spans if begun_s is not None]
        if begun and self.orders_s[node, CHANGE_AT] >= FAR:
            self._row_now[node] = self._row_next[node]
        # On machines each one's place follows from those before it.
        for part in [begun] if self._sites is None else [[span] for span in begun]:
            self._add(
                node,
                [begun_s + activation_s for _, begun_s, _ in part],
                [FAR if released_s is None else released_s for _, _, released_s in part],
                [standby + 1 for standby, _, _ in part],
            )
        for standby, begun_s, released_s in begun:
            if released_s is None:
                self._activated_from_s[node, standby] = begun_s
            else:
                self._activated.append((node, begun_s, released_s))

    def release(self, node: int, standby: int, now_s: float) -> None:
        """Let an activated standby take no new calls from ``now_s`` on; its calls end."""
        count = self.orders[node, COUNT]
        open_standbys = (self.slot[node, STANDBY, :count] == standby + 1) & (self.clock[node, DRAIN, :count] >= FAR)
        self.clock[node, DRAIN, np.flatnonzero(open_standbys)] = now_s
        self._activated.append((node, self._activated_from_s.pop((node, standby)), now_s))

    def activated_s(self, start_s: float, end_s: float) -> Floats:
        """[nodes] seconds between ``start_s`` and ``end_s`` in which standbys were activated, those to come left out.

        Activations that ended before ``start_s`` are forgotten.
        """
        seconds = np.zeros(len(self.nodes))
        self._activated = [span for span in self._activated if span[2] > start_s]
        under_way = [(node, from_s, end_s) for (node, _), from_s in self._activated_from_s.items()]
        for node, from_s, until_s in [*self._activated, *under_way]:
            seconds[node] += max(0.0, min(until_s, end_s) - max(from_s, start_s))
        return seconds

    def states(self, now_s: float) -> Mapping[str, Ints]:
        """Replicas of each node by state, standbys left out: ``starting``, ``ready``, ``draining``; [nodes] each."""
        there = (np.arange(self.clock.shape[2]) < self.orders[:, COUNT, None]) & (self.slot[:, STANDBY] == 0)
        draining = there & (self.clock[:, DRAIN] <= now_s)
        ready = there & ~draining & (self.clock[:, READY] <= now_s)
        busy = draining & (self.slot[:, ACTIVE] > 0)
        members_of = {"starting": there & ~draining & ~ready, "ready": ready, "draining": busy}
        return {state: members.sum(axis=1) for state, members in members_of.items()}

    def ready_s(self, start_s: float, end_s: float) -> Floats:
        """[nodes] replica-seconds between ``start_s`` and ``end_s`` in which replicas took new calls."""
        there = np.arange(self.clock.shape[2]) < self.orders[:, COUNT, None]
        since, until = np.maximum(self.clock[:, READY], start_s), np.minimum(self.clock[:, DRAIN], end_s)
        return np.asarray(np.where(there, np.maximum(until - since, 0.0), 0.0).sum(axis=1))

    @property
    def cold_starts(self) -> int:
        """Replicas started so far, those of the beginning not counted."""
        return sum(self._started)

    def used(self, node: int) -> float:
        """Share of its resource that a serving replica of the node uses."""
        return float(self._tables.used[self._row_next[node]])

    def limited(self, node: int) -> bool:
        """Whether the node's CPU limit is simulated as a token bucket."""
        return self._tables.limited(self._row_next[node])

    def _check(self, node: int, configuration: Configuration) -> None:
        if not 1 <= configuration.concurrency <= self.most_calls:
            raise SimulationError(
                f"{self.nodes[node].id}: a concurrency of {configuration.concurrency} cannot be simulated; this "
                f"simulation takes 1 to {self.most_calls} calls at once"
            )

    def _alive(self, node: int, now_s: float) -> list[int]:
        """Replicas not ordered to go, in the order in which they would be: starting before ready, then the youngest."""
        alive = [
            r
            for r in range(self.orders[node, COUNT])
            if self.clock[node, DRAIN, r] >= FAR and not self.slot[node, STANDBY, r]
        ]
        return sorted(alive, key=lambda r: (self.clock[node, READY, r] <= now_s, -r))

    def _scale(self, node: int, replicas: int, now_s: float) -> None:
        alive = self._alive(node, now_s)
        for r in alive[: max(0, len(alive) - replicas)]:
            self._send_away(node, r, now_s)
        for _ in range(replicas - len(alive)):
            ready_s = self._cold_s(node, now_s)
            self._add(node, [ready_s])
            if self._workload.host is not None:
                self.clock[node, READY, self.orders[node, COUNT] - 1] = FAR
                self.clock[node, NEXT, self.orders[node, COUNT] - 1] = ready_s - now_s

    def _replace(self, node: int, replicas: int, row: int, now_s: float) -> None:
        """A new generation of replicas; each of the old goes when one of the new is ready."""
        old = self._alive(node, now_s)
        self._row_now[node] = self._row_next[node] = row
        self.orders[node, NOW_GENERATION] += 1
        self.orders[node, NEXT_ROW] = -1
        ready_s = [self._cold_s(node, now_s) for _ in range(replicas)]
        for r in old[: max(0, len(old) - replicas)]:
            self._send_away(node, r, now_s)
        for r, switch_s in zip(old[max(0, len(old) - replicas) :], sorted(ready_s), strict=False):
            self.clock[node, DRAIN, r] = switch_s
        for moment_s in ready_s:
            self._add(node, [moment_s])

    def _send_away(self, node: int, r: int, now_s: float) -> None:
        starting = self.clock[node, READY, r] > now_s
        self.clock[node, DRAIN, r] = now_s if starting else now_s + self._workload.lifecycle.drain_s

    def _cold_s(self, node: int, now_s: float) -> float:
        """When a replica ordered now is ready, with the resources it is ordered with."""
        configuration = self.configurations[node]
        weights = self._workload.costs[self.nodes[node].id].weights_bytes
        mean_s = self._workload.lifecycle.cold_s(weights, configuration is not None and configuration.gpu_share > 0)
        draw = kernel.draw(self._seed, kernel.COLD_START, node, self._started[node])
        self._started[node] += 1
        return now_s + mean_s * float(self._cold_noise[int(draw * kernel.ATOMS)])

    def _add(
        self, node: int, ready_s: Sequence[float], drain_s: Sequence[float] = (FAR,), standbys: Sequence[int] = (0,)
    ) -> None:
        """Replicas that take calls from ``ready_s`` to ``drain_s``, all on one machine. ``standbys``: number of each
        from 1, 0 for a replica that is none."""
        first, last = int(self.orders[node, COUNT]), int(self.orders[node, COUNT]) + len(ready_s)
        while last > self.clock.shape[2]:
            self._grow()
        clock, slot = self.clock[node, :, first:last], self.slot[node, :, first:last]
        clock[:], slot[:] = 0.0, 0
        clock[READY] = clock[LAST] = ready_s
        clock[DRAIN], clock[NEXT] = drain_s, FAR
        clock[LEVEL] = self._tables.bucket[self._row_now[node], BURST]
        slot[ROW], slot[GENERATION] = self._row_now[node], self.orders[node, NOW_GENERATION]
        slot[SITE] = 0 if self._sites is None else self._site(node, self._sites[node])
        slot[STANDBY] = standbys
        self.orders[node, COUNT] = last

    def _site(self, node: int, sites: Sequence[int]) -> int:
        """The first machine of those with fewest replicas of the node that stay."""
        count = self.orders[node, COUNT]
        staying = self.slot[node, SITE, :count][self.clock[node, DRAIN, :count] >= FAR].tolist()
        return min(sites, key=staying.count)

    def _grow(self) -> None:
        """Room for twice as many replicas."""
        self.clock = np.concatenate([self.clock, np.zeros_like(self.clock)], axis=2)
        self.slot = np.concatenate([self.slot, np.zeros_like(self.slot)], axis=2)
        self.end = np.concatenate([self.end, np.zeros_like(self.end)], axis=1)
        self.call = np.concatenate([self.call, np.zeros_like(self.call)], axis=1)
        self.room = np.zeros((self.room.shape[0], 2 * self.room.shape[1]), dtype=np.int64)

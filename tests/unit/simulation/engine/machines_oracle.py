"""The event-driven model of :mod:`tests.unit.simulation.engine.oracle` with replicas on machines.

What aebs and random choose is handed in, as it depends on where windows are cut; that a call goes there, what it costs
and what happens where no slot is free is written here once more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import simpy

from autoscaler.contract import Configuration, NodeInfo
from simulation.engine.machines import Machines
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload
from tests.unit.simulation.engine.oracle import Call, Node, PipelineModel, Replica


class MachineNode(Node):
    """A node whose replicas sit on machines."""

    pipeline: MachineModel

    def __init__(
        self, pipeline: MachineModel, number: int, info: NodeInfo, configuration: Configuration, sites: Sequence[int]
    ) -> None:
        super().__init__(pipeline, number, info, configuration)
        self.sites = sites
        self.site: dict[int, int] = {}
        self.seat()

    def seat(self) -> None:
        """Machines for replicas that have none, one after the other."""
        for replica in self.replicas:
            if id(replica) not in self.site:
                others = [r for r in self.replicas if r.until_s == np.inf and id(r) in self.site]
                taken = [self.site[id(r)] for r in others]
                self.site[id(replica)] = min(self.sites, key=taken.count)

    def order(self, target: Configuration) -> None:
        super().order(target)
        self.seat()

    def chosen(self, open_to: list[Replica], call: Call) -> Replica:
        """On the machine that aebs or random chose, or anywhere where none is free there."""
        wanted = self.pipeline.wanted(self.number, call.request)
        there = [replica for replica in open_to if self.site[id(replica)] == wanted]
        return super().chosen(there or open_to, call)

    def answered(self, replica: Replica, call: Call) -> None:
        self.pipeline.clock.process(self.reply(call, self.site[id(replica)]))

    def reply(self, call: Call, site: int) -> Generator[simpy.Event, Any, None]:
        found = self.pipeline.machines
        if call.request % found.ingresses != site:
            cost = self.pipeline.workload.costs[self.info.id]
            moved = call.tokens * (cost.bytes_in_per_token + cost.bytes_out_per_token)
            yield self.pipeline.clock.timeout(found.hop_s + moved / found.bytes_per_s)
        call.done.succeed()


class MachineModel(PipelineModel):
    """``wished`` and ``met`` [nodes, requests]: what aebs or random chose, and experts of the pass on that machine."""

    def __init__(
        self,
        workload: Workload,
        requests: Requests,
        configurations: Mapping[str, Configuration],
        machines: Machines,
        desired: np.ndarray,
        met: np.ndarray,
        orders: Iterable[tuple[float, str, Configuration]] = (),
        seed: int = 0,
    ) -> None:
        super().__init__(workload, requests, configurations, orders, seed)
        self.machines, self.desired, self.met = machines, desired, met
        infos = (*workload.segments, *workload.experts)
        sites = machines.sites(infos)
        self.nodes = [
            MachineNode(self, k, info, configurations[info.function], sites[k]) for k, info in enumerate(infos)
        ]

    def wanted(self, node: int, request: int) -> int:
        if self.machines.dispatch == "local-first":
            return request % self.machines.ingresses
        return int(self.desired[node, request]) if self.desired.size else -1

    def factor(self, node: int, request: int) -> float:
        return 1 + self.machines.meeting * (int(self.met[node, request]) - 1) if self.met.size else 1.0

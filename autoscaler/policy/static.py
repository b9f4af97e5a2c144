"""The policy that changes nothing, or holds given configurations."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.contract import Configuration, Memory, Observation, Proposal


class StaticPolicy:
    """Desires ``configurations`` for the functions named there and the present one for all others, with the replicas
    that were taken back from it for want of room.

    With the plan that a search found on a profiling window it is the paper's baseline ServerlessMoE.
    """

    def __init__(self, configurations: Mapping[str, Configuration] | None = None, name: str = "static") -> None:
        self.name = name
        self._configurations = dict(configurations or {})

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for node in observation.nodes:
            configuration, before = node.configuration, observation.taken_back.get(node.function)
            if configuration is not None and before is not None:
                configuration = configuration.with_replicas(before)
            configuration = self._configurations.get(node.function, configuration)
            if configuration is not None:
                desired[node.function] = configuration
                reasons[node.function] = self.name
        return Proposal(desired, reasons, memory)

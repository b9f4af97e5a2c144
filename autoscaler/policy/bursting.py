"""Standbys on top of any policy: its replicas always run, what they are for a moment too few for is activated."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.checked import Checked
from autoscaler.contract import Burst, Memory, Observation, Policy, Proposal


@dataclass(frozen=True)
class BurstingSettings(Checked):
    """The table ``[burst]`` of a policy's settings."""

    burst: Burst | None = None
    """What every function that the policy manages gets; None: no standbys."""


class BurstingPolicy:
    """``policy``, with ``burst`` in every configuration that it desires; name and memory are its own."""

    def __init__(self, policy: Policy, burst: Burst) -> None:
        self.name = policy.name
        self._policy = policy
        self._burst = burst

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        proposal = self._policy.propose(observation, now_s, memory)
        fronts = {node.function for node in observation.nodes if node.kind == "ingress"}
        awake = replace(self._burst, sleep_s=None)  # nobody sees a request before the ingress does
        desired = {
            name: replace(one, burst=awake if name in fronts else self._burst) for name, one in proposal.desired.items()
        }
        return replace(proposal, desired=desired)

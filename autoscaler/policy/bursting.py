"""Standbys on top of any policy: its replicas always run, what they are for a moment too few for is activated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.checked import Checked
from autoscaler.contract import Burst, Configuration, Memory, Observation, Policy, Proposal
from autoscaler.policy.work import Work, stated_costs, stating


@dataclass(frozen=True)
class BurstingSettings(Checked):
    """The table ``[burst]`` of a policy's settings."""

    burst: Burst | None = None
    """What every function that the policy manages gets; None: no standbys."""


@dataclass(frozen=True)
class Remembered:
    """The policy's memory, and what a token costs each function."""

    policy: Memory = None
    work: Work = field(default_factory=Work)


class BurstingPolicy:
    """``policy``, with ``burst`` in every configuration that it desires; the name is its own."""

    def __init__(self, policy: Policy, burst: Burst, *, by_cpu_time: bool = False) -> None:
        """``by_cpu_time``: what a token costs each function is stated by the CPU time that it used, unless ``burst``
        has it. Under small CPU limits what the ingress measures is too little (:mod:`autoscaler.policy.work`)."""
        self.name = policy.name
        self._policy = policy
        self._burst = burst
        self._by_cpu_time = by_cpu_time and burst.token_s is None

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        if not self._by_cpu_time:
            proposal = self._policy.propose(observation, now_s, memory)
            return replace(proposal, desired=self._with_standbys(proposal.desired, observation, {}))
        if not isinstance(memory, Remembered):
            memory = Remembered(memory, Work(token_s=stated_costs(observation)))
        proposal = self._policy.propose(observation, now_s, memory.policy)
        work = memory.work.after(observation)
        desired = self._with_standbys(proposal.desired, observation, work.token_s)
        return replace(proposal, desired=desired, memory=Remembered(proposal.memory, work))

    def _with_standbys(
        self, desired: Mapping[str, Configuration], observation: Observation, token_s: Mapping[str, float]
    ) -> dict[str, Configuration]:
        fronts = {node.function for node in observation.nodes if node.kind == "ingress"}
        awake = replace(self._burst, sleep_s=None)  # nobody sees a request before the ingress does
        given = {name: replace(one, burst=awake if name in fronts else self._burst) for name, one in desired.items()}
        return {name: stating(one, token_s[name]) if name in token_s else one for name, one in given.items()}

"""Two policies side by side, each for functions of its own: a learnt one for experts, HPA for the rest."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.contract import Memory, Observation, Policy, Proposal


@dataclass(frozen=True)
class ScaledTogetherMemory:
    """Both policies' memories."""

    first: object = None
    second: object = None


class ScaledTogetherPolicy:
    """What both desire. Where both manage a function, ``first`` counts; the name is that of ``first``."""

    def __init__(self, first: Policy, second: Policy) -> None:
        self.name = first.name
        self._first = first
        self._second = second

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        before = memory if isinstance(memory, ScaledTogetherMemory) else ScaledTogetherMemory()
        first = self._first.propose(observation, now_s, before.first)
        second = self._second.propose(observation, now_s, before.second)
        others = {function: desired for function, desired in second.desired.items() if function not in first.reasons}
        return Proposal(
            {**others, **first.desired},
            {**second.reasons, **first.reasons},
            ScaledTogetherMemory(first.memory, second.memory),
            first.doubt,
        )

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.contract import Configuration, Observation, Proposal
from autoscaler.policy.scaled_together import ScaledTogetherPolicy
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

A, B, C = configuration(1), configuration(2), configuration(3)


@dataclass
class Says:
    name: str
    proposal: Proposal

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        asked = memory if isinstance(memory, int) else 0
        return Proposal(self.proposal.desired, self.proposal.reasons, asked + 1)


def proposal(memory: object = None) -> Proposal:
    first = Proposal({"x": A}, {"x": "first", "held": "first has no data"})
    second = Proposal({"x": B, "held": B, "y": C}, {"x": "second", "held": "second", "y": "second"})
    return ScaledTogetherPolicy(Says("learnt", first), Says("hpa", second)).propose(observation(), NOW_S, memory)


def test_each_function_has_the_configuration_of_the_policy_that_manages_it() -> None:
    found: dict[str, Configuration] = dict(proposal().desired)
    assert found == {"x": A, "y": C}


def test_what_the_first_policy_holds_the_second_does_not_scale() -> None:
    assert proposal().reasons == {"x": "first", "held": "first has no data", "y": "second"}


def test_both_remember() -> None:
    twice = proposal(proposal().memory)
    assert (twice.memory.first, twice.memory.second) == (2, 2)  # type: ignore[attr-defined]

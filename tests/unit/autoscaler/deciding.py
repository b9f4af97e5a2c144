"""A decision on one function's desired configuration: what tests of the limits share."""

from __future__ import annotations

from typing import Any

from autoscaler.contract import Bound, Configuration, ConfigurationSpace, Decision, Observation, Proposal
from autoscaler.decision.limits import LimitSettings, LimitState, decide
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation, topology

FUNCTION, NODE = "m-expert-0-0", "expert-0-0"
SETTINGS = LimitSettings()
TOPOLOGY = topology()
SPACE = ConfigurationSpace()
NODES = {node.function: node for node in TOPOLOGY.nodes}


def decisions(
    desired: dict[str, Configuration],
    present: dict[str, Configuration],
    settings: LimitSettings = SETTINGS,
    seen: Observation | None = None,
    state: LimitState | None = None,
    reasons: dict[str, str] | None = None,
    bounds: dict[str, Bound] | None = None,
    floors: dict[str, int] | None = None,
) -> dict[str, Decision]:
    proposal, state = Proposal(desired, reasons or dict.fromkeys(desired, "scripted")), state or LimitState()
    known = (bounds or {}, floors or {})
    allowed = decide(TOPOLOGY, seen or observation(), proposal, present, NOW_S, state, settings, PRICES, *known)
    return {decision.function: decision for decision in allowed}


def decision(desired: Configuration, present: Configuration | None = None, **more: Any) -> Decision:
    return decisions({FUNCTION: desired}, {FUNCTION: present or configuration()}, **more)[FUNCTION]

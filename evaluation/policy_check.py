"""What every policy owes the controller, asked of one: in simulated windows, and in some of which little is known."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autoscaler.contract import Configuration, Memory, NodeObservation, Observation, Policy, Proposal
from evaluation.comparison.policies import limits_of
from simulation.engine.controlled import simulate_policy
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.workload import Workload

WINDOW_S = 30.0
RATES = (5.0, 5.0, 40.0, 40.0, 5.0, 0.0)
"""Requests a second in one window after the other: a day in small, with its night."""
START = Configuration(memory_mb=1024, cpu_cores=4.0, gpu_share=0.0, replicas=2, concurrency=4)
RAISES, PURE, FORM, BLIND = (
    "answers in every window",
    "answers the same when it is asked the same again",
    "asks for configurations of the pipeline's functions, each with a reason",
    "takes None for not known: orders no fewer replicas where nothing was measured",
)
CHECKS = (RAISES, PURE, FORM, BLIND)
BUSY = 5
"""Replicas of every function in a busy window."""
KNOWN = frozenset(("node", "function", "kind", "layer", "expert", "configuration", "ready_replicas"))
"""Fields of a row that do not come from metrics."""


@dataclass(frozen=True)
class Asked:
    """A window that the policy was asked about."""

    observation: Observation
    now_s: float
    memory: Memory


class Watched:
    """``policy``, and what it does wrong."""

    def __init__(self, policy: Policy, functions: frozenset[str]) -> None:
        self.name, self._policy, self._functions = policy.name, policy, functions
        self.faults: dict[str, str] = {}
        """By check, the first one."""
        self.last: Asked | None = None
        """The last window in which nothing went wrong."""
        self._windows = 0

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        self._windows += 1
        where, kept = f"window {self._windows}", Asked(observation, now_s, deepcopy(memory))
        proposal = self.ask(where, observation, now_s, memory)
        again = self.ask(f"{where}, asked again", observation, now_s, deepcopy(kept.memory))
        if proposal is None or again is None:
            return Proposal({}, {}, memory)
        if (dict(proposal.desired), dict(proposal.reasons)) != (dict(again.desired), dict(again.reasons)):
            self.fault(PURE, f"{where}: {_difference(proposal, again)}")
        self.last = kept
        return proposal

    def ask(self, where: str, observation: Observation, now_s: float, memory: Memory) -> Proposal | None:
        """None where it fails or what it answers has another form."""
        try:
            proposal = self._policy.propose(observation, now_s, memory)
        except Exception as error:
            self.fault(RAISES, f"{where}: {type(error).__name__}: {error}")
            return None
        fault = self._form(proposal)
        if fault:
            self.fault(FORM, f"{where}: {fault}")
            return None
        return proposal

    def _form(self, proposal: Any) -> str:
        if not isinstance(proposal, Proposal):
            return f"a Proposal was expected, not {type(proposal).__name__}"
        desired: Mapping[str, Any] = proposal.desired
        for function, configuration in desired.items():
            if function not in self._functions:
                return f"there is no function {function!r}"
            if not isinstance(configuration, Configuration):
                return f"{function}: a Configuration was expected, not {type(configuration).__name__}"
            if not proposal.reasons.get(function):
                return f"{function} is to change without a reason"
        return ""

    def fault(self, check: str, sentence: str) -> None:
        self.faults.setdefault(check, sentence)


def checked(policy: Policy, workload: Workload) -> Watched:
    """The policy after its windows. Raises SimulationError."""
    watched = Watched(policy, frozenset(node.function for node in workload.topology.nodes))
    requests = draw_requests(workload, _arrivals(), seed=0)
    simulation = Simulation(workload, requests, workload.initial(START), seed=0)
    until_s = WINDOW_S * len(RATES)
    simulate_policy(simulation, watched, limits_of(workload), window_s=WINDOW_S, until_s=until_s)
    if watched.last is not None:
        _check_blind(watched, watched.last)
    return watched


def _check_blind(watched: Watched, asked: Asked) -> None:
    busy = _busy(asked.observation)
    measured = watched.ask("a busy window", busy, asked.now_s, deepcopy(asked.memory))
    for what, blind in _blinded(busy).items():
        answer = watched.ask(what, blind, asked.now_s, deepcopy(asked.memory))
        fewer = "" if measured is None or answer is None else _fewer(answer.desired, measured.desired, blind)
        if fewer:
            watched.fault(BLIND, f"{what}: {fewer}")


def _busy(observation: Observation) -> Observation:
    """The window with replicas that all have more than enough to do."""
    nodes = tuple(
        node._replace(
            configuration=None if node.configuration is None else node.configuration.with_replicas(BUSY),
            ready_replicas=BUSY,
            in_flight=10.0 * BUSY,
            waiting=10.0 * BUSY,
            cpu_utilisation=1.0,
            concurrency_utilisation=1.0,
        )
        for node in observation.nodes
    )
    return replace(observation, nodes=nodes)


def _arrivals() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Evenly within each window."""
    counts = [round(rate * WINDOW_S) for rate in RATES]
    return np.concatenate([WINDOW_S * (place + np.arange(n) / max(n, 1)) for place, n in enumerate(counts)])


def _blinded(observation: Observation) -> Mapping[str, Observation]:
    """The window as it would be with less known, by what is missing."""
    missing: dict[str, Any] = dict.fromkeys(name for name in NodeObservation._fields if name not in KNOWN)
    nodes = tuple(node._replace(**missing) for node in observation.nodes)
    unmeasured = replace(
        observation, nodes=nodes, problems=("nothing was scraped",), requests=None, failed=None, requests_per_s=None,
        tokens_per_s=None, in_flight=None, latency_p50_s=None, latency_p95_s=None, latency_p99_s=None,
    )  # fmt: skip
    bare = tuple(node._replace(configuration=None, ready_replicas=None) for node in nodes)
    return {
        "a window without metrics": unmeasured,
        "a stale window": replace(observation, stale=True, problems=("the newest sample is too old",)),
        "a window without configurations": replace(unmeasured, nodes=bare),
    }


def _fewer(desired: Mapping[str, Configuration], before: Mapping[str, Configuration], blind: Observation) -> str:
    """Which function gets fewer replicas than it has, and did not get as few where all was known."""
    present = {node.function: node.configuration for node in blind.nodes}
    for function, one in desired.items():
        now = present[function]
        if now is not None and one.replicas < now.replicas and before.get(function) != one:
            return f"{one.replicas} replicas of {function} in place of {now.replicas}"
    return ""


def _difference(one: Proposal, other: Proposal) -> str:
    for function in sorted({*one.desired, *other.desired, *one.reasons, *other.reasons}):
        answers = [(proposal.desired.get(function), proposal.reasons.get(function)) for proposal in (one, other)]
        if answers[0] != answers[1]:
            return f"{function}: first {answers[0][1]!r}, then {answers[1][1]!r}"
    return "two answers"

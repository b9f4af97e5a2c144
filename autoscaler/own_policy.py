"""A policy of one's own from one rule: what a function should have, by what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Policy, Proposal
from autoscaler.policies import Making
from autoscaler.policy.rows import by_function, total

Rule = Callable[[NodeObservation, Observation], Configuration | float | None]
"""A function's row and the window of the whole pipeline → replicas, rounded up, or a whole configuration; None where it
cannot be judged, which holds the function."""
SUMMED = ("tokens_per_s", "requests_per_s", "in_flight", "waiting", "busy_s")
"""Where a function serves several nodes, its row is the first one's with the sums of these."""
TEMPLATE = '''\
"""As many replicas as make two calls each of what is there or waiting."""

from autoscaler.own_policy import per_function


def queue(row, window):
    if row.in_flight is None or row.waiting is None:
        return None  # not known, which is not 0: the function is held
    return (row.in_flight + row.waiting) / 2


make = per_function(queue)
'''
"""What ``smoe lab check-policy --new`` writes."""


def per_function(rule: Rule) -> Callable[[Making], Policy]:
    """What makes a policy that asks ``rule`` about every function that may be scaled; its name is the rule's."""
    return lambda making: PerFunctionPolicy(rule, making.kinds, **making.bounds)


class PerFunctionPolicy:
    """``rule`` for each function of these kinds, within bounds of replicas. It remembers nothing."""

    def __init__(self, rule: Rule, kinds: frozenset[NodeKind], min_replicas: int, max_replicas: int) -> None:
        self.name = getattr(rule, "__name__", "rule")
        self._rule, self._kinds, self._least, self._most = rule, kinds, min_replicas, max_replicas

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for function, rows in by_function(observation, self._kinds).items():
            row = _whole(rows)
            wanted = None if row.configuration is None else self._rule(row, observation)
            if wanted is None or row.configuration is None:
                reasons[function] = "no data"
            elif isinstance(wanted, Configuration):
                desired[function], reasons[function] = wanted, self.name
            else:
                replicas = min(max(ceil(wanted - 1e-9), self._least), self._most)
                desired[function] = row.configuration.with_replicas(replicas)
                reasons[function] = f"{self.name} {wanted:.3g}"
        return Proposal(desired, reasons, memory)


def _whole(rows: Sequence[NodeObservation]) -> NodeObservation:
    if len(rows) == 1:
        return rows[0]
    sums: dict[str, Any] = {name: total([getattr(row, name) for row in rows]) for name in SUMMED}
    return rows[0]._replace(**sums)

"""Applies what differs, growth first, and reports what failed; the next tick starts from what is really there."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from autoscaler.contract import Configuration, Decision, Platform
from autoscaler.errors import PlatformError

log = logging.getLogger(__name__)


@dataclass
class Result:
    """Functions changed, and the reasons of those that could not be."""

    applied: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def plan(decisions: Iterable[Decision]) -> list[Decision]:
    """Valid decisions that change something; those that add capacity come before those that take it away."""
    changing = [decision for decision in decisions if decision.valid and decision.changes]
    return sorted(changing, key=lambda decision: (not _grows(decision.present, decision.target), decision.function))


def apply(platform: Platform, decisions: Iterable[Decision]) -> Result:
    """Each change by itself: one that fails does not stop the others."""
    result = Result()
    for decision in plan(decisions):
        try:
            platform.apply(decision.function, decision.present, decision.target)
        except PlatformError as error:
            result.failures[decision.function] = str(error)
            log.warning("function %s was not changed: %s", decision.function, error)
        else:
            result.applied.append(decision.function)
    return result


def _grows(present: Configuration, target: Configuration) -> bool:
    return (
        target.replicas > present.replicas
        or target.memory_mb > present.memory_mb
        or target.cpu_cores > present.cpu_cores
        or target.gpu_share > present.gpu_share
        or target.concurrency > present.concurrency
    )

"""Applies what differs, growth first, and reports what failed; the next tick starts from what is really there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from autoscaler.contract import Configuration, Decision, Platform
from autoscaler.errors import PlatformError, UnreachableError

log = logging.getLogger("smoe.autoscaler.actuator")

LOOKS_S = (0.0, 0.1, 0.4)
"""Waits before each look at the outcome: platforms answer before a change shows in their lists."""


@dataclass
class Result:
    """Functions changed and seen to be so, and the reasons of those that could not be."""

    applied: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def plan(decisions: Iterable[Decision]) -> list[Decision]:
    """Valid decisions that change something; those that add capacity come before those that only take it away."""
    changing = [decision for decision in decisions if decision.valid and decision.changes]
    return sorted(changing, key=lambda decision: (not _grows(decision.present, decision.target), decision.function))


def apply(
    platform: Platform,
    decisions: Iterable[Decision],
    wait: Callable[[float], object] = time.sleep,
    at_once: int = 1,
) -> Result:
    """Each change by itself: one that fails does not stop the others, unless the platform is out of reach.

    ``at_once``: orders that wait for the platform's answer at the same time, each in a thread. What only takes capacity
    away is ordered when all that adds some was answered.
    """
    result = Result()
    asked: dict[str, Configuration] = {}
    for decision, why in _ordered(platform, plan(decisions), at_once):
        if why:
            result.failures[decision.function] = why
        else:
            asked[decision.function] = decision.target
    if asked:
        result.failures |= verify(platform, asked, wait)
    result.applied = [function for function in asked if function not in result.failures]
    for function, why in result.failures.items():
        log.warning("function %s was not changed: %s", function, why)
    return result


def _ordered(platform: Platform, planned: list[Decision], at_once: int) -> Iterator[tuple[Decision, str]]:
    """Each decision with why it failed; empty where the platform took it."""
    unreachable: list[str] = []

    def order(decision: Decision) -> str:
        if unreachable:
            return f"not tried: {unreachable[0]}"
        try:
            platform.apply(decision.function, decision.present, decision.target)
        except UnreachableError as error:
            unreachable.append(str(error))
            return str(error)
        except PlatformError as error:
            return str(error)
        return ""

    if at_once == 1 or len(planned) < 2:
        yield from ((decision, order(decision)) for decision in planned)
        return
    with ThreadPoolExecutor(at_once, thread_name_prefix="orders") as pool:
        for _, same_direction in groupby(planned, lambda decision: _grows(decision.present, decision.target)):
            batch = list(same_direction)
            yield from zip(batch, list(pool.map(order, batch)), strict=True)


def verify(
    platform: Platform, asked: Mapping[str, Configuration], wait: Callable[[float], object] = time.sleep
) -> dict[str, str]:
    """Function → how it differs from what was asked for, after a few looks; an answer alone proves nothing."""
    differing: dict[str, str] = {}
    for pause_s in LOOKS_S:
        if pause_s:
            wait(pause_s)
        try:
            present = platform.configurations()
        except PlatformError as error:
            differing = dict.fromkeys(asked, f"asked, but the outcome could not be read: {error}")
            continue
        differing = {
            function: f"asked for {describe(target)}, but it has {describe(present.get(function))}"
            for function, target in asked.items()
            if present.get(function) != target
        }
        if not differing:
            break
    return differing


def describe(configuration: Configuration | None) -> str:
    """A configuration in words."""
    if configuration is None:
        return "no limits that can be read"
    compute = (
        f"{configuration.gpu_share:g} of a GPU" if configuration.gpu_share else f"{configuration.cpu_cores:g} cores"
    )
    return (
        f"{configuration.replicas} replicas of {configuration.memory_mb} MiB, {compute}, "
        f"{configuration.concurrency} calls at once"
    )


def _grows(present: Configuration, target: Configuration) -> bool:
    return (
        target.replicas > present.replicas
        or target.memory_mb > present.memory_mb
        or target.cpu_cores > present.cpu_cores
        or target.gpu_share > present.gpu_share
        or target.concurrency > present.concurrency
    )

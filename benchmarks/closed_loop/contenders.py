"""Policies that are compared on the running pipeline: their publishers' times, all divided by the same number."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from autoscaler.contract import Configuration
from autoscaler.settings import ELSEWHERE, POLICY_NAMES

PUBLISHED_TICK_S = 15.0
"""HPA's sync period. With a decision each ``window_s`` all published times are divided by ``15 / window_s``."""
START = Configuration(memory_mb=256, cpu_cores=1.0, gpu_share=0.0, replicas=1, concurrency=2)
"""Configuration of every expert at first, unless a contender has another."""


BURST = {"standbys": 2, "headroom": 0.6, "spare": 0.3, "hold_s": 2.0, "look_back_s": 0.5, "sleep_s": 0.5}
"""The table ``[burst]`` of a policy whose name ends with ``+burst``: of six tried on the running pipeline with one
replica that always runs the cheapest that keeps λ. In the simulation, on another seed, it was a headroom of 1.2 and a
``spare`` of 0.6 of eleven, which costs a quarter more here; 0.5 and 0.1 break λ."""
CPU_TARGET = 1.0
"""HPA's with standbys: of 0.8 and 1 the cheaper there."""
WITH_BURST = "+burst"


@dataclass(frozen=True)
class Contender:
    """A policy, its settings, and the replicas of every expert at first: with ``by_load`` of the busiest one, and of
    the others so many that none of their replicas has more tokens than its."""

    policy: str
    replicas: int
    table: Mapping[str, Any]
    by_load: bool = False

    def start(self, load: Sequence[float]) -> list[int]:
        """Replicas of the experts at first. ``load``: tokens of each over those of the busiest one."""
        return [max(1, math.ceil(self.replicas * one)) if self.by_load else self.replicas for one in load]


def contender(name: str, window_s: float, replicas: int) -> Contender:
    """The policy ``name`` (``docs/policies.md``), or a constant: ``static-N``, N replicas of every expert, or
    ``static-by-load-N``, a constant for each expert by what it has to do, in hindsight. With ``+burst`` every expert
    has the standbys of ``BURST``, and policies begin with one replica. ``replicas``: what others start with."""
    if name.endswith(WITH_BURST):
        plain = contender(name.removesuffix(WITH_BURST), window_s, replicas)
        target = {"cpu_target": CPU_TARGET} if plain.policy == "hpa" else {}
        begin = plain.replicas if plain.policy == "static" else 1
        return replace(plain, replicas=begin, table={**plain.table, **target, "burst": BURST})
    constant = re.fullmatch(r"static(-by-load)?(?:-([1-9]\d*))?", name)
    if constant is not None:
        return Contender("static", int(constant[2] or replicas), {}, by_load=constant[1] is not None)
    f = window_s / PUBLISHED_TICK_S
    hpa = {"cpu_target": 0.5, "down_stabilisation_s": 300 * f, "period_s": 15 * f}
    tables: dict[str, dict[str, Any]] = {
        "hpa": hpa,
        "vpa": {"half_life_s": 86400 * f, "confidence_s": 86400 * f, "settled_s": 43200 * f},
        "kpa": {"stable_window_s": 60 * f},
        "keda": {
            "polling_interval_s": 30 * f, "cooldown_period_s": 300 * f, "down_stabilisation_s": 300 * f,
            "period_s": 15 * f,
        },
        "apa": {"down_cooldown_s": 300 * f},
        "slo-aware": {
            "smoothing_s": 45 * f, "up_stabilisation_s": 30 * f, "down_stabilisation_s": 180 * f, "period_s": 60 * f
        },
        "smoe": {"hpa": hpa}, "last-window": {"hpa": hpa}, "staffing": {"hpa": hpa, "segment_standbys": 0},
    }  # fmt: skip
    return Contender(name, replicas, tables.get(name, {}))


def check_names(names: Sequence[str]) -> None:
    """Before anything is started. Raises BadParameter."""
    for name in names:
        policy = contender(name, PUBLISHED_TICK_S, 1).policy
        if policy not in (*POLICY_NAMES, *ELSEWHERE) and ":" not in policy:
            allowed = ", ".join(
                (*POLICY_NAMES, *ELSEWHERE, "static-N", "static-by-load-N", "MODULE:MAKER", "each with +burst")
            )
            raise click.BadParameter(f"there is no policy {name!r}; allowed are {allowed}", param_hint="--policies")


def turns(policies: Sequence[str], repeat: int) -> tuple[str, ...]:
    """Whichever policy runs first meets a pipeline that has just been started or whatever the repeat before left: each
    policy does so in its turn."""
    first = repeat % len(policies)
    return (*policies[first:], *policies[:first])

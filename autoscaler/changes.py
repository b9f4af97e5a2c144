"""Changes of configurations in words. Pure."""

from __future__ import annotations

import textwrap

from autoscaler.contract import Configuration
from platform_words.durations import duration

RESTATED = "a token's cost"
"""How a change of it begins, in :func:`describe_change`, where it comes last."""
REASON = 120
"""Characters of a reason in a line for people."""


def describe_change(present: Configuration, target: Configuration) -> str:
    """``replicas 1 → 3, memory 256 → 512 MB``: the parts that differ, in this order; empty when none does."""
    parts = []
    for name, before, after, unit in (
        ("replicas", present.replicas, target.replicas, ""),
        ("standbys", present.standbys, target.standbys, ""),
        ("concurrency", present.concurrency, target.concurrency, ""),
        ("cpu", present.cpu_cores, target.cpu_cores, " cores"),
        ("gpu", present.gpu_share, target.gpu_share, " share"),
        ("memory", present.memory_mb, target.memory_mb, " MB"),
    ):
        if before != after:
            parts.append(f"{name} {before:g} → {after:g}{unit}")
    before_s, after_s = (None if one.burst is None else one.burst.token_s for one in (present, target))
    if after_s is not None and before_s != after_s:
        parts.append(f"{RESTATED} {duration(before_s, 'unknown')} → {duration(after_s, 'unknown')} of a replica")
    if not parts and present.burst != target.burst:
        parts.append("activation of standbys")
    return ", ".join(parts)


def ordered(change: str) -> str:
    """``change`` without the stated cost of a token, which nobody orders; that without its numbers where it is all."""
    return change.partition(RESTATED)[0].removesuffix(", ") or RESTATED


def shortened(reason: str) -> str:
    """At most :data:`REASON` characters, cut between words."""
    return textwrap.shorten(reason, REASON, placeholder=" …")

"""A tick of the controller told: as plain values for scripts, and in one line for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoscaler.contract import TickReport
from autoscaler.loop import short
from autoscaler.platforms.shadow import ShadowBill

SHOWN = 8
"""Changes named in one line for people."""


def summary(report: TickReport, bill: ShadowBill | None = None, conditions: Sequence[object] = ()) -> dict[str, Any]:
    """A tick as plain values. ``bill``: of a shadow; ``conditions``: what stands in the way on the platform."""
    seen = report.observation
    extra: dict[str, Any] = {} if bill is None else {"shadow": bill.summary()}
    if conditions:
        extra["conditions"] = [str(one) for one in conditions]
    return extra | {
        "end_s": seen.end_s,
        "window_s": seen.window_s,
        "policy": report.policy,
        "requests_per_s": seen.requests_per_s,
        "p50_s": seen.latency_p50_s,
        "p95_s": seen.latency_p95_s,
        "failed": seen.failed,
        "stale": seen.stale,
        "problems": list(seen.problems),
        "cost_busy": report.cost.busy,
        "cost_provisioned": report.cost.provisioned,
        "decision_s": report.decision_s,
        "dry_run": report.dry_run,
        "decisions": len(report.decisions),
        "held": sum(not decision.valid for decision in report.decisions),
        "changes": [
            {
                "function": decision.function,
                "present": short(decision.present),
                "wish": short(decision.desired),
                "target": short(decision.target),
                "replicas": [decision.present.replicas, decision.target.replicas],
                "reason": decision.reason,
                "limits_hit": list(decision.limits_hit),
                "applied": decision.function in report.applied,
            }
            for decision in report.decisions
            if decision.changes
        ],
        "failures": dict(report.failures),
    }


def line(report: TickReport, bill: ShadowBill | None = None, conditions: Sequence[object] = ()) -> str:
    """A tick in one line for people."""
    seen = report.observation
    p95 = "–" if seen.latency_p95_s is None else f"{seen.latency_p95_s * 1000:.1f} ms"
    rps = "–" if seen.requests_per_s is None else f"{seen.requests_per_s:.1f}/s"
    changes = [
        f"{decision.function} {short(decision.present)} → {short(decision.target)}"
        for decision in report.decisions
        if decision.changes
    ]
    held = f"holding ({seen.problems[0] if seen.problems else 'no data'}); " if seen.stale else ""
    dry = " (dry run)" if report.dry_run and changes else ""
    failed = f"; {len(report.failures)} failed" if report.failures else ""
    named = ": " + ", ".join(changes[:SHOWN]) + (" …" if len(changes) > SHOWN else "") if changes else ""
    shadow = "" if bill is None else f"; {bill.line()}"
    obstacles = "".join(f"; {one}" for one in conditions[:SHOWN])
    return f"{held}requests {rps}, P95 {p95}, {len(changes)} changes{dry}{failed}{named}{shadow}{obstacles}"

"""A tick of the controller, described as plain values for scripts and in one line for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from autoscaler.changes import describe_change, ordered, shortened
from autoscaler.contract import Decision, GenerationObservation, TickReport
from autoscaler.loop import short
from autoscaler.platforms.shadow import ShadowBill
from autoscaler.prices import money
from autoscaler.state.targets import Targets
from platform_words.durations import duration

NO_TARGETS = Targets()
SHOWN = 6
"""Different changes, and conditions, that are named in one line for people."""


def summary(report: TickReport, bill: ShadowBill | None = None, conditions: Sequence[object] = ()) -> dict[str, Any]:
    """A tick as plain values. ``bill``: of a shadow; ``conditions``: what stands in the way on the platform."""
    observation = report.observation
    extra: dict[str, Any] = {} if bill is None else {"shadow": bill.summary()}
    if conditions:
        extra["conditions"] = [str(condition) for condition in conditions]
    return extra | {
        "end_s": observation.end_s,
        "window_s": observation.window_s,
        "policy": report.policy,
        **({"choice": report.choice} if report.choice else {}),
        "requests_per_s": observation.requests_per_s,
        "p50_s": observation.latency_p50_s,
        "p95_s": observation.latency_p95_s,
        "generation": None if observation.generation is None else asdict(observation.generation),
        "failed": observation.failed,
        "stale": observation.stale,
        "problems": list(observation.problems),
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


def line(
    report: TickReport,
    bill: ShadowBill | None = None,
    conditions: Sequence[object] = (),
    targets: Targets = NO_TARGETS,
    currency: str = "USD",
) -> str:
    """A tick in one line for people. Where nothing changes, it has the reason of most functions."""
    observation = report.observation
    p95 = _tail("P95", observation.latency_p95_s, targets.slo_s) + _texts(observation.generation, targets)
    rps = "–" if observation.requests_per_s is None else f"{observation.requests_per_s:.1f}/s"
    changes = [decision for decision in report.decisions if decision.changes]
    held = f"holding ({observation.problems[0] if observation.problems else 'no data'}); " if observation.stale else ""
    dry = " (dry run)" if report.dry_run and changes else ""
    failed = f"; {len(report.failures)} failed" if report.failures else ""
    named = f": {_named(changes)}" if changes else "" if observation.stale else _commonest_reason(report)
    shadow = "" if bill is None else f"; {bill.line()}"
    obstacles = "".join(f"; {condition}" for condition in conditions[:SHOWN])
    cost = _cost(report, currency)
    return f"{held}requests {rps}, {p95}{cost}, {_count(len(changes), 'change')}{dry}{failed}{named}{shadow}{obstacles}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _named(changes: Sequence[Decision]) -> str:
    """Functions with the same change as one: the first by its name."""
    functions: dict[str, list[str]] = {}
    for one in changes:
        functions.setdefault(ordered(describe_change(one.present, one.target)), []).append(one.function)
    parts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {change}"
        for change, names in functions.items()
    ]
    return "; ".join(parts[:SHOWN]) + (" …" if len(parts) > SHOWN else "")


def _tail(name: str, p95_s: float | None, target_s: float | None) -> str:
    text = f"{name} {duration(p95_s, '–')}"
    if target_s is None:
        return text
    return f"{text} of {duration(target_s)}" + (" OVER" if (p95_s or 0.0) > target_s else "")


def _texts(generation: GenerationObservation | None, targets: Targets) -> str:
    """A decoder's P95 of first and next tokens, its texts, and its pages in use."""
    if generation is None:
        return ""
    first = _tail("TTFT", generation.ttft_p95_s, targets.ttft_s)
    following = _tail("TPOT", generation.tpot_p95_s, targets.tpot_s)
    running, waiting = (f"{count or 0:.0f}" for count in (generation.running, generation.waiting))
    return f", {first}, {following}, texts {running} + {waiting} waiting, KV {generation.kv_usage or 0:.0%}"


def _cost(report: TickReport, currency: str) -> str:
    """What an hour like the window costs; empty where it is not known."""
    window_s = report.observation.window_s
    if report.cost.provisioned is None or window_s <= 0:
        return ""
    return f", {money(report.cost.provisioned * 3600 / window_s, currency)}/h"


def _commonest_reason(report: TickReport) -> str:
    """Why functions stay as they are; empty where that is not known."""
    reasons = Counter(decision.reason for decision in report.decisions if decision.reason)
    return f" ({shortened(reasons.most_common(1)[0][0])})" if reasons else ""

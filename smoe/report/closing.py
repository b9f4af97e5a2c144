"""The report in a few plain lines, for the end of a run in a terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoscaler.prices import money
from platform_words.durations import duration

NAMES = {"up": "more replicas", "down": "fewer replicas", "limits": "other limits"}
"""Kinds of actions (:mod:`smoe.report.model`) as people say them."""


def closing(numbers: Mapping[str, Any], slo_s: float) -> list[str]:
    """Requests, latency against the SLO, cost, and what the controller did. ``numbers``: those of ``report.json``."""
    return [
        _answers(numbers), _latency(numbers, slo_s), _windows(numbers), _controller(numbers),
        f"verdict     {verdict(numbers, slo_s)}",
    ]  # fmt: skip


def kept(numbers: Mapping[str, Any], slo_s: float) -> bool:
    """Whether anything was answered, and its P95 was within the SLO, failed requests being later than any."""
    requests = numbers["requests"]
    latency = requests["latency_s"]
    return latency is not None and bool(latency["p95"] <= slo_s) and not _too_many_failed(requests)


def _too_many_failed(requests: Mapping[str, Any]) -> bool:
    """More than one in twenty: what was answered does not make up for them, however quick."""
    return bool(requests["failed"] > 0.05 * (requests["ok"] + requests["failed"]))


def verdict(numbers: Mapping[str, Any], slo_s: float) -> str:
    """Whether the SLO was kept, at what cost, which experts were scaled for it, and what the same prompts met as
    deployed (``meta["baseline"]``, :func:`smoe.report.build.summary_of`), in sentences."""
    latency, baseline = numbers["requests"]["latency_s"], numbers["meta"].get("baseline")
    policy = numbers["meta"].get("policy", "the policy")
    if latency is None:
        return "nothing was answered."
    p95_s, replicas = latency["p95"], numbers["replicas"]
    parts = [
        f"{policy} {'kept' if kept(numbers, slo_s) else 'missed'} the SLO: "
        f"P95 {duration(p95_s)} of {duration(slo_s)}{_lost(numbers['requests'], slo_s)}{_at_cost(numbers)}.",
        f"{replicas['experts_scaled']} experts were scaled, up to {replicas['different_at_once']} different numbers of "
        "replicas at once.",
    ]
    if baseline is not None and baseline["p95_s"] is not None:
        over = baseline["p95_s"] > slo_s
        cost = baseline["provisioned_per_hour"]
        paid = "" if cost is None else f", at {money(cost, numbers['currency'])} an hour"
        parts.append(
            f"As deployed, without scaling, the same prompts had a P95 of {duration(baseline['p95_s'])}{paid}: "
        )
        parts[-1] += "missed." if over else "kept too, so nothing had to be scaled for it."
    return " ".join(parts)


def _lost(requests: Mapping[str, Any], slo_s: float) -> str:
    """Why answers within the SLO do not keep it, where they are."""
    if requests["latency_s"]["p95"] > slo_s or not _too_many_failed(requests):
        return ""
    return f" of what was answered, and {requests['failed']} of {requests['ok'] + requests['failed']} requests failed"


def _at_cost(numbers: Mapping[str, Any]) -> str:
    cost, steady = (numbers[name]["provisioned_per_hour"] for name in ("cost", "steady_cost"))
    if cost is None:
        return ""
    after = "" if steady is None else f" ({money(steady, numbers['currency'])} after the first minute)"
    return f", at {money(cost, numbers['currency'])} an hour{after}"


def _answers(numbers: Mapping[str, Any]) -> str:
    requests = numbers["requests"]
    left_out = "" if requests["complete"] else f" of {requests['planned']} planned"
    reasons = [f"{count} {name}" for name, count in requests["outcomes"].items() if name not in ("ok", "cancelled")]
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"requests    {requests['ok']}{left_out} answered, {requests['failed']} failed{why}"


def _latency(numbers: Mapping[str, Any], slo_s: float) -> str:
    requests = numbers["requests"]
    latency = requests["latency_s"]
    if latency is None:
        return f"P95         nothing was answered; the SLO was {duration(slo_s)}"
    over = latency["p95"] / slo_s - 1
    verdict = "kept" if kept(numbers, slo_s) else "MISSED"
    part = f"{abs(over):.0%} {'above' if over > 0 else 'below'}"
    return (
        f"P95         {duration(latency['p95'])}, {part} the SLO of {duration(slo_s)}"
        f"{_lost(requests, slo_s)}: {verdict}; "
        f"{requests['slo_attainment']:.1%} of all requests were answered within it "
        f"(P50 {duration(latency['p50'])}, P99 {duration(latency['p99'])})"
    )


def _windows(numbers: Mapping[str, Any]) -> str:
    windows = numbers["windows"]
    worst = "" if windows["worst_p95_s"] is None else f", the worst at {duration(windows['worst_p95_s'])}"
    empty = windows["violated_without_answers"]
    without = f", {empty} of them without any answer" if empty else ""
    return f"windows     {windows['violated']} of {windows['judged']} had a P95 above the SLO{without}{worst}"


def _controller(numbers: Mapping[str, Any]) -> str:
    actions, replicas, cost = numbers["actions"], numbers["replicas"], numbers["cost"]
    kinds = ", ".join(f"{NAMES[kind]} {count}" for kind, count in actions["by_kind"].items())
    applied = "" if actions["applied"] == actions["count"] else f", {actions['applied']} of them applied"
    did = f"{actions['count']} changes{f' ({kinds})' if kinds else ''}{applied}"
    least, most = replicas["least"], replicas["most"]
    scale = "" if least is None else f"; {most} replicas" if least == most else f"; {least} to {most} replicas"
    paid = "cost not measured"
    if cost["provisioned_per_hour"] is not None:
        paid = f"{money(cost['provisioned_per_hour'], numbers['currency'])} an hour provisioned"
        if cost["busy_per_hour"] is not None:
            paid += f", {money(cost['busy_per_hour'], numbers['currency'])} of it busy"
    return f"controller  {did}{scale}; {paid}"

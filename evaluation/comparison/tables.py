"""Runs put together: one row for each policy and pattern, with intervals, and costs paired with the bound."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.prices import money
from evaluation.comparison.episode import BOUND, EXPERT_COSTS, METERS
from evaluation.comparison.intervals import Interval, interval, share

Summary = Mapping[str, Any]
NAMES = ("workload", "pattern", "tokens", "seed", "policy")
COLUMNS = (
    *NAMES,
    *("busy", "provisioned", *EXPERT_COSTS, "busy_over_bound", "provisioned_over_bound"),
    *("windows", "judged_windows", "violated_windows", "mean_excess", "p95_over_slo", "requests", "answered"),
    *(
        "changes",
        "peak_cores",
        "peak_gpus",
        "peak_memory_mb",
        "decision_ms_p50",
        "decision_ms_p99",
        "cv",
        "trace_measured",
        "simulated",
        "measured_part",
        "requests_sha256",
        "source",
    ),
)


@dataclass(frozen=True)
class Row:
    """One policy under one pattern, over workloads, input sizes and seeds."""

    policy: str
    pattern: str
    runs: int
    cost: Mapping[str, Interval]
    """By meter: experts' cost of a run, in the price sheet's currency. Runs in which the SLO does not bind on a meter
    have no part in it: there the cheapest configurations keep it."""
    standbys: Interval | None
    """The part of the provisioned cost that is standbys': their memory, and replicas while they were activated."""
    over_bound: Mapping[str, Interval | None]
    """By meter: cost over the bound of the same requests, 0 at the bound; None without a bound."""
    violations: Interval | None
    """Share of judged windows whose P95 is above the SLO, or in which requests wait and none was answered; as if
    windows were independent, which they are not quite."""
    excess: Interval | None
    """Mean of max(P95 / SLO - 1, 0) over windows with an answer."""
    p95: Interval | None
    """P95 of all requests of a run over the SLO."""
    decision_ms: float
    """Largest P99 of a run."""
    beyond: int | None
    """Runs that at their peak have more than the modelled cluster; None where that is not known or there is none."""
    currency: str = "USD"


def runs_of(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Runs of policies, each with its cost over the bound of its group."""
    bounds = {_group(summary): summary for summary in summaries if summary["policy"] == BOUND}
    runs = []
    for summary in summaries:
        if summary["policy"] == BOUND:
            continue
        bound = bounds.get(_group(summary))
        extra = {
            f"{meter}_over_bound": _over(summary, bound, f"{meter}_experts") if binds(summary, meter) else None
            for meter in METERS
        }
        runs.append({**summary, **extra})
    return runs


def binds(summary: Summary, meter: str) -> bool:
    """Whether the SLO asks for more than the cheapest configurations on this meter."""
    return bool(summary.get("binds", {}).get(meter, True))


def rows(summaries: Sequence[Summary]) -> list[Row]:
    """By pattern, then policy, in the order in which they first come."""
    by_row: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for run in runs_of(summaries):
        by_row[run["pattern"], run["policy"]].append(run)
    return [_row(policy, pattern, runs) for (pattern, policy), runs in by_row.items()]


def write_csv(path: Path, summaries: Sequence[Summary]) -> None:
    """Every run in a row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(runs_of(summaries))


def markdown(summaries: Sequence[Summary]) -> str:
    """The rows as a table."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows(summaries)]
    return "\n".join(lines) + "\n"


def failures(summaries: Sequence[Summary]) -> dict[str, tuple[int, int, str]]:
    """Policy → windows in which it ended with an exception, all windows of its runs, and the first exception; without
    those that never did."""
    failed: dict[str, tuple[int, int, str]] = {}
    for run in (summary for summary in summaries if summary.get("failed_windows") is not None):
        count, windows, first = failed.get(run["policy"], (0, 0, ""))
        failed[run["policy"]] = count + run["failed_windows"], windows + run["windows"], first or run.get("failure", "")
    return {policy: entry for policy, entry in failed.items() if entry[0]}


def always_failed(summaries: Sequence[Summary]) -> dict[str, str]:
    """Policies that failed in every window → the first exception."""
    return {name: first for name, (count, windows, first) in failures(summaries).items() if count == windows}


def failure_sentences(summaries: Sequence[Summary]) -> list[str]:
    """What must be known of rows whose policy failed."""
    return [
        f"{policy} failed in {count} of {windows} windows ({first}), in which what was deployed was held."
        for policy, (count, windows, first) in failures(summaries).items()
    ]


HEAD = (
    *("pattern", "policy", "runs", "provisioned", "busy", "standbys", "provisioned over bound", "busy over bound"),
    *("P95 / SLO", "windows over SLO", "mean excess", "decision P99", "beyond the cluster"),
)


def cells(row: Row) -> tuple[str, ...]:
    """A row's texts, as in ``HEAD``. Means of a single run have no interval; shares of its windows do."""
    several = row.runs > 1
    return (
        row.pattern,
        row.policy,
        str(row.runs),
        *(_money(cost, row.currency, several) for cost in (*map(row.cost.get, ("provisioned", "busy")), row.standbys)),
        *(percent(part, several) for part in (row.over_bound["provisioned"], row.over_bound["busy"], row.p95)),
        percent(row.violations),
        percent(row.excess, several),
        f"{row.decision_ms:.1f} ms",
        "–" if row.beyond is None else f"{row.beyond} of {row.runs}",
    )


def percent(interval: Interval | None, with_interval: bool = True) -> str:
    """``12.3 % (10.1–14.0)``; without decimals from 100 %."""
    if interval is None:
        return "–"
    digits = 0 if interval.value >= 1 else 1
    value, low, high = (f"{100 * number:.{digits}f}" for number in (interval.value, interval.low, interval.high))
    return f"{value} % ({low}–{high})" if with_interval else f"{value} %"


def without_interval(text: str) -> str:
    """A cell's value alone, for terminals that have no room for more."""
    return text.partition(" (")[0]


def _money(interval: Interval | None, currency: str, with_interval: bool) -> str:
    """``$1.23 ($1.10–$1.40)``."""
    if interval is None:
        return "–"
    value, low, high = (money(amount, currency) for amount in (interval.value, interval.low, interval.high))
    return f"{value} ({low}–{high})" if with_interval else value


def _row(policy: str, pattern: str, runs: Sequence[dict[str, Any]]) -> Row:
    judged, violated = (sum(run[name] for run in runs) for name in ("judged_windows", "violated_windows"))
    bound = {meter: [run for run in runs if binds(run, meter)] for meter in METERS}
    costs = {meter: _interval(bound[meter], f"{meter}_experts") for meter in METERS}
    beyond = [run["beyond_cluster"] for run in runs if run.get("beyond_cluster") is not None]
    return Row(
        policy,
        pattern,
        len(runs),
        {meter: cost for meter, cost in costs.items() if cost is not None},
        _interval(runs, "standbys_experts"),
        {meter: _interval(bound[meter], f"{meter}_over_bound") for meter in METERS},
        share(violated, judged),
        _interval(runs, "mean_excess"),
        _interval(runs, "p95_over_slo"),
        max(run["decision_ms_p99"] for run in runs),
        sum(map(bool, beyond)) if beyond else None,
        runs[0].get("currency", "USD"),
    )


def _interval(runs: Sequence[dict[str, Any]], name: str) -> Interval | None:
    """Strata are workloads with an input size; None where a run has no such number, or there is no run."""
    strata: dict[tuple[str, int], list[float]] = defaultdict(list)
    for run in runs:
        if run[name] is None:
            return None
        strata[run["workload"], run["tokens"]].append(float(run[name]))
    return interval(list(strata.values())) if strata else None


def _over(summary: Summary, bound: Summary | None, name: str) -> float | None:
    if bound is None or summary[name] is None or not bound[name]:
        return None
    return float(summary[name] / bound[name] - 1)


def _group(summary: Summary) -> tuple[Any, ...]:
    return tuple(summary[name] for name in NAMES[:-1])

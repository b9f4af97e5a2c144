"""What ``benchmarks.live_scaling`` makes of its rows: a change in numbers, a row's medians, the last line, tables."""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks.harness.report import print_table
from benchmarks.harness.scaling_watch import Weight
from benchmarks.live_scaling.rows import AROUND_S, Measured, Setting, Span

KEY_CHANGES = ("up", "up in place", "exchange")
TAILS = ("p95_before_ms", "p95_during_ms")


def change_figures(span: Span, measured: Measured) -> dict[str, Any]:
    """One change in numbers; a ratio is None where nothing was answered before it."""
    answers = measured.answers
    before = answers.per_second(span.before_s, span.ordered_s)
    during = answers.per_second(span.ordered_s, max(span.settled_s, span.ordered_s + measured.least_s))
    return {
        "change": span.name,
        "scale_s": span.ready_s - span.ordered_s,
        "settled_s": span.settled_s - span.ordered_s,
        "downtime_s": measured.without_ready(span),
        "failed": answers.between(span.ordered_s, span.settled_s + 1).failed,
        "per_second_before": before,
        "throughput_ratio": during / before if before else None,
        "p95_before_ms": answers.p95_ms(span.before_s, span.ordered_s),
        "p95_during_ms": answers.p95_ms(span.ordered_s, span.settled_s),
        "longest_gap_s": answers.longest_gap_s(span.ordered_s, span.settled_s),
    }


def around(measured: Measured) -> dict[str, float | None]:
    """What was answered in the paper's longer look at a change, over what was answered before it."""
    if measured.around is None:
        return {}
    span, window_s = measured.around
    before = measured.answers.per_second(span.before_s, span.ordered_s - AROUND_S)
    during = measured.answers.per_second(span.ordered_s - AROUND_S, span.ordered_s + window_s + AROUND_S)
    return {"throughput_ratio_table_2": round(during / before, 4) if before else None, "window_s": round(window_s, 2)}


def weighed(span: Span, weights: list[Weight]) -> dict[str, float]:
    """Peak memory of one change over the larger of what was in use before it and after it."""
    before = max(weight.total for weight in weights if weight.at_s < span.ordered_s)
    after = weights[-1].total
    peak = max(weight.total for weight in weights)
    return {
        "before_mb": before / 1e6,
        "after_mb": after / 1e6,
        "peak_mb": peak / 1e6,
        "ratio": peak / max(before, after),
    }


def row(measured: Measured) -> dict[str, Any]:
    """Medians by kind of change, the worst of what must not happen, and memory."""
    changes = [change_figures(span, measured) for span in measured.spans]
    kinds = {}
    for name in dict.fromkeys(change["change"] for change in changes):
        of_kind = [change for change in changes if change["change"] == name]
        kinds[name] = {
            key: round(statistics.median(values), 4)
            for key in of_kind[0]
            if key != "change" and (values := [one[key] for one in of_kind if one[key] is not None])
        }
    memory = {name: weighed(span, weights) for name, (span, weights) in measured.weights.items()}
    return {
        **{key: kinds["up"].get(key) for key in ("scale_s", "throughput_ratio")},
        **around(measured),
        "downtime_s": round(max(change["downtime_s"] for change in changes), 4),
        "failed": sum(change["failed"] for change in changes),
        "peak_memory_mb": round(memory["up"]["peak_mb"], 1),
        "peak_memory_ratio": round(max(one["ratio"] for one in memory.values()), 4),
        "copied": measured.copied,
        "changes": kinds,
        "memory": {name: {key: round(value, 3) for key, value in one.items()} for name, one in memory.items()},
    }


def summary(rows: dict[str, dict[str, Any]], setting: Setting, rounds: int) -> dict[str, Any]:
    """The last line's object: the figures of the full system at the top, every row below."""
    result: dict[str, Any] = {}
    if "full" in rows:
        full = rows["full"]
        kinds = full["changes"]
        result = {
            "scale_s": max(kinds[name]["scale_s"] for name in ("up", "up in place")),
            "downtime_s": full["downtime_s"],
            "failed": full["failed"],
            "throughput_ratio": min((kinds[name].get("throughput_ratio", 0.0) for name in KEY_CHANGES), default=None),
            "throughput_ratio_table_2": full.get("throughput_ratio_table_2"),
            "peak_memory_ratio": full["peak_memory_ratio"],
        }
        if "at-load" in rows:
            result |= of_load(rows["at-load"]["changes"])
        if "cold-restart" in rows:
            result["cold_restart_over_full"] = round(rows["cold-restart"]["scale_s"] / result["scale_s"], 1)
    return {
        **result,
        "rows": rows,
        "functions": len(setting.manifest.nodes) + 1,
        "weights_mb": round(sum(node.parameter_bytes for node in setting.manifest.nodes) / 1e6, 1),
        "link_bytes_per_s": setting.link_bytes_per_s,
        "disk_bytes_per_s": setting.disk_bytes_per_s,
        "clients": setting.clients,
        "rate": setting.rate,
        "load": setting.load,
        "rounds": rounds,
        "cores": os.cpu_count(),
    }


def of_load(changes: dict[str, dict[str, float]]) -> dict[str, float | None]:
    """The worst of the kinds of change that must be quick, at a load that leaves processors time to spare."""
    kinds = [changes[name] for name in KEY_CHANGES]
    tails = [kind["p95_during_ms"] / kind["p95_before_ms"] for kind in kinds if {*TAILS} <= {*kind}]
    return {
        "throughput_ratio_at_load": min(kind.get("throughput_ratio", 0.0) for kind in kinds),
        "p95_ratio_at_load": round(max(tails), 4) if tails else None,
    }


def show(result: dict[str, Any]) -> None:
    """Two tables for people, on stderr."""
    figures = {
        **{"scale_s": ".2f", "downtime_s": ".2f", "failed": "", "throughput_ratio": ".0%"},
        **{"throughput_ratio_table_2": ".0%", "peak_memory_mb": ".0f", "peak_memory_ratio": ".3f"},
    }
    heads = ("row", "scale s", "downtime s", "failed", "throughput", "as in Table 2", "peak MB", "peak ratio")
    print_table("Scale-up, rows", heads, [(name, *cells(row, figures)) for name, row in result["rows"].items()])
    columns = ("change", "scale s", "settled s", "per s", "throughput", "P95 before ms", "P95 during ms")
    keys = ("scale_s", "settled_s", "per_second_before", "throughput_ratio", *TAILS)
    for name in ("full", "at-load"):
        if name in result["rows"]:
            kinds = result["rows"][name]["changes"].items()
            print_table(name, columns, [(change, *cells(kind, dict.fromkeys(keys, ".3g"))) for change, kind in kinds])


def cells(figures: dict[str, Any], formats: dict[str, str]) -> list[str]:
    """Figures as they are shown; a dash where there is none."""
    return ["–" if figures.get(key) is None else format(figures[key], how) for key, how in formats.items()]

"""What an evaluation leaves behind: CSV, Markdown, JSON, the paper's Figures 7 and 8, and one HTML page."""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isclose
from pathlib import Path
from typing import Any

import pyarrow as pa
from jinja2 import Environment
from pyarrow.csv import write_csv as write_table

from autoscaler.prices import money
from evaluation.comparison.episode import BOUND, METERS
from evaluation.comparison.grid import Grid
from evaluation.comparison.learnt_files import learnt_file
from evaluation.comparison.store import windows_of
from evaluation.comparison.tables import (
    HEAD,
    NAMES,
    Row,
    always_failed,
    binds,
    cells,
    failure_sentences,
    markdown,
    rows,
    write_csv,
)
from evaluation.tuning.outcomes import MOST_VIOLATED
from simulation.workloads.worlds import PAPER_CAPACITY
from traces.model import PATTERNS, classify

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class ReportPaths:
    """Files of a report."""

    html: Path
    csv: Path
    windows: Path
    """Every counted window of every run."""
    markdown: Path
    json: Path
    figures: tuple[Path, ...]


def write_report(
    grid: Grid, summaries: Sequence[Summary], out: Path, left_out: Mapping[str, str] | None = None
) -> ReportPaths:
    """Write everything into ``out``. ``left_out``: what was left out (``GROUP`` or
    ``GROUP.POLICY``), and why."""
    absent = dict(left_out or {})
    paths = ReportPaths(
        out / "report.html",
        out / "results.csv",
        out / "windows.csv",
        out / "results.md",
        out / "results.json",
        (out / "figure-7.png", out / "figure-8.png"),
    )
    write_csv(paths.csv, summaries)
    windows = windows_of(summaries, out)
    write_table(windows, paths.windows)
    listed = "\n".join(f"- {note}" for note in notes(grid, summaries, absent))
    paths.markdown.write_text(
        f"{verdict(rows(summaries), always_failed(summaries))}\n\n{markdown(summaries)}\n{listed}\n"
    )
    document = {"grid": settings(grid), "runs": list(summaries), "left_out": absent}
    paths.json.write_text(json.dumps(document, indent=1))
    from evaluation.comparison.figures import figure_7, figure_8  # matplotlib takes a second

    figure_7(paths.figures[0], summaries, _tails(windows))
    figure_8(paths.figures[1], summaries)
    paths.html.write_text(_page(grid, summaries, paths, absent))
    return paths


def settings(grid: Grid) -> dict[str, Any]:
    """The grid as plain values."""
    return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(grid).items()}


def where(grid: Grid) -> str:
    """Where it was simulated."""
    custom = None if grid.custom is None else grid.custom.pipeline
    parts = ["on the modelled cluster"] if any(name != custom for name in grid.workloads) else []
    if grid.custom is not None and custom in grid.workloads:
        scale = f", a core being {grid.custom.cpu_scale:g} real ones" if grid.custom.cpu_scale else ""
        machine = "the modelled cluster with cores" if grid.custom.cluster else "the machine"
        parts.append(f"on {machine} of the profile {grid.custom.profile_file.name} ({custom}{scale})")
    return " and ".join(parts)


def verdict(compared: Sequence[Row], failed: Container[str] = ()) -> str:
    """The cheapest policies of each pattern that keep the SLO as often as tuned ones have to, without those that
    ``failed``, in a sentence. A mean P95 would hide an hour in which no window kept it."""
    parts = []
    for pattern in dict.fromkeys(row.pattern for row in compared):
        judged = [row for row in compared if row.pattern == pattern and row.policy not in failed]
        costs = {
            row.policy: row.cost["provisioned"].value
            for row in judged
            if row.violations is not None and row.violations.value <= MOST_VIOLATED and "provisioned" in row.cost
        }
        names = [name for name, cost in costs.items() if isclose(cost, min(costs.values()))]
        paid = f" at {money(costs[names[0]], compared[0].currency)} provisioned" if names else ""
        parts.append(f"{', '.join(names) or 'none'}{paid} ({pattern})")
    return f"Cheapest of those over the SLO in at most {MOST_VIOLATED:.0%} of the windows: {'; '.join(parts)}."


def heading(grid: Grid, summaries: Sequence[Summary], left_out: Mapping[str, str] | None = None) -> str:
    """The notes as one paragraph."""
    return " ".join(notes(grid, summaries, left_out))


def notes(grid: Grid, summaries: Sequence[Summary], left_out: Mapping[str, str] | None = None) -> list[str]:
    """What was compared with what, and what must be known to read it, in sentences."""
    runs = sum(summary["policy"] != BOUND for summary in summaries)
    made = any(summary.get("trace_measured") is False for summary in summaries)
    sentences = [
        f"{runs} simulated runs {where(grid)}: {', '.join(grid.workloads)}; {', '.join(grid.patterns)}; "
        f"seeds {', '.join(map(str, grid.seeds))}; windows of {grid.window_s:g} s in {grid.seconds:g} s, the first "
        f"{grid.warm_up_windows} not counted.",
        "Costs are the experts'. Figures are interquartile means, those of several runs with 95 % stratified bootstrap "
        "intervals; shares have Wilson intervals.",
    ]
    for model in sorted({summary["latency"] for summary in summaries if "latency" in summary}):
        parts = [run["measured_part"] for run in summaries if run.get("latency") == model]
        share = min((part for part in parts if part is not None), default=0.0)
        sentences.append(f"Seconds of calls: {model}; at least {share:.0%} of a run's calls lie where it was measured.")
    if grid.speed != 1:
        sentences.append(f"Traces are replayed {grid.speed:g} times as fast as they were.")
    sentences += _replayed(summaries) + failure_sentences(summaries)
    for why in dict.fromkeys((left_out or {}).values()):
        keys = [key for key, reason in (left_out or {}).items() if reason == why]
        sentences.append(f"Left out: {', '.join(dict.fromkeys(map(_left_out, keys)))}, as {why}.")
    if made:
        sentences.append("Arrivals are made, not measured: the public traces are not there (`smoe traces fetch`).")
    sentences += _loose(summaries)
    if untuned := [policy for policy in grid.policies if not _tuned(grid, policy)]:
        sentences.append(f"With their default settings, not tuned: {', '.join(untuned)}.")
    if any(summary.get("beyond_cluster") is not None for summary in summaries):
        sentences.append(_walls(grid))
    return sentences


def _walls(grid: Grid) -> str:
    """What the cluster has, and what beyond it means."""
    room = PAPER_CAPACITY.total
    gpus = 0.0 if grid.world == "cores-only" else room.gpu_tenths / 10
    cluster = f"{room.cores:g} cores, {gpus:g} GPUs and {room.memory_mb / 1024:g} GiB, segments included"
    if grid.world == "unlimited":
        return f"Simulations have room for every replica; beyond the cluster are runs whose peak is above {cluster}."
    return f"The cluster ({grid.world}) has {cluster}; every search, policy and simulation stays within it."


def _loose(summaries: Sequence[Summary]) -> list[str]:
    """Sentences on how many groups have no cost on a meter, as the SLO does not bind there."""
    groups = {tuple(summary[name] for name in NAMES[:-1]): summary for summary in summaries if "binds" in summary}
    sentences = []
    for meter in METERS:
        loose = sum(not binds(summary, meter) for summary in groups.values())
        if loose:
            sentences.append(
                f"On the {meter} meter the SLO does not bind in {loose} of {len(groups)} groups, where the cheapest "
                f"configurations keep it anyway: they have no part in that meter's columns."
            )
    return sentences


def _tuned(grid: Grid, policy: str) -> bool:
    """Whether a plan, settings or something learnt is there for every group."""
    return all(
        grid.plan_of(policy, group) or grid.settings_of(policy, group) or learnt_file(policy, group.workload)
        for group in grid.groups()
    )


def _left_out(key: str) -> str:
    """The policy of a key ``GROUP.POLICY``, or the group."""
    return key.split(".", 4)[-1] if key.count(".") > 3 else key


def _replayed(summaries: Sequence[Summary]) -> list[str]:
    """How bursty the arrivals of each pattern really were: reaching a rate changes the CV of an hour."""
    by_pattern: dict[str, list[float]] = {}
    for summary in summaries:
        if summary.get("cv") is not None:
            by_pattern.setdefault(summary["pattern"], []).append(summary["cv"])
    if not by_pattern:
        return []
    ranges = ", ".join(f"{name} {min(cvs):.2g} to {max(cvs):.2g}" for name, cvs in by_pattern.items())
    other = [name for name, cvs in by_pattern.items() if name in PATTERNS and {classify(cv) for cv in cvs} != {name}]
    beyond = f", not always of their pattern: {', '.join(other)}" if other else ""
    return [f"CV of the inter-arrival times as replayed: {ranges}{beyond}."]


def _tails(windows: pa.Table) -> dict[tuple[Any, ...], list[float]]:
    """P95 of every window with an answer, by run."""
    tails: dict[tuple[Any, ...], list[float]] = {}
    for *key, p95_s in zip(*(windows.column(name).to_pylist() for name in (*NAMES, "p95_s")), strict=True):
        if p95_s is not None:
            tails.setdefault(tuple(key), []).append(p95_s)
    return tails


def _page(grid: Grid, summaries: Sequence[Summary], paths: ReportPaths, left_out: Mapping[str, str]) -> str:
    images = [base64.b64encode(path.read_bytes()).decode() for path in paths.figures]
    page, compared = Environment(autoescape=True).from_string(PAGE), rows(summaries)
    return page.render(
        title="Evaluation of scaling policies",
        verdict=verdict(compared, always_failed(summaries)),
        notes=notes(grid, summaries, left_out),
        rows=compared,
        head=HEAD,
        cells=cells,
        images=images,
        settings=settings(grid),
        sources=sorted({summary["source"] for summary in summaries if "source" in summary}),
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1060px; margin: 2rem auto; padding: 0 1rem; color: #1c2733; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #d9dfe5; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
img { max-width: 100%; margin: 1rem 0; }
.wide { overflow-x: auto; }
.wide th, .wide td { padding: .3rem .4rem; font-size: .9rem; }
.wide td { white-space: nowrap; }
.note { color: #55636f; }
</style></head><body>
<h1>{{ title }}</h1>
<p><b>{{ verdict }}</b></p>
<div class="wide"><table><thead><tr>{% for name in head %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr>{% for cell in cells(row) %}{% set parts = cell.partition(" (") %}<td>{{ parts[0]
}}{% if parts[1] %}<br><small>({{ parts[2] }}</small>{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<ul>{% for note in notes %}<li class="note">{{ note }}</li>{% endfor %}</ul>
{% for image in images %}<img alt="figure" src="data:image/png;base64,{{ image }}">{% endfor %}
<h2>What was replayed</h2><ul>{% for source in sources %}<li class="note">{{ source }}</li>{% endfor %}</ul>
<h2>Settings</h2><table>{% for key, value in settings.items() %}
<tr><td>{{ key }}</td><td>{{ value }}</td></tr>{% endfor %}</table>
</body></html>
"""

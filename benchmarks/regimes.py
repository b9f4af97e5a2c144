"""Where scaling each expert by itself pays: ``python -m benchmarks.regimes``.

Simulated: one of the paper's workloads on the paper's cluster, with and without its GPUs. Every cell is a world, a
pattern, a rate, how unevenly tokens are routed (as DeepSeek-V2-Lite's log has it, uniform, Zipf with 1.2), a relative λ
and a test hour; the first λ is combined with every routing, the others with the first routing. In each
:func:`evaluation.regimes.ways.ways` compares the best constants with the best choice of every window, for all experts
or each its own, with and without burst activation, all with the same windows over λ. The choices of windows know the
window beforehand, so they bound what scaling can save. A cell that is in ``--out`` is not computed again. For a trace
and pipeline of one's own: ``smoe lab advise``.

Last line: ``cells``, ``refused`` (with reasons); ``groups``: of each world, pattern and λ the interquartile mean of
every saving with its 95 % interval over hours; of all cells the median, least and most of each saving;
``constant_enough``: share of cells where scaling each expert saves less than 5 % on constants for each;
``recommended``: how often each way is the simplest within 5 % of the cheapest; ``anchors``: share of cells in which
scaling each expert, with burst activation, saves as much on whole replicas as MoEless (84 %) and Remoe (57 %) report.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness.options import benchmark, data_option, listed, out_option, publish_option, workload_option
from benchmarks.harness.report import print_result, print_table, progress, write_csv
from benchmarks.motivation import routing_of
from evaluation.comparison.arrivals import arrivals
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.intervals import Interval, interval
from evaluation.provenance import code_sha256
from evaluation.regimes.advice import ENOUGH, advice
from evaluation.regimes.ways import Ways, ways
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World
from traces.catalog import data_folder
from traces.errors import TraceError

WINDOW_S = 30.0
ZIPF = {"uniform": 0.0, "zipf": 1.2}
ANCHORS = {"MoEless": 0.84, "Remoe": 0.57}
"""What they report to save: 84 % against whole replicas (arXiv 2603.06350), 57 % against serverless ones
(arXiv 2512.18674)."""
SAVINGS = {
    "own_constant": ("constant_per_expert", "constant"),
    "burst_on_own": ("constant_per_expert_burst", "constant_per_expert"),
    "scaling_on_own": ("window_per_expert", "constant_per_expert"),
    "own_in_windows": ("window_per_expert", "window"),
    "burst_in_windows": ("window_per_expert_burst", "window_per_expert"),
    "all": ("window_per_expert_burst", "constant"),
}
"""Saving → the way that saves, and on which."""
LABELS = (
    "own constants on one for all",
    "burst activation on own constants",
    "scaling on own constants",
    "own choices on one for all, both scaled",
    "burst activation on scaling",
    "all together on one constant",
)


@dataclass(frozen=True)
class Cell:
    """One regime."""

    world: World
    pattern: str
    rate: float
    skew: str
    slo: float
    hour: int

    @property
    def key(self) -> str:
        return f"{self.world}.{self.pattern}.{self.rate:g}.{self.skew}.{self.slo:g}.{self.hour}"

    @property
    def group(self) -> str:
        return f"{self.world}, {self.pattern}, λ {self.slo:g}"


def prepared(name: str, cell: Cell, seconds: float, data: Path | None) -> tuple[Workload, Requests]:
    """Raises EvaluationError, TraceError."""
    grid = Grid(
        (name,), (cell.pattern,), (0,), ("static",), tuple(range(cell.hour + 1)), seconds=seconds, mean_rps=cell.rate,
        world=cell.world, relative_slo=cell.slo, data=data, bound=False,
    )  # fmt: skip
    group = Group(name, cell.pattern, 0, cell.hour)
    drawn, workload = arrivals(grid, group), grid.workload_of(group, cell.rate)
    experts = [len(workload.topology.experts(layer)) for layer in range(workload.topology.layers)]
    if cell.skew in ZIPF:
        routing = zipf_routing(experts, exponent=ZIPF[cell.skew])
    elif (measured := routing_of(workload, data_folder(data), phase_s=300.0)) is not None:
        routing = measured
    else:
        raise EvaluationError("measured routing needs the public routing log (traces/README.md)")
    workload = replace(workload, routing=routing)
    requests = draw_requests(workload, drawn.arrival_s, seed=cell.hour, source=drawn.source)
    return grid.walled(workload, requests, cell.hour), requests


def computed(name: str, cell: Cell, seconds: float, data: Path | None) -> dict[str, Any]:
    """The cell's numbers, or under ``refused`` why it has none."""
    begun_s = time.perf_counter()
    try:
        workload, requests = prepared(name, cell, seconds, data)
        compared = ways(workload, requests, WINDOW_S, seconds, cell.hour)
        outcome = {"refused": "no choice keeps λ in any window"} if compared is None else asdict(compared)
    except (EvaluationError, TraceError) as error:
        outcome = {"refused": str(error)}
    return {"workload": name, **asdict(cell), "seconds": seconds, **outcome, "took_s": time.perf_counter() - begun_s}


def stored_or_computed(name: str, cell: Cell, seconds: float, data: Path | None, out: Path) -> dict[str, Any]:
    path = out / f"{name}.{seconds:g}.{cell.key}.json"
    made_by = {"code_sha256": code_sha256("benchmarks.regimes"), "public_traces": data_folder(data) is not None}
    if path.is_file() and (stored := json.loads(path.read_text())).items() >= made_by.items():
        return dict(stored)
    outcome = {**computed(name, cell, seconds, data), **made_by}
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(outcome, indent=1))
    return outcome


def saving(row: Mapping[str, Any], name: str) -> float | None:
    """1 - first / second of :data:`SAVINGS`; None where one of them was not found."""
    first, second = (row.get(key) for key in SAVINGS[name])
    return None if first is None or second is None else 1 - float(first) / float(second)


def spread(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float] | None:
    values = [value for value in (saving(row, name) for row in rows) if value is not None]
    if not values:
        return None
    return {"median": round(float(np.median(values)), 4), "least": round(min(values), 4), "most": round(max(values), 4)}


def over_hours(rows: Sequence[Mapping[str, Any]], name: str) -> Interval | None:
    """A group's saving: hours are resampled within each rate and routing."""
    strata: dict[tuple[float, str], list[float]] = {}
    for row in rows:
        if (value := saving(row, name)) is not None:
            strata.setdefault((row["rate"], row["skew"]), []).append(value)
    return interval(list(strata.values())) if strata else None


def grouped(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(cell_of(row).group, []).append(row)
    return groups


def cell_of(row: Mapping[str, Any]) -> Cell:
    return Cell(**{field.name: row[field.name] for field in fields(Cell)})


def lines(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[tuple[str, ...]]:
    """A line a group for :data:`HEAD`; intervals stand in the last line and in the picture."""
    for group, rows in groups.items():
        savings = [over_hours(rows, name) for name in SAVINGS]
        shown = ["–" if one is None else f"{one.value:.0%}" for one in savings]
        unmet, all_windows = sum(row["unmet"] for row in rows), sum(row["unmet"] + row["judged"] for row in rows)
        yield (group, str(len(rows)), *shown, f"{unmet} of {all_windows}")


HEAD = ("world, pattern, λ", "cells", *LABELS, "unmet windows")


def picture(path: Path, groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """A bar a group for each saving, with its interval."""
    figure = Figure(figsize=(9, 0.75 * len(groups) + 1.8), layout="constrained")
    axes = figure.subplots()
    places, height = np.arange(len(groups)), 0.8 / len(SAVINGS)
    for number, (name, label) in enumerate(zip(SAVINGS, LABELS, strict=True)):
        there = [(place, one) for place, rows in enumerate(groups.values()) if (one := over_hours(rows, name))]
        values = np.array([100 * one.value for _, one in there])
        ends = np.array([[100 * (one.value - one.low), 100 * (one.high - one.value)] for _, one in there]).T
        at = np.array([place for place, _ in there]) + height * (number - (len(SAVINGS) - 1) / 2)
        axes.barh(
            at, values, height=0.95 * height, label=label, xerr=np.maximum(ends, 0.0), error_kw={"linewidth": 0.7}
        )
    axes.set_yticks(places, list(groups), fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100 * ENOUGH, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("% of the experts' cost saved (scaling: bounds; dotted: below it the simpler way is enough)")
    axes.legend(fontsize=7, loc="lower right")
    figure.savefig(path, dpi=110)


def recommended(row: Mapping[str, Any]) -> str:
    return advice(Ways(**{field.name: row[field.name] for field in fields(Ways)}), "USD").way


def share_of(holds: Iterable[bool]) -> float | None:
    values = list(holds)
    return round(float(np.mean(values)), 4) if values else None


@benchmark
@workload_option("bert-4")
@click.option("--worlds", callback=listed(), default="cores-only,mixed", help="Comma list.")
@click.option("--patterns", callback=listed(), default="normal,bursty,diurnal", help="Comma list.")
@click.option("--rates", callback=listed(float), default="20,50", help="Comma list, requests per second.")
@click.option("--skews", callback=listed(), default="measured,uniform,zipf", help="Comma list, routing of tokens.")
@click.option("--slos", callback=listed(float), default="2,1.5,4", help="Comma list, λ over the P95 without queues.")
@click.option("--hours", type=click.IntRange(1, 10), default=2, help="Test hours of each pattern.")
@click.option("--seconds", type=click.FloatRange(120, 3600), default=300.0, help="Of each hour.")
@data_option
@out_option("out/regimes", "Folder of the cells; what is there is not computed again.")
@publish_option
def main(
    name: str, worlds: tuple[World, ...], patterns: tuple[str, ...], rates: tuple[float, ...],
    skews: tuple[str, ...], slos: tuple[float, ...], hours: int, seconds: float, data: Path | None, out: Path,
    to: Path | None,
) -> None:  # fmt: skip
    unknown = set(skews) - {*ZIPF, "measured"}
    if unknown:
        raise click.ClickException(f"skews are uniform, measured, zipf; got {sorted(unknown)[0]!r}")
    around = [*((skew, slos[0]) for skew in skews), *((skews[0], slo) for slo in slos[1:])]
    every = [Cell(*parts, *pair, hour) for hour, pair in product(range(hours), around)
             for parts in product(worlds, patterns, rates)]  # fmt: skip
    rows = []
    with progress(len(every), "cells") as show:
        for number, cell in enumerate(every):
            show(cell.key, number)
            rows.append(stored_or_computed(name, cell, seconds, data, out))
    measured = [row for row in rows if "refused" not in row]
    refused = {cell_of(row).key: row["refused"] for row in rows if "refused" in row}
    groups = grouped(measured)
    print_table(f"{name}: what the experts' cost an hour is less by, simulated", HEAD, list(lines(groups)))
    for key, why in refused.items():
        click.echo(f"left out: {key}: {why}")
    if to is not None and measured:
        to.mkdir(parents=True, exist_ok=True)
        write_csv(to / "regimes.csv", [{key: row.get(key) for key in measured[0]} for row in measured])
        picture(to / "regimes.png", groups)
    scaling = [value for value in (saving(row, "scaling_on_own") for row in measured) if value is not None]
    together = [value for value in (saving(row, "all") for row in measured) if value is not None]
    print_result({
        "cells": len(measured), "refused": refused,
        "groups": {
            group: {name: None if (one := over_hours(members, name)) is None else asdict(one) for name in SAVINGS}
            for group, members in groups.items()
        },
        **{name: spread(measured, name) for name in SAVINGS},
        "constant_enough": share_of(value < ENOUGH for value in scaling),
        "no_constant_keeps": sum(row["constant"] is None for row in measured),
        "recommended": Counter(map(recommended, measured)),
        "anchors": {name: share_of(value >= least for value in together) for name, least in ANCHORS.items()},
        "workload": name, "seconds": seconds, "hours": hours,
    })  # fmt: skip


if __name__ == "__main__":
    main()

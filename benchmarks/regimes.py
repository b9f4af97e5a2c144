"""Where scaling each expert by itself pays: ``python -m benchmarks.regimes``.

Simulated: one of the paper's workloads on the paper's cluster, with and without its GPUs. Every cell is a world, a
pattern, a rate, how unevenly tokens are routed (uniform, as DeepSeek-V2-Lite's log has it, Zipf with 1.2) and a
relative λ. In each :func:`evaluation.regimes.ways` compares the best constants with the best choice of every window,
for all experts or each its own, all with the same windows over λ. The last two know the window beforehand, so
they bound what scaling can save. A cell that is in ``--out`` is not computed again.

Last line: ``cells``, ``refused`` (with reasons), and of the cells, as median, least and most: ``saving_scaling``
(window per expert against the best constant for all), ``saving_own`` (per expert against one for all in every
window; the latter has 1, 2 or 4 replicas), ``saving_own_constant`` (constant per expert against that for all),
``saving_scaling_own`` (window per expert against constant per expert); ``constant_enough``: share of cells where
the last one is under 5 %, so that a constant for each expert is enough.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from evaluation.provenance import code_sha256
from evaluation.regimes import ways
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import World
from traces.catalog import data_folder
from traces.errors import TraceError

WINDOW_S = 30.0
ENOUGH = 0.05
"""Where knowing every window would save less than this, a constant is enough."""
ZIPF = {"uniform": 0.0, "zipf": 1.2}
WAYS = ("constant", "constant_per_layer", "constant_per_expert", "window", "window_per_expert")
SAVINGS = {
    "saving_scaling": ("window_per_expert", "constant"),
    "saving_own": ("window_per_expert", "window"),
    "saving_own_constant": ("constant_per_expert", "constant"),
    "saving_scaling_own": ("window_per_expert", "constant_per_expert"),
}


@dataclass(frozen=True)
class Cell:
    """One regime."""

    world: World
    pattern: str
    rate: float
    skew: str
    slo: float

    @property
    def key(self) -> str:
        return f"{self.world}.{self.pattern}.{self.rate:g}.{self.skew}.{self.slo:g}"


def prepared(name: str, cell: Cell, seconds: float, data: Path | None) -> tuple[Workload, Requests]:
    """Raises EvaluationError, TraceError."""
    grid = Grid(
        (name,), (cell.pattern,), (0,), ("static",), (0,), seconds=seconds, mean_rps=cell.rate, world=cell.world,
        relative_slo=cell.slo, data=data, bound=False,
    )  # fmt: skip
    group = Group(name, cell.pattern, 0, 0)
    drawn, workload = arrivals(grid, group), grid.workload_of(group, cell.rate)
    experts = [len(workload.topology.experts(layer)) for layer in range(workload.topology.layers)]
    if cell.skew in ZIPF:
        routing = zipf_routing(experts, exponent=ZIPF[cell.skew])
    elif (measured := routing_of(workload, data_folder(data), phase_s=300.0)) is not None:
        routing = measured
    else:
        raise EvaluationError("measured routing needs the public routing log (traces/README.md)")
    workload = replace(workload, routing=routing)
    requests = draw_requests(workload, drawn.arrival_s, seed=0, source=drawn.source)
    return grid.walled(workload, requests, 0), requests


def computed(name: str, cell: Cell, seconds: float, data: Path | None) -> dict[str, Any]:
    """The cell's numbers, or under ``refused`` why it has none."""
    begun_s = time.perf_counter()
    try:
        workload, requests = prepared(name, cell, seconds, data)
        compared = ways(workload, requests, WINDOW_S, seconds, 0)
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


def cells_of(row: Mapping[str, Any]) -> Iterator[str]:
    yield from (row["world"], row["pattern"], f"{row['rate']:g}", row["skew"], f"{row['slo']:g}")
    for name in WAYS:
        yield "–" if row[name] is None else f"{row[name]:.2f}"
    for name in SAVINGS:
        value = saving(row, name)
        yield "–" if value is None else f"{value:.0%}"
    yield f"{row['unmet']} of {row['unmet'] + row['judged']}"


HEAD = (
    *("world", "pattern", "rate", "routing", "λ"),
    *("constant", "per layer", "per expert", "windows", "windows, per expert"),
    *("scaling saves", "own saves", "own constant saves", "scaling saves on own constant"),
    "unmet windows",
)


def picture(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A bar a cell for each saving."""
    figure = Figure(figsize=(9, 0.34 * len(rows) + 1.4), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(rows))
    for number, (name, label) in enumerate(zip(SAVINGS, HEAD[-5:-1], strict=True)):
        values = [100 * (saving(row, name) or 0.0) for row in rows]
        axes.barh(places + 0.2 * (number - 1.5), values, height=0.19, label=label)
    axes.set_yticks(places, [" ".join(list(cells_of(row))[:5]) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(100 * ENOUGH, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("% of the experts' cost (bounds; dotted: below it a constant is enough)")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


@benchmark
@workload_option("bert-4")
@click.option("--worlds", callback=listed(), default="cores-only,mixed", help="Comma list.")
@click.option("--patterns", callback=listed(), default="normal,bursty,diurnal", help="Comma list.")
@click.option("--rates", callback=listed(float), default="20,50", help="Comma list, requests per second.")
@click.option("--skews", callback=listed(), default="uniform,measured,zipf", help="Comma list, routing of tokens.")
@click.option("--slos", callback=listed(float), default="2", help="Comma list, λ over the P95 without queues.")
@click.option("--seconds", type=click.FloatRange(120, 3600), default=300.0, help="Of each hour.")
@data_option
@out_option("out/regimes", "Folder of the cells; what is there is not computed again.")
@publish_option
def main(
    name: str, worlds: tuple[World, ...], patterns: tuple[str, ...], rates: tuple[float, ...],
    skews: tuple[str, ...], slos: tuple[float, ...], seconds: float, data: Path | None, out: Path, to: Path | None,
) -> None:  # fmt: skip
    unknown = set(skews) - {*ZIPF, "measured"}
    if unknown:
        raise click.ClickException(f"skews are uniform, measured, zipf; got {sorted(unknown)[0]!r}")
    every = [Cell(*parts) for parts in product(worlds, patterns, rates, skews, slos)]
    rows = []
    with progress(len(every), "cells") as show:
        for number, cell in enumerate(every):
            show(cell.key, number)
            rows.append(stored_or_computed(name, cell, seconds, data, out))
    measured = [row for row in rows if "refused" not in row]
    refused = {Cell(*(row[key] for key in asdict(every[0]))).key: row["refused"] for row in rows if "refused" in row}
    print_table(f"{name}: cost of the experts an hour, simulated", HEAD, [tuple(cells_of(row)) for row in measured])
    for key, why in refused.items():
        click.echo(f"left out: {key}: {why}")
    if to is not None and measured:
        to.mkdir(parents=True, exist_ok=True)
        write_csv(to / "regimes.csv", [{key: row.get(key) for key in measured[0]} for row in measured])
        picture(to / "regimes.png", measured)
    scaling = [value for value in (saving(row, "saving_scaling_own") for row in measured) if value is not None]
    print_result({
        "cells": len(measured), "refused": refused, **{name: spread(measured, name) for name in SAVINGS},
        "constant_enough": None if not scaling else round(float(np.mean([value < ENOUGH for value in scaling])), 4),
        "no_constant_keeps": sum(row["constant"] is None for row in measured),
        "workload": name, "seconds": seconds,
    })  # fmt: skip


if __name__ == "__main__":
    main()

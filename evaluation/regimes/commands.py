"""``smoe lab advise``: whether scaling pays for a trace and a pipeline, and which way to go."""

from __future__ import annotations

import json
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from autoscaler.prices import money
from evaluation.bound.inputs import asked_for, input_options, trace_requests
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.quickest import walled
from evaluation.progress import LongWork
from evaluation.regimes.advice import NAMES, advice
from evaluation.regimes.ways import WARM_UP, Ways, ways
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import WORLDS, World
from traces.options import json_option

WINDOW_S = 30.0
WINDOWS = 20


@click.command()
@input_options
@click.option("--world", type=click.Choice(WORLDS), help="Cluster of a paper's workload. [default: mixed]")
@click.option(
    "--relative-slo",
    type=click.FloatRange(1, 1000, min_open=True),
    help="SLO of a paper's workload as so many times the P95 of the same requests with unlimited capacity.",
)
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(0.5, 3600),
    help="Seconds between two decisions. [default: 30; the pipeline's own with --pipeline]",
)
@click.option(
    "--windows",
    "most",
    type=click.IntRange(2, 10_000),
    default=WINDOWS,
    help="Windows from the clip's begin on; the first is not judged.",
)
@json_option
def advise(trace: str, data: Path | None, as_json: bool, **options: Any) -> None:
    """Say whether scaling pays for a trace, and which way to go.

    Compares constants (the same for all experts, for each layer, for each expert) with the best choice of every window,
    without and with burst activation, all keeping the P95 target in the same windows, and recommends the simplest way
    that comes within 5 % of the cheapest; "a constant is enough" is an answer. Costs are of the experts an hour.
    Everything is simulated: a workload of the paper's on the modelled cluster, a custom pipeline on the machine of its
    profile. Takes about a minute for 10 windows.
    """
    asked = asked_for(options)
    if asked.custom is not None and (options["world"] or options["relative_slo"]):
        raise click.UsageError("--world and --relative-slo are of the paper's workloads, not of a custom pipeline")
    window_s = options["window_s"] or (WINDOW_S if asked.custom is None else asked.custom.window_s)
    clip = {key: options[key] for key in ("row", "start_s", "duration_s", "seed")}
    requests = trace_requests(
        asked.workload, trace, data, **clip, mean_rps=asked.mean_rps, speed=asked.speed,
        until_s=options["most"] * window_s,
    )  # fmt: skip
    if not (requests.arrival_s >= WARM_UP * window_s).any():
        raise click.UsageError(
            f"{requests.source} has no request after the first window of {window_s:g} s, which is not judged: take a "
            "shorter --window, more --windows or another --start-s"
        )
    workload = asked.workload
    if asked.custom is None:
        try:
            world: World = options["world"] or "mixed"
            workload = walled(workload, requests, world, options["relative_slo"], options["seed"])
        except EvaluationError as error:
            raise click.ClickException(str(error)) from error
    seconds = window_s * max(WARM_UP + 1, ceil(float(requests.arrival_s[-1]) / window_s))
    with LongWork(Console(stderr=True)) as progress:
        task = progress.add_task("windows", total=1.0)
        compared = ways(
            workload, requests, window_s, seconds, options["seed"],
            lambda what, share: progress.update(task, description=what, completed=share),
        )  # fmt: skip
    if compared is None:
        raise click.ClickException(
            f"nothing that was tried keeps the SLO of {1000 * workload.slo_s:.4g} ms in any window; lower the load "
            f"(--mean-rps) or raise the SLO"
        )
    _show(workload, requests, compared, as_json)


def _show(workload: Workload, requests: Requests, compared: Ways, as_json: bool) -> None:
    currency = workload.prices.currency
    recommended = advice(compared, currency)
    if as_json:
        about = {
            "workload": workload.name,
            "trace": requests.source,
            "slo_ms": 1000 * workload.slo_s,
            "simulated": True,
        }
        click.echo(json.dumps({**about, **asdict(compared), "currency": currency, **asdict(recommended)}))
        return
    title = f"simulated: {workload.name}, {requests.source}, SLO {1000 * workload.slo_s:.4g} ms"
    table = Table("way", "an hour", "saves on one constant", title=title)
    for way, words in NAMES.items():
        cost = getattr(compared, way)
        saved = "–" if cost is None or compared.constant is None else f"{1 - cost / compared.constant:.0%}"
        table.add_row(words, "–" if cost is None else money(cost, currency), saved)
    Console().print(table)
    for sentence in recommended.sentences:
        click.echo(sentence)

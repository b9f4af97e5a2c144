"""From a trace's name to requests of a workload: what the commands of bound and tuning share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

from rl.sim.requests import Requests, draw_requests
from rl.workload import Workload
from rl.workload_paper import PAPER_WORKLOADS
from traces import catalog, loading, scale
from traces.options import clip_options, data_option, seed_option
from traces.trace import Trace


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Workload, trace, and which part of it at what rate."""
    for option in (
        seed_option,
        click.option(
            "--input-size",
            type=click.IntRange(1, 512),
            default=None,
            help="Mean tokens of a request. [default: the workload's]",
        ),
        click.option(
            "--mean-rps",
            type=click.FloatRange(0, 1e5),
            default=0.0,
            show_default=True,
            help="Requests per second on average; 0: as the trace is.",
        ),
        data_option,
        clip_options,
        click.option("--trace", required=True, help="A trace file, or a name of `smoe traces list`."),
        click.option(
            "--workload",
            "name",
            type=click.Choice(PAPER_WORKLOADS),
            required=True,
            help="One of the paper's, on the modelled cluster.",
        ),
    ):
        command = option(command)
    return command


def trace_requests(
    workload: Workload,
    trace: str,
    data: Path | None,
    *,
    row: str | None,
    start_s: float | None,
    duration_s: float | None,
    mean_rps: float,
    seed: int,
    until_s: float | None = None,
) -> Requests:
    """Requests that arrive as in the trace, before ``until_s``. Raises TraceError, SimulationError, UsageError."""
    path = catalog.resolve(trace, catalog.data_folder(data))
    found = loading.load(path, row=row, start_s=start_s, duration_s=duration_s, seed=seed)
    played = _at_rate(found, mean_rps, seed) if mean_rps and found.requests else found
    arrivals = np.asarray(played.arrival_s, dtype=np.float64)
    if until_s is not None:
        arrivals = arrivals[arrivals < until_s]
    if not arrivals.size:
        raise click.UsageError(
            f"{played.source} has no request" + ("" if until_s is None else f" before {until_s:g} s")
        )
    return draw_requests(workload, arrivals, seed=seed, source=played.source)


def _at_rate(trace: Trace, mean_rps: float, seed: int) -> Trace:
    """Thinned, so that times of day stay; a rate above the trace's own compresses it."""
    if mean_rps < trace.mean_rps:
        return scale.thin(trace, mean_rps / trace.mean_rps, seed)
    return scale.to_rate(trace, mean_rps)

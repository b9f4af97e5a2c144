"""From options to a workload and its requests: what the commands of bound and tuning share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.custom import CustomPipeline
from simulation.workloads.custom_options import any_slo_option, custom_options, custom_pipelines, prices_option
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from traces import catalog, loading, scale
from traces.options import clip_options, data_option, seed_option


def input_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Workload or pipeline of one's own, trace, and which part of it at what rate."""
    for option in (
        custom_options(any_slo_option),
        prices_option,
        seed_option,
        click.option(
            "--input-size", type=click.IntRange(1, 512), help="Mean tokens of a request. [default: the workload's]"
        ),
        click.option(
            "--mean-rps",
            type=click.FloatRange(0, 1e5),
            help="Requests per second on average; 0: as the trace is. [default: 0; with --pipeline 2.83, 14.1 with "
            "--cluster]",
        ),
        click.option(
            "--speed",
            type=click.FloatRange(0.01, 3600),
            help="The clip's time is divided by it. [default: 1; with --pipeline 30, without --cluster]",
        ),
        data_option,
        clip_options,
        click.option("--trace", required=True, help="A trace file, or a name of `smoe traces list`."),
        click.option(
            "--workload",
            "name",
            type=click.Choice(PAPER_WORKLOADS),
            help="One of the paper's, on the modelled cluster; needed without --pipeline.",
        ),
    ):
        command = option(command)
    return command


@dataclass(frozen=True)
class Asked:
    """The workload that a command is asked for, and how traces are replayed to it."""

    workload: Workload
    speed: float
    mean_rps: float
    custom: CustomPipeline | None


def asked_for(options: Mapping[str, Any]) -> Asked:
    """From the options of :func:`input_options`. Raises UsageError and CustomPipelineError."""
    name, folder, slo_ms, size = (options[key] for key in ("name", "folder", "slo_ms", "input_size"))
    if (name is None) == (folder is None):
        raise click.UsageError("name a workload of the paper's (--workload), or a custom pipeline (--pipeline)")
    targets = () if slo_ms is None or folder is None else (slo_ms,)
    machine = (options[key] for key in ("profile", "cpu_scale", "other_machine", "slo_factor", "cluster"))
    pipelines = custom_pipelines(folder, targets, *machine)
    speed, mean_rps = (pipelines[0].speed, pipelines[0].rate_rps) if pipelines else (1.0, 0.0)
    mean_rps = mean_rps if options["mean_rps"] is None else options["mean_rps"]
    workload = pipelines[0].served(0, size or 0, mean_rps) if pipelines else paper_workload(name, mean_tokens=size)
    if slo_ms is not None:
        workload = replace(workload, slo_s=slo_ms / 1000)
    if options["prices"] is not None:
        workload = replace(workload, prices=options["prices"])
    return Asked(
        workload,
        speed if options["speed"] is None else options["speed"],
        mean_rps,
        pipelines[0] if pipelines else None,
    )


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
    speed: float = 1.0,
    until_s: float | None = None,
) -> Requests:
    """Requests that arrive as in the trace, its time divided by ``speed``, before ``until_s``. Raises TraceError,
    SimulationError, UsageError."""
    path = catalog.resolve(trace, catalog.data_folder(data))
    clip = loading.load(path, row=row, start_s=start_s, duration_s=duration_s, seed=seed)
    replayed = scale.compress(scale.at_rate(clip, mean_rps / speed, seed), speed)  # minutes are the trace's own
    arrivals = np.asarray(replayed.arrival_s, dtype=np.float64)
    if until_s is not None:
        arrivals = arrivals[arrivals < until_s]
    if not arrivals.size:
        raise click.UsageError(
            f"{replayed.source} has no request" + ("" if until_s is None else f" before {until_s:g} s")
        )
    return draw_requests(workload, arrivals, seed=seed, source=replayed.source)

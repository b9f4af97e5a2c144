"""Options by which commands are given a pipeline of one's own, with the profile of its machine, and own prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autoscaler.errors import SettingsError
from autoscaler.prices import PriceSheet, load_prices
from moe.errors import MoeError
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.errors import ProfileError
from simulation.profiles.model.storage import check_machine, load
from simulation.workloads.custom import CustomPipeline, on_cluster

pipeline_option = click.option(
    "--pipeline",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A custom pipeline's folder, with a profile of it (smoe lab profile); alone unless a workload is given too.",
)
profile_option = click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Profile of a custom pipeline. [default: the one of this tree that fits]",
)
cpu_scale_option = click.option(
    "--cpu-scale",
    type=click.FloatRange(0),
    default=0.0,
    show_default=False,
    help="Real cores per configured core. [default: the profile's]",
)
cluster_option = click.option(
    "--cluster",
    is_flag=True,
    help="Simulate a custom pipeline on the modelled cluster, where Φ has GPU shares: cores as in the profile, shares "
    "as in the profile or, where it has none, modelled (roofline).",
)
other_machine_option = click.option(
    "--other-machine", is_flag=True, help="The profile's machine is meant, where this one is another."
)


def _sheet(_: click.Context, option: click.Parameter, path: Path | None) -> PriceSheet | None:
    try:
        return None if path is None else load_prices(path)
    except SettingsError as error:
        raise click.BadParameter(str(error)) from error


prices_option = click.option(
    "--prices",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_sheet,
    help="Price sheet (TOML, as autoscaler/prices.toml). [default: the workload's]",
)
slo_factor_option = click.option(
    "--slo-factor",
    type=click.FloatRange(0.1, 1e4),
    help="Instead: so many times what the whole model takes for a mean request on this machine, measured now.",
)
SLO_MS = click.FloatRange(0.1)
slo_option = click.option("--slo-ms", type=SLO_MS, help="P95 target of a custom pipeline in milliseconds.")
any_slo_option = click.option(
    "--slo-ms", type=SLO_MS, help="P95 target in milliseconds; needed with --pipeline. [default: the workload's]"
)
slos_option = click.option(
    "--slo-ms",
    type=SLO_MS,
    multiple=True,
    help="P95 target of a custom pipeline in milliseconds; repeatable, to know several.",
)


def custom_options(slo: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of a custom pipeline; ``slo``: the one of the above that the command takes."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (
            *(other_machine_option, cluster_option, cpu_scale_option, profile_option),
            *(slo_factor_option, slo, pipeline_option),
        ):
            command = option(command)
        return command

    return decorate


def custom_pipelines(
    folder: Path | None,
    slo_ms: Sequence[float],
    profile: Path | None,
    cpu_scale: float,
    other_machine: bool,
    slo_factor: float | None = None,
    cluster: bool = False,
) -> tuple[CustomPipeline, ...]:
    """One for each target; none where no pipeline is named. ``slo_factor``: one target more, so many times the whole
    model's own time, which is printed on standard error. Raises UsageError where options do not belong together, and
    where the pipeline has no profile that fits it and, unless ``other_machine`` or the ``cluster`` is meant, this
    machine, with the difference named."""
    if folder is None:
        if slo_ms or profile or cpu_scale or other_machine or slo_factor or cluster:
            raise click.UsageError(
                "--slo-ms, --slo-factor, --profile, --cpu-scale, --other-machine and --cluster are of one's own "
                "--pipeline, which is missing"
            )
        return ()
    if not slo_ms and slo_factor is None:
        raise click.UsageError("--pipeline needs --slo-ms or --slo-factor, the latency target that P95 is to keep")
    if slo_factor is not None and other_machine:
        raise click.UsageError(
            "--slo-factor measures the whole model on this machine; of a profile's --other-machine give --slo-ms"
        )
    targets_ms = list(slo_ms)
    try:
        pipeline = CustomPipeline(str(folder), targets_ms[0] if targets_ms else 1.0, str(profile or ""), cpu_scale)
        pipeline = on_cluster(pipeline) if cluster else pipeline
        pipeline.served()
        if not (other_machine or cluster):
            refuse_other_machines([pipeline])
        if slo_factor is not None:
            targets_ms.append(_target_ms(folder, slo_factor, pipeline.mean_tokens))
    except (ProfileError, MoeError) as error:
        raise click.UsageError(str(error)) from error
    return tuple(replace(pipeline, slo_ms=one) for one in targets_ms)


def _target_ms(folder: Path, factor: float, tokens: float) -> float:
    from simulation.profiles.measure.whole import (
        whole_model_s,  # loads the model's packages, which others can do without
    )

    whole_ms = 1000 * whole_model_s(folder, round(tokens))
    target_ms = round(factor * whole_ms, 1)
    click.echo(
        f"latency target: {factor:g} × {whole_ms:.2f} ms (the whole model, {tokens:g} tokens, one thread, now) = "
        f"{target_ms:g} ms; --slo-ms {target_ms:g} goes on with stored runs",
        err=True,
    )
    return target_ms


def refuse_other_machines(pipelines: Sequence[CustomPipeline]) -> None:
    """Raises UsageError where a profile is of another machine than this one, with the difference named."""
    try:
        for path in {pipeline.profile_file for pipeline in pipelines}:
            check_machine(load(path).metadata, this_machine())
    except ProfileError as error:
        raise click.UsageError(f"{error} (--other-machine)") from error

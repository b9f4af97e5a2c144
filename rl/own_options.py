"""Options by which commands are given a pipeline of one's own, with the profile of its machine, and own prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from autoscaler.errors import SettingsError
from autoscaler.prices import PriceSheet, load_prices
from moe.errors import MoeError
from rl.profile.errors import ProfileError
from rl.profile.machine import this_machine
from rl.profile.storage import check_machine, load
from rl.workload_own import OwnPipeline

pipeline_option = click.option(
    "--pipeline",
    "folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=None,
    help="One's own pipeline folder, with a profile of it (smoe profile); alone unless a workload is given too.",
)
profile_option = click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default=None,
    help="Profile of one's own pipeline. [default: the one of this tree that fits]",
)
cpu_scale_option = click.option(
    "--cpu-scale",
    type=click.FloatRange(0),
    default=0.0,
    help="Real cores per configured core. [default: the profile's]",
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
    default=None,
    help="Price sheet (TOML, as autoscaler/prices.toml). [default: the workload's]",
)
SLO_MS = click.FloatRange(0.1)
slo_option = click.option(
    "--slo-ms", type=SLO_MS, default=None, help="P95 target of one's own pipeline in milliseconds."
)
any_slo_option = click.option(
    "--slo-ms",
    type=SLO_MS,
    default=None,
    help="P95 target in milliseconds; needed with --pipeline. [default: the workload's]",
)
slos_option = click.option(
    "--slo-ms",
    type=SLO_MS,
    multiple=True,
    help="P95 target of one's own pipeline in milliseconds; repeatable, to know several.",
)


def own_options(slo: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of one's own pipeline; ``slo``: the one of the above that the command takes."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in (other_machine_option, cpu_scale_option, profile_option, slo, pipeline_option):
            command = option(command)
        return command

    return decorate


def own_pipelines(
    folder: Path | None, slo_ms: Sequence[float], profile: Path | None, cpu_scale: float, other_machine: bool
) -> tuple[OwnPipeline, ...]:
    """One for each target; none where no pipeline is named. Raises UsageError where options do not belong together, and
    where the pipeline has no profile that fits it and, unless ``other_machine`` is meant, this machine, with the
    difference named."""
    if folder is None:
        if slo_ms or profile or cpu_scale or other_machine:
            raise click.UsageError(
                "--slo-ms, --profile, --cpu-scale and --other-machine are of one's own --pipeline, which is missing"
            )
        return ()
    if not slo_ms:
        raise click.UsageError("--pipeline needs --slo-ms, the latency target that P95 is to keep")
    found = tuple(OwnPipeline(str(folder), one, str(profile or ""), cpu_scale) for one in slo_ms)
    try:
        found[0].served()
    except (ProfileError, MoeError) as error:
        raise click.UsageError(str(error)) from error
    if not other_machine:
        refuse_other_machines(found)
    return found


def refuse_other_machines(pipelines: Sequence[OwnPipeline]) -> None:
    """Raises UsageError where a profile is of another machine than this one, with the difference named."""
    try:
        for path in {own.profile_file for own in pipelines}:
            check_machine(load(path).metadata, this_machine())
    except ProfileError as error:
        raise click.UsageError(f"{error} (--other-machine)") from error

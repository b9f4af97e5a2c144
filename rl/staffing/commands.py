"""``smoe lab train-staffing``: the staffing policy from traces, in the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console

from rl.staffing.checkpoint import BEST
from rl.staffing.hours import HourSettings
from rl.staffing.settings import StaffingSettings
from rl.staffing.training import train
from rl.train.display import Display, interruptible
from rl.train.errors import TrainingError
from rl.train.limit import Limit
from simulation.workloads.paper import PAPER_WORKLOADS
from simulation.workloads.worlds import World

HOURS, SETTINGS = HourSettings(), StaffingSettings()


@click.command("train-staffing")
@click.option("--workload", type=click.Choice(PAPER_WORKLOADS), default=HOURS.workload)
@click.option("--world", type=click.Choice(get_args(World)), default=HOURS.world, help="Cluster it runs on.")
@click.option(
    "--relative-slo",
    type=click.FloatRange(1.0, 1e3, min_open=True),
    default=HOURS.relative_slo,
    help="λ as so many times the P95 of steady requests with unlimited capacity.",
)
@click.option(
    "--mean-rps",
    type=(click.FloatRange(0.1, 1e4), click.FloatRange(0.1, 1e4)),
    default=HOURS.mean_rps,
    metavar="LEAST MOST",
    help="Mean requests per second of the hours.",
)
@click.option("--windows", type=click.IntRange(1, 10_000_000), default=SETTINGS.windows)
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 1e5),
    default=240.0,
    show_default=True,
    help="Minutes of processor time after which it stops, whatever it does then.",
)
@click.option("--hours", type=click.IntRange(1, 10_000), default=SETTINGS.train_hours)
@click.option("--seed", type=click.IntRange(0, 10_000_000), default=SETTINGS.seed)
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the public traces. [default: $SMOE_TRACES, else ../shared/traces if there]",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/staffing"), show_default=True,
    help="A run that is there goes on.",
)  # fmt: skip
def train_staffing(
    workload: str, world: World, relative_slo: float, mean_rps: tuple[float, float], windows: int, minutes: float,
    hours: int, seed: int, traces: Path | None, out: Path,
) -> None:  # fmt: skip
    """Learn how much capacity every expert has, and by which rule its standbys wake; keep the best actor.

    Everything is simulated. Hours are of the train set; the actor is chosen on validation hours at 20 and 80 requests
    a second. Writes actor.safetensors (setting `actor` of `--policy staffing-learnt`), a checkpoint to go on from,
    curve.json and learning curves (tensorboard --logdir OUT/tensorboard).
    """
    chosen = StaffingSettings(
        hours=HourSettings(workload=workload, world=world, relative_slo=relative_slo, mean_rps=mean_rps),
        windows=windows,
        train_hours=hours,
        seed=seed,
    )
    console = Console(stderr=True)
    with interruptible(console) as stop:
        limit = Limit(minutes, stop.is_set)
        with Display(console, limit, windows):
            learning = train(chosen, out, traces, console.print, limit)
    spent = f"{learning.progress.windows} windows, {limit.spent_s / 60:.1f} minutes of one core"
    best: dict[str, Any] | None = next((entry for entry in reversed(learning.curve) if entry["best"]), None)
    if best is None:
        raise TrainingError(
            f"no actor yet: {spent}; the same command, with more --minutes where they ended it, goes on"
        )
    click.echo(
        f"{out / BEST}: {spent}; best after {best['windows']} windows, cost {best['cost']:.3f} of the reference, "
        f"{100 * best['violated']:.1f} % of validation windows over λ"
    )

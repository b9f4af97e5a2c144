"""``python -m rl.faasconf.train``: train FaaSConf's agents for workloads, on training hours in the simulator."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from autoscaler.options import options_of
from evaluation.comparison.grid import Grid
from rl.faasconf.agent import save
from rl.faasconf.policy import WEIGHTS
from rl.faasconf.storage import load_state, save_state
from rl.faasconf.training import Judged, Trainer, TrainingSettings
from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS


def train(
    grid: Grid,
    settings: TrainingSettings,
    out: Path,
    weights: Path,
    on_episode: Callable[[Trainer, Judged | None], object] = lambda trainer, judged: None,
) -> Judged | None:
    """Train for the one workload of ``grid``; the best weights go to ``weights/WORKLOAD.safetensors``.

    ``out`` keeps the state (a training that was stopped goes on) and one line for each judgement in WORKLOAD.csv.
    Returns the judgement of the best weights. Raises EvaluationError, TraceError, SettingsError.
    """
    name = grid.workloads[0]
    state, log = out / f"{name}.state.safetensors", out / f"{name}.csv"
    trainer, best = Trainer(grid, settings), None
    if state.is_file():
        best = load_state(trainer, state)
    while trainer.episode < trainer.episodes:
        trainer.step()
        judged = None
        if trainer.is_due:
            judged = trainer.judge()
            out.mkdir(parents=True, exist_ok=True)
            _log(log, judged)
            if best is None or judged.rank < best.rank:
                best = judged
                save(trainer.learner.agent, weights / f"{name}.safetensors", _about(grid, settings, judged))
            save_state(trainer, best, state)
        on_episode(trainer, judged)
    return best


def _about(grid: Grid, settings: TrainingSettings, judged: Judged) -> dict[str, Any]:
    return {
        "workload": grid.workloads[0],
        "patterns": grid.patterns,
        "seconds": grid.seconds,
        "mean_rps": grid.mean_rps,
        "settings": asdict(settings),
        "validation": asdict(judged),
    }


def _log(path: Path, judged: Judged) -> None:
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(Judged)])
        if new:
            writer.writeheader()
        writer.writerow(asdict(judged))


@click.command(context_settings={"show_default": True})
@click.option("--workloads", default=",".join(PAPER_WORKLOADS))
@click.option("--patterns", default=",".join(PATTERNS))
@options_of(TrainingSettings)
@click.option("--seconds", default=600.0, help="Of an episode.")
@click.option("--mean-rps", default=20.0)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="The public traces.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/faasconf"))
@click.option("--weights", type=click.Path(path_type=Path, file_okay=False), default=WEIGHTS, help="Where they go.")
def main(
    workloads: str,
    patterns: str,
    seconds: float,
    mean_rps: float,
    data: Path | None,
    out: Path,
    weights: Path,
    **given: Any,
) -> None:
    """Train one workload after the other; what is in --out goes on where it was."""
    settings = TrainingSettings(**given)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name in workloads.split(","):
            grid = Grid(
                (name,), tuple(patterns.split(",")), (0,), ("static",), (0,),
                seconds=seconds, mean_rps=mean_rps, data=data, bound=False,
            )  # fmt: skip
            task = progress.add_task(name, total=settings.filling + settings.episodes)

            def on_episode(trainer: Trainer, judged: Judged | None, task: Any = task, name: str = name) -> None:
                progress.update(task, completed=trainer.episode)
                if judged is not None:
                    progress.console.print(f"{name} {judged}")

            best = train(grid, settings, out, weights, on_episode)
            click.echo(f"{weights / name}.safetensors: {best}")


if __name__ == "__main__":
    main()

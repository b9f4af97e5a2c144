"""How long learning takes and what comes of it: ``python -m benchmarks.training``.

A run of ``smoe lab train`` with its default settings, for as many ``--minutes`` of one core, for each of ``--seeds``.
Next to the actor stand, on the same validation clips, the start that is never changed (what an operator finds by
profiling the first windows), the teacher of the warm start, and the last window's optimum. A run that is in ``--out``
goes on or is read. All of it is simulated; validation clips are no test. The last line is one JSON object:
``minutes`` (processor time of the longest run), ``windows``, ``curve`` (validation by windows and minutes: cost over
C_ref, share of windows over λ), ``curves`` of every seed, ``beside`` (each policy's cost over the bound), ``seeds``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.report import print_result, table_of
from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings
from rl.agent.contract import Batch, State
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.export import load
from rl.episodes import Episode
from rl.train.commands import changed, line_of
from rl.train.parallel_episodes import Actions, Decide
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from rl.train.teacher import TeacherSettings
from rl.train.validation import Validator, holding
from rl.train.warm_start import Teaching, teacher_of, to_indices


def acting(path: Path) -> Decide:
    """A stored actor, without noise."""
    actor = load(path)

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        return list(decide_by(actor, Batch.of(episodes[0].encoder.space, states)))

    return decide


def teaching(settings: TeacherSettings) -> Decide:
    """The teacher of the warm start as a policy, each episode with its own."""
    teachers: dict[int, tuple[Episode, Teaching]] = {}

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        plans = []
        for episode, state in zip(episodes, states, strict=True):
            if id(episode) not in teachers:
                teachers[id(episode)] = episode, teacher_of(episode, settings)
            plans.append(to_indices(teachers[id(episode)][1].plan(episode.observation)[0], episode, state))
        return plans

    return decide


def last_window(settings: TrainingSettings) -> Decide:
    """The last window's optimum (:mod:`evaluation.bound.last_window`) as a policy."""
    planners: dict[int, tuple[Episode, LastWindowPolicy]] = {}

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        plans = []
        for episode, state in zip(episodes, states, strict=True):
            planner = LastWindowPolicy(episode.workload, LastWindowSettings(meter=settings.meter))
            planner = planners.setdefault(id(episode), (episode, planner))[1]
            desired = planner.propose(episode.observation, episode.observation.end_s, None).desired
            plans.append(to_indices(desired, episode, state))
        return plans

    return decide


def compared(run: Run) -> dict[str, dict[str, Any]]:
    """Name → figures over the bound, on the validation clips: the actor that was kept, and what is compared with it."""
    settings, validator = run.settings, Validator(run.settings, run.out / "cache", run.data)
    policies: dict[str, Decide] = {
        "learnt": acting(run.out / BEST),
        "start, never changed": holding,
        "teacher": teaching(settings.teacher),
        "last window's optimum": last_window(settings),
    }
    figures = {}
    for name, decide in policies.items():
        judged = validator.judge(decide, profiled=True)
        bounds = [validator.bound(clip) for clips in validator.clips.values() for clip in clips]
        over = [clip.cost / bound for clip, bound in zip(judged.clips, bounds, strict=True)]
        figures[name] = {
            "cost_over_bound": round(float(np.mean(over)), 4),
            "violated": round(judged.violated, 4),
            "excess": round(judged.excess, 4),
        }
    return figures


def shown(entries: dict[str, dict[str, Any]]) -> Table:
    """For people."""
    heads = ("policy", "cost over bound", "windows over λ", "mean excess")
    rows = [
        (name, f"{entry['cost_over_bound']:.3f}", f"{100 * entry['violated']:.1f} %", f"{entry['excess']:.3f}")
        for name, entry in entries.items()
    ]
    return table_of("simulated: validation clips, experts' cost over the bound", heads, rows)


@click.command()
@click.option(
    "--minutes", default=40.0, show_default=True, type=click.FloatRange(0.1), help="Minutes of one core, for each seed."
)
@click.option("--seeds", default="0", show_default=True, help="Seeds of training, comma list.")
@click.option("--workloads", default=",".join(TrainingSettings().workloads), show_default=True, help="Comma list.")
@click.option(
    "--windows",
    default=TrainingSettings().windows,
    show_default=True,
    type=click.IntRange(1),
    help="Windows planned, for schedules.",
)
@click.option("--set", "changes", multiple=True, metavar="KEY=JSON", help="Setting, as of smoe lab train.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/training"),
    show_default=True,
    help="A run that is there goes on.",
)
def main(minutes: float, seeds: str, workloads: str, windows: int, changes: tuple[str, ...], out: Path) -> None:
    """Train, and print the curve."""
    console = Console(stderr=True)
    runs: list[Run] = []
    for seed in map(int, seeds.split(",")):
        settings = changed(TrainingSettings(workloads=tuple(workloads.split(",")), windows=windows, seed=seed), changes)
        run = Run(settings, out / f"seed-{seed}")
        run.go(minutes, on_validation=lambda entry: console.print(line_of(entry)))
        runs.append(run)
    comparison = compared(runs[0])
    console.print(shown(comparison))
    curves = {run.settings.seed: [without_clips(entry) for entry in run.progress.curve] for run in runs}
    print_result(
        {
            "minutes": round(max(run.progress.minutes for run in runs), 1),
            "windows": max(run.agent.num_timesteps for run in runs),
            "curve": curves[runs[0].settings.seed],
            "curves": curves,
            "beside": comparison,
            "seeds": [run.settings.seed for run in runs],
        }
    )


def without_clips(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "clips"}


if __name__ == "__main__":
    main()

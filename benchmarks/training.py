"""How long learning takes and what comes of it: ``python -m benchmarks.training``.

A run of ``smoe lab train`` with its default settings, for as many ``--minutes`` of one core, for each of ``--seeds``.
Next to the actor stand, on the same validation clips, the start that is never changed (what an operator finds by
profiling the first windows), the teacher of the warm start, and the last window's optimum. A run that is in ``--out``
goes on or is read. All of it is simulated; validation clips are no test. The last line is one JSON object:
``minutes`` (processor time of the longest run), ``windows``, ``curve`` (validation by windows and minutes: cost over
C_ref, share of windows over λ), ``curves`` of every seed, ``beside`` (each policy's cost over the bound), ``seeds``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.contract import Configuration, Observation
from benchmarks.harness.options import AT_LEAST_1, benchmark, changes_option, listed, out_option
from benchmarks.harness.report import print_result, print_table
from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings
from rl.agent.contract import Batch, State
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.export import load
from rl.episodes import Episode
from rl.train.commands import changed
from rl.train.display import line_of
from rl.train.parallel_episodes import Actions, Decide
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from rl.train.teacher import TeacherSettings
from rl.train.validation import Validator
from rl.train.warm_start import teacher_of, to_indices

Plan = Callable[[Observation], Mapping[str, Configuration]]
"""What a window was, to the configurations of the next."""


def acting(path: Path) -> Decide:
    """A stored actor, without noise."""
    actor = load(path)

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        return list(decide_by(actor, Batch.of(episodes[0].encoder.space, states)))

    return decide


def planning(plan_of: Callable[[Episode], Plan]) -> Decide:
    """What plans by configurations as a policy, made once for each episode."""
    plans: dict[int, tuple[Episode, Plan]] = {}

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        actions = []
        for episode, state in zip(episodes, states, strict=True):
            if id(episode) not in plans:
                plans[id(episode)] = episode, plan_of(episode)
            actions.append(to_indices(plans[id(episode)][1](episode.observation), episode, state))
        return actions

    return decide


def teaching(settings: TeacherSettings) -> Decide:
    """The teacher of the warm start as a policy."""

    def plan_of(episode: Episode) -> Plan:
        teacher = teacher_of(episode, settings)
        return lambda observation: teacher.plan(observation)[0]

    return planning(plan_of)


def last_window(settings: TrainingSettings) -> Decide:
    """The last window's optimum (:mod:`evaluation.bound.last_window`) as a policy."""

    def plan_of(episode: Episode) -> Plan:
        planner = LastWindowPolicy(episode.workload, LastWindowSettings(meter=settings.meter))
        return lambda observation: planner.propose(observation, observation.end_s, None).desired

    return planning(plan_of)


def trained(settings: TrainingSettings, minutes: float, out: Path, name: str = "") -> Run:
    """A run of ``smoe lab train`` that goes on where it was; its validations are printed, with ``name`` in front."""
    run = Run(settings, out)
    run.go(minutes, on_validation=lambda entry: click.echo(f"{name}{line_of(entry)}", err=True))
    return run


def curve_of(run: Run) -> list[dict[str, Any]]:
    """The run's validations without their clips."""
    return [{key: value for key, value in entry.items() if key != "clips"} for entry in run.progress.curve]


def compared(run: Run) -> dict[str, dict[str, Any]]:
    """Name → figures over the bound, on the validation clips: the actor that was kept, and what is compared with it."""
    settings, validator = run.settings, Validator(run.settings, run.out / "cache", run.data)
    policies: dict[str, Decide] = {
        "learnt": acting(run.out / BEST),
        "start, never changed": lambda episodes, states: [state.present for state in states],
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


@benchmark
@click.option("--minutes", default=40.0, type=click.FloatRange(0.1), help="Minutes of one core, for each seed.")
@click.option("--seeds", callback=listed(int), default="0", help="Seeds of training, comma list.")
@click.option("--workloads", callback=listed(), default=",".join(TrainingSettings().workloads), help="Comma list.")
@click.option("--windows", default=TrainingSettings().windows, type=AT_LEAST_1, help="Windows planned, for schedules.")
@changes_option
@out_option("out/training", "A run that is there goes on.")
def main(
    minutes: float, seeds: Sequence[int], workloads: tuple[str, ...], windows: int, changes: tuple[str, ...], out: Path
) -> None:
    runs = []
    for seed in seeds:
        settings = changed(TrainingSettings(workloads=workloads, windows=windows, seed=seed), changes)
        runs.append(trained(settings, minutes, out / f"seed-{seed}"))
    comparison = compared(runs[0])
    rows = [
        (name, f"{entry['cost_over_bound']:.3f}", f"{100 * entry['violated']:.1f} %", f"{entry['excess']:.3f}")
        for name, entry in comparison.items()
    ]
    heads = ("policy", "cost over bound", "windows over λ", "mean excess")
    print_table("simulated: validation clips, experts' cost over the bound", heads, rows)
    curves = {run.settings.seed: curve_of(run) for run in runs}
    result = {
        "minutes": round(max(run.progress.minutes for run in runs), 1),
        "windows": max(run.agent.num_timesteps for run in runs),
        "curve": curves[runs[0].settings.seed],
        "curves": curves,
        "beside": comparison,
        "seeds": [run.settings.seed for run in runs],
    }
    print_result(result)


if __name__ == "__main__":
    main()

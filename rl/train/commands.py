"""``smoe lab train``: a policy from traces, in the simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from autoscaler.options import options_of
from evaluation.comparison.policies import planned_by
from rl.agent.log_options import manifest_option
from rl.train.display import Display, interruptible
from rl.train.errors import TrainingError
from rl.train.limit import Limit
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from simulation.workloads.custom import CustomPipeline
from simulation.workloads.custom_options import custom_options, custom_pipelines, refuse_other_machines, slos_option
from simulation.workloads.paper import PAPER_WORKLOADS

DEFAULT = TrainingSettings()


@click.command()
@click.option(
    "--workload", "workloads", multiple=True, type=click.Choice(PAPER_WORKLOADS), help="Repeatable. [default: all]"
)
@custom_options(slos_option)
@click.option(
    "--traces",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of the public traces. [default: $SMOE_TRACES, else ../shared/traces if there]",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=None,
    help="A controller's log folder (smoe autoscale --log-dir): its windows are learnt from, too.",
)
@manifest_option
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 1e5),
    default=40.0,
    show_default=True,
    help="Minutes of processor time after which it stops, whatever it does then.",
)
@options_of(TrainingSettings)
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=JSON", help="A setting without an option: learner.gamma=0.9."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/train"), show_default=True,
    help="A run that is there goes on.",
)  # fmt: skip
def train(
    workloads: tuple[str, ...], folder: Path | None, slo_ms: tuple[float, ...], profile: Path | None, cpu_scale: float,
    other_machine: bool, slo_factor: float | None, cluster: bool, traces: Path | None, log: Path | None,
    manifest: Path | None, minutes: float, out: Path, **options: Any,
) -> None:  # fmt: skip
    """Learn one policy for all the workloads, and keep the best actor that validation clips have seen.

    Everything is simulated: the paper's workloads on the modelled cluster, a custom pipeline on the machine of its
    profile. Hours are of the train set, actors are chosen on validation hours.
    With --log training begins with what a controller logged in production, decided by whichever policy ran, and
    simulates on from there; the log's pipeline need not be one that is simulated.
    Writes actor.safetensors (setting `actor` of `--policy smoe`), a checkpoint to go on from, curve.json and learning
    curves (tensorboard --logdir OUT/tensorboard).
    """
    changes = options.pop("changes")
    pipelines = custom_pipelines(folder, slo_ms, profile, cpu_scale, other_machine, slo_factor, cluster)
    variants = DEFAULT.variants if workloads or not pipelines else ()
    named = workloads if pipelines else workloads or PAPER_WORKLOADS
    chosen = replace(DEFAULT, workloads=named, variants=variants, pipelines=pipelines, **options)
    settings = changed(chosen, changes)
    if not other_machine:
        refuse_other_machines([pipelines for pipelines in settings.pipelines if not pipelines.cluster])
    console = Console(stderr=True)
    kept = f"minutes, the first time; kept in {out / 'cache'}"
    console.print(f"choosing hours to validate on, in which some configuration keeps the SLO ({kept})")
    with interruptible(console) as stop:
        limit = Limit(minutes, stop.is_set)
        with Display(console, limit, settings.windows) as display:
            run = Run(
                settings, out, traces, log, lambda name, clips: console.print(f"{name}: {clips} hours"), limit, manifest
            )
            for note in run.validator.notes():
                console.print(note)
            run.go(display.validation)
    (out / "curve.json").write_text(json.dumps(run.progress.curve, indent=1))
    spent = f"{run.agent.num_timesteps} windows, {run.progress.minutes:.1f} minutes of one core"
    if not (out / BEST).is_file():
        raise TrainingError(f"no actor yet: {spent}; the same command with more --minutes goes on")
    judged = "not judged yet" if run.progress.best is None else f"best score {run.progress.best:.3f}"
    click.echo(f"{out / BEST}: {spent}, {judged}")
    click.echo(next_step(out, settings.pipelines), err=True)


def next_step(out: Path, pipelines: Sequence[CustomPipeline] = ()) -> str:
    """What to do with an actor that was stored. ``pipelines``: custom ones that it was trained on; the policy has to
    count in the same mean calls."""
    counting: dict[str, list[str]] = {}
    for pipeline in pipelines:
        left_out = {"other_machine"} | (set() if pipeline.profile else {"profile"})  # of the tree, as the policy does
        planned = planned_by(pipeline).items()
        keys = _lines({key: value for key, value in planned if value and key not in left_out})
        counting.setdefault(keys, []).append(pipeline.name)
    several = len(counting) > 1
    parts = [f"{keys} for {' and '.join(names)}" if several else keys for keys, names in counting.items()]
    written = ", ".join([_lines({"actor": str(out.resolve() / BEST)}), *parts])
    return (
        f"next: write {written} into settings/smoe.toml, then "
        "`smoe lab evaluate --policies hpa,smoe --policy-settings settings` compares it in the simulator and "
        "`smoe autoscale --policy smoe --policy-settings settings/smoe.toml --shadow` on a live pipeline"
    )


def _lines(table: Mapping[str, object]) -> str:
    """Lines of a settings file, each quoted."""
    return ", ".join(f"'{key} = {json.dumps(value)}'" for key, value in table.items())


def changed(settings: TrainingSettings, changes: tuple[str, ...]) -> TrainingSettings:
    """``KEY=JSON`` put into the settings; a dot goes into a part. Raises TrainingError."""
    stored = settings.as_json()
    for change in changes:
        key, separator, text = change.partition("=")
        part, _, name = key.rpartition(".")
        where = stored.get(part) if part else stored
        if not separator or not isinstance(where, dict) or name not in where:
            raise click.BadParameter(f"{change!r} is no KEY=JSON of the settings; keys are {', '.join(sorted(stored))}")
        try:
            where[name] = json.loads(text)
        except json.JSONDecodeError:
            where[name] = text
    return TrainingSettings.from_json(stored)

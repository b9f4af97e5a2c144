"""An agent on pipelines of sizes that it was not trained on: ``python -m benchmarks.zero_shot --minutes 8``.

The published actor has met 4 to 8 experts in 12 to 24 layers. Here it decides for ``bert-8`` blown up to 16, 32 and 64
experts a layer, and cut or stretched to 6 and 24 layers, where λ grows with the layers (``rl.episodes.sizes``). Next to
it stands, for each size, an agent that was trained there as ``smoe lab train`` does, for ``--minutes`` of one core, and
the teacher that both have cloned. All get the same hours of the validation set; the hour of each pattern on which
training chose its actor is left out. Cost is provisioned, in the price of the agent trained there. All of it is
simulated. A run that is in ``--out`` goes on or is read. The last line is one JSON object: ``sizes`` (name → cost and
share of windows over λ of each policy, ``ratio`` of the published actor's cost to the trained one's), ``worst``,
``minutes``, ``target``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.harness.report import print_result
from benchmarks.training import acting, teaching
from evaluation.comparison.learnt_files import published_actor
from rl.train.commands import changed, line_of
from rl.train.parallel_episodes import Decide
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from rl.train.training_workloads import SIZES
from rl.train.validation import Judged, Validator

TARGET = 1.1
"""Cost of the agent that was never there over that of the one that was."""
SEEDS = 3
"""Hours of each pattern; the first is the one on which training chooses."""


def trained(name: str, minutes: float, changes: tuple[str, ...], out: Path, console: Console) -> Run:
    """A run of ``smoe lab train`` at one size alone."""
    base = changed(TrainingSettings(workloads=(name,), variants=(), curriculum=False), changes)
    run = Run(base, out / name)
    run.go(minutes, on_validation=lambda entry: console.print(f"{name}: {line_of(entry)}"))
    return run


def judged(run: Run, policies: dict[str, Decide]) -> dict[str, list[Judged]]:
    """Policy → clips that training has not chosen on."""
    wider = replace(run.settings, validation=replace(run.settings.validation, seeds=SEEDS))
    validator, clips_of = Validator(wider, run.out / "cache", run.data), {}
    for policy, decide in policies.items():
        clips = validator.judge(decide).clips
        clips_of[policy] = [clip for number, clip in enumerate(clips) if number % SEEDS]
    return clips_of


def compared(clips_of: dict[str, list[Judged]]) -> dict[str, Any]:
    """Cost over the trained agent's, clip by clip, and windows over λ."""
    trained = clips_of["trained there"]
    table = {
        policy: {
            "cost": round(
                float(np.mean([one.cost / reference.cost for one, reference in zip(clips, trained, strict=True)])), 4
            ),
            "violated": round(sum(clip.violated for clip in clips) / max(1, sum(clip.judged for clip in clips)), 4),
        }
        for policy, clips in clips_of.items()
    }
    return {"policies": table, "ratio": table["published"]["cost"]}


def shown(sizes: dict[str, dict[str, Any]]) -> Table:
    """For people."""
    table = Table(title="simulated: cost over that of the agent trained there, and windows over λ")
    for name in ("size", "published, never there", "trained there", "teacher"):
        table.add_column(name, justify="left" if name == "size" else "right")
    for name, size in sizes.items():
        parts = [size["policies"][policy] for policy in ("published", "trained there", "teacher")]
        table.add_row(name, *(f"{part['cost']:.3f}, {100 * part['violated']:.1f} %" for part in parts))
    return table


@click.command()
@click.option(
    "--minutes", default=8.0, show_default=True, type=click.FloatRange(0.01), help="Minutes of one core, for each size."
)
@click.option("--sizes", "names", default=",".join(kind.name for kind in SIZES), show_default=True, help="Comma list.")
@click.option("--set", "changes", multiple=True, metavar="KEY=JSON", help="Setting of training, as of smoe lab train.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/zero-shot"),
    show_default=True,
    help="A run that is there goes on.",
)
def main(minutes: float, names: str, changes: tuple[str, ...], out: Path) -> None:
    """Train at every size, and compare with the published actor, which has never been there."""
    console, sizes = Console(stderr=True), dict[str, dict[str, Any]]()
    for name in names.split(","):
        run = trained(name, minutes, changes, out, console)
        policies: dict[str, Decide] = {
            "published": acting(published_actor(name, run.settings.meter)),
            "trained there": acting(run.out / BEST),
            "teacher": teaching(run.settings.teacher),
        }
        sizes[name] = {
            **compared(judged(run, policies)),
            "windows": run.agent.num_timesteps,
            "minutes": round(run.progress.minutes, 1),
        }
    console.print(shown(sizes))
    worst = max(size["ratio"] for size in sizes.values())
    print_result({"sizes": sizes, "worst": worst, "minutes": minutes, "target": TARGET, "met": worst <= TARGET})


if __name__ == "__main__":
    main()

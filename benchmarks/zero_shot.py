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

from benchmarks.harness.learnt import acting, teaching, trained
from benchmarks.harness.options import benchmark, changes_option, listed, out_option
from benchmarks.harness.report import print_result, print_table
from evaluation.comparison.learnt_files import published_actor
from rl.train.commands import changed
from rl.train.parallel_episodes import Decide
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from rl.train.training_workloads import SIZES
from rl.train.validation import Judged, Validator

TARGET = 1.1
"""Cost of the agent that was never there over that of the one that was."""
SEEDS = 3
"""Hours of each pattern; the first is the one on which training chooses."""


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
    there = [clip.cost for clip in clips_of["trained there"]]
    table = {
        policy: {
            "cost": round(float(np.mean([clip.cost / cost for clip, cost in zip(clips, there, strict=True)])), 4),
            "violated": round(sum(clip.violated for clip in clips) / max(1, sum(clip.judged for clip in clips)), 4),
        }
        for policy, clips in clips_of.items()
    }
    return {"policies": table, "ratio": table["published"]["cost"]}


@benchmark
@click.option("--minutes", default=8.0, type=click.FloatRange(0.01), help="Minutes of one core, for each size.")
@click.option("--sizes", "names", callback=listed(), default=",".join(one.name for one in SIZES), help="Comma list.")
@changes_option
@out_option("out/zero-shot", "A run that is there goes on.")
def main(minutes: float, names: tuple[str, ...], changes: tuple[str, ...], out: Path) -> None:
    sizes = dict[str, dict[str, Any]]()
    for name in names:
        alone = changed(TrainingSettings(workloads=(name,), variants=(), curriculum=False), changes)
        run = trained(alone, minutes, out / name, f"{name}: ")
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
    rows = []
    for name, size in sizes.items():
        parts = [size["policies"][policy] for policy in ("published", "trained there", "teacher")]
        rows.append((name, *(f"{part['cost']:.3f}, {100 * part['violated']:.1f} %" for part in parts)))
    title = "simulated: cost over that of the agent trained there, and windows over λ"
    print_table(title, ("size", "published, never there", "trained there", "teacher"), rows)
    worst = max(size["ratio"] for size in sizes.values())
    print_result({"sizes": sizes, "worst": worst, "minutes": minutes, "target": TARGET, "met": worst <= TARGET})


if __name__ == "__main__":
    main()

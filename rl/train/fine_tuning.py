"""``smoe lab fine-tune``: a trained agent learns from what a controller logged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console
from stable_baselines3.common.logger import Logger

from autoscaler.checked import from_table
from autoscaler.policy.bursting import BurstingSettings
from autoscaler.prices import money
from evaluation.progress import LongWork
from evaluation.provenance import code_sha256
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.doubts import RANGES, ranges_of
from rl.agent.export import save
from rl.agent.log_options import manifest_option
from rl.features.ranges import Ranges
from rl.train import online
from rl.train.errors import TrainingError
from rl.train.run import BEST
from simulation.workloads.custom import CustomPipeline
from traces.options import json_option
from traces.provenance import path_sha256


@click.command("fine-tune")
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder of the training run (smoe lab train --out) to go on from: actor and critic.",
)
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="A controller's log folder (smoe autoscale --log-dir).",
)
@manifest_option
@click.option("--updates", type=click.IntRange(1, 100_000), default=200, help="Updates of the networks.")
@click.option(
    "--policy-settings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The learnt policy's settings (TOML). [default: the log's]",
)
@click.option("--slo-ms", type=click.FloatRange(min=0.1), help="P95 target in milliseconds. [default: the log's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("out/fine-tuned.safetensors"),
    help="File of the actor; one that is there is replaced.",
)
@json_option
def fine_tune(
    folder: Path, log: Path, manifest: Path | None, updates: int, policy_settings: Path | None, slo_ms: float | None,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Let a trained agent learn from windows that a controller logged, and write its actor.

    Learns from decisions that were taken behind the limits, by whichever policy, and draws none of its own. The run's
    folder stays as it is. Nothing is deployed: compare both actors' desired configurations in the log's windows, try
    the new one next to the old (smoe autoscale --shadow), then name it as `actor` in the settings of --policy smoe.
    """
    checkpoint, made_by = folder / "checkpoint.zip", folder / "run.json"
    if not checkpoint.is_file() or not made_by.is_file():
        raise TrainingError(
            f"{folder} holds no training run; give the --out of smoe lab train, which has checkpoint.zip"
        )
    torch.set_num_threads(1)
    run = json.loads(made_by.read_text())
    standbys = from_table(BurstingSettings, run["settings"].get("standbys", {}))
    pipelines = [CustomPipeline.from_json(one) for one in run["settings"].get("pipelines", ())]
    slo_s = None if slo_ms is None else slo_ms / 1000
    logged = online.read(log, policy_settings, slo_s, manifest, standbys.burst, pipelines)
    agent = PipelineDDPG.load(checkpoint)
    agent.set_logger(Logger(None, []))
    before = online.desired(agent, logged)
    with LongWork(Console(stderr=True)) as bar:
        task = bar.add_task("updates", total=updates)
        online.fine_tune(agent, logged, updates, lambda: bar.advance(task))
    after = online.desired(agent, logged)
    tuned = {"log_sha256": path_sha256(log), "windows": len(logged.windows), "updates": updates}
    out.parent.mkdir(parents=True, exist_ok=True)
    made = {**run, RANGES: _ranges(folder, logged).as_json()}
    made["fine_tuned"] = {**tuned, "code_sha256": code_sha256("rl.train.fine_tuning")}
    save(out, agent.actor.network, made)
    outcome = {**tuned, "actor": str(out), **_compared(logged, before, after)}
    click.echo(json.dumps(outcome) if as_json else _described(outcome))


def _ranges(folder: Path, logged: online.Logged) -> Ranges:
    """Where the actor was trained: in the run, as far as its actor states that, and in the log."""
    ranges, actor = Ranges.of(one.state for one in logged.windows), folder / BEST
    before = ranges_of(actor) if actor.is_file() else None
    return ranges if before is None else ranges.joined(before)


def _compared(logged: online.Logged, before: online.Desired, after: online.Desired) -> dict[str, Any]:
    judged = [one.p95_s for one in logged.windows if one.p95_s is not None]
    over = sum(p95_s > logged.encoder.slo_s for p95_s in judged)
    return {
        "pipeline": logged.pipeline,
        "currency": logged.encoder.prices.currency,
        "ran_per_hour": float(np.mean(online.executed(logged))),
        "windows_over_slo": over / len(judged) if judged else None,
        "before_per_hour": before.per_hour,
        "after_per_hour": after.per_hour,
        "changed": after.share_changed(before),
    }


def _described(outcome: dict[str, Any]) -> str:
    over = "" if outcome["windows_over_slo"] is None else f", {100 * outcome['windows_over_slo']:.1f} % over the target"
    ran, before, after = (
        money(outcome[f"{name}_per_hour"], outcome["currency"]) for name in ("ran", "before", "after")
    )
    return (
        f"{outcome['actor']}: learnt from {outcome['windows']} windows of {outcome['pipeline']}, "
        f"{outcome['updates']} updates\n"
        f"experts in these windows: {ran} an hour provisioned as they ran{over}; "
        f"the actor asks for {before} before and {after} after, "
        f"otherwise in {100 * outcome['changed']:.0f} % of them. "
        "What P95 these configurations would have had is not known: nothing was tried."
    )

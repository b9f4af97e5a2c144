"""The paper's agent as it is written, learnt by stable-baselines3 itself: ``python -m benchmarks.paper_agent``.

``DDPG(PaperPolicy, env).learn()`` (:mod:`rl.paper_agent`) on two layers of four experts of ``bert-4`` on cores, λ
three times the P95 without queues, for ``--steps`` layer steps and each of ``--seeds``. The library's
``EvalCallback`` replays the same validation hours every ``--every`` steps; ``curve`` is their mean return. At the end
the same hours are replayed once more, next to the best constant for each expert that was searched on them
(``constant``) and to the configuration that episodes begin with, held (``start``). Costs are the experts' in the
price sheet's currency an hour. Last line: ``seeds`` (by seed: cost, windows over λ, distinct configurations among
experts and windows, minutes), ``constant``, ``start``, ``curve``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import gymnasium
import numpy as np
import torch
from stable_baselines3 import DDPG
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise

from autoscaler.contract import Configuration, ConfigurationSpace
from benchmarks.agent.replayed import variety
from benchmarks.harness.options import AT_LEAST_1, FOLDER, benchmark, listed
from benchmarks.harness.report import picture, print_result, print_table
from evaluation.regimes.judged import Work
from evaluation.tuning.constants import Hour, search_constants
from rl.env import PipelineEnv
from rl.episodes import WINDOW_S
from rl.episodes.sizes import resized
from rl.paper_agent import PaperPolicy, Stepwise, paper_networks
from rl.reward import RewardSettings
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from traces.splits import Split

SPACE = ConfigurationSpace(
    gpu_shares=(), memory_min_mb=512, memory_max_mb=1024, memory_step_mb=256, replicas_max=4, concurrency_max=4
)
"""288 configurations: the literal score looks at each of them for each expert of each sample of a batch."""
START = Configuration(512, 4.0, 0.0, 2, 4)
MEAN_RPS, SECONDS, RELATIVE_SLO, GAMMA = 40.0, 900.0, 3.0, 0.95
NETWORKS = {"width": 24, "hidden": 32, "dagnn_layers": 2}
TRIALS = 120


def small() -> Workload:
    """Two layers of four experts."""
    return replace(resized(paper_workload("bert-4"), 2, 4, seed=0), space=SPACE)


class SameHours(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The first ``hours`` of an environment in turn, so that evaluations are of the same hours."""

    def __init__(self, env: gymnasium.Env[Any, Any], hours: int) -> None:
        super().__init__(env)
        self._hours, self._next = hours, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._next += 1
        return self.env.reset(seed=(self._next - 1) % self._hours, options=options)


def env_of(split: Split, slo_weight: float) -> Stepwise:
    """The registered environment, stepwise."""
    return Stepwise(
        gymnasium.make(
            "rl.env:smoe/Pipeline-v0", workload=small(), pattern="normal", mean_rps=MEAN_RPS, seconds=SECONDS,
            world="cores-only", relative_slo=RELATIVE_SLO, start=START, split=split,
            settings=RewardSettings(slo_weight=slo_weight),
        )
    )  # fmt: skip


def learn(
    seed: int, steps: int, every: int, hours: int, slo_weight: float, folder: Path
) -> tuple[DDPG, list[tuple[int, float]], float]:
    """The agent of ``seed``, (step, mean return of the validation hours), minutes of processor time."""
    env = env_of("train", slo_weight)
    size = env.action_space.shape
    assert size is not None
    model = DDPG(
        PaperPolicy, env, policy_kwargs=paper_networks(env, **NETWORKS), gamma=GAMMA, learning_rate=5e-4,
        learning_starts=steps // 10, batch_size=32, buffer_size=20_000, seed=seed,
        action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.15)),
        tensorboard_log=str(folder / "tensorboard"),
    )  # fmt: skip
    evaluation = EvalCallback(
        Monitor(SameHours(env_of("validation", slo_weight), hours)),
        n_eval_episodes=hours,
        eval_freq=every,
        log_path=str(folder),
        verbose=0,
    )
    begun_s = time.process_time()
    model.learn(steps, callback=evaluation)
    minutes = (time.process_time() - begun_s) / 60
    with np.load(folder / "evaluations.npz") as stored:
        curve = list(zip(stored["timesteps"].tolist(), stored["results"].mean(-1).tolist(), strict=True))
    return model, curve, minutes


def replay(
    model: DDPG | None, hours: int, slo_weight: float, held: Sequence[Mapping[str, Configuration]] = ()
) -> dict[str, Any]:
    """Validation hours under ``model``; None: with what is ``held`` in each, or as they begin."""
    env, costs, over, judged, returned = env_of("validation", slo_weight), list[float](), 0, 0, 0.0
    plain = env.unwrapped
    assert isinstance(plain, PipelineEnv)
    mask = plain.encoder.configuration_index.mask
    decided = list[np.ndarray]()
    for hour in range(hours):
        observed, _ = env.reset(seed=hour)
        ended = False
        while not ended:
            if model is None:
                state, _, layer = plain.deciding
                positions = plain.encoder.configuration_index.actions(held[hour]) if held else state.present
                observed, reward, _, ended, info = env.env.step(positions[layer].ravel().astype(np.int64))
            else:
                action, _ = model.predict(observed, deterministic=True)
                observed, reward, _, ended, info = env.step(action)
            returned += float(reward)
            if "provisioned" not in info:
                continue
            costs.append(info["provisioned"] * 3600 / WINDOW_S)
            judged += info["p95_s"] is not None
            over += info["p95_s"] is not None and info["p95_s"] > plain.episode.workload.slo_s
            decided.append(plain.episode.outcome.executed[mask])
    return {
        "cost": round(float(np.mean(costs)), 4),
        "over": over,
        "windows": judged,
        "return": round(returned / hours, 2),
        **{name: round(value, 2) for name, value in variety(np.stack(decided)).items()},
    }


def constant(hours: int, slo_weight: float) -> dict[str, Any]:
    """The best constant for each expert, searched on these very hours."""
    env, judged = env_of("validation", slo_weight), list[Hour]()
    plain = env.unwrapped
    assert isinstance(plain, PipelineEnv)
    for hour in range(hours):
        env.reset(seed=hour)
        episode = plain.episode
        work = Work(episode.workload, episode.requests, episode.seed)
        judged.append(Hour(work, WINDOW_S, range(1, episode.windows)))
    chosen = search_constants("constant-per-expert", judged, TRIALS)
    held = [hour.deployment(chosen.configurations) for hour in judged]
    return replay(None, hours, slo_weight, held)


@benchmark
@click.option("--steps", default=4000, type=AT_LEAST_1, help="Layer steps of a training.")
@click.option("--every", default=400, type=AT_LEAST_1, help="Steps between two evaluations.")
@click.option("--hours", default=3, type=AT_LEAST_1, help="Validation hours.")
@click.option(
    "--slo-weight",
    default=60.0,
    type=click.FloatRange(0, min_open=True),
    help="Of Eq. (13): an excess of λ by itself, in C_ref.",
)
@click.option("--seeds", default="0,1,2", callback=listed(int), help="Comma list.")
@click.option("--publish", type=FOLDER, help="Draw the learning curves into this folder.")
def main(steps: int, every: int, hours: int, slo_weight: float, seeds: tuple[int, ...], publish: Path | None) -> None:
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {
        "constant": constant(hours, slo_weight),
        "start": replay(None, hours, slo_weight),
    }
    curves = {}
    for seed in seeds:
        with tempfile.TemporaryDirectory(prefix="smoe-paper-agent-") as folder:
            model, curves[seed], minutes = learn(seed, steps, every, hours, slo_weight, Path(folder))
            rows[f"agent, seed {seed}"] = {**replay(model, hours, slo_weight), "minutes": round(minutes, 2)}
    print_table(
        f"validation hours after {steps} layer steps (costs an hour)",
        ("policy", "cost", "windows over λ", "return", "configurations", "of an expert", "minutes"),
        [
            (name, f"{row['cost']:.3f}", f"{row['over']} of {row['windows']}", f"{row['return']:.0f}",
             f"{row['across_experts']:g}",
             f"{row['across_windows']:g}", f"{row['minutes']:.1f}" if "minutes" in row else "")
            for name, row in rows.items()
        ],
    )  # fmt: skip
    if publish is not None:
        publish.mkdir(parents=True, exist_ok=True)
        with picture(publish / "curve.png", 1, 1, figsize=(7, 3.5)) as (_, axes):
            for seed, curve in curves.items():
                axes.plot(*zip(*curve, strict=True), label=f"seed {seed}")
            axes.set(xlabel="layer steps", ylabel="mean return of validation hours", title="learning curves, Eq. (13)")
            axes.legend()
    print_result({
        "seeds": {str(seed): rows[f"agent, seed {seed}"] for seed in seeds},
        "constant": rows["constant"], "start": rows["start"], "steps": steps, "slo_weight": slo_weight, "curve": curves,
    }, seeds)  # fmt: skip


if __name__ == "__main__":
    main()

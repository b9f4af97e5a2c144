"""What a trained actor decides, and whether that is worth anything: ``python -m benchmarks.agent``.

The actor of a run (``smoe lab train``) replays validation hours of the run's world without noise, ``--hours`` of each
pattern at each of the run's validation rates. The gate before an actor is published, on each pattern: three or more
configurations at a time among experts (``across_experts``), three or more of an expert in an hour
(``across_windows``), and cheaper than the best constant for each expert at no more windows over the SLO. There are
two such constants, both found with these very hours known: ``constant`` holds at all rates, as the actor has to;
``constant_of_rate`` knows the rate, too. Where the run has standbys, constants may have them, too, by whichever rule of
:data:`evaluation.tuning.constants.BURSTS` costs least: else the gate would measure what standbys are worth.

``pointer`` is the mean rank correlation of the pointer's weights with the latency that the layer's experts then had;
``apart``: how far experts of a layer lie apart at each stage of the actor, over any two (:mod:`rl.agent.probe`).
Costs are the experts', in the price sheet's currency an hour. Last line: ``gate`` (by pattern), ``passed``,
``opponent``, ``pointer``, ``apart``, ``seconds`` of a decision.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
import torch
from scipy.stats import spearmanr

from autoscaler.contract import SLO_QUANTILE
from benchmarks.harness.learnt import acting
from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark
from benchmarks.harness.report import print_result, print_table, progress
from evaluation.comparison.grid import BURST_SUFFIX
from evaluation.tuning.constants import search_constants
from rl.agent.actor import Actor
from rl.agent.contract import Batch, State
from rl.agent.ddpg.visited import NODE
from rl.agent.export import load
from rl.agent.probe import apart, stages
from rl.episodes import Clip, Episode
from rl.train.parallel_episodes import Actions, EpisodeWindow, simulate_all
from rl.train.run import BEST
from rl.train.settings import TrainingSettings
from rl.train.validation import Validator

POLICY = "constant-per-expert"
FEWEST = 3
"""Configurations, across experts and across windows."""
PROBED = 32
"""States that stages are compared on."""


@dataclass
class Replayed:
    """One hour under the actor; windows after the warm-up."""

    clip: Clip
    cost: float = 0.0
    judged: int = 0
    over: int = 0
    decided: list[Actions] = field(default_factory=list)
    """[n, K, 4] configurations in force in each window."""
    correlations: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)


def variety(decided: np.ndarray) -> dict[str, float]:
    """Mean number of configurations in force at a time (``across_experts``), and of an expert from first to last
    window (``across_windows``), of ``decided`` [windows, experts, 4]."""
    return {
        name: float(np.mean([len(np.unique(one, axis=0)) for one in parts]))
        for name, parts in (("across_experts", decided), ("across_windows", decided.swapaxes(0, 1)))
    }


def replay(validator: Validator, clips: Sequence[Clip], path: Path) -> tuple[list[Replayed], Episode, float]:
    """Every clip under the actor of ``path``; an episode of them, and seconds of a decision (median)."""
    actor, decide = cast(Actor, load(path)), acting(path)
    episodes, replayed = [validator.episode(clip) for clip in clips], [Replayed(clip) for clip in clips]
    warm_up, taken_s = validator.settings.validation.warm_up, list[float]()

    def timed(going: list[Episode], states: list[State]) -> Sequence[Actions]:
        begun_s = time.perf_counter()
        actions = decide(going, states)
        taken_s.append((time.perf_counter() - begun_s) / len(going))
        return actions

    for number, row in enumerate(simulate_all(episodes, timed), start=2):
        for window in row if number > warm_up else ():
            _count(replayed[window.episode_number], window, actor)
    return replayed, episodes[0], float(np.median(taken_s))


def _count(one: Replayed, window: EpisodeWindow, actor: Actor) -> None:
    outcome, episode = window.outcome, window.episode
    p95_s = outcome.window.quantile_s(SLO_QUANTILE)
    one.cost += float(outcome.provisioned.sum())
    one.judged += p95_s is not None
    one.over += p95_s is not None and p95_s > episode.workload.slo_s
    one.decided.append(outcome.executed)
    one.states.append(window.state)
    batch = Batch.of(episode.encoder.space, [window.state])
    weights = actor.explain(batch, batch.present)[0][0]
    ahead = Batch.of(episode.encoder.space, [window.following]).experts[0]
    latency, called = NODE.log("latency_p95", ahead), NODE.is_known("latency_p95", ahead) > 0
    for layer, there in enumerate(called):
        pairs = weights[layer, there], latency[layer, there]
        if there.sum() > 2 and all(len(set(numbers.tolist())) > 1 for numbers in pairs):  # else it is not defined
            one.correlations.append(float(spearmanr(*pairs).statistic))


def opponent(settings: TrainingSettings) -> str:
    """The constants that an actor of ``settings`` has to beat."""
    return POLICY if settings.standbys.burst is None else POLICY + BURST_SUFFIX


def constants(validator: Validator, clips: Sequence[Clip], trials: int) -> tuple[float, int]:
    """(mean cost an hour, windows over λ) of the best constant for each expert on all ``clips`` together."""
    hours = [validator.hour(clip) for clip in clips]
    chosen = search_constants(opponent(validator.settings), hours, trials)
    outcomes = [hour.outcome(chosen.configurations) for hour in hours]
    return float(np.mean([cost for cost, _ in outcomes])), sum(value > 1 for _, values in outcomes for value in values)


def row_of(validator: Validator, replayed: Sequence[Replayed], mask: np.ndarray, trials: int) -> dict[str, Any]:
    """One pattern's part of the gate; ``mask`` [n, K]."""
    clips = [one.clip for one in replayed]
    counted_h = [(len(one.decided)) * one.clip.window_s / 3600 for one in replayed]
    cost = float(np.mean([one.cost / hours for one, hours in zip(replayed, counted_h, strict=True)]))
    constant, over = constants(validator, clips, trials)
    by_rate = [
        constants(validator, [clip for clip in clips if clip.mean_rps == rate], trials)
        for rate in sorted({clip.mean_rps for clip in clips})
    ]
    varieties = [variety(np.stack(one.decided)[:, mask]) for one in replayed]
    of_rate, over_of_rate = float(np.mean([one for one, _ in by_rate])), sum(one for _, one in by_rate)
    numbers = {
        "hours": len(clips),
        "windows": sum(one.judged for one in replayed),
        **{name: round(float(np.mean([one[name] for one in varieties])), 2) for name in varieties[0]},
        "cost": {"actor": round(cost, 3), "constant": round(constant, 3), "constant_of_rate": round(of_rate, 3)},
        "over": {"actor": sum(one.over for one in replayed), "constant": over, "constant_of_rate": over_of_rate},
        "cheaper_than_constant": round(1 - cost / constant, 4),
        "cheaper_than_constant_of_rate": round(1 - cost / of_rate, 4),
    }
    numbers["passed"] = bool(
        numbers["across_experts"] >= FEWEST and numbers["across_windows"] >= FEWEST  # type: ignore[operator]
        and cost < constant and numbers["over"]["actor"] <= over  # type: ignore[index]
    )  # fmt: skip
    return numbers


@benchmark
@click.option("--run", "folder", type=PRESENT, required=True, help="Folder of the training run.")
@click.option("--hours", default=2, type=AT_LEAST_1, help="Of each pattern and rate.")
@click.option("--trials", default=100, type=AT_LEAST_1, help="Deployments that a search of a constant judges.")
def main(folder: Path, hours: int, trials: int) -> None:
    torch.set_num_threads(1)
    settings = TrainingSettings.from_json(json.loads((folder / "run.json").read_text())["settings"])
    settings = replace(settings, validation=replace(settings.validation, seeds=hours))
    validator = Validator(settings, folder / "cache")
    gate: dict[str, dict[str, Any]] = {}
    every: list[Replayed] = []
    seconds = 0.0
    (clips,) = validator.clips.values()
    patterns = list(dict.fromkeys(clip.pattern for clip in clips))
    with progress(len(patterns)) as show:
        for number, pattern in enumerate(patterns):
            show(pattern, number)
            replayed, episode, seconds = replay(
                validator, [clip for clip in clips if clip.pattern == pattern], folder / BEST
            )
            gate[pattern] = row_of(validator, replayed, episode.encoder.configuration_index.mask, trials)
            every += replayed
    space = episode.encoder.space
    states = [state for one in every for state in one.states]
    batch = Batch.of(space, states[:: max(1, len(states) // PROBED)])
    staged = stages(cast(Actor, load(folder / BEST)), batch, batch.present)
    print_table(
        "an actor on validation hours, next to the best constants for each expert (costs an hour, windows over λ)",
        ("pattern", "configurations", "of an expert", "actor", "constant", "constant of the rate", "passed"),
        [
            (name, f"{row['across_experts']:.1f}", f"{row['across_windows']:.1f}",
             *(f"{row['cost'][who]:.2f}, {row['over'][who]} of {row['windows']}" for who in row["cost"]),
             "yes" if row["passed"] else "no")
            for name, row in gate.items()
        ],
    )  # fmt: skip
    print_result({
        "gate": gate,
        "passed": all(row["passed"] for row in gate.values()),
        "opponent": opponent(settings),
        "pointer": round(float(np.nanmean([value for one in every for value in one.correlations])), 4),
        "apart": {name: round(apart(values, space.mask), 4) for name, values in staged.items()},
        "seconds": round(seconds, 5),
    }, settings.seed)  # fmt: skip


if __name__ == "__main__":
    main()

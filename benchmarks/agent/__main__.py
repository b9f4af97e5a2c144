"""What a trained actor decides, and whether that is worth anything: ``python -m benchmarks.agent``.

The actor of a run (``smoe lab train`` or ``train-staffing``) replays validation hours of the run's world without noise
and guard, ``--hours`` of each pattern at each of the run's validation rates. The gate before an actor is published, on
each pattern: three or more configurations at a time among experts (``across_experts``; standbys count), three or more
of an expert in an hour (``across_windows``), and cheaper at no more windows over the SLO than the best constant for
each expert and than the best rule: of `hpa`, `hpa+burst` and `staffing` with their defaults the cheapest that breaks
the SLO in at most 1 % of windows, or where none does the one that breaks it least. There are two such constants, both
found with these very hours known: ``constant`` holds at all rates, as the actor has to; ``constant_of_rate`` knows the
rate, too. Where the run has standbys, constants may have them, too, by whichever rule of
:data:`evaluation.tuning.constants.BURSTS` costs least: else the gate would measure what standbys are worth.

``pointer`` is the mean rank correlation of the pointer's weights with the latency that the layer's experts then had;
``apart``: how far experts of a layer lie apart at each stage of the actor, over any two (:mod:`rl.agent.probe`), mean
of the workloads; of a run of `train-staffing` both are null. Costs are the experts' on the run's meter, in the price
sheet's currency an hour. Last line: ``gate``, ``cheaper_than_constant``, ``cheaper_than_best_rule``, ``windows_over``
(all by pattern, of several workloads by ``WORKLOAD PATTERN``), ``passed``, ``policy``, ``meter``, ``opponent``,
``pointer``, ``apart``, ``seconds`` of a decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.agent.opponents import Opponent, best_constant, best_rule, constant_name
from benchmarks.agent.replayed import Replayed, actor_of, replay, variety
from benchmarks.agent.trained import Trained, ValidationHour, read
from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark
from benchmarks.harness.report import print_result, print_table, progress
from rl.agent.contract import Batch
from rl.agent.probe import apart, stages

FEWEST = 3
"""Configurations, across experts and across windows."""
PROBED = 32
"""States that stages are compared on."""


def of_rates(run: Trained, hours: Sequence[ValidationHour], trials: int) -> Opponent:
    """The best constant of each rate."""
    by_rate = [
        best_constant(run, [one for one in hours if one.clip.mean_rps == rate], trials)
        for rate in sorted({one.clip.mean_rps for one in hours})
    ]
    return Opponent("constant_of_rate", float(np.mean([one.cost for one in by_rate])), sum(one.over for one in by_rate))


def row_of(replayed: Sequence[Replayed], constant: Opponent, of_rate: Opponent, rule: Opponent) -> dict[str, Any]:
    """One pattern's part of the gate."""
    cost, over = float(np.mean([one.per_hour for one in replayed])), sum(one.over for one in replayed)
    varieties = [variety(np.stack(one.decided)) for one in replayed]
    others = {"constant": constant, "constant_of_rate": of_rate, "best_rule": rule}
    mean = {name: round(float(np.mean([one[name] for one in varieties])), 2) for name in varieties[0]}
    return {
        "hours": len(replayed),
        "windows": sum(one.judged for one in replayed),
        **mean,
        "cost": {"actor": round(cost, 3)} | {name: round(one.cost, 3) for name, one in others.items()},
        "over": {"actor": over} | {name: one.over for name, one in others.items()},
        **{f"cheaper_than_{name}": round(1 - cost / one.cost, 4) for name, one in others.items()},
        "best_rule": rule.name,
        "passed": all(count >= FEWEST for count in mean.values())
        and all(cost < one.cost and over <= one.over for one in (constant, rule)),
    }


def staged(run: Trained, replayed: Mapping[str, Sequence[Replayed]]) -> dict[str, float]:
    """Stage of the actor → how far experts of a layer lie apart; ``replayed`` by workload."""
    actor, each = actor_of(run.actor), []
    for name, of_workload in replayed.items():
        space = run.hours[name][0].begin().encoder.space
        states = [state for one in of_workload for state in one.states]
        batch = Batch.of(space, states[:: max(1, len(states) // PROBED)])
        each.append({stage: apart(one, space.mask) for stage, one in stages(actor, batch, batch.present).items()})
    return {stage: round(float(np.mean([one[stage] for one in each])), 4) for stage in each[0]}


def show(gate: Mapping[str, dict[str, Any]]) -> None:
    print_table(
        "an actor on validation hours, next to the best constants for each expert and rule (costs an hour, windows "
        "over λ)",
        ("pattern", "configurations", "of an expert", "actor", "constant", "of the rate", "best rule", "passed"),
        [
            (name, f"{row['across_experts']:.1f}", f"{row['across_windows']:.1f}",
             *(f"{row['cost'][who]:.2f}, {row['over'][who]} of {row['windows']}" for who in row["cost"]),
             "yes" if row["passed"] else "no")
            for name, row in gate.items()
        ],
    )  # fmt: skip


@benchmark
@click.option("--run", "folder", type=PRESENT, required=True, help="Folder of the training run.")
@click.option("--hours", default=2, type=AT_LEAST_1, help="Of each pattern and rate.")
@click.option("--trials", default=100, type=AT_LEAST_1, help="Deployments that a search of a constant judges.")
def main(folder: Path, hours: int, trials: int) -> None:
    torch.set_num_threads(1)
    run = read(folder, hours)
    gate: dict[str, dict[str, Any]] = {}
    every: dict[str, list[Replayed]] = {name: [] for name in run.hours}
    seconds: list[float] = []
    parts = {(name, one.clip.pattern): None for name, of_workload in run.hours.items() for one in of_workload}
    with progress(len(parts)) as bar:
        for number, (name, pattern) in enumerate(parts):
            key = pattern if len(run.hours) == 1 else f"{name} {pattern}"
            bar(key, number)
            some = [one for one in run.hours[name] if one.clip.pattern == pattern]
            replayed, taken_s = replay(run, some)
            constants = best_constant(run, some, trials), of_rates(run, some, trials)
            gate[key] = row_of(replayed, *constants, best_rule(run, some))
            every[name] += replayed
            seconds.append(taken_s)
    show(gate)
    correlations = [value for part in every.values() for one in part for value in one.correlations]
    print_result({
        "gate": gate,
        **{name: {key: row[name] for key, row in gate.items()}
           for name in ("cheaper_than_constant", "cheaper_than_best_rule")},
        "windows_over": {key: row["over"] for key, row in gate.items()},
        "passed": all(row["passed"] for row in gate.values()),
        "policy": run.policy, "meter": run.meter, "opponent": constant_name(run),
        "pointer": round(float(np.nanmean(correlations)), 4) if correlations else None,
        "apart": staged(run, every) if run.policy == "smoe" else None,
        "seconds": round(float(np.median(seconds)), 5),
    }, run.seed)  # fmt: skip


if __name__ == "__main__":
    main()

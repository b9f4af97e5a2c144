"""Learnt or calibrated: RLScale-Bench's protocol on the staffing policy, ``python -m benchmarks.rlscale``.

Simulated: `bert-4` on cores, λ five times the P95 without queues. For each of six patterns and each seed a rule is
calibrated in ``--minutes`` of one core, with train and validation hours, and a policy is learnt (DDPG), which begins
with that rule and has as many minutes again. Both are then judged on test hours, under the controller's guard: of their
own pattern, and of the five others. A pattern is won where the learnt policy is cheaper at no more windows over λ; of
one that was learnt on, the others are won in sum. The rule's defaults and HPA with standbys, which are tuned for
nothing, are shown as well.

The published protocol has 10 minutes and five seeds (``--minutes 10 --seeds 0,1,2,3,4``).

What is made is kept in ``--out`` and read there by runs of as many ``--minutes``. The last line is one JSON object:
``patterns_won`` and ``shifted_won`` (of six each; ``certain``: of these, with an interval of the ratio below 1;
``worth``: of these, by 2 % or more), ``own`` and ``shifted`` (by pattern: ratio of costs with its interval over hours,
shares of windows over λ), ``untuned``, ``costs`` (every run), ``made``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.harness.options import AT_LEAST_1, benchmark, data_option, listed, out_option, workers_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.rlscale.contenders import Pattern, make
from benchmarks.rlscale.judged import CALIBRATED, HPA, Ran, Runs, Verdict, on_pattern, share, shifted, verdicts
from evaluation.processes import run_tasks
from traces.catalog import data_folder

PATTERNS = tuple(Pattern(kind, rate) for kind in ("normal", "bursty", "diurnal") for rate in (20.0, 80.0))
Task = TypeVar("Task")
Result = TypeVar("Result")


def spread(workers: int, tasks: Mapping[Task, Callable[[], Result]], what: str) -> dict[Task, Result]:
    """Results of ``tasks`` over processes, in their order."""
    results: dict[Task, Result] = {}
    with progress(len(tasks), what) as show:

        def take(name: Task, result: Callable[[], Result]) -> None:
            results[name] = result()
            show(f"{what}: {name}", len(results))

        run_tasks(workers, tasks, take)
    return {name: results[name] for name in tasks}


@benchmark
@data_option
@click.option(
    "--minutes", type=click.FloatRange(0.01, 600), default=3.0, help="Of one core, for a rule, and again to learn."
)
@click.option("--seeds", callback=listed(int), default="0,1,2", help="Comma list, of searching and learning.")
@click.option("--hours", type=AT_LEAST_1, default=6, help="Test hours of each pattern.")
@click.option(
    "--patterns", "names", callback=listed(str, [one.name for one in PATTERNS]), help="Comma list.",
    default=",".join(one.name for one in PATTERNS),
)  # fmt: skip
@workers_option
@out_option("out/rlscale", "What is there is read.")
def main(
    data: Path | None,
    minutes: float,
    seeds: tuple[int, ...],
    hours: int,
    names: tuple[str, ...],
    workers: int,
    out: Path,
) -> None:
    patterns = [one for one in PATTERNS if one.name in names]
    folder, workers = data_folder(data), workers or 2
    making = {
        (pattern.name, seed): partial(make, pattern, seed, minutes, folder, out / f"{pattern.name}.{seed}")
        for seed in seeds
        for pattern in patterns
    }
    made = spread(workers, making, "made")
    judging = {one.name: partial(on_pattern, one, names, seeds, hours, folder, out) for one in patterns}
    on = spread(workers, judging, "judged")
    at_home = {name: verdicts(on[name], name, seeds) for name in on}
    away = {name: shifted(on, name, seeds) for name in on} if len(on) > 1 else {}
    untuned = {name: {policy: summed(runs["", 0, policy]) for policy in (CALIBRATED, HPA)} for name, runs in on.items()}
    show("own pattern", at_home)
    show("the other patterns", away)
    print_result({
        "patterns_won": sum(one.won for one in at_home.values()), "shifted_won": sum(one.won for one in away.values()),
        "certain": [sum(one.certain for one in group.values()) for group in (at_home, away)],
        "worth": [sum(one.worth for one in group.values()) for group in (at_home, away)],
        "patterns": len(on), "minutes": minutes, "seeds": seeds, "hours": hours,
        "own": {name: asdict(one) for name, one in at_home.items()},
        "shifted": {name: asdict(one) for name, one in away.items()},
        "untuned": untuned, "costs": {name: costs(runs) for name, runs in on.items()}, "made": list(made.values()),
    })  # fmt: skip


def summed(runs: Sequence[Ran]) -> dict[str, float]:
    """Mean cost over hours, in USD, and the share of windows over λ."""
    return {"cost": round(sum(one.cost for one in runs) / len(runs), 4), "over": share([runs])}


def costs(runs: Runs) -> list[dict[str, Any]]:
    """All runs of one pattern's test hours, for the result."""
    return [
        {"made_for": made_for, "seed": seed, "policy": policy, "hours": [asdict(one) for one in of_hours]}
        for (made_for, seed, policy), of_hours in runs.items()
    ]


def show(where: str, group: dict[str, Verdict]) -> None:
    """A table of verdicts."""
    print_table(
        f"learnt against calibrated rule on test hours of {where}, simulated",
        ("made for", "cost of learnt / rule", "learnt over λ", "rule over λ", "won"),
        [
            (name, f"{one.ratio:.3f} ({one.low:.3f} to {one.high:.3f})", f"{one.over:.1%}", f"{one.rule_over:.1%}",
             "worth it" if one.worth else "by less than 2 %" if one.won else "no")
            for name, one in group.items()
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()

"""What fixed rules of the staffing policy cost, and how often they break λ: ``python -m benchmarks.staffing_rules``.

Simulated: `bert-4` on cores, λ five times the P95 without queues; hours of every pattern at 20 and 80 requests/s, 600 s
of each, under every rule that the replay is filled with (:data:`rl.staffing.warm_start.RULES`), under the policy's
default, and under the default before. A learnt policy has to lie below their front: the least cost at so many windows
over λ. The last line is one JSON object: ``rules`` (numbers, cost in C_ref a window, share of windows over λ, both by
pattern and rate), ``front`` (places in ``rules``), ``best_by_pattern`` (cost and
share over λ, where each pattern and rate has the cheapest rule with at most ``--tolerated`` of its windows over λ, in
hindsight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.harness.options import AT_LEAST_1, benchmark, data_option
from benchmarks.harness.report import print_result, print_table, progress
from rl.staffing.action import NAMES, action_of
from rl.staffing.hours import HourSettings
from rl.staffing.policy import RuleSettings
from rl.staffing.training import Judge, Judged, StaffingSettings, everywhere
from rl.staffing.warm_start import RULES
from traces.catalog import data_folder

BEFORE = RuleSettings(spare=0.5).values()
"""The default before."""
Kinds = Mapping[str, tuple[float, float]]


def chosen(named: str) -> dict[str, Mapping[str, float]]:
    """Name → rule of those in the comma list ``named``, all where it is empty. Raises BadParameter."""
    rules = {"default": RuleSettings().values(), "before": BEFORE} | {str(k): rule for k, rule in enumerate(RULES)}
    names = [name.strip() for name in named.split(",")] if named else list(rules)
    if unknown := [name for name in names if name not in rules]:
        raise click.BadParameter(f"{', '.join(unknown)}: no such rule; there are {', '.join(rules)}")
    return {name: rules[name] for name in names}


def by_kind(results: Sequence[Judged]) -> Kinds:
    """Pattern and rate → mean cost in C_ref a window, share of windows over λ."""
    kinds: dict[str, list[Judged]] = {}
    for one in results:
        kinds.setdefault(f"{one.pattern} {one.rate:g}/s", []).append(one)
    return {kind: summed(of) for kind, of in kinds.items()}


def summed(results: Sequence[Judged]) -> tuple[float, float]:
    """Mean cost in C_ref a window over hours, share of all windows over λ."""
    share = sum(one.violated for one in results) / max(1, sum(one.judged for one in results))
    return round(float(np.mean([one.cost for one in results])), 4), round(share, 4)


def cheapest_by_kind(rules: Sequence[Sequence[Judged]], tolerated: float) -> tuple[float, float]:
    """Cost and share over λ where each pattern and rate has the cheapest rule within ``tolerated``, or the one that
    breaks λ least."""
    chosen: list[Judged] = []
    kinds = dict.fromkeys((one.pattern, one.rate) for one in rules[0])
    for kind in kinds:
        of_kind = [[one for one in results if (one.pattern, one.rate) == kind] for results in rules]
        least = min(summed(results)[1] for results in of_kind)
        _, place = min(
            (summed(results)[0], place)
            for place, results in enumerate(of_kind)
            if summed(results)[1] <= max(tolerated, least)
        )
        chosen += of_kind[place]
    return summed(chosen)


def front_of(totals: Sequence[tuple[float, float]]) -> list[int]:
    """Places that no other undercuts in both, by rising cost."""
    places = sorted(range(len(totals)), key=lambda place: totals[place])
    kept: list[int] = []
    for place in places:
        if not kept or totals[place][1] < totals[kept[-1]][1]:
            kept.append(place)
    return kept


@benchmark
@data_option
@click.option("--split", type=click.Choice(("train", "validation")), default="validation", help="Of the hours.")
@click.option("--hours", type=AT_LEAST_1, default=2, help="Of every pattern at every rate.")
@click.option("--rules", "named", default="", help="Comma list of names in the table; all rules by default.")
@click.option("--tolerated", type=click.FloatRange(0, 1), default=0.03, help="Share of windows over λ.")
def main(data: Path | None, split: Any, hours: int, named: str, tolerated: float) -> None:
    settings = StaffingSettings(hours=HourSettings(seconds=600.0), validation_hours=hours)
    judge = Judge(settings, data_folder(data), split)
    rules = chosen(named)
    results: list[list[Judged]] = []
    with progress(len(rules), "rules") as show:
        for place, (name, rule) in enumerate(rules.items()):
            show(f"rule {name}", place)
            results.append(judge.judge(partial(everywhere, action=action_of(rule))))
    totals, kinds = [summed(one) for one in results], [by_kind(one) for one in results]
    front = front_of(totals)
    print_table(
        f"{len(judge.hours)} {split} hours, bert-4, cores only, λ 5, simulated",
        ("rule", ", ".join(NAMES), "cost", "over λ", *kinds[0]),
        [
            (
                label + (" *" if place in front else ""),
                " ".join(f"{rule[name]:g}" for name in NAMES),
                f"{totals[place][0]:.2f}",
                f"{totals[place][1]:.1%}",
                *(f"{cost:.2f} {share:.0%}" for cost, share in kinds[place].values()),
            )
            for place, (label, rule) in enumerate(rules.items())
        ],
        texts=2,
    )
    cost, share = cheapest_by_kind(results, tolerated)
    click.echo(f"* on the front. The cheapest rule for each pattern and rate, in hindsight: {cost:.3f}, {share:.1%}")
    print_result({
        "rules": [
            {"name": name, "values": dict(rule), "cost": total[0], "over": total[1], "kinds": kind}
            for (name, rule), total, kind in zip(rules.items(), totals, kinds, strict=True)
        ],
        "front": front, "best_by_pattern": [cost, share],
        "hours": len(judge.hours), "split": split,
    })  # fmt: skip


if __name__ == "__main__":
    main()

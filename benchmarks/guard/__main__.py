"""Whether a guarded policy is ever worse than HPA: ``python -m benchmarks.guard --worlds 200``.

Simulated. Every world is drawn from a seed: a pipeline of another size than those that were trained on, prices, a
cluster, λ, traffic, and in two of five each routing that drifts, call times that are off from the profile, and broken
metrics.
The policy runs in each as ``smoe autoscale`` runs it (scrapes, state, guard, limits, orders), and so does HPA with the
same burst activation. A policy is worse in a world where more than 3.6 % of all windows more are over λ than under HPA,
or where its experts cost more than 1.036 times HPA's with no fewer windows over λ.

In every fourth world (``--every``) stand next to it HPA under another seed of service times and cold starts, which is
the noise of this measure, and the deployed replicas left alone. ``--world SEED`` runs one world and prints its row.

Last line: ``worse_share`` with its Wilson interval, ``causes``, ``as_written_share`` (more cost counts also where it
bought fewer windows over λ), ``guard`` (share of windows in which HPA decided in the policy's place, by reason),
``kinds`` (worlds that are worse, of how many), ``worst`` (ten, with their seeds) and ``opponents``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.guard.runs import OPPONENTS, POLICIES, RunSettings, row_of
from benchmarks.guard.verdict import by_kind, guard_of, summed_up, worst
from benchmarks.harness.options import AT_LEAST_1, benchmark
from benchmarks.harness.report import print_result, print_table, progress
from evaluation.processes import run_tasks
from evaluation.provenance import code_sha256

Row = dict[str, Any]


def stored_rows(out: Path | None) -> list[Row]:
    return [] if out is None or not out.is_file() else [json.loads(line) for line in out.read_text().splitlines()]


def all_rows(seeds: Sequence[int], settings: RunSettings, workers: int, out: Path | None) -> list[Row]:
    """Those that ``out`` has of the same settings and code, and the others, which are added to it as they are done."""
    made_of = {**asdict(settings), "code_sha256": code_sha256("benchmarks.guard.runs")}
    rows = {row["seed"]: row for row in stored_rows(out) if row["seed"] in seeds and row.get("made_of") == made_of}
    missing = [seed for seed in seeds if seed not in rows]
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    with nullcontext() if out is None else out.open("a") as file, progress(len(seeds), "worlds") as show:

        def take(seed: int, run: Callable[[], Row]) -> None:
            rows[seed] = {**run(), "made_of": made_of}
            if file is not None:
                print(json.dumps(rows[seed]), file=file, flush=True)
            show(f"{len(rows)} of {len(seeds)} worlds", len(rows))

        run_tasks(workers, {seed: partial(row_of, seed, settings) for seed in missing}, take)
    return [rows[seed] for seed in seeds]


def show_kinds(title: str, kinds: dict[str, dict[str, list[int]]]) -> None:
    rows = [(attribute, value, bad, of) for attribute, counts in kinds.items()
            for value, (bad, of) in sorted(counts.items())]  # fmt: skip
    print_table(title, ("attribute", "value", "worse", "worlds"), rows, texts=2)


def show_worst(rows: Sequence[Row]) -> None:
    print_table(
        "worst worlds (--world SEED runs one)",
        ("seed", "worse", "trouble", "pattern", "cost over HPA's", "over λ", "HPA's", "windows", "guarded"),
        [
            (one["seed"], one["worse"], one["kinds"]["trouble"], one["kinds"]["pattern"], one["cost"], one["over"],
             one["hpa_over"], one["windows"], f"{one['guarded']:.0%}")
            for one in rows
        ],
        texts=4,
    )  # fmt: skip


@benchmark
@click.option("--policy", type=click.Choice(POLICIES), default="staffing", help="Under its guard.")
@click.option("--fallback", type=click.IntRange(0), help="As of smoe autoscale. [default: the product's]")
@click.option("--worlds", type=AT_LEAST_1, default=200, help="How many.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the first world; the next ones follow.")
@click.option("--world", type=click.IntRange(0), help="Run the one world of this seed and print its row.")
@click.option("--minutes", type=click.FloatRange(2, 60), default=10.0, help="Of each world; the first is not counted.")
@click.option("--window", "window_s", type=click.FloatRange(1, 60), default=10.0, help="Seconds between decisions.")
@click.option("--workers", type=AT_LEAST_1, default=1, help="Processes.")
@click.option("--every", type=AT_LEAST_1, default=4, help="Worlds from one to the next with HPA's other seed.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="JSON lines; rows of these settings and this code stay.",
)
def main(
    policy: str, fallback: int | None, worlds: int, seed: int, world: int | None, minutes: float, window_s: float,
    workers: int, every: int, out: Path | None,
) -> None:  # fmt: skip
    settings = RunSettings(policy, minutes, window_s, fallback, every)
    if world is not None:
        click.echo(json.dumps(row_of(world, settings), indent=1, ensure_ascii=False))
        return
    run = all_rows(range(seed, seed + worlds), settings, workers, out)
    rows = [row for row in run if "refused" not in row]
    if not rows:
        raise click.ClickException("no world could be run: " + run[0]["refused"])
    with_opponents = [row for row in rows if OPPONENTS[0] in row["outcomes"]]
    totals = {policy: summed_up(rows, policy)} | {name: summed_up(with_opponents, name) for name in OPPONENTS}
    guard, kinds, worst_rows = guard_of(rows, policy), by_kind(rows, policy), worst(rows, policy)
    show_kinds(f"{policy}: worlds in which it is worse than HPA, simulated", kinds)
    show_worst(worst_rows)
    print_table(
        f"{len(rows)} worlds",
        ("policy", "worlds", "worse", "as written", "cost over HPA's", "windows over λ"),
        [
            (
                name,
                one["worlds"],
                f"{one['worse_share']:.1%}",
                f"{one['as_written_share']:.1%}",
                one["cost"],
                f"{one['over']:.1%}",
            )
            for name, one in totals.items()
        ],
    )
    click.echo(f"HPA decided in {guard['share']:.1%} of windows, nobody in {guard['held']:.1%}: {guard['reasons']}")
    print_result({
        **totals[policy], "policy": policy, "refused": len(run) - len(rows), "guard": guard,
        "kinds": kinds, "worst": worst_rows, "opponents": {name: totals[name] for name in OPPONENTS},
        "hpa_over": round(sum(row["outcomes"]["hpa"]["over"] for row in rows)
                          / sum(row["outcomes"]["hpa"]["windows"] for row in rows), 4),
        "minutes": minutes, "window_s": window_s,
    })  # fmt: skip


if __name__ == "__main__":
    main()

"""What the past shows of the coming window: ``python -m benchmarks.lookback [--out FOLDER]``.

Every window of validation hours is simulated by itself, all experts configured uniformly, with each resource of Φ and
more replicas of the largest: what it *needed* is the cheapest with which its own requests keep λ. On these needs stand

* ``known``: each window gets what it needed; nobody can know that beforehand;
* ``look back n``: each window gets the most that any of the last n needed, which a policy that sees windows could do;
* ``always``: one choice for the whole hour.

Cost is the mean price of an expert over that of ``known``, on the same hours. Windows do not touch each other here and
changes take no time, so ``look back`` is better than it could be in truth, and experts are uniform, so neither is a
bound: what is shown is how much of an hour can be foreseen. With ``--speed 5`` windows are of 6 s in an hour that is
simulated five times as fast (``rl.train.training_workloads.QUICK``), for high rates. All of it is simulated. The last
line is one JSON object: ``rows`` (rate, pattern, policy, ``cost``, ``violated``), ``cheapest`` (by rate and pattern:
the cheapest look back and the cheapest constant choice with at most ``allowed`` windows over λ; null where there is
none), ``unserved`` (share of windows that no choice serves).
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from autoscaler.contract import Configuration
from benchmarks.harness.report import print_result
from evaluation.processes import worker_processes
from evaluation.uniform import by_price
from rl.episodes import training_clips, work_of
from rl.episodes.clips import SEEDS
from rl.train.hindsight import CONCURRENCY, REPLICAS, between, needed
from rl.train.training_workloads import KINDS
from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS

LOOK_BACK = (1, 2, 4, 8, 16, 30)
WARM_UP = 4
"""Windows at the start that are not counted, as in evaluations."""
QUICK_SPEED = 5.0
MOST_SHOWN = 12.0
"""Percent of windows over λ, in the picture."""


@dataclass(frozen=True)
class Hour:
    """What to look at."""

    workload: str
    pattern: str
    seed: int
    mean_rps: float
    quick: bool


@dataclass(frozen=True, eq=False)
class Needs:
    """``level [windows]``: place of what a window needed among ``price``, its length where nothing serves it. ``price
    [choices]``: of an expert, ascending; ``name [choices]``."""

    hour: Hour
    level: NDArray[np.int64]
    price: NDArray[np.float64]
    name: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A policy on all hours of a rate and pattern: means over hours."""

    mean_rps: float
    pattern: str
    policy: str
    cost: float
    """Over ``known``'s."""
    violated: float


def needs_of(hour: Hour) -> Needs:
    """By bisection over choices, window by window."""
    kind = KINDS[f"{hour.workload}-quick" if hour.quick else hour.workload]
    clips = training_clips(
        (hour.workload,), (hour.pattern,), seed=len(hour.workload) + 100, split="validation",
        seconds=3600.0 / kind.speed, mean_rps=(hour.mean_rps, hour.mean_rps), window_s=kind.window_s, speed=kind.speed,
    )  # fmt: skip
    clip = next(itertools.islice(clips, hour.seed, None))
    workload = kind.workload(SEEDS[clip.split] + clip.seed, clip.mean_rps)
    work = work_of(clip, None, workload)
    choices = by_price(workload.space, workload.prices, CONCURRENCY, REPLICAS)
    level = []
    for number in range(int(work.seconds // kind.window_s)):
        requests = between(work.requests, number * kind.window_s, (number + 1) * kind.window_s)
        level.append(needed(workload, requests, choices, workload.slo_s, kind.window_s, work.seed))
    price = [workload.prices.unit_per_s(choice) * choice.replicas for choice in choices]
    return Needs(hour, np.array(level), np.array(price), tuple(map(_name, choices)))


def _name(choice: Configuration) -> str:
    resource = f"{choice.gpu_share:g} GPU" if choice.gpu_share else f"{choice.cpu_cores:g} cores"
    return resource if choice.replicas == 1 else f"{choice.replicas} × {resource}"


def policies(needs: Needs) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """Name, and the choice that each counted window gets, [windows] int64."""
    most, windows = len(needs.price) - 1, needs.level.size
    served = np.minimum(needs.level, most)
    yield "known", served[WARM_UP:]
    for count in LOOK_BACK:
        past = [served[max(0, number - count) : number].max() for number in range(WARM_UP, windows)]
        yield f"look back {count}", np.array(past)
    for place, name in enumerate(needs.name):
        yield f"always {name}", np.full(windows - WARM_UP, place)


def compared(all_needs: Sequence[Needs]) -> list[Row]:
    """Means over hours, by rate and pattern."""
    rows = []
    for key in dict.fromkeys((needs.hour.mean_rps, needs.hour.pattern) for needs in all_needs):
        figures: dict[str, list[tuple[float, float]]] = {}
        for needs in (needs for needs in all_needs if (needs.hour.mean_rps, needs.hour.pattern) == key):
            needed, base = needs.level[WARM_UP:], None
            for name, given in policies(needs):
                cost = float(needs.price[given].mean())
                base = cost if base is None else base
                figures.setdefault(name, []).append((cost / base, float((needed > given).mean())))
        rows += [
            Row(*key, name, round(float(np.mean(costs)), 4), round(float(np.mean(over)), 5))
            for name, pairs in figures.items()
            for costs, over in [zip(*pairs, strict=True)]
        ]
    return rows


def cheapest(rows: Sequence[Row], begins: str, allowed: float) -> Row | None:
    """Cheapest of the policies whose names begin so, with at most ``allowed`` windows over λ."""
    kept = [row for row in rows if row.policy.startswith(begins) and row.violated <= allowed]
    return min(kept, key=lambda row: row.cost, default=None)


def shown(rows: Sequence[Row]) -> Table:
    """A line a policy, two columns a rate and pattern."""
    keys = list(dict.fromkeys((row.mean_rps, row.pattern) for row in rows))
    table = Table(title="simulated: cost over that of knowing the window, windows over λ")
    table.add_column("policy")
    for rate, pattern in keys:
        table.add_column(f"{rate:g}/s {pattern}", justify="right")
    by = {(row.mean_rps, row.pattern, row.policy): row for row in rows}
    for policy in dict.fromkeys(row.policy for row in rows):
        cells = [by.get((*key, policy)) for key in keys]
        table.add_row(policy, *("–" if one is None else f"{one.cost:.2f}, {one.violated:.1%}" for one in cells))
    return table


def draw(rows: Sequence[Row], file: Path) -> None:
    """Cost against windows over λ, looking back and never changing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = list(dict.fromkeys(row.mean_rps for row in rows))
    figure, grid = pyplot.subplots(
        len(rates), len(PATTERNS), figsize=(4 * len(PATTERNS), 3.2 * len(rates)), squeeze=False, sharey=True
    )
    for (line, rate), (place, pattern) in itertools.product(enumerate(rates), enumerate(PATTERNS)):
        axis = grid[line, place]
        for begins, colour, marker in (("look back", "tab:orange", "o"), ("always", "tab:blue", "s")):
            points = [row for row in rows if (row.mean_rps, row.pattern) == (rate, pattern)]
            points = [point for point in points if point.policy.startswith(begins) and point.violated < 0.5]
            axis.plot(
                [point.cost for point in points], [100 * point.violated for point in points], marker=marker,
                color=colour,
                linewidth=1, markersize=4, label=f"{begins} …",
            )  # fmt: skip
        axis.axhline(1.0, color="grey", linewidth=1, linestyle=":", label="1 % of windows")
        axis.set(title=f"{pattern}, {rate:g} requests/s", xscale="log", xlabel="cost over known", ylim=(0, MOST_SHOWN))
    grid[0, 0].legend(fontsize=8)
    for line in grid:
        line[0].set_ylabel("windows over λ, %")
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def write_csv(rows: Sequence[Row], file: Path) -> None:
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


@click.command()
@click.option("--workloads", default=",".join(PAPER_WORKLOADS), show_default=True, help="Comma list.")
@click.option("--rates", default="20", show_default=True, help="Mean requests/s, comma list.")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="Hours of each pattern.")
@click.option(
    "--speed", default="1", show_default=True, type=click.Choice(["1", "5"]), help="5: an hour in 12 minutes."
)
@click.option(
    "--allowed", default=0.01, show_default=True, type=click.FloatRange(0, 1), help="Windows over λ that are kept."
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=None, help="Folder of CSV and picture."
)
def main(workloads: str, rates: str, seeds: int, speed: str, allowed: float, workers: int, out: Path | None) -> None:
    """How much of the coming window's need the windows before it show."""
    hours = [
        Hour(workload, pattern, seed, rate, float(speed) == QUICK_SPEED)
        for rate in map(float, rates.split(","))
        for pattern in PATTERNS
        for workload in workloads.split(",")
        for seed in range(seeds)
    ]
    needs: dict[Hour, Needs] = {}
    with Progress(console=Console(stderr=True), transient=True) as bar, worker_processes(workers) as pool:
        task = bar.add_task("hours", total=len(hours))
        asked = {pool.submit(needs_of, hour): hour for hour in hours}
        for done in as_completed(asked):
            needs[asked[done]] = done.result()
            bar.update(task, advance=1)
    rows = compared([needs[hour] for hour in hours])
    Console(stderr=True, width=160).print(shown(rows))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_csv(rows, out / "lookback.csv")
        draw(rows, out / "lookback.png")
    least = {
        f"{rate:g}/s {pattern}": {
            begins: None if one is None else asdict(one)
            for begins in ("look back", "always")
            for one in [
                cheapest([row for row in rows if (row.mean_rps, row.pattern) == (rate, pattern)], begins, allowed)
            ]
        }
        for rate, pattern in dict.fromkeys((row.mean_rps, row.pattern) for row in rows)
    }
    unserved = float(np.mean(np.concatenate([one.level[WARM_UP:] == len(one.price) for one in needs.values()])))
    print_result(
        {"rows": list(map(asdict, rows)), "cheapest": least, "allowed": allowed, "unserved": round(unserved, 5)}
    )


if __name__ == "__main__":
    main()

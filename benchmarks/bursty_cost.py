"""What burst activation saves on bursty hours: ``python -m benchmarks.bursty_cost``.

Simulated: `bert-8`, experts of one core and one call at a time, segments with more than enough. The opponent is the
best constant per expert: square-root staffing for so many times its mean work of the validation hours. Burst activation
keeps one replica of each expert and standbys that follow the arrivals. Both are chosen on validation hours, the
cheapest among those that break the SLO hardly more often than the one that does so least, and judged on test hours. The
SLO is a multiple of the requests' P95 without queues. Costs are those of experts an hour; a standby costs its memory,
and from its activation to its release what a replica costs.

Last line: ``cost_ratio``, ``windows_over``, ``windows_over_constant`` (shares of windows whose P95 is over the SLO).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from autoscaler.contract import Configuration
from benchmarks.harness.options import benchmark, data_option
from benchmarks.harness.report import print_result, print_table, progress
from evaluation.comparison.arrivals import typical
from functions.dispatch.activation import Burst
from simulation.arrays import Floats
from simulation.engine import kernel
from simulation.engine.bursts import BurstSettings
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from traces.catalog import data_folder
from traces.model import PATTERNS
from traces.splits import Split
from traces.traffic import choose_hours

WINDOW_S = 30.0
WARM_UP = 2
"""Windows that are simulated and not judged: in the first one burst activation has not measured anything."""
PLENTY = 64
"""Replicas of whatever is to have no queue."""
TOLERATED = 0.005
"""Share of windows by which the chosen setting may break the SLO more often than the best one."""
CONSTANTS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Times its mean work that an expert is staffed for."""
BURSTS = tuple((headroom, spare, hold_s) for headroom in (1.0, 1.5, 2.0) for spare in (1.0, 2.0, 3.0) for hold_s in
               (5.0, 15.0))  # fmt: skip
EXPERT = Configuration(256, 1.0, 0.0, 1, 1)


@dataclass(frozen=True, eq=False)
class Hour:
    """One hour's requests and its SLO."""

    requests: Requests
    slo_s: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """One setting on some hours."""

    name: str
    cost_per_hour: float
    replicas: float
    """Mean of an expert, activated standbys included."""
    over: float
    """Share of judged windows whose P95 is over the SLO."""


def windows_of(simulation: Simulation, hour: Hour) -> tuple[list[float], Floats]:
    """P95 of each judged window in seconds, and [nodes] activated seconds."""
    p95s, activated_s = [], np.zeros(len(simulation.nodes))
    for number, end_s in enumerate(np.arange(WINDOW_S, hour.seconds + 1e-9, WINDOW_S)):
        window = simulation.advance(float(end_s))
        activated_s += window.activated_s
        p95_s = window.quantile_s(0.95)
        if number >= WARM_UP and p95_s is not None:
            p95s.append(p95_s)
    return p95s, activated_s


def deployed(workload: Workload, replicas: Floats, burst: Burst | None = None) -> dict[str, Configuration]:
    """Experts with ``replicas`` [experts] and standbys, segments with plenty."""
    start = {
        node.function: replace(EXPERT, replicas=int(count), burst=burst)
        for node, count in zip(workload.experts, replicas, strict=True)
    }
    return start | {node.function: workload.segment_configuration.with_replicas(PLENTY) for node in workload.segments}


def prepare(workload: Workload, arrival_s: Floats, seconds: float, factor: float, seed: int) -> tuple[Hour, Floats]:
    """The hour, and [experts] its mean work in replicas, from a simulation without queues."""
    requests = draw_requests(workload, arrival_s[arrival_s < seconds], seed=seed)
    free = Simulation(workload, requests, deployed(workload, np.full(len(workload.experts), PLENTY)), seed=seed)
    window = free.advance(seconds + 10.0)
    p95_s = window.quantile_s(0.95)
    if p95_s is None:
        raise click.ClickException("an hour without requests cannot be judged")
    work = window.meter[len(workload.segments) :, kernel.SERVED_S] / seconds
    return Hour(requests, factor * p95_s, seconds), work


def judge(
    name: str, workload: Workload, hours: Sequence[Hour], bursts: BurstSettings, replicas: Floats, burst: Burst | None
) -> Outcome:
    """Simulate one setting on ``hours``; ``replicas`` [experts] always run."""
    over, judged, cost, counted = 0, 0, 0.0, 0.0
    prices, start = workload.prices, deployed(workload, replicas, burst)
    for hour in hours:
        simulation = Simulation(workload, hour.requests, start, bursts=bursts)
        p95s, activated = windows_of(simulation, hour)
        over += sum(p95_s > hour.slo_s for p95_s in p95s)
        judged += len(p95s)
        for node in workload.experts:
            configuration, activated_s = start[node.function], float(activated[simulation.index[node.function]])
            always_s = configuration.replicas * hour.seconds
            cost += always_s * prices.unit_per_s(configuration)
            cost += prices.standbys(configuration, hour.seconds, activated_s)
            counted += (always_s + activated_s) / hour.seconds / len(workload.experts)
    spent_s = sum(hour.seconds for hour in hours)
    return Outcome(name, cost / spent_s * 3600, counted / len(hours), over / judged)


def best(outcomes: Sequence[Outcome], most_over: float | None = None) -> Outcome:
    """The cheapest that breaks the SLO hardly more often than the best, or no more often than ``most_over``."""
    limit = max(min(outcome.over for outcome in outcomes) + TOLERATED, most_over or 0.0)
    return min((outcome for outcome in outcomes if outcome.over <= limit), key=lambda outcome: outcome.cost_per_hour)


def constant(work: Floats, times: float) -> Floats:
    """[experts] replicas: square-root staffing of ``times`` the mean work, one at least."""
    return np.maximum(1, np.ceil(times * work + np.sqrt(times * work)))


def row_of(hours: str, outcome: Outcome) -> tuple[str, ...]:
    return (hours, outcome.name, f"{outcome.cost_per_hour:.2f}", f"{outcome.replicas:.2f}", f"{outcome.over:.2%}")


@benchmark
@data_option
@click.option("--hours", type=click.IntRange(1, 50), default=10, help="Test hours.")
@click.option("--tuning-hours", type=click.IntRange(1, 50), default=3, help="Validation hours.")
@click.option("--rate", type=click.FloatRange(1, 1000), default=50.0, help="Requests per second.")
@click.option("--pattern", type=click.Choice(PATTERNS), default="bursty", help="Of the hours.")
@click.option(
    "--seconds", type=click.FloatRange(120, 3600), default=3600.0, help="Of each hour, where it is most like itself."
)
@click.option("--slo-factor", type=click.FloatRange(1), default=1.3, help="SLO over the P95 without queues.")
@click.option("--standbys", type=click.IntRange(0, 64), default=7, help="Of each expert.")
@click.option("--activation-s", type=click.FloatRange(0), default=0.1, help="Until a standby takes calls.")
def main(
    data: Path | None, hours: int, tuning_hours: int, rate: float, pattern: str, seconds: float, slo_factor: float,
    standbys: int, activation_s: float,
) -> None:  # fmt: skip
    workload, folder, activation = paper_workload("bert-8"), data_folder(data), BurstSettings(activation_s)

    def hours_of(split: Split, count: int) -> list[tuple[Hour, Floats]]:
        chosen = choose_hours(pattern, rate, split, count, data=folder)
        traces = [(hour.replay(), hour.seed) for hour in chosen]
        parts = [(trace if seconds >= trace.duration_s else typical(trace, seconds), seed) for trace, seed in traces]
        return [prepare(workload, trace.arrival_s, seconds, slo_factor, seed) for trace, seed in parts]

    with progress(len(CONSTANTS) + len(BURSTS) + 2, "validation hours") as show:
        tuning = hours_of("validation", tuning_hours)
        mean_work = np.mean([work for _, work in tuning], axis=0)
        constants = {f"constant for {times:g} times the work": constant(mean_work, times) for times in CONSTANTS}
        bursts = {
            f"burst k={headroom:g} z={spare:g} hold {hold_s:g} s": Burst(standbys, headroom, spare, hold_s)
            for headroom, spare, hold_s in BURSTS
        }
        one_each = np.ones(len(workload.experts))
        settings: dict[str, tuple[Floats, Burst | None]] = {
            **{name: (count, None) for name, count in constants.items()},
            **{name: (one_each, burst) for name, burst in bursts.items()},
        }
        tried = {}
        for number, (name, setting) in enumerate(settings.items()):
            show(name, number)
            tried[name] = judge(name, workload, [hour for hour, _ in tuning], activation, *setting)
        steady = best([tried[name] for name in constants])
        quick = best([tried[name] for name in bursts], steady.over)
        show("test hours", len(tried))
        test = [hour for hour, _ in hours_of("test", hours)]
        theirs, ours = (
            judge(chosen.name, workload, test, activation, *settings[chosen.name]) for chosen in (steady, quick)
        )
    print_table(
        f"{pattern} hours at {rate:g} requests/s, bert-8, simulated",
        ("hours", "setting", "cost of experts an hour", "replicas an expert", "windows over the SLO"),
        [row_of("validation", outcome) for outcome in tried.values()] + [row_of("test", theirs), row_of("test", ours)],
        texts=2,
    )
    print_result({
        "cost_ratio": round(ours.cost_per_hour / theirs.cost_per_hour, 4), "windows_over": round(ours.over, 5),
        "windows_over_constant": round(theirs.over, 5), "replicas": round(ours.replicas, 3),
        "replicas_constant": round(theirs.replicas, 3), "setting": ours.name, "constant": theirs.name,
        "hours": len(test), "rate": rate, "pattern": pattern, "seconds": seconds, "activation_s": activation_s,
    })  # fmt: skip


if __name__ == "__main__":
    main()

"""What burst activation saves on bursty hours: ``python -m benchmarks.bursty_cost``.

Simulated: `bert-8`, experts of one core and one call at a time, segments with more than enough. Burst activation keeps
a floor of replicas of each expert, and standbys that follow the arrivals. Two comparisons on test hours:

- *Tuned*: both settings are chosen on validation hours, the cheapest among those that break the SLO hardly more often
  than the one that does so least. The constant is square-root staffing for so many times each expert's mean work.
- *In hindsight*: in each test hour by itself the same choice among all settings of burst activation, and the cheapest
  constant per expert found that breaks the SLO no more often. That one knows the hour's own work of each expert; the
  number of times is searched by bisection, then replicas are taken from one layer's experts after the other for as long
  as the SLO holds as often. Where no constant holds it as often, the largest of the search stands for it, which is a
  bound in its favour.

The SLO is a multiple of the requests' P95 without queues. Costs are those of experts an hour; a standby costs its
memory, and from its activation to its release what a replica costs.

Last line: ``cost_ratio``, ``windows_over``, ``windows_over_constant`` (shares of windows whose P95 is over the SLO), in
hindsight; the tuned ones under ``tuned``; ``cost_ratio_of_hours``, in hindsight.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.contract import Configuration
from benchmarks.harness.options import benchmark, data_option
from benchmarks.harness.report import print_result, print_table, progress
from evaluation.comparison.arrivals import typical
from evaluation.uniform import first_keeping
from functions.dispatch.activation import Burst
from simulation.arrays import Floats
from simulation.engine import kernel
from simulation.engine.bursts import BurstSettings
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from traces import traffic
from traces.catalog import data_folder
from traces.model import PATTERNS, Trace
from traces.scale import many_users
from traces.splits import Split

WINDOW_S = 30.0
WARM_UP = 2
"""Windows that are simulated and not judged: in the first one burst activation has not measured anything."""
PLENTY = 64
"""Replicas of whatever is to have no queue."""
TOLERATED = 0.005
"""Share of windows by which the chosen setting may break the SLO more often than the best one."""
CONSTANTS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0)
"""Times its mean work that an expert is staffed for."""
BURSTS = (
    *(
        (floor, Burst(standbys, headroom, spare, hold_s))
        for floor in (0.0, 1.0, 2.0)
        for standbys in (7, 20)
        for headroom in (1.0, 2.0)
        for spare in (1.0, 2.0)
        for hold_s in (2.0, 10.0)
    ),
    *(
        (0.0, Burst(standbys, headroom, spare, 2.0, sleep_s=sleep_s))
        for sleep_s in (0.5, 2.0)
        for standbys in (3, 7)
        for headroom in (1.0, 2.0)
        for spare in (1.0, 2.0)
    ),
    *(
        (floor, Burst(standbys, 1.0, spare, hold_s, look_back_s, sleep_s=sleep_s))
        for floor, standbys, sleep_s in ((0.0, 20, None), (1.0, 20, None), (0.0, 7, 0.5))
        for spare in (0.25, 0.5, 1.0)
        for hold_s in (0.1, 0.5)
        for look_back_s in (0.1, 0.25, 0.5, 1.0)
    ),
)
"""Times its mean work of the validation hours that an expert always has replicas for (0: one replica), and the rule:
ample ones, those whose replicas sleep between requests, and lean ones, which follow the requests closely."""
FINENESS, LARGEST = 1.1, 64.0
"""Steps between two constants in hindsight, and the most times its mean work that an expert is staffed for there."""
COLUMNS = ("burst tuned", "constant tuned", "burst in hindsight", "constant in hindsight")
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


def replayed(
    pattern: str, rate: float, split: Split, count: int, folder: Path | None, minutes: bool, most_cv: float
) -> Iterator[tuple[Trace, int]]:
    """``count`` distinct hours, each with its seed. Raises ClickException where there are fewer."""
    kept = 0
    for hour in traffic.hours_of(pattern, rate, split, data=folder):
        trace = many_users(hour.replay(), 1.0, hour.seed) if minutes else hour.replay()
        if (trace.iat_cv or math.inf) <= most_cv:
            kept += 1
            yield trace, hour.seed
        if kept == count:
            return
    raise click.ClickException(
        f"{split} has {kept} {pattern} hours at {rate:g} requests/s of this kind, {count} wanted"
    )


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
            cost += prices.provisioned(configuration, hour.seconds, activated_s)
            counted += (configuration.running + activated_s / hour.seconds) / len(workload.experts)
    spent_s = sum(hour.seconds for hour in hours)
    return Outcome(name, cost / spent_s * 3600, counted / len(hours), over / judged)


def best(outcomes: Sequence[Outcome], most_over: float | None = None) -> Outcome:
    """The cheapest that breaks the SLO hardly more often than the best, or no more often than ``most_over``."""
    limit = max(min(outcome.over for outcome in outcomes) + TOLERATED, most_over or 0.0)
    return min((outcome for outcome in outcomes if outcome.over <= limit), key=lambda outcome: outcome.cost_per_hour)


def constant(work: Floats, times: float) -> Floats:
    """[experts] replicas: square-root staffing of ``times`` the mean work, one at least."""
    return np.maximum(1, np.ceil(times * work + np.sqrt(times * work)))


def in_hindsight(
    workload: Workload, hour: Hour, work: Floats, allowed: float, bursts: BurstSettings
) -> tuple[Outcome, bool]:
    """The cheapest constant per expert found that breaks the SLO in at most ``allowed`` of the hour's windows, and
    whether there is one; the largest where not. ``work`` [experts] is the hour's own, in replicas."""

    def tried(replicas: Floats) -> Outcome:
        return judge("constant in hindsight", workload, [hour], bursts, replicas, None)

    steps = [constant(work, FINENESS**step) for step in range(-12, int(math.log(LARGEST, FINENESS)) + 1)]
    number = first_keeping(len(steps), lambda step: tried(steps[step]).over <= allowed)
    if number == len(steps):
        return tried(steps[-1]), False
    replicas, best_so_far = steps[number], tried(steps[number])
    layers = np.array([node.layer for node in workload.experts])
    for layer in np.unique(layers):
        while (fewer := np.where(layers == layer, np.maximum(1, replicas - 1), replicas)).sum() < replicas.sum():
            outcome = tried(fewer)
            if outcome.over > allowed:
                break
            replicas, best_so_far = fewer, outcome
    return best_so_far, True


def together(name: str, outcomes: Sequence[Outcome]) -> Outcome:
    """Means over hours of the same number of windows."""
    costs, replicas, over = zip(*((one.cost_per_hour, one.replicas, one.over) for one in outcomes), strict=True)
    return Outcome(name, float(np.mean(costs)), float(np.mean(replicas)), float(np.mean(over)))


def ratio(burst: Outcome, steady: Outcome) -> float:
    return round(burst.cost_per_hour / steady.cost_per_hour, 4)


def row_of(hours: str, outcome: Outcome) -> tuple[str, ...]:
    return (hours, outcome.name, f"{outcome.cost_per_hour:.2f}", f"{outcome.replicas:.2f}", f"{outcome.over:.2%}")


def compared(rule: Outcome, steady: Outcome) -> dict[str, Any]:
    """A rule against a constant, for the last line."""
    return {
        "cost_ratio": ratio(rule, steady),
        "windows_over": round(rule.over, 5),
        "windows_over_constant": round(steady.over, 5),
    }


def settings_of(mean_work: Floats) -> dict[str, tuple[Floats, Burst | None]]:
    """Name → replicas [experts] that always run and the rule on top of them: all constants, then all rules.
    ``mean_work`` [experts], in replicas."""
    settings: dict[str, tuple[Floats, Burst | None]] = {
        f"constant for {times:g} times the work": (constant(mean_work, times), None) for times in CONSTANTS
    }
    for floor, rule in BURSTS:
        name = f"{rule.standbys} standbys, k={rule.headroom:g} z={rule.spare:g}, hold {rule.hold_s:g} s"
        name = f"floor {floor:g}, {name}, look back {rule.look_back_s:g} s"
        settings[f"{name}, sleep {rule.sleep_s:g} s" if rule.sleep_s else name] = constant(mean_work, floor), rule
    return settings


def figures(
    columns: dict[str, list[Outcome]], means: dict[str, Outcome], quick: Outcome, steady: Outcome, unheld: int
) -> dict[str, Any]:
    """The rules against the constants, for the last line."""
    tuned, tuned_constant, ideal, ideal_constant = means.values()
    return {
        **compared(ideal, ideal_constant),
        "hours_without_such_a_constant": unheld,
        "cost_ratio_of_hours": [ratio(*pair) for pair in zip(*list(columns.values())[2:], strict=True)],
        "tuned": {**compared(tuned, tuned_constant), "setting": quick.name, "constant": steady.name},
    }


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
@click.option("--minutes", is_flag=True, help="Replay an hour's minutes as Poisson processes of their rates.")
@click.option(
    "--most-cv", type=click.FloatRange(1), default=math.inf, help="Only hours of at most this CV, as replayed."
)
@click.option("--activation-s", type=click.FloatRange(0), default=0.1, help="Until a standby takes calls.")
def main(
    data: Path | None, hours: int, tuning_hours: int, rate: float, pattern: str, seconds: float, slo_factor: float,
    minutes: bool, most_cv: float, activation_s: float,
) -> None:  # fmt: skip
    workload, folder, activation = paper_workload("bert-8"), data_folder(data), BurstSettings(activation_s)

    def hours_of(split: Split, count: int) -> Iterator[tuple[Hour, Floats, str]]:
        for trace, seed in replayed(pattern, rate, split, count, folder, minutes, most_cv):
            part = trace if seconds >= trace.duration_s else typical(trace, seconds)
            yield *prepare(workload, part.arrival_s, seconds, slo_factor, seed), trace.source

    with progress(len(CONSTANTS) + len(BURSTS) + hours, "validation hours") as show:
        tuning = list(hours_of("validation", tuning_hours))
        settings = settings_of(np.mean([work for _, work, _ in tuning], axis=0))
        rules = [name for name, (_, burst) in settings.items() if burst is not None]
        tried = {}
        for number, (name, setting) in enumerate(settings.items()):
            show(name, number)
            tried[name] = judge(name, workload, [hour for hour, _, _ in tuning], activation, *setting)
        steady = best([outcome for name, outcome in tried.items() if name not in rules])
        # Costs compare only at equal violations: the rule has to be over in no more windows than the constant.
        quick = best([tried[name] for name in rules], steady.over)
        table = [row_of("validation", outcome) for outcome in tried.values()]
        columns: dict[str, list[Outcome]] = {name: [] for name in COLUMNS}
        unheld = 0
        for number, (hour, work, source) in enumerate(hours_of("test", hours), 1):
            show(f"test: {source}", len(tried) + number - 1)
            every = {name: judge(name, workload, [hour], activation, *settings[name]) for name in (*rules, steady.name)}
            # Both with hindsight: what any setting of either could have reached in this very hour.
            ideal = best([every[name] for name in rules])
            cheapest, holds = in_hindsight(workload, hour, work, ideal.over, activation)
            unheld += not holds
            for name, outcome in zip(COLUMNS, (every[quick.name], every[steady.name], ideal, cheapest), strict=True):
                columns[name].append(outcome)
                table.append(row_of(f"test {number}: {name}", outcome))
    means = {name: together(name, outcomes) for name, outcomes in columns.items()}
    heads = ("hours", "setting", "cost of experts an hour", "replicas an expert", "windows over the SLO")
    table += [row_of("all test", outcome) for outcome in means.values()]
    print_table(f"{pattern} hours at {rate:g} requests/s, bert-8, simulated", heads, table, texts=2)
    print_result({
        **figures(columns, means, quick, steady, unheld),
        "hours": len(columns[COLUMNS[0]]), "rate": rate, "pattern": pattern, "seconds": seconds,
        "activation_s": activation_s, "slo_factor": slo_factor, "minutes": minutes,
        "most_cv": None if most_cv == math.inf else most_cv,
    })  # fmt: skip


if __name__ == "__main__":
    main()

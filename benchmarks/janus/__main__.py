"""Module-wise scaling by Janus's performance model against scaling the whole model: the paper's Fig. 9, simulated.

``python -m benchmarks.janus TRACE --out FOLDER``: two days of a ServeGen trace through a modelled pipeline under the
controller's own loop, a decision every half hour as in the paper, every replica one core. Compared are ``janus``
(every segment and every layer's experts by themselves), the paper's two numbers (replicas of all segments, slots of all
layers), the same performance model in steps of full replicas of everything and in its doublings (as the paper's 16, 32
and 64 GPUs), HPA, and the whole model held at the peak's size. Settings of each are chosen on the day before: the
cheapest that keeps the P95 within the SLO in 95 % of the windows. All then give equal service by that rule; what they
really gave over the two days stands next to the resources. Steps of a full replica are so coarse that the whole model's
cheapest setting mostly keeps it in more than 95 %, so ``janus, as the whole model`` has the cheapest setting that broke
the SLO in no more windows of the day before than the whole model's did. Seeds draw arrivals, lengths, routing and
seconds again; the first has every row and the picture, the others those that the resources are compared by.

Dispatch is compared apart, on ``--machines`` that serve a pass's experts one after the other, with Janus's placement:
``janus`` with activated-expert-balanced dispatch against ``janus`` with random dispatch, each with its own settings,
and with an SLO that random dispatch can keep: over the P95 of its own passes that meet no other.

Prints a table, draws ``janus.png``, writes ``windows.csv``; the last line is one JSON object. Simulated, not measured.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from autoscaler.contract import Memory, Observation, Policy, Proposal
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.janus import JanusPolicy, JanusSettings
from autoscaler.policy.rows import MODULES
from autoscaler.policy.static import StaticPolicy
from benchmarks.harness.options import benchmark, listed, out_option, workload_option
from benchmarks.harness.report import picture, print_result, print_table, write_csv
from benchmarks.janus.world import (
    CORES,
    REPLICA,
    Clock,
    Maker,
    Run,
    on_machines,
    simulate,
    simulated,
    sliced,
    unloaded_s,
    world,
)
from simulation.engine.requests import Requests, draw_requests
from simulation.workloads.workload import Workload
from traces.errors import TraceError
from traces.model import Trace

MOST_VIOLATED = 0.05
"""Share of the tuning day's windows, for settings that keep the SLO."""
WARM_UP = 2
"""Decisions that are simulated but not counted."""
HEADROOM, LOAD_FACTOR = 0.9, (1.0, 1.2, 1.4, 1.6, 1.8, 2.1)
MORE_LOAD = (2.4, 2.8, 3.3)
"""Further load factors, tried of ``EQUAL`` alone: all other rows choose among as many settings."""
CPU_TARGETS = (0.42, 0.36, 0.31, 0.27, 0.24, 0.21)
"""As many and as far apart as the load factors."""
JANUS, NUMBERS, WHOLE, DOUBLED = "janus", "janus, two numbers", "whole model", "whole model, doubled"
HPA, PEAK = "hpa", "whole model, held at peak"
COMPARED = (JANUS, WHOLE, HPA)
"""Rows of every seed."""
EQUAL = "janus, as the whole model"
"""For every seed, too: with a setting that kept the SLO as often as the whole model's on the day before."""
BALANCED, RANDOM = "janus, aebs on machines", "janus, random on machines"


class DoublingPolicy:
    """Rounds another policy's replicas up to 1, 2, 4, 8, …: the fixed sizes of the paper's SGLang."""

    def __init__(self, inner: Policy) -> None:
        self.name = DOUBLED
        self._inner = inner

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        proposal = self._inner.propose(observation, now_s, memory)
        desired = {name: one.with_replicas(doubled(one.replicas)) for name, one in proposal.desired.items()}
        return replace(proposal, desired=desired)


def doubled(replicas: int) -> int:
    """The least power of two that is not below ``replicas``."""
    return 1 << math.ceil(math.log2(max(1, replicas)))


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting of one policy."""

    in_words: str
    policy: Policy


@dataclass(frozen=True, eq=False)
class World:
    """What a row is simulated in."""

    workload: Workload
    make: Maker


def candidates(name: str, workload: Workload) -> list[Setting]:
    """What is tried of one row on the tuning day."""
    most = workload.space.replicas_max

    def model(scaling: Any, factors: Sequence[float] = LOAD_FACTOR) -> list[Setting]:
        same: dict[str, Any] = {"down_windows": 1, "scaling": scaling, "max_replicas": most}
        tried = [JanusSettings(workload.slo_s, HEADROOM, factor, **same) for factor in factors]
        words = f"headroom {HEADROOM:g}, load factor"
        return [Setting(f"{words} {one.load_factor:g}", JanusPolicy(one, CORES)) for one in tried]

    if name == HPA:
        same: dict[str, Any] = {"kinds": MODULES, "up_pods": most, "max_replicas": most, "down_stabilisation_s": 0.0}
        tried = [HpaSettings(cpu_target=target, concurrency_target=0.0, **same) for target in CPU_TARGETS]
        return [Setting(f"CPU target {one.cpu_target:g}", HpaPolicy(one)) for one in tried]
    if name == DOUBLED:
        return [Setting(one.in_words, DoublingPolicy(one.policy)) for one in model("model")]
    if name == EQUAL:
        return model("stages", MORE_LOAD)
    return model({WHOLE: "model", NUMBERS: "modules"}.get(name, "stages"))


def best(tried: Sequence[tuple[Setting, Run]], most: float = MOST_VIOLATED) -> Setting:
    """The cheapest that keeps the SLO but in ``most`` of the windows; where none does, the one with the fewest violated
    ones."""
    keeping = [(one, run) for one, run in tried if run.violated <= most]
    if keeping:
        return min(keeping, key=lambda pair: pair[1].mean_cores)[0]
    return min(tried, key=lambda pair: (pair[1].violated, pair[1].mean_cores))[0]


def over_with(setting: Setting, tried: Sequence[tuple[Setting, Run]]) -> float:
    """Part of the windows over the SLO when ``setting`` was tried."""
    return next(run.violated for one, run in tried if one is setting)


def worlds_of(bare: Workload, machines: int, slo_factor: float, seed: int) -> dict[str, World]:
    """Row → what it is simulated in, with its SLO."""
    makers: dict[str, Maker] = dict.fromkeys((JANUS, NUMBERS, WHOLE, DOUBLED, HPA), simulate)
    makers |= {BALANCED: on_machines(machines, "aebs"), RANDOM: on_machines(machines, "random")}
    slo_s = {make: slo_factor * unloaded_s(bare, seed, make) for make in (simulate, makers[RANDOM])}
    slo_s[makers[BALANCED]] = slo_s[makers[RANDOM]]
    return {name: World(replace(bare, slo_s=slo_s[make]), make) for name, make in makers.items()}


def compare(
    worlds: Mapping[str, World], tuning: Trace, trace: Trace, clock: Clock, seed: int
) -> tuple[dict[str, Run], dict[str, str]]:
    """Every row's run over ``trace`` with its best setting on ``tuning``, and that setting in words."""
    workload = worlds[WHOLE].workload
    before = draw_requests(workload, tuning.arrival_s, seed=seed, source=tuning.source)
    requests = draw_requests(workload, trace.arrival_s, seed=seed, source=trace.source)
    runs: dict[str, Run] = {}
    in_words: dict[str, str] = {}
    trials: dict[str, list[tuple[Setting, Run]]] = {}
    picked: dict[str, Setting] = {}

    def run_one(one: World, work: Requests, policy: Policy, over: Trace) -> Run:
        until_s = over.duration_s
        return simulated(one.workload, work, policy, clock, until_s, seed=seed, warm_up=WARM_UP, make=one.make)

    for name in worlds:
        one = worlds[name]
        settings = candidates(name, one.workload)
        tried = [(setting, run_one(one, before, setting.policy, tuning)) for setting in settings]
        trials[name], picked[name] = tried, best(tried)
        runs[name], in_words[name] = run_one(one, requests, picked[name].policy, trace), picked[name].in_words
        tuned = ", ".join(f"{it.in_words}: {run.mean_cores:.1f} cores, {run.violated:.3f} over" for it, run in tried)
        print(f"{name}: {in_words[name]} (tuned on {tuned})", file=sys.stderr, flush=True)
    janus, as_often = worlds[JANUS], over_with(picked[WHOLE], trials[WHOLE])
    more = candidates(EQUAL, janus.workload)
    tried = [*trials[JANUS], *((setting, run_one(janus, before, setting.policy, tuning)) for setting in more)]
    equal = best(tried, as_often)
    runs[EQUAL] = run_one(janus, requests, equal.policy, trace)
    missed = over_with(equal, tried) > as_often
    in_words[EQUAL] = f"{equal.in_words} (no setting tried was over as seldom)" if missed else equal.in_words
    if DOUBLED in worlds:
        peak = int(runs[WHOLE].replicas["expert"].max())
        held = StaticPolicy(dict.fromkeys(workload.initial(REPLICA), REPLICA.with_replicas(peak)))
        runs[PEAK], in_words[PEAK] = run_one(worlds[WHOLE], requests, held, trace), f"{peak} replicas"
    return runs, in_words


def print_runs(seed: int, runs: Mapping[str, Run], in_words: Mapping[str, str]) -> None:
    """For people; resources against the whole model in full replicas."""
    heads = ("policy", "setting", "cores", "ratio", "within SLO", "windows over", "P95/SLO", "changes")
    rows = []
    for name, one in runs.items():
        ratio, tail = one.mean_cores / runs[WHOLE].mean_cores, np.nanquantile(one.p95_s, 0.95) / one.slo_s
        cells = f"{one.mean_cores:.1f}", f"{ratio:.3f}", f"{one.attainment:.4f}", f"{one.violated:.3f}", f"{tail:.2f}"
        rows.append((name, in_words[name], *cells, one.changes))
    print_table(f"seed {seed}", heads, rows, texts=2, width=130, stdout=True)


def draw(runs: Mapping[str, Run], trace: Trace, clock: Clock, out: Path) -> None:
    """Load, cores and tails over the two days."""
    with picture(out, 3, 1, figsize=(9, 7.5), sharex=True) as (figure, (load, cores, tails)):
        edges = np.arange(0.0, trace.duration_s + 1e-9, clock.slice_s)
        counted, _ = np.histogram(trace.arrival_s, edges)
        load.step(clock.hours(edges[:-1]), counted / clock.slice_s, where="post", color="black", linewidth=0.8)
        load.set(ylabel="requests/s", title=f"{trace.source.split(',')[0]}, simulated; one core a replica")
        for name in (JANUS, NUMBERS, WHOLE, HPA):
            hours = clock.hours(runs[name].start_s)
            cores.step(hours, runs[name].cores, where="post", label=name, linewidth=1.2)
            tails.step(hours, 1000 * runs[name].p95_s, where="post", label=name, linewidth=1.0)
        cores.set(ylabel="cores", ylim=(0, None))
        tails.axhline(1000 * runs[JANUS].slo_s, color="red", linestyle="--", linewidth=1, label="SLO")
        tails.set(ylabel="P95 (ms)", xlabel="hours", ylim=(0, 2000 * runs[JANUS].slo_s))
        figure.legend(*tails.get_legend_handles_labels(), loc="outside lower center", ncols=5)


def window_rows(runs: Mapping[str, Run], clock: Clock) -> Iterator[dict[str, str]]:
    """A policy and decision window each."""
    for name, one in runs.items():
        for at, start_s in enumerate(one.start_s):
            numbers = {
                "cores": one.cores[at], "p95_ms": 1000 * one.p95_s[at],
                "segment_replicas": one.replicas["segment"][at], "expert_replicas": one.replicas["expert"][at],
            }  # fmt: skip
            hour = f"{float(clock.hours(start_s)):.3f}"
            yield {"policy": name, "hour": hour} | {key: f"{value:.4g}" for key, value in numbers.items()}


@benchmark
@click.argument("trace", type=click.Path(path_type=Path))
@out_option("out/janus", "Folder of table, windows and picture.")
@workload_option("bert-8")
@click.option("--first-day", default=2, help="Counted from 0; the day before is tuned on.")
@click.option("--days", default=2, help="Days simulated.")
@click.option("--slice", "slice_s", default=2.0, help="Seconds simulated of every ten minutes.")
@click.option("--decision-windows", default=3, help="Windows of ten minutes between decisions.")
@click.option("--slo-factor", default=1.5, help="SLO over the P95 of a pass that meets no other.")
@click.option("--most", default=16, help="Replicas of a function at most.")
@click.option("--machines", default=8, help="For the comparison of dispatch.")
@click.option("--seeds", callback=listed(int), default="0,1,2", help="The first has all rows.")
def main(
    trace: Path, out: Path, name: str, first_day: int, days: int, slice_s: float, decision_windows: int,
    slo_factor: float, most: int, machines: int, seeds: Sequence[int],
) -> None:  # fmt: skip
    clock = Clock(slice_s, decision_windows)
    bare = world(name, most, clock)
    runs: dict[int, dict[str, Run]] = {}
    traces: dict[int, Trace] = {}
    for seed in seeds:
        worlds = worlds_of(bare, machines, slo_factor, seed)
        try:
            tuning = sliced(trace, first_day - 1, 1, clock, seed)
            traces[seed] = sliced(trace, first_day, days, clock, seed)
        except TraceError as error:
            raise click.UsageError(str(error)) from error
        rows = worlds if seed == seeds[0] else {row: worlds[row] for row in COMPARED}
        runs[seed], in_words = compare(rows, tuning, traces[seed], clock, seed)
        print_runs(seed, runs[seed], in_words)
    first = seeds[0]
    draw(runs[first], traces[first], clock, out / "janus.png")
    write_csv(out / "windows.csv", window_rows(runs[first], clock))
    print_result(summary(runs, name, traces))


def summary(runs: Mapping[int, Mapping[str, Run]], workload: str, traces: Mapping[int, Trace]) -> dict[str, Any]:
    """The last line: ratios of sums over seeds, or of the first seed for rows that only it has."""
    one = runs[next(iter(runs))]

    def cores(name: str) -> float:
        return sum(rows[name].mean_cores for rows in runs.values())

    def over(name: str) -> float:
        return float(np.mean([rows[name].violated for rows in runs.values()]))

    return {
        "resources_ratio": cores(JANUS) / cores(WHOLE),
        "resources_ratio_as_often": cores(EQUAL) / cores(WHOLE),
        "resources_ratio_hpa": cores(JANUS) / cores(HPA),
        "resources_ratio_numbers": one[NUMBERS].mean_cores / one[WHOLE].mean_cores,
        "resources_ratio_doubled": one[JANUS].mean_cores / one[DOUBLED].mean_cores,
        "resources_ratio_random_dispatch": one[BALANCED].mean_cores / one[RANDOM].mean_cores,
        "windows_over": {name: over(name) for name in (*COMPARED, EQUAL)},
        "slo_attainment": float(np.mean([rows[JANUS].attainment for rows in runs.values()])),
        "slo_attainment_whole": float(np.mean([rows[WHOLE].attainment for rows in runs.values()])),
        "seeds": {
            str(seed): {
                name: {
                    **{"cores": round(row.mean_cores, 2), "windows_over": round(row.violated, 4)},
                    **{"slo_attainment": round(row.attainment, 4), "slo_ms": round(1000 * row.slo_s, 1)},
                }
                for name, row in rows.items()
            }
            for seed, rows in runs.items()
        },
        "workload": workload,
        "requests": {str(seed): trace.requests for seed, trace in traces.items()},
        "trace_sha256": {str(seed): trace.sha256 for seed, trace in traces.items()},
        "simulated": True,
    }


if __name__ == "__main__":
    main()

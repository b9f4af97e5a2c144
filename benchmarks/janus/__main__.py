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

import argparse
import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

from benchmarks.harness.report import print_result

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from autoscaler.contract import Memory, Observation, Policy, Proposal
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.janus import MODULES, JanusPolicy, JanusSettings
from autoscaler.policy.static import StaticPolicy
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
from simulation.workloads.paper import PAPER_WORKLOADS
from simulation.workloads.workload import Workload
from traces.errors import TraceError
from traces.model import Trace

MOST_VIOLATED = 0.05
"""Share of the tuning day's windows, for settings that keep the SLO."""
WARM_UP = 2
"""Decisions that are simulated but not counted."""
HEADROOM, LOAD_FACTOR = (0.9,), (1.0, 1.2, 1.4, 1.6, 1.8, 2.1)
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
        desired = {
            name: configuration.with_replicas(doubled(configuration.replicas))
            for name, configuration in proposal.desired.items()
        }
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

    def model(scaling: Any, factors: Sequence[float] = LOAD_FACTOR) -> list[tuple[str, Policy]]:
        return [
            (
                f"headroom {headroom:g}, load factor {factor:g}",
                JanusPolicy(
                    JanusSettings(workload.slo_s, headroom, factor, down_windows=1, scaling=scaling, max_replicas=most),
                    CORES,
                ),
            )
            for headroom, factor in product(HEADROOM, factors)
        ]

    hpa = [
        (
            f"CPU target {target:g}",
            HpaPolicy(
                HpaSettings(
                    cpu_target=target,
                    concurrency_target=0.0,
                    down_stabilisation_s=0.0,
                    up_pods=most,
                    kinds=MODULES,
                    max_replicas=most,
                )
            ),
        )
        for target in CPU_TARGETS
    ]
    if name == HPA:
        return [Setting(*one) for one in hpa]
    if name == DOUBLED:
        return [Setting(in_words, DoublingPolicy(policy)) for in_words, policy in model("model")]
    if name == EQUAL:
        return [Setting(*one) for one in model("stages", MORE_LOAD)]
    return [Setting(*one) for one in model({WHOLE: "model", NUMBERS: "modules"}.get(name, "stages"))]


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
    more = [
        (candidate, run_one(janus, before, candidate.policy, tuning)) for candidate in candidates(EQUAL, janus.workload)
    ]
    tried = [*trials[JANUS], *more]
    equal = best(tried, as_often)
    runs[EQUAL] = run_one(janus, requests, equal.policy, trace)
    missed = over_with(equal, tried) > as_often
    in_words[EQUAL] = f"{equal.in_words} (no setting tried was over as seldom)" if missed else equal.in_words
    if DOUBLED in worlds:
        peak = int(runs[WHOLE].replicas["expert"].max())
        held = StaticPolicy(dict.fromkeys(workload.initial(REPLICA), REPLICA.with_replicas(peak)))
        runs[PEAK], in_words[PEAK] = run_one(worlds[WHOLE], requests, held, trace), f"{peak} replicas"
    return runs, in_words


def table(runs: Mapping[str, Run], in_words: Mapping[str, str]) -> str:
    """For people; resources against the whole model in full replicas."""
    lines = [
        f"{'policy':<27}{'cores':>8}{'ratio':>7}{'within SLO':>12}{'windows over':>14}{'P95/SLO':>9}{'changes':>9}"
        "  setting"
    ]
    for name, one in runs.items():
        tail = np.nanquantile(one.p95_s, 0.95) / one.slo_s
        lines.append(
            f"{name:<27}{one.mean_cores:>8.1f}{one.mean_cores / runs[WHOLE].mean_cores:>7.3f}"
            f"{one.attainment:>12.4f}{one.violated:>14.3f}{tail:>9.2f}{one.changes:>9}  {in_words[name]}"
        )
    return "\n".join(lines)


def draw(runs: Mapping[str, Run], trace: Trace, clock: Clock, out: Path) -> None:
    """Load, cores and tails over the two days."""
    figure, (load, cores, tails) = plt.subplots(3, 1, figsize=(9, 7.5), sharex=True, layout="constrained")
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
    figure.savefig(out, dpi=130)
    plt.close(figure)


def write_windows(runs: Mapping[str, Run], clock: Clock, path: Path) -> None:
    """One row a policy and decision window."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("policy", "hour", "cores", "p95_ms", "segment_replicas", "expert_replicas"))
        for name, one in runs.items():
            for at, start_s in enumerate(one.start_s):
                numbers = one.cores[at], 1000 * one.p95_s[at], one.replicas["segment"][at], one.replicas["expert"][at]
                row = (f"{float(clock.hours(start_s)):.3f}", *(f"{value:.4g}" for value in numbers))
                writer.writerow((name, *row))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="ServeGen's clients, as a folder or one table")
    parser.add_argument(
        "--out", type=Path, default=Path("out/janus"), help="folder for table, windows and picture (%(default)s)"
    )
    parser.add_argument(
        "--workload", choices=PAPER_WORKLOADS, default="bert-8", help="on the modelled cluster (%(default)s)"
    )
    parser.add_argument(
        "--first-day", type=int, default=2, help="counted from 0; the day before is tuned on (%(default)s)"
    )
    parser.add_argument("--days", type=int, default=2, help="days simulated (%(default)s)")
    parser.add_argument("--slice", type=float, default=2.0, help="seconds simulated of every ten minutes (%(default)s)")
    parser.add_argument(
        "--decision-windows", type=int, default=3, help="windows of ten minutes between decisions (%(default)s)"
    )
    parser.add_argument(
        "--slo-factor", type=float, default=1.5, help="SLO over the P95 of a pass that meets no other (%(default)s)"
    )
    parser.add_argument("--most", type=int, default=16, help="replicas of a function at most (%(default)s)")
    parser.add_argument("--machines", type=int, default=8, help="for the comparison of dispatch (%(default)s)")
    parser.add_argument("--seeds", type=_seeds, default=(0, 1, 2), help="the first has all rows (default 0,1,2)")
    given = parser.parse_args(arguments)
    clock = Clock(given.slice, given.decision_windows)
    bare = world(given.workload, given.most, clock)
    runs: dict[int, dict[str, Run]] = {}
    traces: dict[int, Trace] = {}
    for seed in given.seeds:
        worlds = worlds_of(bare, given.machines, given.slo_factor, seed)
        try:
            tuning = sliced(given.trace, given.first_day - 1, 1, clock, seed)
            traces[seed] = sliced(given.trace, given.first_day, given.days, clock, seed)
        except TraceError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        rows = worlds if seed == given.seeds[0] else {name: worlds[name] for name in COMPARED}
        runs[seed], in_words = compare(rows, tuning, traces[seed], clock, seed)
        print(f"seed {seed}\n{table(runs[seed], in_words)}", flush=True)
    first = given.seeds[0]
    given.out.mkdir(parents=True, exist_ok=True)
    draw(runs[first], traces[first], clock, given.out / "janus.png")
    write_windows(runs[first], clock, given.out / "windows.csv")
    print_result(summary(runs, given.workload, traces), given.seeds)
    return 0


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


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
                    "cores": round(row.mean_cores, 2),
                    "windows_over": round(row.violated, 4),
                    "slo_attainment": round(row.attainment, 4),
                    "slo_ms": round(1000 * row.slo_s, 1),
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
    sys.exit(main())

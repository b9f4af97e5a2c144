"""Module-wise scaling by Janus's performance model against scaling the whole model: the paper's Fig. 9, simulated.

``python -m benchmarks.janus TRACE --out FOLDER``: two days of a ServeGen trace through a modelled pipeline under the
controller's own loop, a decision every half hour as in the paper, every replica one core. Compared are ``janus``
(replicas of segments and slots of experts apart), the same performance model in steps of full replicas of everything
and in its doublings (as the paper's 16, 32 and 64 GPUs), HPA, and the whole model held at the peak's size. Settings
of each are chosen on the day before: the cheapest that keeps the P95 within the SLO in 95 % of the windows. All then
give equal service by that rule; what they really gave over the two days stands beside the resources.

Dispatch is compared apart, on ``--machines`` that serve a pass's experts one after the other, with Janus's placement:
``janus`` with activated-expert-balanced dispatch against ``janus`` with random dispatch, each with its own settings,
and with an SLO that random dispatch can keep: over the P95 of its own passes that meet no other.

Prints a table, draws ``janus.png``, writes ``windows.csv``; the last line is one JSON object. Simulated, not measured.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from autoscaler.contract import Observation, Policy, Proposal
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.janus import MODULES, JanusPolicy, JanusSettings
from autoscaler.policy.static import StaticPolicy
from benchmarks.janus_world import (
    CORES,
    REPLICA,
    Clock,
    Maker,
    Played,
    on_machines,
    played,
    simulate,
    sliced,
    unloaded_s,
    world,
)
from rl.sim.requests import Requests, draw_requests
from rl.workload import Workload
from rl.workload_paper import PAPER_WORKLOADS
from traces.errors import TraceError
from traces.trace import Trace

MOST_VIOLATED = 0.05
"""Of the tuning day's windows, for settings that keep the SLO."""
WARM_UP = 2
"""Decisions that are played but not counted."""
HEADROOM, LOAD_FACTOR = (0.95, 0.9, 0.85, 0.8, 0.7), (1.2,)
CPU_TARGETS = (0.5, 0.42, 0.35, 0.3)
JANUS, WHOLE, DOUBLED, HPA, PEAK = "janus", "whole model", "whole model, doubled", "hpa", "whole model, held at peak"
BALANCED, RANDOM = "janus, aebs on machines", "janus, random on machines"


class DoublingPolicy:
    """Rounds another policy's replicas up to 1, 2, 4, 8, …: the fixed sizes of the paper's SGLang."""

    def __init__(self, inner: Policy) -> None:
        self.name = DOUBLED
        self._inner = inner

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        found = self._inner.propose(observation, now_s, memory)
        wishes = {name: wish.with_replicas(doubled(wish.replicas)) for name, wish in found.wishes.items()}
        return replace(found, wishes=wishes)


def doubled(replicas: int) -> int:
    """The least power of two that is not below ``replicas``."""
    return 1 << math.ceil(math.log2(max(1, replicas)))


@dataclass(frozen=True, eq=False)
class Setting:
    """One setting of one policy."""

    said: str
    policy: Policy


@dataclass(frozen=True, eq=False)
class World:
    """What a row is played in."""

    workload: Workload
    make: Maker


def candidates(name: str, workload: Workload) -> list[Setting]:
    """What is tried of one row on the tuning day."""
    most = workload.space.replicas_max

    def model(scaling: Any) -> list[tuple[str, Policy]]:
        return [
            (
                f"headroom {headroom:g}, load factor {factor:g}",
                JanusPolicy(
                    JanusSettings(workload.slo_s, headroom, factor, down_windows=1, scaling=scaling, max_replicas=most),
                    CORES,
                ),
            )
            for headroom, factor in product(HEADROOM, LOAD_FACTOR)
        ]

    hpa = [
        (
            f"CPU target {target:g}",
            HpaPolicy(
                HpaSettings(
                    targets={"cpu": target},
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
        return [Setting(said, DoublingPolicy(policy)) for said, policy in model("model")]
    return [Setting(*one) for one in model("model" if name == WHOLE else "modules")]


def best(tried: Sequence[tuple[Setting, Played]]) -> Setting:
    """The cheapest that keeps the SLO; where none does, the one with the fewest violated windows."""
    keeping = [(one, found) for one, found in tried if found.violated <= MOST_VIOLATED]
    if keeping:
        return min(keeping, key=lambda pair: pair[1].mean_cores)[0]
    return min(tried, key=lambda pair: (pair[1].violated, pair[1].mean_cores))[0]


def worlds_of(bare: Workload, machines: int, slo_factor: float, seed: int) -> dict[str, World]:
    """Row → what it is played in, with its SLO."""
    makers: dict[str, Maker] = dict.fromkeys((JANUS, WHOLE, DOUBLED, HPA), simulate)
    makers |= {BALANCED: on_machines(machines, "aebs"), RANDOM: on_machines(machines, "random")}
    slo_s = {make: slo_factor * unloaded_s(bare, seed, make) for make in (simulate, makers[RANDOM])}
    slo_s[makers[BALANCED]] = slo_s[makers[RANDOM]]
    return {name: World(replace(bare, slo_s=slo_s[make]), make) for name, make in makers.items()}


def compare(
    worlds: Mapping[str, World], tuning: Trace, trace: Trace, clock: Clock, seed: int
) -> tuple[dict[str, Played], dict[str, str]]:
    """Every row's play over ``trace`` with its best setting on ``tuning``, and that setting in words."""
    workload = worlds[WHOLE].workload
    before = draw_requests(workload, tuning.arrival_s, seed=seed, source=tuning.source)
    requests = draw_requests(workload, trace.arrival_s, seed=seed, source=trace.source)
    found: dict[str, Played] = {}
    said: dict[str, str] = {}

    def play_one(one: World, work: Requests, policy: Policy, over: Trace) -> Played:
        until_s = over.duration_s
        return played(one.workload, work, policy, clock, until_s, seed=seed, warm_up=WARM_UP, make=one.make)

    for name in worlds:
        one = worlds[name]
        settings = candidates(name, one.workload)
        tried = [(setting, play_one(one, before, setting.policy, tuning)) for setting in settings]
        chosen = best(tried)
        found[name], said[name] = play_one(one, requests, chosen.policy, trace), chosen.said
        tuned = ", ".join(f"{it.said}: {own.mean_cores:.1f} cores, {own.violated:.3f} over" for it, own in tried)
        print(f"{name}: {chosen.said} (tuned on {tuned})", file=sys.stderr, flush=True)
    peak = int(found[WHOLE].replicas["expert"].max())
    held = StaticPolicy(dict.fromkeys(workload.initial(REPLICA), REPLICA.with_replicas(peak)))
    found[PEAK], said[PEAK] = play_one(worlds[WHOLE], requests, held, trace), f"{peak} replicas"
    return found, said


def table(found: Mapping[str, Played], said: Mapping[str, str]) -> str:
    """For people; resources against the whole model in full replicas."""
    lines = [
        f"{'policy':<27}{'cores':>8}{'ratio':>7}{'within SLO':>12}{'windows over':>14}{'P95/SLO':>9}{'changes':>9}"
        "  setting"
    ]
    for name, one in found.items():
        tail = np.nanquantile(one.p95_s, 0.95) / one.slo_s
        lines.append(
            f"{name:<27}{one.mean_cores:>8.1f}{one.mean_cores / found[WHOLE].mean_cores:>7.3f}"
            f"{one.attainment:>12.4f}{one.violated:>14.3f}{tail:>9.2f}{one.changes:>9}  {said[name]}"
        )
    return "\n".join(lines)


def draw(found: Mapping[str, Played], trace: Trace, clock: Clock, out: Path) -> None:
    """Load, cores and tails over the two days."""
    figure, (load, cores, tails) = plt.subplots(3, 1, figsize=(9, 7.5), sharex=True, layout="constrained")
    edges = np.arange(0.0, trace.duration_s + 1e-9, clock.slice_s)
    counted, _ = np.histogram(trace.arrival_s, edges)
    load.step(clock.hours(edges[:-1]), counted / clock.slice_s, where="post", color="black", linewidth=0.8)
    load.set(ylabel="requests/s", title=f"{trace.source.split(',')[0]}, simulated; one core a replica")
    for name in (JANUS, WHOLE, DOUBLED, HPA):
        hours = clock.hours(found[name].start_s)
        cores.step(hours, found[name].cores, where="post", label=name, linewidth=1.2)
        tails.step(hours, 1000 * found[name].p95_s, where="post", label=name, linewidth=1.0)
    cores.set(ylabel="cores", ylim=(0, None))
    tails.axhline(1000 * found[JANUS].slo_s, color="red", linestyle="--", linewidth=1, label="SLO")
    tails.set(ylabel="P95 (ms)", xlabel="hours", ylim=(0, 2000 * found[JANUS].slo_s))
    figure.legend(*tails.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def write_windows(found: Mapping[str, Played], clock: Clock, path: Path) -> None:
    """One row a policy and decision window."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("policy", "hour", "cores", "p95_ms", "segment_replicas", "expert_replicas"))
        for name, one in found.items():
            for at, start_s in enumerate(one.start_s):
                numbers = one.cores[at], 1000 * one.p95_s[at], one.replicas["segment"][at], one.replicas["expert"][at]
                row = (f"{float(clock.hours(start_s)):.3f}", *(f"{value:.4g}" for value in numbers))
                writer.writerow((name, *row))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="ServeGen's clients, as a folder or one table")
    parser.add_argument("--out", type=Path, default=Path("out/janus"))
    parser.add_argument("--workload", choices=PAPER_WORKLOADS, default="bert-8")
    parser.add_argument("--first-day", type=int, default=2, help="counted from 0; the day before is tuned on")
    parser.add_argument("--days", type=int, default=2)
    parser.add_argument("--slice", type=float, default=2.0, help="seconds played of every ten minutes")
    parser.add_argument("--decision-windows", type=int, default=3, help="windows of ten minutes between decisions")
    parser.add_argument("--slo-factor", type=float, default=1.5, help="SLO over the P95 of a pass that meets no other")
    parser.add_argument("--most", type=int, default=16, help="replicas of a function at most")
    parser.add_argument("--machines", type=int, default=8, help="for the comparison of dispatch")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    clock = Clock(given.slice, given.decision_windows)
    worlds = worlds_of(world(given.workload, given.most, clock), given.machines, given.slo_factor, given.seed)
    try:
        tuning = sliced(given.trace, given.first_day - 1, 1, clock, given.seed)
        trace = sliced(given.trace, given.first_day, given.days, clock, given.seed)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found, said = compare(worlds, tuning, trace, clock, given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    print(table(found, said))
    draw(found, trace, clock, given.out / "janus.png")
    write_windows(found, clock, given.out / "windows.csv")
    print(json.dumps(summary(found, given.workload, trace, given.seed)))
    return 0


def summary(found: Mapping[str, Played], workload: str, trace: Trace, seed: int) -> dict[str, Any]:
    """The last line."""
    return {
        "resources_ratio": found[JANUS].mean_cores / found[WHOLE].mean_cores,
        "resources_ratio_doubled": found[JANUS].mean_cores / found[DOUBLED].mean_cores,
        "resources_ratio_hpa": found[JANUS].mean_cores / found[HPA].mean_cores,
        "resources_ratio_random_dispatch": found[BALANCED].mean_cores / found[RANDOM].mean_cores,
        "slo_attainment": found[JANUS].attainment,
        "slo_attainment_whole": found[WHOLE].attainment,
        "cores": {name: round(one.mean_cores, 2) for name, one in found.items()},
        "windows_over": {name: round(one.violated, 4) for name, one in found.items()},
        "slo_ms": 1000 * found[JANUS].slo_s,
        "slo_ms_on_machines": 1000 * found[RANDOM].slo_s,
        "workload": workload,
        "requests": trace.requests,
        "trace_sha256": trace.sha256,
        "seed": seed,
        "simulated": True,
    }


if __name__ == "__main__":
    sys.exit(main())

"""What a rule that acts within a window could save, were it to know more: ``python -m benchmarks.within_window``.

Simulated: `bert-4` on cores, λ five times the P95 without queues; one replica of every expert always runs, standbys
follow the arrivals by a fixed rule. Where its bill goes, and the same rules with knowledge that nobody has:

- *released in hindsight*: each activation ends with the last call that it serves;
- *foreseen*: the rule sees the tokens of the coming look-back in place of the last one, and standbys open at once;
- *chosen in hindsight*: every five seconds the cheapest rule that keeps λ in them, by simulating them under each.

Costs are of the experts, in C_ref a window. The last line is one JSON object: ``rules`` (``way``, ``rule``, ``cost``,
``over``: share of windows over λ, and parts of the cost: ``ordered``, ``memory`` of standbys that wait, ``activated``,
of that ``waking``, ``unused`` and ``idle_end`` after the last call; ``busy``: what replicas with a call cost).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from autoscaler.contract import Burst, Configuration
from benchmarks.harness.options import AT_LEAST_1, benchmark, data_option
from benchmarks.harness.report import print_result, print_table, progress
from functions.dispatch.activation import token_rates
from rl.episodes import Work
from rl.staffing.action import Staffing, action_of, room_of
from rl.staffing.hours import HourSettings, episode
from rl.staffing.policy import RuleSettings
from rl.staffing.training import Judge, StaffingSettings
from simulation.arrays import Floats
from simulation.engine import simulation as engine
from simulation.engine.bursts import Bursts, BurstSettings
from simulation.engine.kernel import BUSY_S, FAR
from simulation.engine.replicas import COUNT, DRAIN, LAST, READY, STANDBY
from simulation.engine.simulation import Simulation, Window
from traces.catalog import data_folder

WINDOW_S, PART_S = 30.0, 5.0
WARM_UP = 4
"""Windows that are not judged: what a token costs is measured in them."""
ACTIVATION_S = 0.1
RULES = (
    *(Burst(6, 1.0, spare, 1.5, 0.25) for spare in (0.1, 0.5)),
    Burst(8, 1.0, 0.25, 0.75, 0.25),
    *(Burst(12, 1.0, spare, 0.5, 0.25) for spare in (0.5, 0.35, 0.27, 0.2)),
)
"""The policy's default, an ampler one, and leaner ones."""
Judged = tuple[list[Floats], list[float | None]]
"""Parts and P95 in seconds of each judged window."""
PARTS = ("ordered", "memory", "activated", "busy", "waking", "unused", "idle_end")


@dataclass(frozen=True)
class Tried:
    """One rule on all hours."""

    way: str
    rule: str
    cost: float
    over: float
    parts: Mapping[str, float]


class Foreseeing(Bursts):
    """Rates of the look-back that begins with an arrival."""

    def _rate(self, look_back_s: float) -> Floats:
        arrival_s, tokens = self._requests.arrival_s, self._requests.tokens
        turned = token_rates(-arrival_s[::-1], tokens[::-1], arrival_s.size - self._last, look_back_s)
        return turned[::-1][self._first :]


class Hour:
    """One hour's requests and what its experts begin with."""

    def __init__(self, settings: StaffingSettings, work: Work, calls: int) -> None:
        first = episode(settings.hours, work)
        experts, values = len(first.workload.experts), RuleSettings(load=0.1, budget=1.0, standbys=12.0).values()
        plan = Staffing(first.workload).plan(
            first.observation, np.tile(action_of(values), (experts, 1)), np.ones(experts), room_of(first.state().room)
        )
        self.work, self.reference, self.seed = work, first.reference, first.seed
        self.start, self.windows = dict(first.present), first.windows
        self.planned = {name: replace(one, replicas=1, concurrency=calls) for name, one in plan.desired.items()}

    def configurations(self, rule: Burst) -> dict[str, Configuration]:
        """Experts' with the standbys of ``rule`` that there is room for."""
        room = {name: one.burst.standbys if one.burst else 0 for name, one in self.planned.items()}
        return {
            name: replace(one, burst=replace(rule, standbys=min(rule.standbys, room[name])))
            for name, one in self.planned.items()
        }

    def simulation(self, rule: Burst, activation_s: float) -> Simulation:
        return Simulation(
            self.work.workload, self.work.requests, {**self.start, **self.configurations(rule)}, seed=self.seed,
            bursts=BurstSettings(activation_s),
        )  # fmt: skip

    def parts(self, simulation: Simulation, window: Window) -> Floats:
        """[PARTS] in C_ref, of one window or a part of it."""
        prices, seconds, sums = self.work.workload.prices, window.end_s - window.start_s, np.zeros(len(PARTS))
        for node in self.work.workload.experts:
            place, configuration = simulation.index[node.function], simulation.configuration(node.function)
            unit, activated_s = prices.unit_per_s(configuration), float(window.activated_s[place])
            memory = prices.standbys(configuration, seconds, activated_s) - activated_s * unit
            ran_s, in_vain = configuration.running * seconds, _in_vain(simulation, place)
            spent = (ran_s, memory / unit, activated_s, float(window.meter[place, BUSY_S]), *in_vain)
            sums += unit * np.array(spent)
        return sums / self.reference


def _in_vain(simulation: Simulation, place: int) -> tuple[float, float, float]:
    """Seconds of the activations that ended in the last window: until they took calls, of those that served nobody,
    after the last call."""
    fleet, end_s = simulation.fleet, simulation.now_s
    clock, slot = fleet.clock[place], fleet.slot[place]
    ended = (slot[STANDBY] > 0) & (clock[DRAIN] <= end_s) & (np.arange(clock.shape[1]) < fleet.orders[place, COUNT])
    ready, drain, last = (clock[row, ended] for row in (READY, DRAIN, LAST))
    idle = np.maximum(0.0, np.minimum(drain, FAR) - np.maximum(last, ready))
    served = last > ready
    return ACTIVATION_S * ready.size, float(idle[~served].sum()), float(idle[served].sum())


def fixed(hour: Hour, rule: Burst, activation_s: float) -> Judged:
    """One rule all the time."""
    simulation, parts, p95s = hour.simulation(rule, activation_s), list[Floats](), list[float | None]()
    for number in range(hour.windows):
        window = simulation.advance(WINDOW_S * (number + 1))
        if number >= WARM_UP:
            parts.append(hour.parts(simulation, window))
            p95s.append(window.quantile_s(0.95))
    return parts, p95s


def chosen(hour: Hour, rules: Sequence[Burst]) -> Judged:
    """The best of ``rules`` in every part of a window."""
    simulation, parts, p95s = hour.simulation(rules[0], ACTIVATION_S), list[Floats](), list[float | None]()
    slo_s = hour.work.workload.slo_s
    for number in range(hour.windows):
        sums, latency_s = np.zeros(len(PARTS)), list[Floats]()
        for _ in range(int(WINDOW_S / PART_S)):
            tried = [_part(hour, simulation.fork(), rule) for rule in rules]
            late = [max(0.0, (window.quantile_s(0.95) or 0.0) / slo_s - 1) for _, window, _ in tried]
            best = min(range(len(rules)), key=lambda k: (late[k], tried[k][2][:3].sum()))
            simulation, window, spent = tried[best]
            sums += spent
            latency_s.append(window.latency_s)
        if number >= WARM_UP:
            answered = np.concatenate(latency_s)
            parts.append(sums)
            p95s.append(float(np.quantile(answered, 0.95)) if answered.size else None)
    return parts, p95s


def _part(hour: Hour, fork: Simulation, rule: Burst) -> tuple[Simulation, Window, Floats]:
    for name, configuration in hour.configurations(rule).items():
        fork.order(name, configuration)
    window = fork.advance(fork.now_s + PART_S)
    return fork, window, hour.parts(fork, window)


def summed(way: str, rule: str, hours: Sequence[Hour], results: Sequence[Judged]) -> Tried:
    """Means over hours, and the share of all windows."""
    means = np.mean([np.mean(one, axis=0) for one, _ in results], axis=0)
    parts = dict(zip(PARTS, means.round(4).tolist(), strict=True))
    judged = [
        p95_s > hour.work.workload.slo_s
        for hour, (_, p95s) in zip(hours, results, strict=True)
        for p95_s in p95s
        if p95_s is not None
    ]
    cost = parts["ordered"] + parts["memory"] + parts["activated"]
    return Tried(way, rule, round(cost, 4), round(float(np.mean(judged)), 4), parts)


def tries(hours: Sequence[Hour]) -> Iterator[Tried]:
    for rule in RULES:
        name = f"{rule.standbys} standbys, spare {rule.spare:g}, hold {rule.hold_s:g} s"
        plain = summed("fixed", name, hours, [fixed(hour, rule, ACTIVATION_S) for hour in hours])
        yield plain
        in_vain = plain.parts["unused"] + plain.parts["idle_end"]
        yield replace(plain, way="released in hindsight", cost=round(plain.cost - in_vain, 4))
        with patch.object(engine, "Bursts", Foreseeing):
            yield summed("foreseen", name, hours, [fixed(hour, rule, 0.0) for hour in hours])
    yield summed("chosen in hindsight", "every 5 s", hours, [chosen(hour, RULES) for hour in hours])


@benchmark
@data_option
@click.option("--split", type=click.Choice(("train", "validation")), default="validation", help="Of the hours.")
@click.option("--hours", type=AT_LEAST_1, default=2, help="Of every pattern at every rate.")
@click.option("--seconds", type=click.FloatRange(180, 3600), default=600.0, help="Of each hour.")
@click.option("--calls", type=AT_LEAST_1, default=1, help="That a replica takes at once; the policy gives it one.")
def main(data: Path | None, split: Any, hours: int, seconds: float, calls: int) -> None:
    patterns = ("normal", "bursty", "diurnal")
    settings = StaffingSettings(hours=HourSettings(seconds=seconds, patterns=patterns), validation_hours=hours)
    made = [Hour(settings, work, calls) for work in Judge(settings, data_folder(data), split).hours]
    results: list[Tried] = []
    with progress(3 * len(RULES) + 1, "rules") as show:
        for number, tried in enumerate(tries(made), 1):
            results.append(tried)
            show(tried.rule, number)
    print_table(
        f"{len(made)} {split} hours, bert-4, cores only, λ 5, simulated; C_ref a window",
        ("way", "rule", "cost", "over λ"),
        [(one.way, one.rule, f"{one.cost:.3f}", f"{one.over:.1%}") for one in results],
        texts=2,
    )
    print_result(
        {
            "rules": [asdict(one) for one in results],
            "hours": len(made),
            "split": split,
            "seconds": seconds,
            "calls": calls,
        }
    )


if __name__ == "__main__":
    main()

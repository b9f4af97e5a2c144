"""What ``benchmarks.arrow.planner_live`` sends and wants: the scenario of its simulated half, by one instance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from benchmarks.arrow import planner
from benchmarks.arrow.planners import AtInput, SlaPlanner, kalman
from benchmarks.arrow.running_rules import Rule, Together
from benchmarks.decoder_live.loads import Request
from functions.scheduling.peers import Colocated
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request as SimulatedRequest
from simulation.generation.hardware import Hardware
from simulation.generation.scaled import ScaledSimulation

WORDS = 512
PROMPT, ANSWER = 128, 16
BEGIN = 2
START_S = 60.0
"""What an order waits in the scenario, whose period is 900 s."""


@dataclass(frozen=True)
class Instance:
    """One instance as it was measured. Seconds."""

    hardware: Hardware
    ttft_s: float
    tpot_s: float
    """Both of a lone request."""
    start_s: float
    """From the order of one more until it takes texts, without what is waited before."""


@dataclass(frozen=True)
class Scenario:
    """What all rules meet."""

    instance: Instance
    targets: Targets
    period_s: float
    start_s: float
    """What an order waits."""
    rps: tuple[float, float]
    """Lowest and highest."""

    @classmethod
    def of(cls, instance: Instance, period_s: float, start_s: float | None) -> Scenario:
        """In the ratios of ``benchmarks.arrow.planner``."""
        theirs, wanted = planner.INSTANCE, planner.TARGETS
        ttft_times = wanted.ttft_s / theirs.prefill_s(planner.PROMPT)
        tpot_times = wanted.tpot_s / theirs.decode_s(1, planner.PROMPT + planner.OUTPUT // 2)
        targets = Targets(ttft_times * instance.ttft_s, tpot_times * instance.tpot_s)
        instances = planner.HIGHEST_RPS / AtInput(theirs, wanted, 0.0).instance(planner.PROMPT, planner.OUTPUT)[0]
        highest = instances * AtInput(instance.hardware, targets, 0.0).instance(PROMPT, ANSWER)[0]
        rps = highest * planner.LOWEST_RPS / planner.HIGHEST_RPS, highest
        return cls(
            instance, targets, period_s, START_S * period_s / planner.PERIOD_S if start_s is None else start_s, rps
        )

    @property
    def shorter(self) -> float:
        """Its period over the scenario's."""
        return self.period_s / planner.PERIOD_S

    def rule(self, name: str) -> tuple[Rule, int]:
        """With the instances that it begins with. Raises UsageError."""
        hardware, targets, shorter = self.instance.hardware, self.targets, self.shorter
        if name.startswith("constant-") and name[9:].isdigit():
            return planner.Fixed(), int(name[9:])
        if name == "planner":
            return SlaPlanner(hardware, targets, 180 * shorter), BEGIN
        if name == "planner-arrivals":
            return SlaPlanner(hardware, targets, 60 * shorter, kalman, at_input=True), BEGIN
        if name in ("at-input", "at-input-patient"):
            patient = {"patience": 0.5, "full": 1.0} if name == "at-input-patient" else {}
            times = {"interval_s": 10 * shorter, "look_s": 120 * shorter}
            start_s = self.start_s + self.instance.start_s
            return AtInput(hardware, targets, start_s, prompt=PROMPT, output=ANSWER, **times, **patient), BEGIN
        raise click.UsageError(f"{name!r} is none of planner, planner-arrivals, at-input, at-input-patient, constant-N")

    def requests(self, seed: int) -> list[Request]:
        """One period, from its lowest on."""
        rng = np.random.default_rng((seed, 1))
        moments_s = planner.arrivals_s(self.rps, self.period_s, int(self.period_s), seed)
        return [request(at_s, rng) for at_s in moments_s]


def request(at_s: float, rng: np.random.Generator, answer: int = ANSWER) -> Request:
    return Request(at_s, tuple(rng.integers(0, WORDS - 1, PROMPT).tolist()), answer)


def simulated(name: str, scenario: Scenario, requests: Sequence[Request], most: int) -> dict[str, float]:
    """The same run in simulation.generation, whose instances are as the measured one."""
    rule, begin = scenario.rule(name)
    hardware, targets = scenario.instance.hardware, scenario.targets
    profile = hardware.profile(PROMPT + ANSWER // 2)
    scheduler = Colocated(dict.fromkeys(range(begin), profile), targets, 1)
    texts = [SimulatedRequest(one.at_s, PROMPT, ANSWER) for one in requests]
    run = ScaledSimulation(texts, scheduler, hardware, Together(rule, most), profile, scenario.start_s)
    outcome = run.run()
    pairs = zip(outcome.ttft_s, outcome.tpot_s, strict=True)
    kept = [within(ttft_s, targets.ttft_s) and within(tpot_s, targets.tpot_s) for ttft_s, tpot_s in pairs]
    return {"goodput": statistics.fmean(kept), "replica_s": float(run.replica_s(scenario.period_s))}


def within(value_s: float | None, target_s: float) -> bool:
    return value_s is not None and value_s <= target_s

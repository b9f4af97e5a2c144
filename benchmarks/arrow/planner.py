"""The load at which an SLA planner is reported to fail, simulated: ``python -m benchmarks.arrow.planner``.

ai-dynamo/dynamo issue 10528 (a user's report of 2026-06-18): Qwen3-30B-A3B, prefill and decode instances of two GPUs
each, prompts of 8,000 and answers of 1,000 tokens, a sine of 1 to 24 requests/s over 900 s, targets 3 s and 35 ms; mean
TTFT 160 s, 9 % of the requests within both, 10.6 requests/s. Here the planner's published rule
(:class:`benchmarks.arrow.planners.SlaPlanner`) runs prefill and decode instances under minimal load; this project's
(:class:`AtInput`) runs instances of any role under ``deadline``, ``colocated`` and ``arrow``; next to them constant
numbers of colocated and of ``deadline`` instances. Simulated (simulation.generation.scaled), nothing ran on a GPU: an
instance is arithmetic for that model on two GPUs of 80 GB with 42 % of 1,980 TFLOP/s, at which one prefills the 10.6
requests/s of the report. Replica-seconds are paid from the order to the end of the draining, up to the end of the
arrivals. With ``--square``, as ElasticMoE's Figure 9 asks: ``recovery_s`` after the step. Poisson arrivals within each
second, as the report's generator has them. The last line is one JSON object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.arrow.planners import AtInput, FrontEnd, SlaPlanner, kalman
from benchmarks.harness.options import benchmark, listed
from benchmarks.harness.report import print_result, print_table, progress
from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Role, Scheduler
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import Colocated, MinimalLoad
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import Hardware
from simulation.generation.scaled import ScaledSimulation, Scaler

INSTANCE = Hardware(
    iteration_s=11e-3,
    token_s=8.0e-6,
    attention_s=4.7e-10,
    context_s=1.8e-8,
    chunk_tokens=8192,
    kv_tokens=840_000,
    token_bytes=98_304,
    network_bytes_s=40e9,
)
"""Qwen3-30B-A3B in bf16 on two GPUs of 80 GB, 3.35 TB/s and 990 TFLOP/s: 61 GB of weights read at 80 %, 6.6 GFLOP and
98 kB a token, 48 layers of 32 heads of 128."""
TARGETS = Targets(3.0, 0.035)
CHUNK = 2048
"""Tokens of a colocated instance's iterations: the best of 512, 768, 1,024 and 2,048 here."""
PROMPT, OUTPUT = 8000, 1000
LOWEST_RPS, HIGHEST_RPS, PERIOD_S = 1.0, 24.0, 900.0


def requests_of(periods: float, seed: int, square: bool = False) -> list[Request]:
    """Requests of a sine that begins at its lowest; or of its lowest and its highest rate for half a period each."""
    moments_s = arrivals_s((LOWEST_RPS, HIGHEST_RPS), PERIOD_S, int(periods * PERIOD_S), seed, square)
    return [Request(at_s, PROMPT, OUTPUT) for at_s in moments_s]


def arrivals_s(rps: tuple[float, float], period_s: float, seconds: int, seed: int, square: bool = False) -> list[float]:
    """Poisson numbers of evenly spaced arrivals in each second; ``rps``: the lowest and the highest rate."""
    random, moments_s = np.random.default_rng(seed), []
    for second in range(seconds):
        swing = np.sin(2 * np.pi * second / period_s - np.pi / 2)
        swing = float(np.sign(swing)) if square else swing
        count = random.poisson((rps[0] + rps[1]) / 2 + (rps[1] - rps[0]) / 2 * swing)
        moments_s += [second + place / count for place in range(count)]
    return moments_s


@dataclass
class Fixed:
    """As many instances as there are."""

    def wanted(self, now_s: float, world: FrontEnd) -> dict[Role | None, int]:
        return {}


@dataclass(frozen=True)
class Contender:
    """One row: a schedule, the instances it begins with, and what changes their number."""

    schedule: str
    begins: int
    scaler: Callable[[float], Scaler]
    """By the time an instance takes to start."""


def contenders(hardware: Hardware, most_constant: int) -> dict[str, Contender]:
    """Rows of the table by name."""

    def planner(interval_s: float, **settings: Any) -> Contender:
        return Contender("split", 2, lambda _: SlaPlanner(hardware, TARGETS, interval_s, **settings))

    def at_input(schedule: str) -> Contender:
        return Contender(schedule, 2, lambda start_s: AtInput(hardware, TARGETS, start_s, prompt=PROMPT, output=OUTPUT))

    planners = {
        "planner": planner(180.0),
        "planner, 30 s": planner(30.0),
        "planner counting arrivals": planner(180.0, at_input=True),
        **{
            f"planner counting arrivals, {interval_s:g} s, Kalman": planner(interval_s, at_input=True, forecast=kalman)
            for interval_s in (180.0, 60.0, 30.0)
        },
    }
    counted = {f"{name}, at the input": at_input(name) for name in ("deadline", "colocated", "arrow")}
    fixed = {
        f"{name} {count}": Contender(name, count, lambda _: Fixed())
        for name in ("colocated", "deadline")
        for count in range(7, most_constant + 1)
    }
    return {**planners, **counted, **fixed}


def scheduler_of(name: str, hardware: Hardware, instances: int) -> tuple[Scheduler, Pacing | None, Hardware]:
    """With its pacing, and its instances; ``colocated`` takes prompts in parts that keep the inter-token target."""
    profile = hardware.profile(PROMPT + OUTPUT // 2)
    profiles = dict.fromkeys(range(instances), profile)
    if name == "deadline":
        return Deadline(profiles, TARGETS), Pacing(profile, TARGETS), hardware
    if name == "colocated":
        return Colocated(profiles, TARGETS, 1), None, replace(hardware, chunk_tokens=CHUNK)
    kind = Arrow if name == "arrow" else MinimalLoad
    return kind(profiles, TARGETS, max(1, instances // 2)), None, hardware


def simulate(
    contender: Contender, requests: list[Request], hardware: Hardware, start_s: float, square: bool = False
) -> dict[str, float]:
    """Parts within the targets, TTFT, TPOT, and replica-seconds until the last arrival's second has passed."""
    scheduler, pacing, used = scheduler_of(contender.schedule, hardware, contender.begins)
    profile = hardware.profile(PROMPT + OUTPUT // 2)
    run = ScaledSimulation(requests, scheduler, used, contender.scaler(start_s), profile, start_s, pacing)
    outcome = run.run()
    ttft_s = np.array([np.inf if one is None else one for one in outcome.ttft_s])
    tpot_s = np.array([np.inf if one is None else one for one in outcome.tpot_s])
    kept = (ttft_s <= TARGETS.ttft_s) & (tpot_s <= TARGETS.tpot_s)
    return {
        "goodput": float(kept.mean()),
        "ttft_kept": float((ttft_s <= TARGETS.ttft_s).mean()),
        "tpot_kept": float((tpot_s <= TARGETS.tpot_s).mean()),
        "ttft_mean_s": float(ttft_s.mean()),
        "ttft_max_s": float(ttft_s.max()),
        "tpot_mean_ms": 1000 * float(tpot_s.mean()),
        "replica_s": run.replica_s(np.ceil(requests[-1].arrival_s)),
        "lost": outcome.lost,
        **({"recovery_s": recovery_s(requests, kept)} if square else {}),
    }


def recovery_s(requests: list[Request], kept: NDArray[np.bool_]) -> float:
    """From the square's first step up until windows of 10 s keep 90 % for the rest of its high half; that half's length
    where they never do. ``kept``: [requests] bool, within both targets."""
    step_s, end_s, window_s = PERIOD_S / 4, 3 * PERIOD_S / 4, 10.0
    arrival_s = np.array([one.arrival_s for one in requests])
    recovered_s = step_s
    for begin_s in np.arange(step_s, end_s, window_s):
        inside = (arrival_s >= begin_s) & (arrival_s < begin_s + window_s)
        if inside.any() and kept[inside].mean() < 0.9:
            recovered_s = begin_s + window_s
    return float(min(recovered_s, end_s) - step_s)


def mean(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}


@benchmark
@click.option("--periods", default=1.0, type=click.FloatRange(0.2, 10), help="Of 900 s.")
@click.option("--starts", default="60", callback=listed(float), help="Seconds that an instance takes to start.")
@click.option("--seeds", default="0,1", callback=listed(int), help="Of the arrivals.")
@click.option("--constants", default=10, type=click.IntRange(6, 40), help="Most instances of the constant numbers.")
@click.option("--square", is_flag=True, help="Lowest and highest rate for half a period each.")
@click.option("--only", default="", callback=listed(str), help="Rows, ; for the comma in a name; all by default.")
def main(
    periods: float,
    starts: tuple[float, ...],
    seeds: tuple[int, ...],
    constants: int,
    square: bool,
    only: tuple[str, ...],
) -> None:
    named = {name.replace(";", ",") for name in only}
    results: dict[str, dict[str, dict[str, float]]] = {}
    for start_s in starts:
        chosen = {name: one for name, one in contenders(INSTANCE, constants).items() if not named or name in named}
        rows: dict[str, dict[str, float]] = {}
        with progress(len(chosen)) as step:
            for name, contender in chosen.items():
                step(name, len(rows))
                arrivals = [requests_of(periods, seed, square) for seed in seeds]
                runs = [simulate(contender, one, INSTANCE, start_s, square) for one in arrivals]
                rows[name] = mean(runs)
        results[f"{start_s:g}"] = rows
        heads = ("rule", "within both", "TTFT kept", "TPOT kept", "TTFT mean, max, s", "replica-s", "recovery, s")
        print_table(
            f"Simulated, {periods:g} periods of 900 s, instances start in {start_s:g} s",
            heads,
            [
                (
                    name,
                    *(f"{100 * one[key]:.1f} %" for key in ("goodput", "ttft_kept", "tpot_kept")),
                    f"{one['ttft_mean_s']:.1f}, {one['ttft_max_s']:.0f}",
                    f"{one['replica_s']:.0f}",
                    f"{one['recovery_s']:.0f}" if square else "",
                )
                for name, one in rows.items()
            ],
        )
    print_result(
        {"simulated": True, "square": square, "instance": asdict(INSTANCE), "starts": results}, seed=list(seeds)
    )


if __name__ == "__main__":
    main()

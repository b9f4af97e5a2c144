"""Arrow's scheduling against static splits and colocated instances: ``python -m benchmarks.arrow [--data FOLDER]``.

Simulated (simulation.generation): no GPU and no pipeline runs. Times of the instances are arithmetic from data sheets
of an 8-billion-parameter model on a 148 TFLOP/s, 4 TB/s GPU with 20 GB/s of network, printed below the table. Lengths
and arrivals are those of the traces, their times scaled to reach a rate.

Greatest rate at which 90 % of requests keep TTFT and TPOT (targets of the paper's Table 1, 8B), by trace and scheduler:
Arrow and round robin begin with half the instances for prefill; minimal load with every static split, the best of which
is chosen with hindsight; colocated instances with chunked prefill, the best of several chunks, as a whole 2,048 tokens
break TPOT. Further opponents (benchmarks.arrow.rules): xllm's rule, convertible decoders with every split, and Arrow
that knows the lengths of answers. ``deadline`` is this project's own scheduler; next to it what its parts are worth:
prompts in order of arrival, and the other schedulers with its instances. ``work_rps``: what no scheduler exceeds for
long without leaving requests late, as each instance can do one second of work a second. ``--tpot`` tightens TPOT. The
rate is found by bisection to 3 %, which assumes that attainment falls with the rate; ``not_filled`` names those that
keep the targets at all rates tried: take more requests. Without public traces the synthetic samples are used. Seeds:
nothing is random. The last line is one JSON object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.arrow.rules import ConvertibleDecoders, OracleArrow, XllmRule
from benchmarks.harness.options import benchmark, data_option, listed
from benchmarks.harness.report import print_result, print_table
from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Scheduler
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing
from functions.scheduling.peers import Colocated, MinimalLoad, RoundRobin
from functions.scheduling.settings import ArrowSettings, Targets
from simulation.generation.engine import GenerationSimulation, Outcome, Request
from simulation.generation.hardware import Hardware, Times
from traces import catalog, loading

SERVEGEN = "servegen-large"
TARGETS = {
    "llm-code": Targets(6.0, 0.1),
    "llm-conv": Targets(3.0, 0.15),
    "mooncake-conv": Targets(60.0, 0.2),
    SERVEGEN: Targets(3.0, 0.15),
}
CLIENT_LENGTHS, CLIENT_S, HOUR_S = "servegen/lengths_by_client_window.csv.gz", 36_000.0, 3_600.0
"""ServeGen's requests: an hour of the busiest client, in place of the paper's BurstGPT clip, which is not to be had;
targets as for conversations."""
SHORT = 6
"""Times as many of ServeGen's requests are taken: they are short, and fewer end before instances are full."""
SAMPLES = {"made-llm": TARGETS["llm-conv"], "made-mooncake": TARGETS["mooncake-conv"]}
ATTAINMENT, PRECISION = 0.9, 1.03
SLOWEST, FASTEST = 1 / 64, 256.0
"""Bounds of the factor on a trace's own rate."""
CHUNKS = (32, 64, 128, 256, 512, 1024)
"""Further chunks of colocated instances, tokens."""
PACED = {
    "deadline": ("deadline", True),
    "deadline, in order of arrival": ("deadline", False),
    "colocated, paced": ("colocated", False),
    "arrow, paced": ("arrow", False),
    "colocated, paced, in time first": ("colocated", True),
    "arrow, paced, in time first": ("arrow", True),
}
"""Scheduler, and whether instances put prompts in order, of those whose iterations are paced by what is due."""
Maker = Callable[[Targets], Scheduler]


def makers(instances: int, hardware: Hardware, outputs: list[int] | None = None) -> dict[str, Maker]:
    """Schedulers by name; ``minimal load P+D`` are the static splits. ``outputs``: tokens of each request's answer."""
    profiles = dict.fromkeys(range(instances), hardware.profile())
    half = instances // 2

    def split(prefill: int) -> Maker:
        return lambda targets: MinimalLoad(profiles, targets, prefill)

    def convertible(prefill: int) -> Maker:
        return lambda targets: ConvertibleDecoders(profiles, targets, prefill)

    return {
        "arrow": lambda targets: Arrow(profiles, targets, half),
        "arrow, lengths known": lambda targets: OracleArrow(profiles, targets, half, outputs or []),
        "deadline": lambda targets: Deadline(profiles, targets),
        "xllm rule": lambda targets: XllmRule(profiles, targets, half, hardware.decode_s),
        "colocated": lambda targets: Colocated(profiles, targets, half),
        "round robin": lambda targets: RoundRobin(profiles, targets, half),
        **{f"minimal load {n}+{instances - n}": split(n) for n in range(1, instances)},
        **{f"convertible {n}+{instances - n}": convertible(n) for n in range(1, instances)},
    }


def requests_of(name: str, data: Path | None, most: int) -> list[Request]:
    """The first ``most`` requests with an output, from time 0 on."""
    path = catalog.resolve(name, data)
    if name == SERVEGEN and data is not None:
        trace = loading.load(path, lengths=data / CLIENT_LENGTHS, start_s=CLIENT_S, duration_s=HOUR_S)
        most *= SHORT
    else:
        trace = loading.load(path)
    assert trace.context_tokens is not None and trace.generated_tokens is not None
    rows = zip(trace.arrival_s, trace.context_tokens, trace.generated_tokens, strict=True)
    kept = [Request(float(at), int(prompt), int(output)) for at, prompt, output in rows if prompt > 0 and output > 0]
    return [Request(one.arrival_s - kept[0].arrival_s, one.prompt, one.output) for one in kept[:most]]


def outcome_at(
    requests: list[Request],
    factor: float,
    scheduler: Scheduler,
    hardware: Times | Mapping[int, Times],
    pacing: Pacing | None = None,
    give_up: tuple[Targets, int] | None = None,
) -> Outcome:
    faster = [Request(one.arrival_s / factor, one.prompt, one.output) for one in requests]
    return GenerationSimulation(faster, scheduler, hardware, ArrowSettings().update_s, pacing, give_up).run()


def greatest(
    requests: list[Request], make: Maker, targets: Targets, hardware: Times, pacing: Pacing | None = None
) -> tuple[float, Outcome | None]:
    """The greatest factor that keeps the targets and its outcome; 0 and None where the slowest does not."""
    most_missed = int((1 - ATTAINMENT) * len(requests) + 1e-9)

    def at(factor: float) -> Outcome | None:
        outcome = outcome_at(requests, factor, make(targets), hardware, pacing, (targets, most_missed))
        return outcome if outcome.attainment(targets.ttft_s, targets.tpot_s) >= ATTAINMENT else None

    low, high, best = SLOWEST, FASTEST, at(SLOWEST)
    if best is None:
        return 0.0, None
    while high / low > PRECISION:
        middle = (low * high) ** 0.5
        outcome = at(middle)
        low, high, best = (middle, high, outcome) if outcome else (low, middle, best)
    return low, best


def work_rps(requests: list[Request], instances: int, hardware: Hardware) -> float:
    """Requests a second whose tokens and context alone take all of the instances' time."""
    work_s = sum(
        hardware.prefill_s(one.prompt)
        + hardware.token_s * (one.output - 1)
        + hardware.context_s * (one.output - 1) * (one.prompt + one.output / 2)
        for one in requests
    )
    return instances * len(requests) / work_s


def compare(
    name: str, requests: list[Request], targets: Targets, instances: int, hardware: Hardware, only: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Rates in requests a second of one trace, by scheduler; of ``only`` those, where any are named."""
    own_rps = len(requests) / requests[-1].arrival_s
    made = makers(instances, hardware, [one.output for one in requests])
    rates: dict[str, float] = {}
    outcomes: dict[str, Outcome | None] = {}
    for scheduler, (make, pacing, used) in contenders(made, instances, hardware, targets).items():
        if only and scheduler not in only:
            continue
        factor, outcomes[scheduler] = greatest(requests, make, targets, used, pacing)
        rates[scheduler] = factor * own_rps
    arrow = outcomes.get("arrow")
    return {
        "trace": name,
        "requests": len(requests),
        "ttft_s": targets.ttft_s,
        "tpot_s": targets.tpot_s,
        "rps": rates,
        "work_rps": work_rps(requests, instances, hardware),
        "ttft_s_at_greatest": {which: tail(outcome) for which, outcome in outcomes.items() if outcome},
        "not_filled": [which for which, rate in rates.items() if rate * PRECISION >= FASTEST * own_rps],
        **compared(rates),
        "flips": arrow.flips if arrow else None,
        "lost": arrow.lost if arrow else None,
    }


def compared(rates: dict[str, float]) -> dict[str, Any]:
    """The best fixed split and what one scheduler's rate is over another's; None where one of them did not run."""
    static = {which: rate for which, rate in rates.items() if which.startswith("minimal load")}
    arrow, deadline, best = rates.get("arrow"), rates.get("deadline"), _best(rates, *static)
    chunked = _best(rates, "colocated", *(f"colocated, {chunk}" for chunk in CHUNKS))
    convertible = _best(rates, *(which for which in rates if which.startswith("convertible")))
    return {
        "best_static": max(static, key=lambda which: static[which], default=None),
        "rate_over_best_static": _over(arrow, best),
        "rate_over_colocated": _over(arrow, chunked),
        "deadline_over_colocated": _over(deadline, chunked),
        "deadline_in_order_over_colocated": _over(rates.get("deadline, in order of arrival"), chunked),
        "deadline_over_best_static": _over(deadline, best),
        "deadline_over_arrow": _over(deadline, arrow),
        "rate_over_xllm": _over(arrow, rates.get("xllm rule")),
        "rate_over_convertible": _over(arrow, convertible),
        "oracle_over_arrow": _over(rates.get("arrow, lengths known"), arrow),
    }


def contenders(
    made: dict[str, Maker], instances: int, hardware: Hardware, targets: Targets
) -> dict[str, tuple[Maker, Pacing | None, Hardware]]:
    """By name: scheduler, how its iterations are paced, its instances."""
    plain = {which: (make, None, hardware) for which, make in made.items() if which not in PACED}
    smaller = [replace(hardware, chunk_tokens=chunk) for chunk in CHUNKS]
    chunked = {f"colocated, {one.chunk_tokens}": (makers(instances, one)["colocated"], None, one) for one in smaller}
    paced = {
        which: (made[scheduler], Pacing(hardware.profile(), targets, reorder), hardware)
        for which, (scheduler, reorder) in PACED.items()
    }
    return {**plain, **chunked, **paced}


def tail(outcome: Outcome) -> dict[str, float]:
    """TTFT in seconds of the median, the 99th percentile and the last at the greatest rate."""
    ttft_s = np.array([math.inf if one is None else one for one in outcome.ttft_s])
    return {"p50": float(np.median(ttft_s)), "p99": float(np.quantile(ttft_s, 0.99)), "max": float(ttft_s.max())}


def _best(rates: dict[str, float], *names: str) -> float | None:
    return max((rates[name] for name in names if name in rates), default=None)


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


@benchmark
@click.option("--instances", type=click.IntRange(2, 32), default=8, help="Of the model.")
@click.option("--requests", "most", type=click.IntRange(10, 20_000), default=1500, help="First of each trace.")
@click.option("--tpot", default=1.0, type=click.FloatRange(0.01, 100), help="Times the TPOT targets.")
@click.option("--traces", default="", callback=listed(str), help="Of the traces, comma list; all by default.")
@click.option(
    "--only", default="", callback=listed(str), help="Schedulers by name, ; for the comma in one; all by default."
)
@data_option
def main(
    instances: int, most: int, tpot: float, traces: tuple[str, ...], only: tuple[str, ...], data: Path | None
) -> None:
    only = tuple(name.replace(";", ",") for name in only)
    folder, hardware = catalog.data_folder(data), Hardware()
    offered = TARGETS if folder else SAMPLES
    if not offered.keys() >= set(traces):
        raise click.UsageError(f"--traces takes {', '.join(offered)}{'' if folder else ' (without --data)'}")
    results = [
        compare(
            name,
            requests_of(name, folder, most),
            Targets(targets.ttft_s, tpot * targets.tpot_s),
            instances,
            hardware,
            only,
        )
        for name, targets in offered.items()
        if not traces or name in traces
    ]
    rows = [[which, *(f"{one['rps'][which]:.2f}" for one in results)] for which in results[0]["rps"]]
    print_table("Simulated: greatest requests/s at 90 %", ["scheduler", *(one["trace"] for one in results)], rows)
    print(f"modelled instance: {asdict(hardware)}; {ArrowSettings()}")
    keys = (
        *("rate_over_best_static", "rate_over_colocated", "rate_over_xllm", "rate_over_convertible"),
        *(
            "deadline_over_colocated",
            "deadline_in_order_over_colocated",
            "deadline_over_best_static",
            "deadline_over_arrow",
            "work_rps",
        ),
        *("oracle_over_arrow", "flips", "lost", "not_filled"),
    )
    by_trace = {key: {one["trace"]: one[key] for one in results} for key in keys}
    print_result({**by_trace, "simulated": True, "instances": instances, "traces": results}, seed=0)


if __name__ == "__main__":
    main()

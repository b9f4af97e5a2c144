"""ElasticMoE's baselines on a decoder, simulated: ``python -m benchmarks.live_scaling.baselines``.

An instance of 4 accelerators becomes one of 6 by each way of the paper's section 7.2
(:mod:`simulation.generation.resized`): *elastic*, *cold restart*, *extravagant*, *concurrent*, *replica*, and not at
all. The model is Qwen3-30B-A3B, one of the paper's three, as arithmetic on accelerators of 64 GB; prompts of 2,000
and answers of 500 to 750 tokens, TTFT and TPOT within 1 s, as in the paper's Figure 10. Times of the ways are the
paper's Table 1 (``--elastic-s``, ``--cold-s``): nothing here measures how long a start takes.

``--load step`` (Figure 9 and Table 2): requests jump from ``--rates``' first to its second, 5 s later the order.
``recovery_s``: from the jump until windows of 10 s keep 90 % to the end; requests a second that ended *before* the
order, *during* (from 5 s before the order to 5 s after the longest change) and *after*. ``--load ramp`` (Figure 10):
the rate rises evenly; ``sustained``: up to which bin of rates all keep 90 %.

Peak memory: what engines allocate on all accelerators that are held, which is all that is usable; room for keys and
values of *concurrent* is half of what two sets of weights leave, before, during and after. Accelerator-seconds from the
order to the end of the arrivals. Nothing ran on an accelerator. The last line is one JSON object.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.options import AT_LEAST_1, benchmark, listed, seed_option
from benchmarks.harness.report import in_words, print_result, print_table, progress
from benchmarks.live_scaling.attainment import Ramp, sustained
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import Hardware
from simulation.generation.resized import WAYS, ResizedSimulation, Way

USABLE_GB = 0.9 * 64
TARGETS = Targets(1.0, 1.0)
PROMPT, OUTPUTS = 2000, (500, 750)
TRIGGER_S = 5.0
"""From the jump of the load to the order."""
BEFORE_S, AROUND_S, WINDOW_S = 60.0, 5.0, 10.0


@dataclass(frozen=True)
class Model:
    """GB of weights that are held once (experts), and once for each pair of accelerators; bytes of a token's keys and
    values."""

    experts_gb: float
    shared_gb: float
    token_bytes: int

    def weights_gb(self, count: int) -> float:
        """On ``count`` accelerators: experts over all of them, the rest by tensor parallelism of two."""
        return self.experts_gb + self.shared_gb * count / 2

    def room(self, count: int, other: int = 0) -> int:
        """Tokens of keys and values on ``count`` accelerators; with ``other``: what *concurrent* leaves to one of two
        instances on these and other many, on the accelerators that both have, and all of it on the others.

        Negative where the weights do not fit.
        """
        alone_gb = USABLE_GB - self.weights_gb(count) / count
        if not other:
            return int(count * alone_gb * 1e9 / self.token_bytes)
        both = min(count, other)
        shared_gb = (alone_gb - self.weights_gb(other) / other) / 2
        return int((both * shared_gb + (count - both) * alone_gb) * 1e9 / self.token_bytes)


MODELS = {
    "DeepSeek V2 Lite": (Model(28.8, 2.6, 31_104), 4, 6),
    "Qwen3-30B-A3B": (Model(57.9, 3.1, 98_304), 4, 6),
    "DeepSeek V3, 1 byte a weight": (Model(654.0, 17.0, 70_272), 32, 34),
}
"""And the change; numbers of parameters from the models' cards, latent keys and values of the DeepSeeks in bfloat16."""
SERVED = "Qwen3-30B-A3B"


def instance(count: int, kv_tokens: int) -> Hardware:
    """``count`` accelerators: ``benchmarks.arrow.planner``'s instance of two, of which launches do not shrink."""
    share = 2.0 / count
    return Hardware(
        iteration_s=3e-3 + 8e-3 * share,
        token_s=8.0e-6 * share,
        attention_s=4.7e-10 * share,
        context_s=1.8e-8 * share,
        chunk_tokens=2048,
        kv_tokens=kv_tokens,
        token_bytes=98_304,
    )


@dataclass(frozen=True)
class Change:
    """From ``old`` to ``new`` accelerators, ordered at ``order_s``."""

    old: int
    new: int
    order_s: float
    elastic_s: float
    cold_s: float

    def scale_s(self, way: Way) -> float:
        return self.elastic_s if way == "elastic" else self.cold_s

    def held(self, way: Way, left_s: float | None, end_s: float) -> list[tuple[int, float]]:
        """(accelerators, seconds) held from the order on."""
        span_s = end_s - self.order_s
        if way == "none":
            return [(self.old, span_s)]
        if way == "replica":
            return [(2 * self.old, span_s)]
        if way == "cold-restart":
            return [(self.new, span_s)]
        both_s = (end_s if left_s is None else min(left_s, end_s)) - self.order_s
        both = self.old + self.new if way == "extravagant" else max(self.old, self.new)
        return [(both, both_s), (self.new, span_s - both_s)]


def simulate(way: Way, requests: list[Request], change: Change, window_s: float) -> dict[str, Any]:
    """One way: what Table 2, Figures 8 and 9 say of it, and ``kept`` [requests] for Figure 10."""
    model = MODELS[SERVED][0]
    if way == "concurrent":
        rooms = model.room(change.old, change.new), model.room(change.new, change.old)
    else:
        rooms = model.room(change.old), model.room(change.new)
    old, new = instance(change.old, rooms[0]), instance(change.new, rooms[1])
    run = ResizedSimulation(requests, old, new, way, change.order_s, change.scale_s(way), TARGETS)
    outcome = run.run()
    ttft_s, tpot_s = (
        np.array([np.inf if one is None else one for one in of]) for of in (outcome.ttft_s, outcome.tpot_s)
    )
    ended_s = np.array([np.inf if one is None else one for one in run.ended_s])
    end_s = requests[-1].arrival_s
    held = change.held(way, run.left_s, end_s)
    order_s, until_s = change.order_s, change.order_s + window_s + AROUND_S
    return {
        "kept": (ttft_s <= TARGETS.ttft_s) & (tpot_s <= TARGETS.tpot_s),
        "scale_s": None if run.ready_s is None else run.ready_s - order_s,
        "downtime_s": change.cold_s if way == "cold-restart" else 0.0,
        "peak_gb": USABLE_GB * max(change.old, *(count for count, _ in held)),
        "accelerator_s": sum(count * seconds for count, seconds in held),
        "restarted": run.restarted,
        "ttft_p95_s": float(np.quantile(ttft_s, 0.95, method="higher")),
        "before": rate(ended_s, order_s - BEFORE_S, order_s),
        "during": rate(ended_s, order_s - AROUND_S, until_s),
        "after": rate(ended_s, until_s, end_s),
    }


def rate(ended_s: NDArray[np.float64], begin_s: float, end_s: float) -> float:
    return float(((ended_s >= begin_s) & (ended_s < end_s)).sum() / (end_s - begin_s))


def recovery_s(arrival_s: NDArray[np.float64], kept: NDArray[np.bool_], jump_s: float) -> float | None:
    """From the jump until windows keep 90 % of their requests to the end; None where the last one does not.

    ``arrival_s`` [requests] seconds, ``kept`` [requests]."""
    edges = np.arange(jump_s, arrival_s[-1], WINDOW_S)
    recovered_s = jump_s
    for begin_s in edges:
        inside = (arrival_s >= begin_s) & (arrival_s < begin_s + WINDOW_S)
        if inside.any() and kept[inside].mean() < 0.9:
            recovered_s = begin_s + WINDOW_S
    return None if recovered_s > edges[-1] else float(recovered_s - jump_s)


def requests_at(arrival_s: NDArray[np.float64], seed: int) -> list[Request]:
    outputs = np.random.default_rng(seed).integers(OUTPUTS[0], OUTPUTS[1], size=len(arrival_s), endpoint=True)
    return [Request(float(at), PROMPT, int(output)) for at, output in zip(arrival_s, outputs, strict=True)]


def poisson(rates: Sequence[tuple[float, float]], seed: int) -> NDArray[np.float64]:
    """[requests] arrivals of (requests/s, seconds) one after the other."""
    random, begin_s, arrivals = np.random.default_rng(seed), 0.0, []
    for per_s, lasts_s in rates:
        arrivals.append(begin_s + np.sort(random.uniform(0, lasts_s, random.poisson(per_s * lasts_s))))
        begin_s += lasts_s
    return np.concatenate(arrivals)


def step(ways: Sequence[Way], rates: tuple[float, ...], change: Change, after_s: float, seed: int) -> dict[str, Any]:
    """Figure 9, Table 2: ``change.order_s`` is ``TRIGGER_S`` after the jump."""
    jump_s = change.order_s - TRIGGER_S
    arrival_s = poisson([(rates[0], jump_s), (rates[1], after_s)], seed)
    requests = requests_at(arrival_s, seed)
    rows: dict[str, Any] = {}
    with progress(len(ways)) as show:
        for way in ways:
            show(way, len(rows))
            row = simulate(way, requests, change, change.cold_s)
            kept = row.pop("kept")
            rows[way] = {
                "kept_before": float(kept[arrival_s < jump_s].mean()),
                "kept_after": float(kept[arrival_s >= jump_s].mean()),
                "recovery_s": recovery_s(arrival_s, kept, jump_s),
                **row,
            }
    return rows


def ramp(ways: Sequence[Way], rising: Ramp, change: Change, bins: int, seed: int) -> dict[str, Any]:
    """Figure 10: parts kept by bin of rates."""
    arrival_s = rising.arrival_s()
    requests, edges = requests_at(arrival_s, seed), np.linspace(rising.first, rising.last, bins + 1)
    rows: dict[str, Any] = {}
    place = np.clip(np.digitize(rising.rate(arrival_s), edges) - 1, 0, bins - 1)
    with progress(len(ways)) as show:
        for way in ways:
            show(way, len(rows))
            kept = simulate(way, requests, change, change.cold_s)["kept"]
            shares = [float(kept[place == at].mean()) for at in range(bins)]
            rows[way] = {"attainment": shares, "sustained": sustained(shares, edges, 0.9)}
    return {"edges": edges.tolist(), "ways": rows}


def show_memory() -> dict[str, Any]:
    """Arithmetic: what *concurrent* leaves for keys and values, for the paper's models."""
    figures: dict[str, dict[str, Any]] = {}
    for name, (model, old, new) in MODELS.items():
        alone, shared = model.room(old), model.room(old, new)
        figures[name] = {"change": f"{old} to {new}", "alone": alone, "concurrent": shared, "part": shared / alone}
    rows = [
        (name, one["change"], f"{one['alone']:,}", f"{one['concurrent']:,}", f"{one['part']:.0%}")
        for name, one in figures.items()
    ]
    print_table(
        "Room for keys and values before the change, tokens", ("model", "change", "alone", "concurrent", ""), rows
    )
    return figures


@benchmark
@click.option("--load", type=click.Choice(("step", "ramp")), default="step", help="Figure 9 and Table 2, or Figure 10.")
@click.option("--ways", callback=listed(choices=WAYS), default=",".join(WAYS), help="Ways to scale.")
@click.option("--change", "counts", callback=listed(int), default="4,6", help="Accelerators before and after.")
@click.option(
    "--rates", callback=listed(float), default="12,40", help="Requests/s: before and after the jump, or of the rise."
)
@click.option("--order-s", default=125.0, type=click.FloatRange(BEFORE_S + TRIGGER_S), help="When it is ordered.")
@click.option("--after-s", default=240.0, type=click.FloatRange(10), help="Length of the load after the jump.")
@click.option("--elastic-s", default=1.38, type=click.FloatRange(0), help="Of the elastic way; Table 1 of the paper.")
@click.option("--cold-s", default=64.6, type=click.FloatRange(0), help="Of all others; Table 1, cold restart.")
@click.option("--bins", default=16, type=AT_LEAST_1, help="Of the rise.")
@seed_option
def main(
    load: str, ways: tuple[Way, ...], counts: tuple[int, ...], rates: tuple[float, ...], order_s: float,
    after_s: float, elastic_s: float, cold_s: float, bins: int, seed: int,
) -> None:  # fmt: skip
    if len(counts) != 2 or len(rates) != 2:
        raise click.UsageError("--change and --rates take two numbers each, separated by a comma")
    change = Change(counts[0], counts[1], order_s, elastic_s, cold_s)
    # a replica more is no way to fewer
    ways = tuple(way for way in ways if way != "replica" or change.new > change.old)
    result: dict[str, Any] = {"simulated": True, "load": load, "change": asdict(change), "rates": list(rates)}
    if load == "step":
        rows = step(ways, rates, change, after_s, seed)
        heads = ("way", *next(iter(rows.values())))
        cells = [(way, *(in_words(value, 2) for value in row.values())) for way, row in rows.items()]
        print_table(f"Simulated: {SERVED}, {rates[0]:g} to {rates[1]:g} requests/s", heads, cells, width=170)
        result |= {"ways": rows, "memory": show_memory()}
    else:
        seconds = order_s + after_s
        result |= ramp(ways, Ramp(rates[0], rates[1], seconds), change, bins, seed)
        shown = [[f"{one:.0%}" for one in row["attainment"]] for row in result["ways"].values()]
        pairs = [f"{low:.1f} to {high:.1f}" for low, high in itertools.pairwise(result["edges"])]
        print_table(f"Simulated: {SERVED}, within {TARGETS.ttft_s:g} s", ("requests/s", *result["ways"]),
                    list(zip(pairs, *shown, strict=True)))  # fmt: skip
    print_result(result)


if __name__ == "__main__":
    main()

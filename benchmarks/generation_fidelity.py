"""Does the simulation of a decoder predict the running one? ``python -m benchmarks.generation_fidelity``.

One instance of a random decoder of SmolLM2-135M's shape (that of ``benchmarks.generation``; ``--pipeline`` takes
another) is measured as ``smoe lab profile`` does. Then cells: the first requests of token traces, lengths divided by
``--divisor``, arrivals scaled to ``--loads`` (parts of the rate that the instance can take by its profile), are
replayed live by the client of ``smoe replay`` and simulated with the profile, ``--draws`` times. No number of the
simulation is fitted to a cell.

``ttft_p50``, ``ttft_p95``, ``tpot_p50``, ``tpot_p95``: simulated over live, less 1; ``worst_*``: the largest over cells
without its sign. Aims: 5 % for P50, 9 % for P95. Times are worth something on an idle machine only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.generation import WIDE, build
from benchmarks.harness.local_pipeline import LocalPipeline
from benchmarks.harness.options import AT_LEAST_1, PRESENT, benchmark, data_option, listed, seed_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.streams import first_requests
from functions.scheduling.settings import CHUNK_TOKENS, Targets
from moe.cache import PAGE_TOKENS
from moe.manifest import load
from simulation.generation.engine import Request
from simulation.generation.measured import Measured, Sample, errors, fit
from simulation.generation.replayed import simulate
from simulation.profiles.generation.measure import Decoder, Settings, kv_tokens, measure, points
from traces import catalog
from traces.completions import Completions, Lengths, lengths_of
from traces.model import Trace
from traces.replay import ReplaySettings, replay

KV_MB = 256
PERCENTILES = (50, 95)
TARGETS = Targets(10.0, 1.0)
"""Targets of a scheduler that has nothing to choose."""
TIMEOUT_S = 300.0


def alone_s(times: Measured, lengths: Lengths) -> float:
    """Seconds that the instance needs for all requests one after the other."""
    pairs = zip(lengths.prompt.tolist(), lengths.answer.tolist(), strict=True)
    return sum(
        (
            times.prefill_s(prompt) + (answer - 1) * times.iteration(1, prompt + answer // 2, ())
            for prompt, answer in pairs
        ),
        0.0,
    )


def speed_of(trace: Trace, lengths: Lengths, times: Measured, load: float) -> float:
    """How much faster the trace is replayed, so that it asks for ``load`` of what the instance could do one by one."""
    return load * float(trace.arrival_s[-1]) / alone_s(times, lengths)


def live(url: str, trace: Trace, lengths: Lengths, speed: float, decoder: Decoder, seed: int) -> dict[str, float]:
    """Percentiles in seconds, as the client of ``smoe replay`` sees them."""
    ids = np.random.default_rng(seed).integers(0, decoder.vocabulary - 1, 1_000_000).astype(np.int64)
    completions = Completions(lengths, ids, seed, fields={"model": decoder.model, "temperature": 0})
    settings = ReplaySettings(f"{url}/v1/completions", speed, timeout_s=TIMEOUT_S)
    result = asyncio.run(replay(trace, completions, settings))
    records = [one for one in result.records if one.outcome == "ok"]
    if len(records) < trace.requests:
        raise RuntimeError(f"{trace.requests - len(records)} of {trace.requests} requests were not answered")
    return percentiles([one.ttft_s for one in records], [one.tpot_s for one in records])


def simulated(trace: Trace, lengths: Lengths, speed: float, times: Measured, draws: int) -> dict[str, float]:
    """Medians over ``draws`` of the same percentiles."""
    rows = zip(trace.arrival_s / speed, lengths.prompt, lengths.answer, strict=True)
    requests = [Request(float(at), int(prompt), int(answer)) for at, prompt, answer in rows]
    runs = []
    for draw in range(draws):
        outcome = simulate(requests, times.drawing(draw), TARGETS)
        tpots = [one if answer > 1 else None for one, answer in zip(outcome.tpot_s, lengths.answer, strict=True)]
        runs.append(percentiles(outcome.ttft_s, tpots))
    return {key: float(np.median([run[key] for run in runs])) for key in runs[0]}


def percentiles(ttft_s: Sequence[float | None], tpot_s: Sequence[float | None]) -> dict[str, float]:
    values = {"ttft": ttft_s, "tpot": tpot_s}
    return {
        f"{name}_p{p}": float(np.percentile([one for one in seconds if one is not None], p))
        for name, seconds in values.items()
        for p in PERCENTILES
    }


def profile(decoder: Decoder, settings: Settings) -> tuple[Measured, list[Sample]]:
    with progress(settings.repeats * len(points(decoder, settings))) as show:
        done = iter(range(10**6))
        samples = measure(decoder, settings, lambda what, _: show(what, next(done)))
    return fit(samples, CHUNK_TOKENS, kv_tokens(decoder.url, PAGE_TOKENS)), samples


@benchmark
@click.option("--traces", "names", default="llm-conv,llm-code", callback=listed(), help="Token traces, comma list.")
@click.option("--requests", "most", type=click.IntRange(5, 20_000), default=60, help="First of each trace.")
@click.option("--divisor", type=click.FloatRange(1), default=8.0, help="Of the traces' lengths.")
@click.option("--loads", default="0.5,1.0", callback=listed(float), help="1: what the instance does one by one.")
@click.option("--draws", type=AT_LEAST_1, default=11, help="Simulated runs of a cell.")
@click.option("--repeats", type=AT_LEAST_1, default=3, help="Of every point of the profile.")
@click.option("--pipeline", type=PRESENT, help="Folder of a decoder.")
@data_option
@seed_option
def main(
    names: tuple[str, ...],
    most: int,
    divisor: float,
    loads: tuple[float, ...],
    draws: int,
    repeats: int,
    pipeline: Path | None,
    data: Path | None,
    seed: int,
) -> None:
    traces = catalog.data_folder(data)
    with run_folder("smoe-generation-fidelity-") as folder:
        if pipeline is None:
            build(folder, WIDE, seed)
        result = compare(
            pipeline or folder / "random", names if traces else ("made-llm",), traces, most, divisor, loads, draws,
            Settings(repeats=repeats, seed=seed),
        )  # fmt: skip
    keys = [f"{name}_p{p}" for name in ("ttft", "tpot") for p in PERCENTILES]
    rows = [
        (cell["cell"], *(f"{1000 * cell['live'][key]:.0f} / {100 * cell['error'][key]:+.1f} %" for key in keys))
        for cell in result["cells"]
    ]
    print_table("live, ms, and simulated over it", ("cell", *keys), rows)
    print_result(result, seed=seed)


def compare(
    pipeline: Path,
    names: Sequence[str],
    traces: Path | None,
    most: int,
    divisor: float,
    loads: Sequence[float],
    draws: int,
    settings: Settings,
) -> dict[str, Any]:
    """The profile's own errors, and of each cell what was live and how far the simulation is from it."""
    manifest = load(pipeline, verify=False)
    numbers = manifest.architecture.get("decoder", manifest.architecture)
    context, vocabulary = int(numbers["max_positions"]), int(numbers["vocab_size"])
    cells: list[dict[str, Any]] = []
    environ = {"smoe_kv_mb": str(KV_MB), "smoe_timeout": f"{TIMEOUT_S:g}s"}
    with LocalPipeline(pipeline, max_inflight=64, environ=environ) as served:
        decoder = Decoder(served.url, manifest.name, vocabulary, context)
        times, samples = profile(decoder, settings)
        for name in names:
            trace = first_requests(name, traces, most)
            lengths = lengths_of(trace, divisor, context)
            for load_ in loads:
                speed = speed_of(trace, lengths, times, load_)
                # Texts that an earlier cell sent would be answered from the prefix cache.
                measured_s = live(served.url, trace, lengths, speed, decoder, settings.seed + 1 + len(cells))
                simulated_s = simulated(trace, lengths, speed, times, draws)
                error = {key: simulated_s[key] / measured_s[key] - 1 for key in measured_s}
                facts = {"cell": f"{name} at {load_:g}", "rps": trace.requests * speed / float(trace.arrival_s[-1])}
                cells.append({**facts, "live": measured_s, "simulated": simulated_s, "error": error})
    worst = {f"worst_{key}": max(abs(cell["error"][key]) for cell in cells) for key in cells[0]["error"]}
    return {**worst, "profile_errors": errors(times, samples), "cells": cells}


if __name__ == "__main__":
    main()

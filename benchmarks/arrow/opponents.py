"""Arrow, static splits and colocated instances on real workers: ``python -m benchmarks.arrow.opponents``.

One set of workers of a decoder (a random one; ``--pipeline`` takes another, such as that of ``smoe up smollm2``) with
``--instances`` replicas of every segment. For each scheduler an ingress of its own, one after the other: the same
requests of a token trace, lengths divided by ``--divisor``, arrivals scaled to each of ``--rates``. Roles begin with
half the instances for prefill; ``minimal-load P+D`` are the static splits, the best of which is chosen with hindsight
at each rate; chunks are 256 tokens for all. Targets are multiples of what a request takes alone (``TTFT_TIMES``,
``TPOT_TIMES``).

All instances share this machine's cores and the experts: with fewer cores than instances nothing here shows what
disaggregation saves on hardware of its own, and times on a busy machine show less. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.arrow.live import generation, until
from benchmarks.generation import build
from benchmarks.generation_soak import SMALL
from benchmarks.harness.local_pipeline import LocalPipeline, WorkerProcess
from benchmarks.harness.options import benchmark, data_option, listed, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.streams import first_requests
from functions.generation.texts import end_tokens
from moe.manifest import load
from traces import catalog
from traces.completions import Completions, TokenTargets, lengths_of
from traces.model import Trace, make_trace
from traces.replay import ReplayResult, ReplaySettings, replay

TTFT_TIMES, TPOT_TIMES = 5.0, 3.0
ALONE = 12
"""Requests that are sent one by one to learn what one takes."""
TIMEOUT_S = 120.0


def schedules(instances: int) -> dict[str, dict[str, str]]:
    """Environments of ingresses, by what they are called here."""
    half = {"smoe_prefill_instances": str(max(1, instances // 2))}
    return {
        "colocated": {"smoe_schedule": "colocated"},
        "deadline": {"smoe_schedule": "deadline"},
        "arrow": {"smoe_schedule": "arrow", **half},
        "round-robin": {"smoe_schedule": "round-robin", **half},
        **{
            f"minimal-load {prefill}+{instances - prefill}": {
                "smoe_schedule": "minimal-load",
                "smoe_prefill_instances": str(prefill),
            }
            for prefill in range(1, instances)
        },
    }


def send(ingress: WorkerProcess, trace: Trace, completions: Completions, speed: float) -> ReplayResult:
    """A replay through one ingress."""
    url = f"http://{ingress.address}/v1/completions"
    return asyncio.run(replay(trace, completions, ReplaySettings(url, speed, timeout_s=TIMEOUT_S)))


class Comparison:
    """One trace through every scheduler."""

    def __init__(self, folder: Path, pipeline: Path, trace: Trace, divisor: float, instances: int, seed: int) -> None:
        manifest = load(pipeline, verify=False)
        numbers = manifest.architecture.get("decoder", manifest.architecture)
        bias = {"logit_bias": {str(end): -100 for end in sorted(end_tokens(manifest))}}
        ids = np.random.default_rng(seed).integers(0, int(numbers["vocab_size"]) - 1, 100_000)
        lengths = lengths_of(trace, divisor, int(numbers["max_positions"]))
        fields = {"model": manifest.name, "temperature": 0, **bias}
        self.completions = Completions(lengths, ids.astype(np.int64), seed, fields=fields)
        self.trace, self.instances, self._folder = trace, instances, folder
        self.served = LocalPipeline(
            pipeline,
            replicas=instances,
            max_inflight=64,
            environ={"smoe_kv_mb": "96", "smoe_timeout": f"{TIMEOUT_S:g}s", "smoe_profiles": str(folder / "profiles")},
        )

    def targets(self) -> TokenTargets:
        """Multiples of the medians of requests that are sent one after the other."""
        now, records = make_trace(np.zeros(1), duration_s=0.0, source="one request"), []
        lengths = self.completions.lengths
        for place in range(min(ALONE, self.trace.requests)):
            prompt, answer = lengths.prompt[place : place + 1], lengths.answer[place : place + 1]
            alone = replace(self.completions, lengths=replace(lengths, prompt=prompt, answer=answer))
            records += send(self.served.ingress, now, alone, 1.0).records
        ttft_s = float(np.median([one.ttft_s for one in records if one.ttft_s is not None]))
        tpot_s = float(np.median([one.tpot_s for one in records if one.tpot_s is not None]))
        return TokenTargets(TTFT_TIMES * ttft_s, TPOT_TIMES * tpot_s)

    def run(self, rates: tuple[float, ...]) -> dict[str, Any]:
        """Goodput by scheduler and rate."""
        own_rps = self.trace.requests / float(self.trace.arrival_s[-1])
        with self.served:
            targets = self.targets()
            self.completions = replace(self.completions, targets=targets)
            rows: dict[str, dict[str, Any]] = {}
            for name, environ in schedules(self.instances).items():
                rows[name] = self._of(environ, targets, rates, own_rps)
        return {"ttft_ms": 1000 * (targets.ttft_s or 0), "tpot_ms": 1000 * (targets.tpot_s or 0), "schedules": rows}

    def _of(
        self, environ: dict[str, str], targets: TokenTargets, rates: tuple[float, ...], own_rps: float
    ) -> dict[str, Any]:
        slo = {"smoe_ttft": f"{targets.ttft_s}s", "smoe_tpot": f"{targets.tpot_s}s"}
        ingress = self.served.add_ingress({**environ, **slo})
        url = f"http://{ingress.address}"
        if environ["smoe_schedule"] != "colocated":
            until(lambda: len(generation(url)["instances"]) == self.instances, 300)
        row: dict[str, Any] = {"goodput": {}, "failed": 0}
        for rate in rates:
            summary = send(ingress, self.trace, self.completions, rate / own_rps).summary
            row["goodput"][f"{rate:g}"] = summary["generation"]["goodput"]
            row["failed"] += summary["failed"]
        document = generation(url)
        return row | {"flips": document["flips"], "moved": document["moved"]}


def verdict(result: dict[str, Any], rates: tuple[float, ...]) -> dict[str, Any]:
    """Arrow's goodput less the best static split's, and less the colocated instances', at each rate, in points."""
    goodput = {name: row["goodput"] for name, row in result["schedules"].items()}
    static = [name for name in goodput if name.startswith("minimal-load")]
    points: dict[str, Any] = {"over_best_static": {}, "over_colocated": {}}
    for rate in (f"{one:g}" for one in rates):
        arrow = goodput["arrow"][rate]
        points["over_best_static"][rate] = round(100 * (arrow - max(goodput[name][rate] for name in static)), 1)
        points["over_colocated"][rate] = round(100 * (arrow - goodput["colocated"][rate]), 1)
    return points


@benchmark
@click.option("--trace", "name", default="llm-conv", help="Token trace.")
@click.option("--requests", "most", type=click.IntRange(20, 20_000), default=1000, help="First of the trace.")
@click.option("--divisor", type=click.FloatRange(1), default=8.0, help="Of the trace's lengths.")
@click.option("--rates", default="1,2", callback=listed(float), help="Requests a second, comma list.")
@click.option("--instances", default=4, type=click.IntRange(2, 16), help="Replicas of every segment.")
@click.option("--pipeline", type=click.Path(path_type=Path, exists=True), help="Folder of a decoder.")
@data_option
@seed_option
def main(
    name: str,
    most: int,
    divisor: float,
    rates: tuple[float, ...],
    instances: int,
    pipeline: Path | None,
    data: Path | None,
    seed: int,
) -> None:
    folder_of_traces = catalog.data_folder(data)
    trace = first_requests(name if folder_of_traces else "made-llm", folder_of_traces, most)
    with run_folder("smoe-arrow-") as folder:
        if pipeline is None:
            build(folder, SMALL, seed)
        compared = Comparison(folder, pipeline or folder / "random", trace, divisor, instances, seed)
        result = compared.run(rates)
    rows = [
        (which, *(f"{row['goodput'][f'{rate:g}']:.3f}" for rate in rates), str(row["flips"]), str(row["failed"]))
        for which, row in result["schedules"].items()
    ]
    columns = ("scheduler", *(f"{rate:g}/s" for rate in rates), "flips", "failed")
    print_table(f"goodput within TTFT {result['ttft_ms']:.0f} ms, TPOT {result['tpot_ms']:.1f} ms", columns, rows)
    facts = {"trace": trace.source, "requests": trace.requests, "divisor": divisor, "instances": instances}
    print_result({**facts, **verdict(result, rates), **result}, seed=seed)


if __name__ == "__main__":
    main()

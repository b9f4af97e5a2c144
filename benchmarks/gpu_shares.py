"""GPU shares under MPS: ``python -m benchmarks.gpu_shares``. Needs an NVIDIA GPU; without one it exits with 2.

For the default pipeline and one of BERT-base's size (preset bert-4, seeded weights), through a gateway of its own, for
one node of each kind: latency against share (.1 … 1), what a neighbour on the same GPU costs, and the seconds of
exchanging a worker for one with another share (``simulation.profiles.measure.gpu``). The rows go to ``--out`` as
parquet; the last line is one JSON object: by pipeline, milliseconds at the median of one call always in flight by
share, the ratio to the same calls without a neighbour, and seconds of an exchange.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import pyarrow as pa
import pyarrow.parquet as pq
import uvloop
from rich.console import Console

from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_result, print_table
from benchmarks.harness.running import local_gateway, running_gateway
from gateway.backends.process.gpu.shares import find_gpus
from moe.manifest import Manifest
from simulation.profiles.fit.rows import COLUMNS, SCHEMA, Row
from simulation.profiles.measure.gpu import GpuSettings, check_shares, measure_gpu
from simulation.profiles.measure.machine import this_machine, versions
from simulation.profiles.measure.measurement_plan import node_classes
from smoe.commands.profile_gateway import ProfileGateway
from smoe.deployment import function_deployments
from smoe.pipelines import ensure_pipeline

PIPELINES = ("minilm", "bert-4")
WITHOUT_GPU = 2
"""Exit code where there is nothing to measure on."""


def nodes_of(manifest: Manifest) -> list[str]:
    """The first segment that is not the first or last of the pipeline, and the first expert: one of each kind."""
    names = [entry.node for entry in node_classes(manifest)]
    inner = [name for name in names if name.startswith("segment") and name != "segment-0"]
    return [inner[0], next(name for name in names if name.startswith("expert"))]


def measured(pipeline: str, work: Path, settings: GpuSettings, console: Console) -> list[Row]:
    """Every row of one pipeline. Raises ProfileError, SmoeError."""
    gateway = replace(local_gateway(work / pipeline), pipelines_dir=work / "pipelines")
    _, manifest = ensure_pipeline(pipeline, gateway.pipelines)
    with running_gateway(gateway) as running:
        client = ProfileGateway(running.connect())
        deployments = {entry["envVars"]["smoe_nodes"]: entry for entry in function_deployments(manifest)}
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, console.status(pipeline) as status:
            return measure_gpu(
                client,
                manifest,
                deployments,
                nodes_of(manifest),
                settings,
                runner,
                lambda what, seconds: status.update(f"{pipeline}: {what}"),
            )


def summary(rows: Sequence[Row], tokens: int) -> dict[str, Any]:
    """Numbers of one pipeline by node, of calls with ``tokens`` tokens. Medians; ratios of medians.

    ``busy_ms``: by share; ``beside``: by own and the neighbour's share, how many times longer a call takes than without
    the neighbour; ``exchange_s``: over all changes of share.
    """
    numbers: dict[str, Any] = {}
    for node in dict.fromkeys(row.node for row in rows):
        rows_of_node = [row for row in rows if row.node == node]
        busy = {
            row.gpu_share: row.p50_s
            for row in rows_of_node
            if row.family == "gpu_busy" and (row.tokens, row.concurrency) == (tokens, 1) and row.p50_s
        }
        with_neighbour = {
            f"{row.gpu_share:g}+{row.beside_share:g}": round(row.p50_s / busy[row.gpu_share], 3)
            for row in rows_of_node
            if row.family == "gpu_beside" and row.p50_s and row.gpu_share in busy
        }
        exchanges = [row.p50_s for row in rows_of_node if row.family == "gpu_exchange" and row.p50_s]
        numbers[node] = {
            "busy_ms": {f"{share:g}": round(1000 * seconds, 3) for share, seconds in busy.items()},
            "beside": with_neighbour,
            "exchange_s": round(median(exchanges), 3) if exchanges else None,
        }
    return numbers


def table_rows(numbers: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(node, what, value) for people."""
    rows = []
    for node, values in numbers.items():
        for share, ms in values["busy_ms"].items():
            rows.append((node, f"call with {share} of the GPU", f"{ms:g} ms"))
        for pair, ratio in values["beside"].items():
            share, _, other = pair.partition("+")
            rows.append((node, f"{share} next to a busy neighbour with {other}", f"{ratio:g} times as long"))
        if values["exchange_s"] is not None:
            rows.append((node, "exchange of a worker for another share", f"{values['exchange_s']:g} s"))
    return rows


def save(rows: Sequence[tuple[str, Row]], path: Path) -> None:
    """Every row with its pipeline, and the machine in the file's metadata."""
    columns = {"pipeline": [pipeline for pipeline, _ in rows]}
    columns |= {name: [getattr(row, name) for _, row in rows] for name in COLUMNS}
    facts = json.dumps({"machine": this_machine().to_json(), "versions": dict(versions())}).encode()
    schema = pa.schema([("pipeline", pa.string()), *SCHEMA]).with_metadata({b"smoe.gpu_shares": facts})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")


@benchmark
@click.option("--pipeline", "pipelines", multiple=True, default=PIPELINES, help="Folder or preset; repeatable.")
@click.option("--share", "shares", multiple=True, type=float, help="Of a GPU; repeatable. [default: 0.1, 0.2 … 1]")
@click.option("--seconds", type=click.FloatRange(0.05, 60), default=1.0, help="Seconds of load on each point.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Parquet file of all rows.")
def main(pipelines: tuple[str, ...], shares: tuple[float, ...], seconds: float, out: Path | None) -> None:
    check_shares(shares)
    detected = find_gpus()
    if not detected.gpus:
        reasons = " ".join(detected.notes) or "NVML finds no NVIDIA GPU on this machine."
        print(f"GPU shares can only be measured on a GPU: {reasons}", file=sys.stderr)
        raise SystemExit(WITHOUT_GPU)
    settings = GpuSettings(seconds_per_point=seconds)
    if shares:
        settings = GpuSettings(shares=tuple(sorted(set(shares))), seconds_per_point=seconds)
    console = Console(stderr=True)
    rows: list[tuple[str, Row]] = []
    result: dict[str, Any] = {"gpu": detected.gpus[0].name, "tokens": settings.beside_tokens, "pipelines": {}}
    with tempfile.TemporaryDirectory(prefix="smoe-gpu-") as work:
        for pipeline in pipelines:
            pipeline_rows = measured(pipeline, Path(work), settings, console)
            rows += [(pipeline, row) for row in pipeline_rows]
            result["pipelines"][pipeline] = summary(pipeline_rows, settings.beside_tokens)
            shown = table_rows(result["pipelines"][pipeline])
            print_table(f"GPU shares: {pipeline}", ("node", "what", "value"), shown, texts=2)
            if out is not None:
                save(rows, out)
    print_result(result)


if __name__ == "__main__":
    main()

"""How fast and how light replicas are: ``python -m benchmarks.cold_start``.

Brings up a pipeline of 96 experts and 13 segments (preset bert-8 at reduced width, seeded weights) on the process
backend, one replica each, calls every one, adds it all up, then scales one expert to eight. ``replica_ready_ms`` runs
from the moment a replica's start is under way (its turn among ``concurrent_starts``) until it serves, weights mapped;
``pipeline_up_s`` is the wall time for all of them, waiting for turns included. ``pss_mb`` is the proportional memory of
every process; ``beyond_weights_mb`` leaves out the pages mapped from weight files. The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click
import psutil
import torch
import urllib3

from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from functions.wire import format as wire
from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.settings import ProcessSettings
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec, FunctionState
from moe.manifest import Manifest, Node
from moe.preset import PRESETS, preset_source
from moe.split import split

PRESET = "bert-8"
TOKENS = 32
SCALE_UPS = 20
IMAGE = "smoe/function"
UP_TIMEOUT_S = 120.0
TARGETS = {"replica_ready_ms_p50": "≤ 60", "pipeline_up_s": "≤ 10", "beyond_weights_mb": "≤ 2000"}


@dataclass(frozen=True)
class Memory:
    """Proportional set size of a set of processes, bytes."""

    total: int
    weights: int
    """The part that is mapped from the pipeline's files."""


def proportional_memory(pids: Iterable[int], pipeline: Path) -> Memory:
    """Sum of ``Pss`` over all mappings of the processes (``/proc/PID/smaps``); ended ones count as nothing."""
    total = weights = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
        except OSError:
            continue
        of_pipeline = False
        for line in lines:
            key = line.split(maxsplit=1)[0]
            if key == "Pss:":
                size = int(line.split()[1]) * 1024
                total += size
                weights += size if of_pipeline else 0
            elif not key.endswith(":"):
                of_pipeline = str(pipeline) in line
    return Memory(total, weights)


def cold_python_ms(runs: int) -> float:
    """Median time of a fresh Python that imports what a worker needs."""
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import functions.worker"], check=True, timeout=120)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def spec_of(manifest: Manifest, node: Node, folder: Path) -> FunctionSpec:
    environment = {"smoe_pipeline": str(folder), "smoe_nodes": node.id}
    return FunctionSpec(manifest.function_name(node.id), f"{IMAGE}:bench", env_vars=environment)


def body_of(node: Node, manifest: Manifest) -> bytes:
    """A request of 32 tokens that this node can answer."""
    hidden = torch.randn(TOKENS, manifest.architecture["hidden_size"])
    lengths = torch.tensor([TOKENS])
    if node.kind == "expert":
        tensors = {"x": hidden}
    elif node.layer == 0:
        tensors = {"token_ids": torch.randint(10, 90, (TOKENS,)), "lengths": lengths}
    else:
        tensors = {"hidden": hidden, "lengths": lengths}
    return b"".join(bytes(part) for part in wire.encode(tensors))


def call(address: str, body: bytes) -> None:
    """One call; raises where the answer is not 200."""
    headers = {"Content-Type": "application/vnd.smoe.tensors"}
    reply = urllib3.request("POST", f"http://{address}/", body=body, headers=headers, timeout=30.0, retries=False)
    if reply.status != 200:
        raise RuntimeError(f"{address} answered {reply.status}: {reply.data[:300]!r}")


async def wait_ready(backend: ProcessBackend, names: Iterable[str], replicas: int) -> None:
    """Wait until each of the functions has this many ready replicas."""
    missing = set(names)
    deadline = time.monotonic() + UP_TIMEOUT_S
    version = -1
    while missing:
        missing = {name for name in missing if len(state(backend, name).ready) != replicas}
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"not ready after {UP_TIMEOUT_S:.0f} s: {', '.join(sorted(missing)[:5])}")
        if missing:
            version = await backend.wait_change(version, 1.0)


def state(backend: ProcessBackend, name: str) -> FunctionState:
    return backend.get(name, DEFAULT_NAMESPACE)


def own_processes() -> list[int]:
    """Everything below this process."""
    return [process.pid for process in psutil.Process().children(recursive=True)]


async def measure(folder: Path, manifest: Manifest, state_folder: Path) -> dict[str, float | int]:
    """Bring the pipeline up, call it, weigh it, scale one expert up and down; returns the numbers."""
    nodes = [*manifest.segments, *(node for layer in range(manifest.layers) for node in manifest.experts(layer))]
    specs = [spec_of(manifest, node, folder) for node in nodes]
    settings = ProcessSettings(state=state_folder, images={IMAGE: "functions.worker:main"}, caller_keys=False)
    backend = ProcessBackend(settings)
    began = time.perf_counter()
    await backend.start()
    parent_s = time.perf_counter() - began
    try:
        began = time.perf_counter()
        for spec in specs:
            await backend.create(spec, 1)
        await wait_ready(backend, [spec.name for spec in specs], 1)
        up_s = time.perf_counter() - began
        starts_ms = sorted(seconds * 1000 for seconds in backend.start_seconds())
        idle = proportional_memory(own_processes(), folder)
        for spec, node in zip(specs, nodes, strict=True):
            await asyncio.to_thread(call, state(backend, spec.name).ready[0].address, body_of(node, manifest))
        used = proportional_memory(own_processes(), folder)
        ups_ms = await scale_ups(backend, specs[-1].name)
        backend.start_seconds()
        one, eight = await replicas_memory(backend, specs[-1].name, body_of(nodes[-1], manifest), folder)
    finally:
        await backend.close()
    mb = 1e6
    return {
        "replica_ready_ms_p50": round(statistics.median(starts_ms), 1),
        "replica_ready_ms_p99": round(starts_ms[min(len(starts_ms) - 1, int(0.99 * len(starts_ms)))], 1),
        "pipeline_up_s": round(up_s, 2),
        "functions": len(specs),
        "pss_mb": round(used.total / mb),
        "pss_idle_mb": round(idle.total / mb),
        "weights_mb": round(sum(node.parameter_bytes for node in nodes) / mb),
        "weights_pss_mb": round(used.weights / mb),
        "beyond_weights_mb": round((used.total - used.weights) / mb),
        "scale_up_ms_p50": round(statistics.median(ups_ms), 1),
        "replica_extra_mb": round((eight - one) / 7 / mb, 1),
        "warm_parent_s": round(parent_s, 2),
    }


async def scale_ups(backend: ProcessBackend, name: str) -> list[float]:
    """Milliseconds from the order for a second replica until it is ready, on an otherwise idle machine."""
    times = []
    for _ in range(SCALE_UPS):
        began = time.perf_counter()
        await backend.scale(name, DEFAULT_NAMESPACE, 2)
        await wait_ready(backend, [name], 2)
        times.append((time.perf_counter() - began) * 1000)
        await backend.scale(name, DEFAULT_NAMESPACE, 1)
        while len(state(backend, name).replicas) > 1:
            await backend.wait_change(backend.version(), 1.0)
    return times


async def replicas_memory(backend: ProcessBackend, name: str, body: bytes, folder: Path) -> tuple[int, int]:
    """Proportional memory of everything with one and with eight replicas of one expert, each called once."""
    one = proportional_memory(own_processes(), folder).total
    await backend.scale(name, DEFAULT_NAMESPACE, 8)
    await wait_ready(backend, [name], 8)
    for replica in state(backend, name).ready:
        await asyncio.to_thread(call, replica.address, body)
    return one, proportional_memory(own_processes(), folder).total


@benchmark
@click.option("--width", default=256, help="Hidden size, a multiple of 64 (BERT-base: 768).")
@click.option("--cold-runs", default=3, help="Fresh Pythons to time.")
def main(width: int, cold_runs: int) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with run_folder("smoe-cold-start-") as work, progress(3) as show:
        folder, preset = work / "pipeline", PRESETS[PRESET]
        show("split", 0)
        source = preset_source(preset, None, width, 0)
        manifest = split(source, folder, name="cold", experts=preset.experts, top_k=preset.top_k)
        show("cold python", 1)
        cold_ms = cold_python_ms(cold_runs)
        show("pipeline", 2)
        result = {**asyncio.run(measure(folder, manifest, work / "state")), "cold_python_ms": round(cold_ms)}
    rows = [(key, f"{value:g}", TARGETS.get(key, "")) for key, value in result.items()]
    print_table("Cold start", ("measured", "value", "target"), rows)
    print_result(result)


if __name__ == "__main__":
    main()

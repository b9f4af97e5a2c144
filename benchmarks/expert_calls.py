"""Calls of experts at full size through a real worker, and modelled: ``python -m benchmarks.expert_calls``.

Brings up one expert of each shape (the paper's, 768 × 3072, and 2048 × 7168; FP32, seeded weights, one thread) on the
process backend and calls it with the ingress's client and wire format, one call at a time; shapes and lengths in turn,
so that noise spreads over all of them. ``product_ms`` is the same arithmetic in this process, ``hop_ms`` what the call
takes beyond it: client, HTTP, wire, worker. ``modelled_ms`` is the call on one core of the modelled cluster
(:mod:`simulation.latency.roofline`), its network included. Medians. Last line: ``rows``; ``ratio``: measured over
modelled, least and most; ``hop_ms``: median of all rows.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch
from torch.nn import functional

from benchmarks.harness.options import AT_LEAST_1, benchmark
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from functions.dispatch.client import ConnectionPool, request_head
from functions.wire import format as wire
from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.settings import ProcessSettings
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec
from moe.checkpoints.source import SeededSource
from moe.preset import seeded_config
from moe.split import split
from simulation.latency.roofline import Roofline
from simulation.workloads.paper import expert_cost

SHAPES = ((768, 3072), (2048, 7168))
TOKENS = (1, 8, 32, 128, 512)
WARM_UP = 5
"""Calls of each length that are not counted."""
DEADLINE_S = 60.0
START_S = 300.0
IMAGE = "smoe/function"
CONTENT_TYPE = "application/vnd.smoe.tensors"


@dataclass(frozen=True)
class Row:
    """One shape at one length; medians in milliseconds."""

    hidden: int
    inner: int
    tokens: int
    call_ms: float
    product_ms: float
    modelled_ms: float

    @property
    def hop_ms(self) -> float:
        return self.call_ms - self.product_ms

    @property
    def ratio(self) -> float:
        return self.call_ms / self.modelled_ms


def modelled_ms(hidden: int, inner: int, tokens: int) -> float:
    """Alone on one core of the modelled cluster."""
    return 1000 * float(Roofline().seconds(expert_cost(hidden, inner), tokens, 1.0, 0.0))


class Product:
    """An expert's arithmetic without a worker, on one thread."""

    def __init__(self, hidden: int, inner: int) -> None:
        self._up, self._down = torch.randn(inner, hidden), torch.randn(hidden, inner)
        self._up_bias, self._down_bias = torch.randn(inner), torch.randn(hidden)

    def seconds(self, x: torch.Tensor) -> float:
        begun_s = time.perf_counter()
        with torch.inference_mode():
            between = functional.gelu(functional.linear(x, self._up, self._up_bias))
            functional.linear(between, self._down, self._down_bias)
        return time.perf_counter() - begun_s


async def measure(work: Path, repeats: int) -> list[Row]:
    """All rows; ``work``: an empty folder."""
    folders = {}
    for hidden, inner in SHAPES:
        config = {**seeded_config("bert", hidden), "intermediate_size": inner}
        source, folder = SeededSource({**config, "num_hidden_layers": 1}, 0), work / f"e{hidden}"
        folders[hidden] = folder, split(source, folder, name=f"e{hidden}", experts=2, top_k=1, method="full")
    settings = ProcessSettings(state=work / "state", images={IMAGE: "functions.worker:main"}, caller_keys=False)
    backend, pools = ProcessBackend(settings), {}
    await backend.start()
    try:
        for hidden, (folder, manifest) in folders.items():
            node = manifest.experts(0)[0].id
            environment = {"smoe_pipeline": str(folder), "smoe_nodes": node}
            spec = FunctionSpec(manifest.function_name(node), f"{IMAGE}:bench", env_vars=environment)
            await backend.create(spec, 1)
            pools[hidden] = ConnectionPool(await _address(backend, spec.name))
        return await _in_turn(pools, repeats)
    finally:
        for pool in pools.values():
            pool.close()
        await backend.close()


async def _address(backend: ProcessBackend, name: str) -> str:
    """The address of the function's replica, once that is ready. Raises RuntimeError where it is not within START_S."""
    end_s, version = time.monotonic() + START_S, -1
    while not (ready := backend.get(name, DEFAULT_NAMESPACE).ready):
        if time.monotonic() > end_s:
            raise RuntimeError(f"{name} is not ready after {START_S:.0f} s")
        version = await backend.wait_change(version, 1.0)
    return ready[0].address


async def _in_turn(pools: dict[int, ConnectionPool], repeats: int) -> list[Row]:
    products = {hidden: Product(hidden, inner) for hidden, inner in SHAPES}
    calls: dict[tuple[int, int], list[float]] = {(h, t): [] for h, _ in SHAPES for t in TOKENS}
    alone: dict[tuple[int, int], list[float]] = {key: [] for key in calls}
    with progress(WARM_UP + repeats, "repeats") as show:
        for repeat in range(-WARM_UP, repeats):
            show("calls", repeat + WARM_UP)
            for (hidden, tokens), times in calls.items():
                x = torch.randn(tokens, hidden)
                seconds, product_s = await _call_s(pools[hidden], x), products[hidden].seconds(x)
                if repeat >= 0:
                    times.append(seconds)
                    alone[hidden, tokens].append(product_s)
    inner_of = dict(SHAPES)
    return [
        Row(hidden, inner_of[hidden], tokens, _ms(times), _ms(alone[hidden, tokens]),
            modelled_ms(hidden, inner_of[hidden], tokens))
        for (hidden, tokens), times in calls.items()
    ]  # fmt: skip


async def _call_s(pool: ConnectionPool, x: torch.Tensor) -> float:
    begun_s = time.perf_counter()
    body = b"".join(bytes(part) for part in wire.encode({"x": x}))
    reply = await pool.call(request_head("/", pool.address, CONTENT_TYPE, len(body), []), [body], DEADLINE_S)
    if reply.status != 200:
        raise click.ClickException(f"the expert answered {reply.status}: {bytes(reply.body[:200])!r}")
    wire.decode(reply.body)
    return time.perf_counter() - begun_s


def _ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)


@benchmark
@click.option("--repeats", default=30, type=AT_LEAST_1, help="Calls of each shape and length.")
def main(repeats: int) -> None:
    torch.set_num_threads(1)
    with run_folder("smoe-expert-calls-") as work:
        rows = asyncio.run(measure(work, repeats))
    head = ("expert", "tokens", "call ms", "product ms", "hop ms", "modelled ms", "measured / modelled")
    table = [
        (f"{row.hidden} × {row.inner}", str(row.tokens), f"{row.call_ms:.2f}", f"{row.product_ms:.2f}",
         f"{row.hop_ms:.2f}", f"{row.modelled_ms:.2f}", f"{row.ratio:.2f}")
        for row in rows
    ]  # fmt: skip
    print_table("one call at a time, one thread: measured here, and modelled (Xeon Gold 6230R)", head, table)
    ratios = [row.ratio for row in rows]
    print_result({
        "rows": [{**asdict(row), "hop_ms": round(row.hop_ms, 4), "ratio": round(row.ratio, 4)} for row in rows],
        "ratio": {"least": round(min(ratios), 4), "most": round(max(ratios), 4)},
        "hop_ms": round(statistics.median(row.hop_ms for row in rows), 4), "repeats": repeats,
    })  # fmt: skip


if __name__ == "__main__":
    main()

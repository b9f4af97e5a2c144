"""GPU shares measured: latency by share, what a neighbour on the same GPU costs, and how long a change of share takes.

Families of rows, each of one replica of one node; ``gpu_share`` is its share under MPS:

* *gpu_alone*: single calls to an idle replica; *gpu_busy*: calls always in flight, one or several (``concurrency``);
* *gpu_beside*: one call always in flight while a replica of the same node on the rest of the GPU, with
  ``beside_share``, computes calls without a pause;
* *gpu_exchange*: from the order of another share until the worker with it has taken the old one's place.
"""

from __future__ import annotations

import asyncio
import copy
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from moe.manifest import Manifest, Node
from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.bodies import request_of, texts_of
from simulation.profiles.measure.load import Call, Recorded, Target, closed_loop, paced
from simulation.profiles.measure.target import Function, Gateway, ReplicaSeen, Setting, Snapshot
from simulation.profiles.model.errors import MeasurementError, ProfileError

TENTHS = 10
FAMILIES = ("gpu_alone", "gpu_busy", "gpu_beside", "gpu_exchange")
EXCHANGE_TIMEOUT_S = 180.0
"""A worker on a GPU makes a context, copies weights and rehearses before the old one goes."""
_PAUSES_S = np.full(1, 0.02)
_WARM_CALLS = 5

OnStep = Callable[[str, float], None]
"""Called with what is measured next and the seconds it is expected to take."""


@dataclass(frozen=True)
class GpuSettings:
    """What to measure of GPU shares."""

    shares: tuple[float, ...] = tuple(n / TENTHS for n in range(1, TENTHS + 1))
    tokens: tuple[int, ...] = (8, 32, 128, 512)
    concurrencies: tuple[int, ...] = (1, 8)
    beside: tuple[tuple[float, float], ...] = ((0.1, 0.9), (0.3, 0.3), (0.3, 0.7), (0.5, 0.5), (0.7, 0.3))
    """(own share, share of the neighbour)."""
    beside_tokens: int = 128
    beside_callers: int = 8
    calls: int = 300
    seconds_per_point: float = 1.0
    memory_mib: int = 4096
    """Limit of host memory of every worker."""
    seed: int = 0


def check_shares(shares: Sequence[float]) -> None:
    """Raises ProfileError for shares that are no tenths of a GPU."""
    for share in shares:
        if not any(abs(share - n / TENTHS) < 1e-9 for n in range(1, TENTHS + 1)):
            raise ProfileError(f"a GPU share of {share:g} was asked for; shares are 0.1, 0.2 … 1")


def measure_gpu(
    gateway: Gateway,
    manifest: Manifest,
    deployments: Mapping[str, dict[str, Any]],
    nodes: Sequence[str],
    settings: GpuSettings,
    runner: asyncio.Runner,
    on_step: OnStep,
) -> list[Row]:
    """Rows of every family for each of ``nodes``; ``deployments``: by node id. Raises ProfileError.

    One node at a time has workers, so that nothing else computes on the GPU.
    """
    check_shares([*settings.shares, *(share for pair in settings.beside for share in pair)])
    rows: list[Row] = []
    for node_id in nodes:
        bench = _Bench(gateway, manifest.node(node_id), manifest, deployments[node_id], settings, runner)
        try:
            rows += bench.by_share(on_step)
            rows += bench.by_neighbour(on_step)
        finally:
            bench.close()
    return rows


class _Bench:
    """One node's function, and its neighbour."""

    def __init__(
        self,
        gateway: Gateway,
        node: Node,
        manifest: Manifest,
        deployment: dict[str, Any],
        settings: GpuSettings,
        runner: asyncio.Runner,
    ) -> None:
        self._gateway, self._node, self._manifest, self._deployment = gateway, node, manifest, deployment
        self._settings, self._runner = settings, runner
        self._own: Function | None = None
        self._beside: Function | None = None
        self._replica = ReplicaSeen("", "", "")

    def by_share(self, on_step: OnStep) -> list[Row]:
        """Every share in turn: the exchange that leads to it, then calls of every size."""
        settings, rows = self._settings, []
        for share in settings.shares:
            on_step(f"{self._node.id}: worker with {share:g} of a GPU", 5.0)
            taken_s = self._change(share)
            if taken_s is not None:
                rows.append(self._row("gpu_exchange", share, 0, Recorded([taken_s], 0, taken_s)))
            for tokens in settings.tokens:
                seconds = settings.seconds_per_point * (1 + len(settings.concurrencies))
                on_step(f"{self._node.id}: {share:g} of a GPU, {tokens} tokens", seconds)
                with _Called(self._target(tokens), self._runner) as call:
                    pauses = paced(call, settings.calls, settings.seconds_per_point, _PAUSES_S)
                    rows.append(self._row("gpu_alone", share, tokens, self._runner.run(pauses)))
                    for callers in settings.concurrencies:
                        busy = closed_loop(call, callers, settings.calls, settings.seconds_per_point)
                        rows.append(self._row("gpu_busy", share, tokens, self._runner.run(busy), callers))
        return rows

    def by_neighbour(self, on_step: OnStep) -> list[Row]:
        """Own calls while a neighbour computes without a pause."""
        settings, rows = self._settings, []
        neighbour = copy.deepcopy(self._deployment)
        neighbour["service"] += "-neighbour"
        for share, other in settings.beside:
            on_step(f"{self._node.id}: {share:g} of a GPU next to {other:g}", 10.0 + settings.seconds_per_point)
            if self._beside is not None:
                self._beside.remove()
            self._change(share)
            self._beside = Function(self._gateway, neighbour, self._setting(other))
            there = self._beside.start(EXCHANGE_TIMEOUT_S)
            target, load = self._target(settings.beside_tokens), self._target(settings.beside_tokens, there)
            with _Called(target, self._runner) as call, _Called(load, self._runner) as noise:
                recorded = self._runner.run(self._together(call, noise))
            rows.append(replace(self._row("gpu_beside", share, settings.beside_tokens, recorded), beside_share=other))
        return rows

    def close(self) -> None:
        for function in (self._own, self._beside):
            if function is not None:
                function.remove()

    async def _together(self, call: Call, noise: Call) -> Recorded:
        settings = self._settings
        load = asyncio.ensure_future(
            closed_loop(noise, settings.beside_callers, 2**62, 3 * settings.seconds_per_point + 1.0)
        )
        await asyncio.sleep(0.2)
        recorded = await closed_loop(call, 1, settings.calls, settings.seconds_per_point)
        if load.done():
            raise MeasurementError(f"the neighbour of {self._node.id} stopped computing before its calls were measured")
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        return recorded

    def _change(self, share: float) -> float | None:
        """Give the function's replica this share; the seconds until it serves alone, None for the first one."""
        setting = self._setting(share)
        if self._own is None:
            self._own = Function(self._gateway, self._deployment, setting)
            self._replica = self._own.start(EXCHANGE_TIMEOUT_S)
            return None
        if setting == self._own.setting:
            return None
        before = self._replica.id

        def exchanged(event: Snapshot) -> bool:
            return len(event.replicas) == len(event.ready) == 1 and event.ready[0].id != before

        with self._own.changes() as changes:
            changes.next(EXCHANGE_TIMEOUT_S)
            begun_s = time.perf_counter()
            self._own.resize(setting)
            while (left_s := begun_s + EXCHANGE_TIMEOUT_S - time.perf_counter()) > 0:
                event = changes.next(left_s)
                if exchanged(event):
                    self._replica = event.ready[0]
                    return event.at_s - begun_s
        raise MeasurementError(f"{self._own.name} had no worker with {share:g} of a GPU in {EXCHANGE_TIMEOUT_S:g} s")

    def _setting(self, share: float) -> Setting:
        return Setting(0.0, self._settings.memory_mib, 0, round(share * TENTHS))

    def _target(self, tokens: int, replica: ReplicaSeen | None = None) -> Target:
        head, body = request_of(self._manifest, self._node, tokens, self._settings.seed)
        return Target((replica or self._replica).address, head, body)

    def _row(self, family: str, share: float, tokens: int, recorded: Recorded, callers: int = 1) -> Row:
        if recorded.errors or not recorded.latencies_s:
            raise MeasurementError(f"calls to {self._node.id} with {share:g} of a GPU failed; its log states why")
        return Row(
            node=self._node.id,
            family=family,
            loop={"gpu_alone": "paced", "gpu_exchange": ""}.get(family, "closed"),
            tokens=tokens,
            texts=len(texts_of(tokens, tokens)) if tokens and self._node.kind == "segment" else 0,
            cpu_cores=0.0,
            share=0.0,
            period_s=None,
            memory_mib=self._settings.memory_mib,
            concurrency=callers,
            rate_rps=0.0,
            seed=self._settings.seed,
            repeat=0,
            feasible=True,
            note="",
            errors=0,
            seconds=recorded.seconds,
            throughput_rps=len(recorded.latencies_s) / recorded.seconds if recorded.seconds else None,
            load1=os.getloadavg()[0],
            gpu_share=share,
            **asdict(spread(recorded.latencies_s)),
        )


class _Called:
    """A target that was called a few times, so that what is slow once is over."""

    def __init__(self, target: Target, runner: asyncio.Runner) -> None:
        self._target, self._runner = target, runner

    def __enter__(self) -> Call:
        self._runner.run(closed_loop(self._target.call, 1, _WARM_CALLS, 10.0))
        return self._target.call

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._closed())

    async def _closed(self) -> None:
        self._target.close()

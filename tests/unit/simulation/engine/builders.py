"""Small workloads on a latency model that can be worked out by hand, and a way to play orders at given times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoscaler.contract import Configuration, NodeInfo, Topology
from functions.dispatch.activation import Burst
from simulation.arrays import Bools, Floats
from simulation.engine.bursts import BurstSettings
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation, Window
from simulation.latency.contract import ALONE, NodeCost, Noise, Sharing, Throttle
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Lifecycle, TokenLengths, Workload

MIB = 2**20


@dataclass(frozen=True, eq=False)
class Arithmetic:
    """``base_s + tokens · token_s / units``, units being cores or ten times the GPU share; speed-up ``m^power``."""

    base_s: float = 0.001
    token_s: float = 0.001
    power: float = 0.0
    scatter: Noise = field(default_factory=Noise.none)
    name: str = "by hand"

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        units = np.asarray(cpu_cores) + 10 * np.asarray(gpu_share)
        return np.asarray(self.base_s + np.asarray(tokens) * self.token_s / units)

    def speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        return np.asarray(np.asarray(calls, dtype=np.float64) ** self.power)

    def utilisation(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        return np.asarray(0.5)

    def noise(self, node: NodeCost, gpu: bool) -> Noise:
        return self.scatter

    def measured(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Bools:
        return np.zeros(np.shape(tokens), dtype=np.bool_)


COST = NodeCost("expert", 1e6, 0.0, 0.0, 8 * MIB, 8 * MIB, 4096.0, 4096.0)
LIFECYCLE = Lifecycle(1.0, 2.0, 16 * MIB, resize_s=0.25, drain_s=0.1)
"""Cold starts of 1.5 s and, with a GPU share, 2.5 s."""


def topology(experts: Sequence[int], name: str = "m") -> Topology:
    nodes = [NodeInfo("ingress", name, "ingress", None, None, 0, 0, 0)]
    for layer in range(len(experts) + 1):
        nodes.append(NodeInfo(f"segment-{layer}", f"{name}-segment-{layer}", "segment", layer, None, 1, 8 * MIB, 4096))
        for j in range(experts[layer] if layer < len(experts) else 0):
            node = f"expert-{layer}-{j}"
            nodes.append(NodeInfo(node, f"{name}-{node}", "expert", layer, j, 1, 8 * MIB, 4096))
    return Topology(name, "0" * 64, len(experts), tuple(nodes), ())


def workload(experts: Sequence[int] = (3, 2), model: Any = None, **more: Any) -> Workload:
    layout = topology(experts)
    values: dict[str, Any] = {
        "name": "m",
        "topology": layout,
        "slo_s": 0.1,
        "costs": {node.id: replace(COST, kind=node.kind) for node in layout.nodes if node.kind != "ingress"},
        "latency": model or Arithmetic(),
        "lifecycle": LIFECYCLE,
        "routing": zipf_routing(experts, phases=3, phase_s=5.0),
        "top_k": min(2, *experts),
        "tokens": TokenLengths.lognormal(10, 0.8, 60),
        "request_s": 0.002,
        "hop_s": 0.0005,
        "segment_configuration": configuration(2, concurrency=8),
    }
    return Workload(**{**values, **more})


def configuration(replicas: int = 1, **more: Any) -> Configuration:
    values: dict[str, Any] = {"memory_mb": 256, "cpu_cores": 1.0, "gpu_share": 0.0, "concurrency": 4}
    return Configuration(**{**values, "replicas": replicas, **more})


def poisson(rate_per_s: float, count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


def one_expert(arrival_s: ArrayLike, tokens: ArrayLike, model: Any = None, **more: Any) -> tuple[Workload, Requests]:
    """A pipeline whose only expert gets every token; segments take no time worth speaking of."""
    lone = workload((1,), model, request_s=0.0, hop_s=0.0, **more)
    return lone, draw_requests(lone, arrival_s, seed=0, tokens=tokens)


Order = tuple[float, str, Configuration]
EXPERT = "m-expert-0-0"
"""The only one of :func:`one_expert`."""


def simulate(
    simulation: Simulation, until_s: Sequence[float], orders: Sequence[Order] = ()
) -> tuple[NDArray[np.float64], list[Window]]:
    """Advance window by window, giving the orders of each moment; returns latencies (NaN: not answered), windows."""
    latency = np.full(simulation.requests.arrival_s.size, np.nan)
    windows = []
    for moment in until_s:
        for when, function, target in orders:
            if when == simulation.now_s:
                simulation.order(function, target)
        windows.append(simulation.advance(moment))
        latency[windows[-1].finished] = windows[-1].latency_s
    return latency, windows


def initial(found: Workload, expert: Configuration | None = None) -> Mapping[str, Configuration]:
    return found.initial(expert or configuration())


@dataclass(frozen=True, eq=False)
class Limited(Arithmetic):
    """The same with one thread a replica, whose ``cpu_cores`` are a token bucket; a call alone uses ``alone_use``."""

    burst_s: float = 0.02
    alone_use: float = 0.8
    warm: float = 1.0
    period_s: float = 0.05
    tick_s: float = 0.0
    stop_s: float = 0.0
    after_stop_s: float = 0.0
    cold: bool = False
    shared: Sharing = ALONE

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        limit, work = self.throttle(node, cpu_cores, gpu_share), self.work_seconds(node, tokens, gpu_share)
        return np.asarray(np.maximum(work, (work - limit.burst_s) / limit.refill))

    def work_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        return np.asarray(self.base_s + np.asarray(tokens) * self.token_s)

    def again_seconds(self, node: NodeCost, tokens: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        return np.asarray(self.warm * self.work_seconds(node, tokens, gpu_share))

    def core_speedup(
        self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike, calls: ArrayLike
    ) -> Floats:
        return self.speedup(node, tokens, cpu_cores, gpu_share, calls)

    def core_use(self, node: NodeCost, tokens: ArrayLike, calls: ArrayLike, gpu_share: ArrayLike = 0.0) -> Floats:
        return np.asarray(np.where(np.asarray(calls) <= 1, self.alone_use, 1.0))

    def sharing(self, node: NodeCost, gpu_share: float = 0.0) -> Sharing:
        return self.shared

    def throttle(self, node: NodeCost, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Throttle:
        refill = np.where(np.asarray(gpu_share) > 0, 1.0, np.minimum(1.0, cpu_cores))
        burst = np.where(refill < 1, self.burst_s * (1 - refill), 0.0)
        return Throttle(burst, refill, refill * self.period_s, self.tick_s, self.stop_s, self.after_stop_s, self.cold)


SPAN_S, WINDOW_S = 12.0, 1.5
"""Of plays under random orders."""


def random_limited(generator: np.random.Generator) -> Limited:
    return Limited(
        power=generator.uniform(0, 1),
        scatter=Noise.lognormal(generator.choice([0.05, 0.3, 1.0])),
        burst_s=generator.uniform(0, 0.05),
        alone_use=generator.uniform(0.3, 1.0),
        warm=generator.uniform(0.6, 1.0),
        period_s=generator.uniform(0.01, 0.1),
        tick_s=generator.uniform(0.001, 0.01),
        stop_s=generator.uniform(0.0, 0.002),
        after_stop_s=generator.uniform(0.0, 0.004),
        cold=bool(generator.integers(0, 2)),
        shared=Sharing(generator.uniform(0.0, 0.003), (1.0, *generator.uniform(0.5, 1.5, generator.integers(0, 4)))),
    )


def limited_orders(generator: np.random.Generator, functions: Sequence[str], gpu: float = 0.15) -> list[Order]:
    """Two fifths of the functions get another configuration in each window; at last all have room."""
    orders = [
        (float(moment), function, _limited_configuration(generator, gpu))
        for moment in np.arange(WINDOW_S, SPAN_S, WINDOW_S)
        for function in functions
        if generator.random() < 0.4
    ]
    return [*orders, *((SPAN_S, function, configuration(4, cpu_cores=6.0)) for function in functions)]


def _limited_configuration(generator: np.random.Generator, gpu: float) -> Configuration:
    on_gpu = bool(generator.random() < gpu)
    return Configuration(
        memory_mb=128 * int(generator.integers(1, 4)),
        cpu_cores=0.0 if on_gpu else round(float(generator.uniform(0.05, 1.2)), 3),
        gpu_share=0.2 if on_gpu else 0.0,
        replicas=int(generator.integers(0 if generator.random() < 0.1 else 1, 5)),
        concurrency=int(generator.integers(1, 6)),
    )


def random_bursts(generator: np.random.Generator, functions: list[str]) -> tuple[dict[str, Burst], BurstSettings]:
    chosen = [function for function in functions if generator.random() < 0.7]
    bursts = {
        function: Burst(
            standbys=int(generator.integers(0, 6)),
            headroom=generator.uniform(0.5, 2),
            spare=generator.uniform(0, 2),
            hold_s=float(generator.choice([0.01, 0.05, 0.4, 3.0])),
            look_back_s=generator.uniform(0.1, 1.0),
            sleep_s=float(generator.choice([0.35, 2.0])) if generator.random() < 0.4 else None,
        )
        for function in chosen
    }
    seconds = {function: generator.uniform(0.0001, 0.004) for function in chosen}
    return bursts, BurstSettings(float(generator.choice([0.0, 0.02, 0.3])), seconds)


def with_standbys(configurations: Mapping[str, Configuration], bursts: Mapping[str, Burst]) -> dict[str, Configuration]:
    return {name: replace(one, burst=bursts.get(name)) for name, one in configurations.items()}

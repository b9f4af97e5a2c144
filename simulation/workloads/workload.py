"""A workload: a pipeline with its costs, latency model, routing and SLO; simulator, bound and baselines start from it.

Built from a pipeline's folder and a measured profile (:func:`pipeline_workload`), or for the paper's six workloads on
the modelled cluster (:mod:`simulation.workloads.paper`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoscaler.capacity import needs
from autoscaler.contract import (
    MIB,
    Capacity,
    Configuration,
    ConfigurationSpace,
    MemoryNeed,
    NodeInfo,
    Resources,
    Topology,
)
from autoscaler.prices import PriceSheet, load_prices
from autoscaler.topology import load_topology
from moe.manifest import Manifest, Node, load
from simulation.arrays import Floats
from simulation.latency.contract import LatencyModel, NodeCost, Noise
from simulation.workloads.routing import RoutingStatistics, zipf_routing

SEGMENT = Configuration(memory_mb=1024, cpu_cores=2.0, gpu_share=0.0, replicas=1, concurrency=10)


@dataclass(frozen=True, eq=False)
class Lifecycle:
    """How long changes take, counted from the order (``Platform.apply``)."""

    cold_start_s: float
    """Until a new CPU replica is ready, without reading its weights."""
    cold_start_gpu_s: float
    """The same of a replica with a GPU share (creating the CUDA context)."""
    load_bytes_per_s: float
    """Speed of reading weights; infinite where they are mapped from memory."""
    resize_s: float
    """Until new cores, memory or concurrency hold, in place."""
    drain_s: float
    """Until a replica that is to go gets no new calls; it ends what it has."""
    noise: Noise = field(default_factory=Noise.none)
    """Scatter of cold starts."""

    def quickened(self, factor: float) -> Lifecycle:
        """Everything in a ``factor``-th of the time."""
        return Lifecycle(
            self.cold_start_s / factor,
            self.cold_start_gpu_s / factor,
            self.load_bytes_per_s * factor,
            self.resize_s / factor,
            self.drain_s / factor,
            self.noise,
        )

    def cold_s(self, weights_bytes: float, gpu: bool) -> float:
        """Mean seconds from the order until ready."""
        return (self.cold_start_gpu_s if gpu else self.cold_start_s) + weights_bytes / self.load_bytes_per_s


@dataclass(frozen=True, eq=False)
class Host:
    """One machine that the ingress and all replicas share, and the ingress as a server of its own.

    The ingress is one process: what it has to do waits in line, first come first served.
    """

    cores: float
    """Real cores."""
    start_s: float
    """CPU seconds of the ingress before a request's first call ..."""
    send_s: float
    """... for sending a call ..."""
    receive_s: float
    """... for taking its reply ..."""
    answer_s: float
    """... and for the answer."""
    token_s: float = 0.0
    """On top for each token sent or received."""
    noise: Noise = field(default_factory=Noise.none)
    """Scatter of a whole pass beyond that of its calls: all calls of a request take so many times their seconds."""
    pace: float = 1.0
    """How many times as many CPU seconds calls and the ingress's work take here and now as when they were measured."""
    start_cores: float = 1.0
    """Cores that a replica wants while it starts: CPU seconds of a start over its seconds."""
    front_s: float = 0.0
    """CPU seconds of what lies between client and ingress (gateway, client) for a request, half of them on its way
    there and half on its way back: one process with a line of its own, as fast as it is now, whatever ``pace``."""
    overlap: tuple[float, ...] = ()
    """How many times as many CPU seconds calls and the ingress's work take while the ingress has two requests, three
    and so on (the last number for more): what meeting costs, or saves, beyond the sharing of cores (other caches, idle
    cores that need not be woken up). Empty: nothing."""
    idle: tuple[tuple[float, float], ...] = ()
    """(seconds, times), seconds ascending: a request's calls and the ingress's work for it take so many times their CPU
    seconds when it comes so long after the ingress last answered one (caches that others have used meanwhile, cores
    that sleep). Linear in between, as at the ends beyond; the first request comes after the longest. Empty: 1."""

    def __post_init__(self) -> None:
        if not 0 < self.start_cores <= 1:
            raise ValueError(f"a replica that starts wants {self.start_cores} cores; it can be up to one")
        if not all(0 < times < math.inf for times in self.overlap):
            raise ValueError(f"a host's overlap is {self.overlap}; its numbers are above 0")
        seconds = [since_s for since_s, _ in self.idle]
        if sorted(set(seconds)) != seconds or not all(0 < times < math.inf for _, times in self.idle):
            raise ValueError(f"a host's idle is {self.idle}; its seconds ascend and its times are above 0")

    @property
    def least(self) -> float:
        """The least of the times that ``overlap`` and ``idle`` make of a request's CPU seconds."""
        return min((1.0, *self.overlap)) * min((times for _, times in self.idle), default=1.0)


@dataclass(frozen=True, eq=False)
class TokenLengths:
    """Tokens per request, as an inverse distribution function: ``quantiles [Q] float64`` at even probabilities."""

    quantiles: Floats
    source: str

    def __post_init__(self) -> None:
        quantiles = np.asarray(self.quantiles, dtype=np.float64)
        if quantiles.ndim != 1 or quantiles.size < 2 or quantiles[0] < 1 or (np.diff(quantiles) < 0).any():
            raise ValueError("token lengths are quantiles: at least two numbers, from 1, never falling")
        quantiles.setflags(write=False)
        object.__setattr__(self, "quantiles", quantiles)

    @cached_property
    def mean(self) -> float:
        return float((self.quantiles[:-1] + self.quantiles[1:]).mean() / 2)

    @property
    def most(self) -> int:
        return int(np.ceil(self.quantiles[-1]))

    @classmethod
    def fixed(cls, tokens: int) -> TokenLengths:
        return cls(np.full(2, float(tokens)), f"every request has {tokens} tokens")

    @classmethod
    def lognormal(cls, mean: float, cv: float, most: int) -> TokenLengths:
        """Lognormal cut off at 1 and ``most``, then scaled to ``mean`` as far as the cuts allow."""
        shape: Floats = Noise.lognormal(cv).factors
        scale = mean
        for _ in range(20):
            scale *= mean / cls(cut(shape * scale, most), "").mean
        return cls(cut(np.round(shape * scale, 6), most), f"lognormal, mean {mean:g}, cv {cv:g}, at most {most}")

    @classmethod
    def from_samples(cls, tokens: NDArray[np.integer], source: str) -> TokenLengths:
        return cls(np.quantile(np.maximum(tokens, 1).astype(np.float64), np.linspace(0, 1, 257)), source)


def cut(values: Floats, most: int) -> Floats:
    """``values`` between 1 and ``most``. ``values`` [requests]."""
    return np.asarray(np.clip(values, 1.0, float(most)), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Workload:
    """All that is fixed while an episode runs. Seconds, bytes and tokens; ids and functions are the topology's."""

    name: str
    topology: Topology
    slo_s: float
    """λ on the P95 of a pass."""
    costs: Mapping[str, NodeCost]
    """By node id; segments and experts."""
    latency: LatencyModel
    lifecycle: Lifecycle
    routing: RoutingStatistics
    top_k: int
    """Experts that a token chooses in each layer."""
    tokens: TokenLengths
    space: ConfigurationSpace = field(default_factory=ConfigurationSpace)
    """The configuration space of experts."""
    prices: PriceSheet = field(default_factory=load_prices)
    request_s: float = 0.0
    """Ingress work before the first segment, constant."""
    hop_s: float = 0.0
    """Ingress work between two stages (combining, scattering), constant; none with a ``host``, which models it in
    detail."""
    host: Host | None = None
    """Where everything runs on one machine. None: every replica has the cores of its configuration to itself, and the
    ingress never makes anyone wait."""
    runtime_mb: int = 64
    """Part of M_e that is not weights."""
    alpha: float = 0.9
    """Loss factor of Eq. (2)."""
    memory_mb_per_core: float | None = None
    """Coupled mode, as on public serverless platforms and in the paper's Fig. 3a: a replica has at most memory / this
    many cores. None: memory is a constraint only."""
    segment_configuration: Configuration = SEGMENT
    """What segments run with unless ordered otherwise."""
    capacity: Capacity | None = None
    """What all functions may take together, segments and ingress included; None: there is room for every replica."""
    shared: int = 0
    """Experts at the end of each layer that every token meets, over and above those."""
    measured: bool = False
    """True: latency and lifecycle come from a profile of a machine."""

    def __post_init__(self) -> None:
        missing = [node.id for node in self.topology.nodes if node.kind != "ingress" and node.id not in self.costs]
        shared = [name for name, nodes in self.topology.functions().items() if len(nodes) > 1]
        most = max((len(self.topology.experts(layer)) for layer in range(self.topology.layers)), default=0)
        if self.host is not None and self.hop_s:
            raise ValueError(f"workload {self.name}: hop_s is {self.hop_s:g}; with a host it must be 0")
        if missing:
            raise ValueError(f"workload {self.name}: node {missing[0]} has no cost")
        if shared:
            raise ValueError(
                f"workload {self.name}: function {shared[0]} serves several nodes; the simulator needs one node a "
                f"function, so build the topology without max_functions"
            )
        if self.routing.layers != self.topology.layers or self.routing.experts != most:
            raise ValueError(
                f"workload {self.name}: the pipeline has {self.topology.layers} layers of up to {most} experts, its "
                f"routing {self.routing.layers} of {self.routing.experts}"
            )

    @property
    def experts(self) -> tuple[NodeInfo, ...]:
        """All experts in order of layer and number."""
        return tuple(node for layer in range(self.topology.layers) for node in self.topology.experts(layer))

    @cached_property
    def segments(self) -> tuple[NodeInfo, ...]:
        """Segments 0 … n in order."""
        segments = [node for node in self.topology.nodes if node.kind == "segment"]
        return tuple(sorted(segments, key=lambda node: node.layer or 0))

    def cores(self, configuration: Configuration) -> float:
        """CPU cores a replica really has (coupled mode bounds them by its memory); 0 with a GPU share."""
        if self.memory_mb_per_core is None or not configuration.cpu_cores:
            return configuration.cpu_cores
        return min(configuration.cpu_cores, configuration.memory_mb / self.memory_mb_per_core)

    def typical_tokens(self, node: NodeInfo) -> float:
        """Tokens of a mean call, at which concurrent calls are taken to share a replica."""
        if node.kind != "expert" or node.layer is None:
            return self.tokens.mean
        routed = len(self.topology.experts(node.layer)) - self.shared
        return max(1.0, self.tokens.mean * (1.0 if (node.expert or 0) >= routed else self.top_k / routed))

    def memory_need(self, node: NodeInfo, peak_tokens: float) -> MemoryNeed:
        """Eq. (2)'s numbers of one node."""
        return MemoryNeed(
            int(self.costs[node.id].weights_bytes) + self.runtime_mb * MIB,
            node.bytes_per_token,
            peak_tokens,
            self.alpha,
        )

    @property
    def expert_room(self) -> Resources | None:
        """What segments and ingress, as they are set, leave experts of the capacity; None without one."""
        if self.capacity is None:
            return None
        others = sum(node.kind != "expert" for node in self.topology.nodes)
        return self.capacity.total.minus(needs(self.segment_configuration).times(others))

    def initial(self, expert: Configuration) -> dict[str, Configuration]:
        """Function → configuration: every expert has ``expert``, segments and ingress their own."""
        return {
            node.function: expert if node.kind == "expert" else self.segment_configuration
            for node in self.topology.nodes
        }


def pipeline_workload(
    directory: Path,
    latency: LatencyModel,
    lifecycle: Lifecycle,
    *,
    slo_s: float,
    tokens: TokenLengths,
    space: ConfigurationSpace | None = None,
    prices: PriceSheet | None = None,
    segment_configuration: Configuration = SEGMENT,
    request_s: float = 0.0,
    hop_s: float = 0.0,
    host: Host | None = None,
    measured: bool = True,
) -> Workload:
    """The pipeline in ``directory`` on the machine that ``latency`` and ``lifecycle`` describe.

    Routing is Zipf with exponent 0.6. Raises ``moe.errors.ManifestError``.
    """
    manifest, topology = load(directory, verify=False), load_topology(directory)
    counts = [len(topology.experts(layer)) for layer in range(topology.layers)]
    return Workload(
        name=manifest.name,
        topology=topology,
        slo_s=slo_s,
        costs={node.id: manifest_cost(manifest, node) for node in manifest.nodes},
        latency=latency,
        lifecycle=lifecycle,
        routing=zipf_routing(counts),
        top_k=manifest.router.top_k,
        shared=manifest.router.shared or 0,
        tokens=tokens,
        space=space if space is not None else ConfigurationSpace(),
        prices=prices if prices is not None else load_prices(),
        request_s=request_s,
        hop_s=hop_s,
        host=host,
        measured=measured,
        segment_configuration=segment_configuration,
    )


def manifest_cost(manifest: Manifest, node: Node) -> NodeCost:
    """What the manifest holds of a node, with the attention of its segment added.

    Attention is 2 products of T × T × hidden per text, 4 · hidden FLOPs a token and token. A first segment reads only
    the rows of its embedding that it needs, so the table is not among the bytes that a call touches.
    """
    hidden = float(manifest.architecture.get("hidden_size", 0))
    attends = node.kind == "segment" and node.layer < manifest.layers
    touched = float(node.parameter_bytes)
    if "token_ids" in node.inputs:
        table = float(manifest.architecture.get("vocab_size", 0)) * hidden
        touched -= min(touched, table * node.parameter_bytes / max(1, node.parameters))
    return NodeCost(
        kind=node.kind,
        flops_per_token=float(node.flops_per_token),
        flops_per_token_squared=4 * hidden if attends else 0.0,
        flops_per_call=0.0,
        weights_bytes=float(node.parameter_bytes),
        touched_bytes=touched,
        bytes_in_per_token=float(node.bytes_in_per_token),
        bytes_out_per_token=float(node.bytes_out_per_token),
    )

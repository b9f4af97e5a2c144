"""Worlds that nobody trained on, each drawn from its seed: pipeline, prices, cluster, λ, traffic, what goes wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from autoscaler.capacity import Capacity, needs
from autoscaler.contract import Configuration
from benchmarks.guard.scrapes import KINDS, Break
from evaluation.comparison.arrivals import MADE_CV
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.quickest import quickest_p95_s
from rl.episodes.sizes import resized
from simulation.arrays import Floats
from simulation.engine.requests import Requests, draw_requests
from simulation.latency.contract import NodeCost
from simulation.latency.roofline import Roofline
from simulation.workloads.paper import paper_workload
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import TokenLengths, Workload
from simulation.workloads.worlds import (
    PAPER_MACHINES,
    NoRoomError,
    busiest_rps,
    segment_seconds,
    sized_segments,
)
from traces import generate
from traces.traffic import DIURNAL

FAMILIES = ("bert-4", "gpt2-4", "b2b-4")
LAYERS, EXPERTS, TOP_K = (2, 4, 6, 8, 12, 16, 24), (2, 3, 4, 6, 8, 12, 16), (1, 2, 3, 4)
MOST_EXPERTS = 96
"""What the paper's largest pipelines have in all layers together."""
RATES = (5.0, 10.0, 20.0, 40.0, 60.0)
SLOS = (2.0, 3.0, 5.0, 8.0)
PATTERNS = (*MADE_CV, DIURNAL)
OFF = (0.4, 0.6, 1.5, 2.5)
"""Times its profile's seconds that an expert's call really takes, where it is off."""
OFTEN = 0.4
"""Probability of each kind of trouble: drift, call times off, broken metrics."""
ATTEMPTS = 40
Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """What :func:`draw` has drawn. ``cluster``: how many of the paper's machines; ``prices``: times those of the
    paper's sheet, of a core, a GiB and a GPU; ``slo``: λ over the P95 of the same requests without queues; ``calls``:
    times its profile's seconds that an expert's call takes; ``broken``: one of :data:`benchmarks.guard.scrapes.KINDS`,
    empty: none; ``start``: which of the resources that fit; ``replicas``, ``concurrency``: of the deployed experts."""

    seed: int
    attempt: int
    family: str
    layers: int
    experts: int
    top_k: int
    tokens: int
    skew: float
    drift: bool
    gpus: bool
    cluster: int
    prices: tuple[float, float, float]
    slo: float
    pattern: str
    rate: float
    calls: float
    broken: str
    start: int
    replicas: int
    concurrency: int

    @property
    def kinds(self) -> dict[str, str]:
        """Attribute → value by which results are split."""
        trouble = [
            name
            for name, there in (("drift", self.drift), ("call times off", self.calls != 1), ("metrics", self.broken))
            if there
        ]
        return {
            "trouble": " + ".join(trouble) or "none",
            "metrics": self.broken or "whole",
            "call times": f"x {self.calls:g}",
            "routing": "drifts" if self.drift else "steady",
            "pattern": self.pattern,
            "cluster": "mixed" if self.gpus else "cores only",
            "λ": f"{self.slo:g}",
            "rate": f"{self.rate:g}/s",
        }


def draw(seed: int, attempt: int = 0) -> World:
    """The same world for the same numbers, on any machine."""
    rng = np.random.default_rng((seed, attempt))

    def one_of(values: tuple[Value, ...]) -> Value:
        return values[int(rng.integers(len(values)))]

    layers = one_of(LAYERS)
    experts = one_of(tuple(count for count in EXPERTS if layers * count <= MOST_EXPERTS))
    return World(
        seed=seed,
        attempt=attempt,
        family=one_of(FAMILIES),
        layers=layers,
        experts=experts,
        top_k=one_of(tuple(k for k in TOP_K if k <= experts)),
        tokens=one_of((16, 32, 64, 128)),
        skew=one_of((0.0, 0.6, 1.2)),
        drift=bool(rng.random() < OFTEN),
        gpus=bool(rng.random() < 0.5),
        cluster=int(rng.integers(3, 13)),
        prices=tuple(np.round(3.0 ** rng.uniform(-1, 1, 3), 3).tolist()),
        slo=one_of(SLOS),
        pattern=one_of(PATTERNS),
        rate=one_of(RATES),
        calls=one_of(OFF) if rng.random() < OFTEN else 1.0,
        broken=one_of(KINDS) if rng.random() < OFTEN else "",
        start=int(rng.integers(3)),
        replicas=int(rng.integers(1, 4)),
        concurrency=one_of((1, 2, 4, 8)),
    )


@dataclass(frozen=True, eq=False)
class OffProfile(Roofline):
    """The modelled cluster with an expert's calls ``factor`` times as long, which a policy that plans with the model as
    it is does not know."""

    factor: float = 1.0

    @property
    def name(self) -> str:
        return f"{super().name}, experts' calls {self.factor:g} times as long"

    def seconds(self, node: NodeCost, tokens: ArrayLike, cpu_cores: ArrayLike, gpu_share: ArrayLike) -> Floats:
        factor = self.factor if node.kind == "expert" else 1.0
        return factor * super().seconds(node, tokens, cpu_cores, gpu_share)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A world with its requests. ``planned``: the workload as policies know it, with the profile's call times."""

    world: World
    workload: Workload
    planned: Workload
    requests: Requests
    start: Configuration
    """What every expert is deployed with."""
    seconds: float
    breaks: Break | None


def prepared(seed: int, seconds: float) -> Prepared:
    """The first world of ``seed`` that its cluster has room for. Raises EvaluationError where there is none."""
    for attempt in range(ATTEMPTS):
        try:
            return _prepared(draw(seed, attempt), seconds)
        except NoRoomError:
            continue
    raise EvaluationError(f"none of {ATTEMPTS} worlds of seed {seed} has room for its segments and one replica of each")


def _prepared(world: World, seconds: float) -> Prepared:
    """Raises NoRoomError."""
    planned = _workload(world)
    arrival_s = _arrivals(world, seconds)
    requests = draw_requests(planned, arrival_s, seed=world.seed)
    workload = replace(planned, latency=OffProfile(factor=world.calls))
    slo_s = world.slo * quickest_p95_s(workload, requests, world.seed)
    planned = replace(planned, slo_s=slo_s)
    planned = replace(planned, segment_configuration=sized_segments(planned, busiest_rps(arrival_s)))
    workload = replace(workload, slo_s=slo_s, segment_configuration=planned.segment_configuration)
    breaks = Break.drawn(world.broken, workload.topology, seconds, world.seed) if world.broken else None
    return Prepared(world, workload, planned, requests, _start(world, workload), seconds, breaks)


def _workload(world: World) -> Workload:
    """Without λ and segments, which take the requests."""
    workload = resized(paper_workload(world.family, seed=world.seed), world.layers, world.experts, seed=world.seed)
    routing = zipf_routing(
        [world.experts] * world.layers, exponent=world.skew, phases=12 if world.drift else 1, phase_s=60.0,
        swaps=max(1, world.experts // 2) if world.drift else 0, seed=world.seed,
    )  # fmt: skip
    sheet, (core, memory, gpu) = workload.prices, world.prices
    prices = replace(
        sheet, cpu_core_s=core * sheet.cpu_core_s, memory_gib_s=memory * sheet.memory_gib_s, gpu_s=gpu * sheet.gpu_s
    )
    one, count = PAPER_MACHINES, world.cluster
    capacity = Capacity(count * one.cores, count * one.memory_mb, count * one.gpu_tenths if world.gpus else 0)
    space = workload.space if world.gpus else replace(workload.space, gpu_shares=())
    return replace(
        workload, top_k=world.top_k, routing=routing, prices=prices, capacity=capacity, space=space,
        tokens=TokenLengths.lognormal(world.tokens, 0.6, 512),
    )  # fmt: skip


def _arrivals(world: World, seconds: float) -> Floats:
    if world.pattern == DIURNAL:
        return generate.synthetic_day(world.rate, seconds, world.seed).arrival_s
    count = max(3, round(world.rate * seconds))
    return generate.synthetic(count, seconds, MADE_CV[world.pattern], world.seed).arrival_s


def _start(world: World, workload: Workload) -> Configuration:
    """One of the three cheapest resources on which a pass's calls alone take at most half of what λ leaves the experts
    (the quickest, where none does), with as many of the drawn replicas as there is room for: what somebody who has
    measured would deploy. Raises NoRoomError."""
    space, node = workload.space, workload.experts[0]
    cores, shares = np.array(space.resources, dtype=np.float64).T
    call_s = workload.latency.seconds(workload.costs[node.id], 2 * workload.typical_tokens(node), cores, shares)
    resource = workload.segment_configuration
    left_s = workload.slo_s - sum(segment_seconds(workload, resource.cpu_cores, resource.gpu_share))
    keeping = np.flatnonzero(workload.topology.layers * call_s <= 0.5 * left_s)
    prices = cores * workload.prices.cpu_core_s + shares * workload.prices.gpu_s
    places = keeping[np.argsort(prices[keeping], kind="stable")][:3] if keeping.size else np.argsort(call_s)[:1]
    place = int(places[min(world.start, places.size - 1)])
    weights_mb = max(workload.memory_need(one, workload.tokens.most).required_mb(1) for one in workload.experts)
    memory_mb = max(space.memory_min_mb, 64 * math.ceil(weights_mb / 64))
    for replicas in range(world.replicas, 0, -1):
        start = Configuration(memory_mb, float(cores[place]), float(shares[place]), replicas, world.concurrency)
        room = workload.expert_room
        if room is None or needs(start).times(len(workload.experts)).within(room):
            return start
    raise NoRoomError(f"{workload.name}: there is no room for one replica of every expert")

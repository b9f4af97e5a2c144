"""A small workload to bound: two layers of two experts on a roofline, four configurations an expert."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.contract import Configuration, ConfigurationSpace, NodeInfo, Topology
from autoscaler.prices import PriceSheet
from evaluation.bound.loads import WindowLoad, windows
from evaluation.bound.physics import Physics
from simulation.engine.requests import Requests, draw_requests
from simulation.latency.contract import NodeCost
from simulation.latency.roofline import Roofline
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Lifecycle, TokenLengths, Workload

PRICES = PriceSheet("test", "made up", "USD", cpu_core_s=1.0, memory_gib_s=0.1, gpu_s=60.0)
FOUR = ConfigurationSpace(128, 128, 64, (1.0,), (0.2,), 1, 2, 3, 3)
"""A core or a fifth of a GPU, one or two replicas, three calls at once."""
EXPERT = NodeCost("expert", 20e6, 0.0, 0.0, 8e6, 8e6, 2048.0, 2048.0)
SEGMENT = NodeCost("segment", 4e6, 0.0, 0.0, 4e6, 4e6, 2048.0, 2048.0)


def workload(slo_s: float, space: ConfigurationSpace = FOUR) -> Workload:
    """``t``: segments 0 to 2 and experts 0-0, 0-1, 1-0, 1-1; top-1; requests of 32 tokens on average."""
    names = [(i, j, f"expert-{i}-{j}") for i in range(2) for j in range(2)]
    nodes = [NodeInfo("ingress", "t", "ingress", None, None, 0, 0, 0)]
    nodes += [NodeInfo(f"segment-{i}", f"t-segment-{i}", "segment", i, None, 1, 1, 2048) for i in range(3)]
    nodes += [NodeInfo(name, f"t-{name}", "expert", i, j, 1, 1, 2048) for i, j, name in names]
    edges = [e for i, _, name in names for e in ((f"segment-{i}", name), (name, f"segment-{i + 1}"))]
    costs = {node.id: SEGMENT if node.kind == "segment" else EXPERT for node in nodes if node.kind != "ingress"}
    return Workload(
        name="t",
        topology=Topology("t", "0" * 64, 2, tuple(nodes), tuple(edges)),
        slo_s=slo_s,
        costs=costs,
        latency=Roofline(noise_cv=0.3),
        lifecycle=Lifecycle(1.0, 1.0, 1e9, 0.1, 0.1),
        routing=zipf_routing([2, 2]),
        top_k=1,
        tokens=TokenLengths.lognormal(32, 0.8, 128),
        space=space,
        prices=PRICES,
        request_s=0.001,
        hop_s=0.0005,
        segment_configuration=Configuration(512, 4.0, 0.0, 2, 10),
    )


def requests(of: Workload, rate: float, seconds: float, seed: int) -> Requests:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))
    return draw_requests(of, arrivals, seed=seed)


def window(slo_s: float, rate: float, seconds: float, seed: int, space: ConfigurationSpace = FOUR) -> WindowLoad:
    """One window with Poisson arrivals."""
    one = workload(slo_s, space)
    drawn = requests(one, rate, seconds, seed)
    return next(windows(Physics(one, drawn.most_tokens), drawn, seconds, seconds))


def with_slo(load: WindowLoad, slo_s: float) -> WindowLoad:
    """The same requests under another SLO."""
    physics = Physics(replace(load.physics.workload, slo_s=slo_s), load.requests.most_tokens)
    return replace(load, physics=physics)

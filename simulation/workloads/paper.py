"""The paper's six workloads on its cluster, modelled: BERT, GPT-2 and Bert2Bert with 4, 6 or 8 experts a layer.

Sizes are those of BERT-base, GPT-2 small and Bert2Bert (hidden 768, feed-forward 3072, FP32); every expert is a whole
feed-forward block (sparse upcycling), top-2. Seconds come from a roofline (:mod:`simulation.latency.roofline`), never
from a measurement, so results made with these workloads are always simulated. SLOs are the paper's (section 5.2).
Assumed where the paper is silent: lengths of requests, routing (Zipf that drifts), cold starts, the segments'
configuration.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

from autoscaler.contract import Configuration, ConfigurationSpace, NodeInfo, Topology
from autoscaler.prices import PriceSheet, load_prices
from simulation.latency.contract import LatencyModel, NodeCost, Noise
from simulation.latency.roofline import hops_times
from simulation.workloads.routing import RoutingStatistics, zipf_routing
from simulation.workloads.workload import Lifecycle, TokenLengths, Workload
from simulation.workloads.worlds import World, in_world

HIDDEN, FFN, WORD = 768, 3072, 4
"""Width, feed-forward width, bytes of a number."""
TOP_K = 2
BERT_VOCABULARY, GPT2_VOCABULARY, POSITIONS = 30522, 50257, 512


@dataclass(frozen=True, slots=True)
class Family:
    """One of the three models: where its decoder begins, and whether its last segment ends in a vocabulary."""

    layers: int
    slo_s: float
    decoder_from: int | None
    """First layer that also has cross-attention."""
    vocabulary: int
    head: bool
    mean_tokens: int


FAMILIES = {
    "bert": Family(12, 0.080, None, BERT_VOCABULARY, False, 128),
    "gpt2": Family(12, 0.100, None, GPT2_VOCABULARY, True, 128),
    "b2b": Family(24, 0.120, 12, BERT_VOCABULARY, True, 32),
}
PAPER_PRICES = Path(__file__).with_name("workload_prices.toml")
PAPER_WORKLOADS = ("bert-4", "bert-6", "bert-8", "gpt2-4", "gpt2-6", "b2b-4")

LIFECYCLE = Lifecycle(
    cold_start_s=2.0,
    cold_start_gpu_s=4.0,
    load_bytes_per_s=1.0e9,
    resize_s=0.1,
    drain_s=0.2,
    noise=Noise.lognormal(0.15),
)
"""Assumed: a container with its runtime loaded from a warm image in 2 s (4 s with a CUDA context), weights at 1 GB/s
from a local disk, a patch of the manifest seen after 0.1 to 0.2 s."""
SEGMENT = Configuration(memory_mb=2048, cpu_cores=0.0, gpu_share=0.2, replicas=2, concurrency=8)
"""The paper scales experts; segments are given what keeps them from being the bottleneck, see :func:`segments_at`."""
SEGMENT_RPS = 31.25
"""Requests per second on average for a replica of a segment; bursts bring ten times as many."""


def segments_at(mean_rps: float) -> Configuration:
    """Configuration of every segment where so many requests come on average: :data:`SEGMENT`, with more replicas where
    the load asks for them."""
    return replace(SEGMENT, replicas=max(SEGMENT.replicas, math.ceil(mean_rps / SEGMENT_RPS)))


def paper_workload(
    name: str,
    *,
    latency: LatencyModel | None = None,
    routing: RoutingStatistics | None = None,
    prices: PriceSheet | None = None,
    mean_tokens: int | None = None,
    space: ConfigurationSpace | None = None,
    mean_rps: float = 0.0,
    world: World = "unlimited",
    seed: int = 0,
    hop_factor: float = 1.0,
) -> Workload:
    """One of ``PAPER_WORKLOADS``; ``mean_tokens`` sets the size of requests, ``mean_rps`` is the load that segments are
    made for (:func:`segments_at`, or in another ``world`` :func:`simulation.workloads.worlds.sized_segments`);
    ``hop_factor``: a hop, and without ``latency`` a call's exchange, takes so many times as long. Raises ValueError for
    another name, and NoRoomError."""
    if name not in PAPER_WORKLOADS:
        raise ValueError(f"there is no workload {name!r}; there are: {', '.join(PAPER_WORKLOADS)}")
    kind, _, count = name.partition("-")
    family, experts = FAMILIES[kind], int(count)
    topology, costs = _topology(name, family, experts)
    workload = Workload(
        name=name,
        topology=topology,
        slo_s=family.slo_s,
        costs=costs,
        latency=latency if latency is not None else hops_times(hop_factor),
        lifecycle=LIFECYCLE,
        routing=routing if routing is not None else zipf_routing([experts] * family.layers, seed=seed),
        top_k=TOP_K,
        tokens=TokenLengths.lognormal(mean_tokens or family.mean_tokens, 0.6, POSITIONS),
        space=space if space is not None else ConfigurationSpace(),
        prices=prices if prices is not None else load_prices(PAPER_PRICES),
        request_s=0.0005,
        hop_s=0.0001 * hop_factor,
        segment_configuration=segments_at(mean_rps),
    )
    return in_world(workload, world, mean_rps)


def _topology(name: str, family: Family, experts: int) -> tuple[Topology, dict[str, NodeCost]]:
    costs = {f"segment-{layer}": _segment(family, layer, experts) for layer in range(family.layers + 1)}
    expert = expert_cost()
    names = [(layer, j, f"expert-{layer}-{j}") for layer in range(family.layers) for j in range(experts)]
    costs |= {node: expert for _, _, node in names}
    nodes = [NodeInfo("ingress", name, "ingress", None, None, 0, 0, 0)]
    for layer in range(family.layers + 1):
        nodes.append(_info(name, f"segment-{layer}", costs, layer, None))
        nodes += [_info(name, node, costs, layer, j) for at, j, node in names if at == layer]
    edges = [
        edge
        for layer, _, node in names
        for edge in ((f"segment-{layer}", node), (node, f"segment-{layer + 1}"))
    ]  # fmt: skip
    digest = hashlib.sha256(repr((name, family, experts, HIDDEN, FFN)).encode()).hexdigest()
    return Topology(name, digest, family.layers, tuple(nodes), tuple(edges)), costs


def _info(pipeline: str, node: str, costs: dict[str, NodeCost], layer: int, expert: int | None) -> NodeInfo:
    cost = costs[node]
    larger = max(cost.bytes_in_per_token, cost.bytes_out_per_token)
    return NodeInfo(
        node,
        f"{pipeline}-{node}",
        cost.kind,
        layer,
        expert,
        int(cost.flops_per_token),
        int(cost.weights_bytes),
        int(larger),
    )


def expert_cost(hidden: int = HIDDEN, inner: int = FFN) -> NodeCost:
    """Two products of hidden × inner with biases, FP32; by default the paper's expert."""
    weights = (2 * hidden * inner + inner + hidden) * WORD
    return NodeCost("expert", 4.0 * hidden * inner, 0.0, 0.0, weights, weights, hidden * WORD, hidden * WORD)


def _segment(family: Family, layer: int, experts: int) -> NodeCost:
    """Attention of a layer and its router; the first also embeds, the last is the head.

    Attention is four products of hidden × hidden, cross-attention the same again (its text is taken to be as long).
    """
    first, last = layer in (0, family.decoder_from), layer == family.layers
    attentions = 0 if last else 2 if family.decoder_from is not None and layer >= family.decoder_from else 1
    block = (4 * HIDDEN * HIDDEN + 6 * HIDDEN) * WORD * attentions + (0 if last else HIDDEN * experts * WORD)
    table = family.vocabulary * HIDDEN * WORD
    head = last and family.head
    hidden = HIDDEN * WORD
    return NodeCost(
        kind="segment",
        flops_per_token=attentions * 8.0 * HIDDEN * HIDDEN + (0 if last else 2.0 * HIDDEN * experts),
        flops_per_token_squared=attentions * 4.0 * HIDDEN,
        flops_per_call=2.0 * HIDDEN * family.vocabulary if head else 0.0,
        weights_bytes=float(block + (table if first or head else 0)),
        touched_bytes=float(block + (table if head else 0)),
        bytes_in_per_token=8.0 if layer == 0 else hidden * (2 if attentions == 2 else 1),
        bytes_out_per_token=0.0 if last else hidden + 12.0 * TOP_K,
    )

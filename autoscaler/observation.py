"""What a controller observed in a window: of every node, every layer, of texts, of the pipeline.

Features are those of the sMoE paper, section 4.2. Fractions are 0 to 1; units are in the names. ``None`` means that
there is no data, which is never the same as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from autoscaler.configuration import Configuration

NodeKind = Literal["ingress", "segment", "expert"]


class NodeObservation(NamedTuple):
    """One function in one window: the expert-level features of section 4.2, with raw values next to them.

    A named tuple: thousands are made in every window, and a frozen dataclass takes ten times as long to make.
    """

    node: str
    """Node id."""
    function: str
    """Its function; several nodes may share one."""
    kind: NodeKind
    """ingress, segment or expert."""
    layer: int | None
    """From 0; None for the ingress."""
    expert: int | None
    """From 0; experts only."""
    configuration: Configuration | None
    """CC(t): as configured now."""
    ready_replicas: int | None
    """Replicas that serve."""
    cpu_utilisation: float | None
    """RU(t): CPU time used over CPU time configured; above 1 is impossible under a limit."""
    memory_utilisation: float | None
    """RU(t): memory used over memory configured, mean of replicas."""
    gpu_utilisation: float | None
    """RU(t): share of the configured GPU share in use; None, as nothing measures it (docs/gpu.md)."""
    concurrency_utilisation: float | None
    """CU(t): mean calls in flight at replicas over replicas × concurrency."""
    latency_p95_s: float | None
    """EL(t): 95th percentile of the time from the time it was to be called until the reply; None without calls."""
    latency_mean_s: float | None
    """Mean of the same."""
    tokens_per_s: float | None
    """TPS(t)."""
    requests_per_s: float | None
    """RPS(t): calls of this function per second."""
    in_flight: float | None
    """Mean calls at replicas during the window."""
    waiting: float | None
    """Mean calls waiting at the ingress for a free slot."""
    busy_s: float | None
    """Seconds calls spent at replicas in this window, summed over calls."""
    cpu_s: float | None
    """CPU seconds used in this window, summed over replicas."""
    peak_tokens: float | None
    """Most tokens in flight at once: P of Eq. (2)."""
    token_share: float | None = None
    """TS(t): share of the layer's tokens; experts only."""
    request_share: float | None = None
    """RS(t): share of the layer's calls; experts only."""
    straggler_ratio: float | None = None
    """SR(t): this expert's tail latency over that of the layer's slowest expert; experts only."""
    measured_replicas: int | None = None
    """Replicas whose CPU time was measured over the window; ready ones beyond it are too new to be judged."""
    busy_replica_s: float | None = None
    """Replica-seconds with at least one call, where the source knows them exactly (the simulator does); the cost meter
    estimates them otherwise."""
    age_s: float | None = None
    """Age of the oldest sample this row was made of, at the end of the window."""
    activated_s: float | None = None
    """Seconds in which standbys were activated, summed over them; None where there are none, or it is not known."""


@dataclass(frozen=True, slots=True)
class LayerObservation:
    """One MoE layer in one window: the layer-level features of section 4.2."""

    layer: int
    """From 0."""
    tokens_per_s: float | None
    """All experts of the layer together."""
    token_routing_entropy: float | None
    """TRE(t) = -Σ TS log TS, natural logarithm; ln K when even."""
    latency_variance_s2: float | None
    """ELV(t): population variance of EL over the layer's experts that were called."""
    flops_per_s: float | None
    """SF(t): floating-point operations of the layer's experts per second."""
    barrier_p95_s: float | None
    """95th percentile from scatter to the last gather."""


class Arrivals(NamedTuple):
    """How fast tokens arrive within one look-back: of the tokens per second of the look-back that ends with each
    request, itself included, the quantiles over the window's requests."""

    look_back_s: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class GenerationObservation:
    """A decoder's texts in one window, as the ingresses report them under vLLM's names."""

    ttft_p50_s: float | None = None
    """From a text's arrival to its first token; None where no first token was written."""
    ttft_p95_s: float | None = None
    """P95 of it."""
    tpot_p50_s: float | None = None
    """From one token of a text to its next, over all tokens of the window."""
    tpot_p95_s: float | None = None
    """P95 of it."""
    running: float | None = None
    """Texts that take part in iterations, at the end of the window."""
    waiting: float | None = None
    """Queue: texts that wait for pages, or for an instance, at the end of the window."""
    kv_usage: float | None = None
    """Part of the instances' pages of keys and values in use, 0 to 1, at the end of the window."""
    prompt_tokens_per_s: float | None = None
    """Tokens of prompts whose first token was written."""
    written_tokens_per_s: float | None = None
    """Tokens written."""
    preemptions: float | None = None
    """Texts that gave their pages back to others."""


def reached(windows: float, limit: float) -> bool:
    """Whether counted ``windows`` (:attr:`Observation.news`) are ``limit``: sixths of windows do not add up to whole
    ones to the last digit."""
    return windows >= limit - 1e-6


@dataclass(frozen=True)
class Observation:
    """One window of the whole pipeline."""

    start_s: float
    """Unix time of the window's begin."""
    end_s: float
    """Unix time of its end."""
    pipeline: str
    """Name of the pipeline."""
    requests: float | None
    """Requests answered in the window."""
    failed: float | None
    """How many of these were answered with a 5xx or 429."""
    requests_per_s: float | None
    """Requests a second."""
    tokens_per_s: float | None
    """Tokens of answered requests a second."""
    in_flight: float | None
    """Requests in flight at the end of the window."""
    latency_p50_s: float | None
    """Median time to answer."""
    latency_p95_s: float | None
    """P95: what the SLO is about."""
    latency_p99_s: float | None
    """P99."""
    nodes: tuple[NodeObservation, ...]
    layers: tuple[LayerObservation, ...]
    problems: tuple[str, ...] = ()
    """What is missing or stale, in sentences."""
    stale: bool = False
    """Too little or too old data to decide on."""
    generation: GenerationObservation | None = None
    """A decoder's texts; None for any other pipeline, and for one that keeps no keys and values."""
    arrivals: tuple[Arrivals, ...] = ()
    """How fast tokens arrived, by look-back of the ingress; empty where nothing arrived, or nothing is known."""
    taken_back: Mapping[str, int] = field(default_factory=dict)
    """Function → replicas it had before some were taken back for want of room; a policy that holds what there is asks
    for them again."""
    redeployed: frozenset[str] = frozenset()
    """Functions whose size somebody else changed since the window before."""
    decided_by: str = ""
    """Name of the policy that had decided what ran in the window, where that is another than the one that is asked:
    what such a window shows is not due to the orders of the one that is asked."""
    news: float = 1.0
    """Part of the window that none before it showed, above 0 up to 1: those of 30 s that are read every 5 s show a
    sixth each. What counts windows counts that."""

    @property
    def window_s(self) -> float:
        return self.end_s - self.start_s

    def node(self, node_id: str) -> NodeObservation | None:
        return self._by_id.get(node_id)

    @cached_property
    def _by_id(self) -> Mapping[str, NodeObservation]:
        return {node.node: node for node in self.nodes}

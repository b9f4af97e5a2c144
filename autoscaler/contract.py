"""Types and protocols spoken between the rooms of the controller, the simulator and learnt policies.

Equations and features are those of the sMoE paper, sections 3 and 4.2. Fractions are 0 to 1; units are in the names.
``None`` means that there is no data, which is never the same as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from autoscaler.capacity import Capacity, Machine, Resources
from autoscaler.configuration import MIB, Bound, Configuration, ConfigurationSpace, MemoryNeed
from functions.dispatch.activation import Burst

__all__ = [
    "MIB",
    "NAMESPACE",
    "SLO_QUANTILE",
    "Arrivals",
    "Bound",
    "BoundedPlatform",
    "Burst",
    "Capacity",
    "Configuration",
    "ConfigurationSpace",
    "Cost",
    "Decision",
    "GenerationObservation",
    "LayerObservation",
    "Machine",
    "Memory",
    "MemoryNeed",
    "MeteredPlatform",
    "MetricsSource",
    "NodeInfo",
    "NodeKind",
    "NodeObservation",
    "Observation",
    "PlacedPlatform",
    "Platform",
    "Policy",
    "Proposal",
    "Resources",
    "TickReport",
    "Topology",
]

NodeKind = Literal["ingress", "segment", "expert"]
SLO_QUANTILE = 0.95
"""The quantile of requests' latencies that the SLO λ bounds: P95."""
NAMESPACE = "openfaas-fn"
"""What a gateway calls the namespace where functions are unless another is named: its home."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node in the topology; nothing here changes while the pipeline runs.

    One node is one function, unless an installation limits functions: then several nodes name the same function.
    """

    id: str
    function: str
    kind: NodeKind
    layer: int | None
    expert: int | None
    flops_per_token: int
    weights_bytes: int
    bytes_per_token: int
    """D of Eq. (2): the larger of a token's bytes in and out."""


@dataclass(frozen=True)
class Topology:
    """The pipeline as the controller sees it: ingress first, then segments and experts in order of the pass."""

    pipeline: str
    manifest_sha256: str
    layers: int
    nodes: tuple[NodeInfo, ...]
    edges: tuple[tuple[str, str], ...]
    dtype: str = "float32"
    """Type of weights, and of tokens on the way."""
    generates: bool = False
    """Whether it is a decoder, whose segments keep the keys and values of texts."""

    def experts(self, layer: int) -> tuple[NodeInfo, ...]:
        """Experts of MoE layer ``layer`` in order; empty outside 0 … layers-1."""
        return self._experts.get(layer, ())

    def functions(self) -> Mapping[str, tuple[NodeInfo, ...]]:
        """Function → the nodes it serves, in order of the pass."""
        return self._functions

    @cached_property
    def _experts(self) -> Mapping[int, tuple[NodeInfo, ...]]:
        rows: dict[int, list[NodeInfo]] = {}
        for node in self.nodes:
            if node.kind == "expert" and node.layer is not None:
                rows.setdefault(node.layer, []).append(node)
        return {layer: tuple(row) for layer, row in rows.items()}

    @cached_property
    def _functions(self) -> Mapping[str, tuple[NodeInfo, ...]]:
        by_function: dict[str, list[NodeInfo]] = {}
        for node in self.nodes:
            by_function.setdefault(node.function, []).append(node)
        return {function: tuple(nodes) for function, nodes in by_function.items()}


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
    """Queue: texts that wait for pages, for an instance, or for their reader, at the end of the window."""
    kv_usage: float | None = None
    """Part of the instances' pages of keys and values in use, 0 to 1, at the end of the window."""
    prompt_tokens_per_s: float | None = None
    """Tokens of prompts whose first token was written."""
    written_tokens_per_s: float | None = None
    """Tokens written."""
    preemptions: float | None = None
    """Texts that gave their pages back to others."""


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

    @property
    def window_s(self) -> float:
        return self.end_s - self.start_s

    def node(self, node_id: str) -> NodeObservation | None:
        return self._by_id.get(node_id)

    @cached_property
    def _by_id(self) -> Mapping[str, NodeObservation]:
        return {node.node: node for node in self.nodes}


Memory = object
"""What a policy remembers from window to window. Only the policy itself looks into it: it must take another policy's,
and None at the begin, for no memory at all, since a controller may change its policy."""


@dataclass(frozen=True)
class Proposal:
    """What a policy asks for: configurations by function, each with the reason, and the policy's state for next time.

    A function with a reason and no configuration is one the policy manages but cannot judge (no data): its scale is
    held. A function with neither is none of the policy's business.
    """

    desired: Mapping[str, Configuration]
    reasons: Mapping[str, str]
    memory: Memory = None
    doubt: str = ""
    """Why the policy itself would not be followed in this window: it has not met the like, or what it plans with does
    not hold. Empty: no doubt, or a policy that knows none."""
    by: str = ""
    """Name of the policy that decided, where it is not the one that was asked."""


class Decision(NamedTuple):
    """What is to be done with one function."""

    function: str
    """The function decided on."""
    node: str
    """Its node; node ids joined by ``_`` where a function serves several."""
    present: Configuration
    desired: Configuration
    target: Configuration
    reason: str
    """The policy's reason, or why the scale was held."""
    limits_hit: tuple[str, ...] = ()
    """What kept the target from the desired configuration, in words."""
    valid: bool = True
    """False: made on missing or stale data, so the target is the present configuration."""

    @property
    def changes(self) -> bool:
        return self.target is not self.present and self.target != self.present


@dataclass(frozen=True, slots=True)
class Cost:
    """The meters of one window in the price sheet's currency (see ``autoscaler.prices``)."""

    busy: float | None
    """Eq. (7): replicas × busy seconds × U_φ."""
    provisioned: float | None
    """Replicas × window seconds × U_φ, and standbys; nodes of one function share both costs equally."""
    standbys: float | None = 0.0
    """The part of ``provisioned`` that is standbys': their memory, and replicas while they are activated."""

    @property
    def amounts(self) -> tuple[float | None, ...]:
        """Every meter, in the order of the fields."""
        return self.busy, self.provisioned, self.standbys


class MetricsSource(Protocol):
    """Where observations come from: Prometheus, direct scrapes, or the simulator."""

    def observe(self, now_s: float, window_s: float) -> Observation:
        """The window that ends at ``now_s`` (Unix time). Never raises for missing data: they are named in
        ``problems``."""


class Policy(Protocol):
    """Desired configurations from observations. Pure: what it must remember comes in as ``memory`` and goes out in the
    proposal."""

    name: str

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal: ...


class Platform(Protocol):
    """The only thing that changes functions. Methods raise ``autoscaler.errors.PlatformError``."""

    def configurations(self) -> Mapping[str, Configuration]:
        """Present configuration of every function of the pipeline, read again on every call."""

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        """Ask for ``target``; ``present`` is what was read last. Applying twice changes nothing more.

        Returning means that the platform took the order; that it came about is seen by reading again. Raises
        FunctionGoneError for a function that is not deployed.
        """


@runtime_checkable
class BoundedPlatform(Platform, Protocol):
    """One that knows what it cannot bring about: no room, no quota, no right."""

    def bounds(self) -> Mapping[str, Bound]:
        """Function → what it cannot be given now, as read last and as refused since; of most functions nothing."""


@runtime_checkable
class PlacedPlatform(Platform, Protocol):
    """One whose functions may be placed on several nodes each."""

    def floors(self) -> Mapping[str, int]:
        """Function → fewest replicas, as read last: one for each node that a placement gives it; of others nothing."""


@runtime_checkable
class MeteredPlatform(Platform, Protocol):
    """One that takes a while to bring limits about, or fails to."""

    def in_force(self) -> Mapping[str, Configuration]:
        """Function → what its replicas really have, as read last, where that is not what they should have."""


@dataclass(frozen=True)
class TickReport:
    """All that happened in one tick of the controller."""

    observation: Observation
    decisions: tuple[Decision, ...]
    applied: tuple[str, ...]
    """Functions changed."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Function → why its change failed; the next tick repairs it."""
    cost: Cost = field(default_factory=lambda: Cost(None, None))
    cost_by_node: Mapping[str, Cost] = field(default_factory=dict)
    decision_s: float = 0.0
    """Seconds that policy and decision took."""
    dry_run: bool = False
    """Decided and recorded only."""
    policy: str = ""
    """Name of the policy that decided."""

"""Types and protocols spoken between the rooms of the controller, the simulator and learnt policies.

Equations and features are those of the sMoE paper, sections 3 and 4.2. Fractions are 0 to 1; units are in the names.
``None`` means that there is no data, which is never the same as zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from autoscaler.errors import ConfigurationError

NodeKind = Literal["ingress", "segment", "expert"]
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Configuration:
    """φ of one function: memory, CPU cores or GPU share (exactly one of them, Eq. (4)), replicas, concurrency."""

    memory_mb: int
    """Memory limit of a replica in MiB."""
    cpu_cores: float
    """CPU limit of a replica; 0 when it has a GPU share."""
    gpu_share: float
    """Share of one GPU, 0.1 to 1.0; 0 when it has CPU cores."""
    replicas: int
    concurrency: int
    """Calls a replica takes at once; 0 = no limit (only outside the paper's space)."""

    def __post_init__(self) -> None:
        if (self.cpu_cores > 0) == (self.gpu_share > 0):
            raise ConfigurationError(
                f"a configuration has CPU cores or a GPU share, not both and not neither (Eq. 4); "
                f"it got {self.cpu_cores} cores and {self.gpu_share} of a GPU"
            )
        if self.memory_mb <= 0 or self.replicas < 0 or self.concurrency < 0 or self.gpu_share > 1:
            raise ConfigurationError(f"a configuration with numbers out of range: {self}")

    def with_replicas(self, replicas: int) -> Configuration:
        return replace(self, replicas=replicas)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What Eq. (2) asks of a function's memory: ``alpha · memory >= M_e + 2 · D · P / replicas``."""

    runtime_bytes: int
    """M_e: weights and libraries."""
    bytes_per_token: int
    """D: size of one token on the way (the larger of in and out)."""
    peak_tokens: float
    """P: peak number of input tokens of the window, over all replicas."""
    alpha: float = 0.9
    """Share of the limit that may be used."""

    def required_mb(self, replicas: int) -> float:
        """Least memory in MiB for this many replicas."""
        need_bytes = self.runtime_bytes + 2 * self.bytes_per_token * self.peak_tokens / max(1, replicas)
        return need_bytes / self.alpha / MIB


@dataclass(frozen=True)
class ConfigurationSpace:
    """Φ: the lattice of allowed configurations. Defaults are the paper's, 203,520 per expert."""

    memory_min_mb: int = 128
    memory_max_mb: int = 10240
    memory_step_mb: int = 64
    cpu_cores: tuple[float, ...] = (1, 2, 3, 4, 5, 6)
    gpu_shares: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    replicas_min: int = 1
    replicas_max: int = 8
    concurrency_min: int = 1
    concurrency_max: int = 10

    @property
    def memory_sizes_mb(self) -> tuple[int, ...]:
        return tuple(range(self.memory_min_mb, self.memory_max_mb + 1, self.memory_step_mb))

    def __len__(self) -> int:
        resources = len(self.cpu_cores) + len(self.gpu_shares)
        replicas = self.replicas_max - self.replicas_min + 1
        return len(self.memory_sizes_mb) * resources * replicas * (self.concurrency_max - self.concurrency_min + 1)

    def __iter__(self) -> Iterator[Configuration]:
        """Every configuration; memory is the outermost axis, concurrency the innermost."""
        resources = [(cores, 0.0) for cores in self.cpu_cores] + [(0.0, share) for share in self.gpu_shares]
        for memory_mb in self.memory_sizes_mb:
            for cores, share in resources:
                for replicas in range(self.replicas_min, self.replicas_max + 1):
                    for concurrency in range(self.concurrency_min, self.concurrency_max + 1):
                        yield Configuration(memory_mb, cores, share, replicas, concurrency)

    def __contains__(self, found: object) -> bool:
        if not isinstance(found, Configuration):
            return False
        resource = found.cpu_cores in self.cpu_cores if found.cpu_cores else found.gpu_share in self.gpu_shares
        on_step = (found.memory_mb - self.memory_min_mb) % self.memory_step_mb == 0
        return (
            resource
            and on_step
            and self.memory_min_mb <= found.memory_mb <= self.memory_max_mb
            and self.replicas_min <= found.replicas <= self.replicas_max
            and self.concurrency_min <= found.concurrency <= self.concurrency_max
        )

    def nearest(self, wish: Configuration) -> Configuration:
        """The lattice point next to ``wish``: memory rounded up, other axes to the nearest allowed value."""
        steps = math.ceil((wish.memory_mb - self.memory_min_mb) / self.memory_step_mb)
        memory_mb = min(self.memory_max_mb, self.memory_min_mb + max(0, steps) * self.memory_step_mb)
        cores, share = 0.0, 0.0
        if wish.cpu_cores > 0 or not self.gpu_shares:
            cores = min(self.cpu_cores, key=lambda value: abs(value - wish.cpu_cores))
        else:
            share = min(self.gpu_shares, key=lambda value: abs(value - wish.gpu_share))
        return Configuration(
            memory_mb,
            cores,
            share,
            min(max(wish.replicas, self.replicas_min), self.replicas_max),
            min(max(wish.concurrency, self.concurrency_min), self.concurrency_max),
        )

    def least_memory_mb(self, need: MemoryNeed, replicas: int) -> int | None:
        """Smallest memory of the lattice that satisfies Eq. (2), or None where none does."""
        required_mb = need.required_mb(replicas)
        steps = max(0, math.ceil((required_mb - self.memory_min_mb) / self.memory_step_mb))
        memory_mb = self.memory_min_mb + steps * self.memory_step_mb
        return memory_mb if memory_mb <= self.memory_max_mb else None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the topology says of one function; nothing here changes while the pipeline runs."""

    id: str
    function: str
    kind: NodeKind
    layer: int | None
    expert: int | None
    flops_per_token: int
    weights_bytes: int
    bytes_per_token: int


@dataclass(frozen=True)
class Topology:
    """The pipeline as the controller sees it: ingress first, then segments and experts in order of the pass."""

    pipeline: str
    manifest_sha256: str
    layers: int
    nodes: tuple[NodeInfo, ...]
    edges: tuple[tuple[str, str], ...]

    def experts(self, layer: int) -> tuple[NodeInfo, ...]:
        return tuple(node for node in self.nodes if node.kind == "expert" and node.layer == layer)


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """One function in one window: the expert-level features of section 4.2, with raw values beside them."""

    node: str
    function: str
    kind: NodeKind
    layer: int | None
    expert: int | None
    configuration: Configuration | None
    """CC(t): as configured now."""
    ready_replicas: int | None
    cpu_utilisation: float | None
    """RU(t): CPU time used over CPU time configured; above 1 is impossible under a limit."""
    memory_utilisation: float | None
    """RU(t): memory used over memory configured, mean of replicas."""
    gpu_utilisation: float | None
    """RU(t): share of the configured GPU share in use."""
    concurrency_utilisation: float | None
    """CU(t): mean calls in flight at replicas over replicas × concurrency."""
    latency_p95_s: float | None
    """EL(t): 95th percentile of the time from the wish to call until the reply; None without calls."""
    latency_mean_s: float | None
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
    """SR(t): own tail latency over that of the layer's slowest expert; experts only."""


@dataclass(frozen=True, slots=True)
class LayerObservation:
    """One MoE layer in one window: the layer-level features of section 4.2."""

    layer: int
    tokens_per_s: float | None
    token_routing_entropy: float | None
    """TRE(t) = -Σ TS log TS, natural logarithm; ln K when even."""
    latency_variance_s2: float | None
    """ELV(t): population variance of EL over the layer's experts that were called."""
    flops_per_s: float | None
    """SF(t): floating-point operations of the layer's experts per second."""
    barrier_p95_s: float | None
    """95th percentile from scatter to the last gather."""


@dataclass(frozen=True)
class Observation:
    """One window of the whole pipeline."""

    start_s: float
    end_s: float
    """Unix time of the window."""
    pipeline: str
    requests: float | None
    failed: float | None
    """Requests answered with a 5xx or 429."""
    requests_per_s: float | None
    tokens_per_s: float | None
    in_flight: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    nodes: tuple[NodeObservation, ...]
    layers: tuple[LayerObservation, ...]
    problems: tuple[str, ...] = ()
    """What is missing or stale, in sentences."""
    stale: bool = False
    """Too little or too old data to decide on."""

    @property
    def window_s(self) -> float:
        return self.end_s - self.start_s

    def node(self, node_id: str) -> NodeObservation | None:
        return next((node for node in self.nodes if node.node == node_id), None)


@dataclass(frozen=True)
class Proposal:
    """What a policy wishes: configurations by function, each with the reason, and the policy's state for next time."""

    wishes: Mapping[str, Configuration]
    reasons: Mapping[str, str]
    memory: object = None


@dataclass(frozen=True)
class Decision:
    """What is to be done with one function."""

    function: str
    node: str
    present: Configuration
    wish: Configuration
    target: Configuration
    reason: str
    limits_hit: tuple[str, ...] = ()
    valid: bool = True
    """False: made on missing or stale data, so the target is the present configuration."""

    @property
    def changes(self) -> bool:
        return self.target != self.present


@dataclass(frozen=True, slots=True)
class Cost:
    """Both meters of one window in the price sheet's currency (see ``autoscaler.prices``)."""

    busy: float | None
    """Eq. (7): replicas × busy seconds × U_φ."""
    provisioned: float | None
    """replicas × window seconds × U_φ."""


class MetricsSource(Protocol):
    """Where observations come from: Prometheus, direct scrapes, or the simulator."""

    def observe(self, now_s: float, window_s: float) -> Observation:
        """The window that ends at ``now_s`` (Unix time). Never raises for missing data: it says so in ``problems``."""


class Policy(Protocol):
    """Wishes from observations. Pure: what it must remember comes in as ``memory`` and goes out in the proposal."""

    name: str

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal: ...


class Platform(Protocol):
    """The only thing that changes functions. Methods raise ``autoscaler.errors.PlatformError``."""

    def configurations(self) -> Mapping[str, Configuration]:
        """Present configuration of every function of the pipeline, read anew."""

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        """Bring one function from ``present`` to ``target``."""


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
    """Seconds that state, policy and decision took."""
    dry_run: bool = False

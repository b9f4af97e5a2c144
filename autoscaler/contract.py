"""Types and protocols spoken between the rooms of the controller, the simulator and learnt policies.

Equations and features are those of the sMoE paper, sections 3 and 4.2. Fractions are 0 to 1; units are in the names.
``None`` means that there is no data, which is never the same as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

from autoscaler.capacity import Capacity, Machine, Resources
from autoscaler.configuration import MIB, Bound, Configuration, ConfigurationSpace, MemoryNeed
from autoscaler.observation import (
    Arrivals,
    GenerationObservation,
    LayerObservation,
    NodeKind,
    NodeObservation,
    Observation,
    reached,
)
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
    "RememberingPlatform",
    "Resources",
    "TickReport",
    "Topology",
    "reached",
]

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
    failure: str = ""
    """The exception with which the policy ended, in words; empty where it decided."""


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
class RememberingPlatform(Platform, Protocol):
    """One that notes what it took back for want of room."""

    def taken_back(self) -> Mapping[str, int]:
        """Function → replicas that it had before some were taken back, as read last, while it has those left."""


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
    choice: str = ""
    """What ``auto`` chose at the start, and why; empty where the policy was named."""
    failure: str = ""
    """The exception with which the policy ended in this tick, in words; empty where it decided."""

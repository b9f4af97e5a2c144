"""Types spoken between the gateway's core and its backends.

The core owns OpenFaaS's REST API and the forwarding of calls; a backend owns replicas. Neither knows of experts,
layers or policies. Vocabulary: OpenFaaS provider types (``FunctionDeployment``, ``FunctionStatus``).
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

DEFAULT_NAMESPACE = "openfaas-fn"

ReplicaState = Literal["starting", "standby", "ready", "draining"]
"""``standby``: it could serve, but has hardly any CPU and gets no calls until it is activated, which makes it ready."""


class GatewayError(Exception):
    """Base of all errors a backend raises on purpose; the core turns them into HTTP replies.

    GatewayError
    ├── NotFoundError       404
    ├── InvalidSpecError    400
    ├── ConflictError       409
    └── BackendError        500
    """


class NotFoundError(GatewayError):
    """The function, secret or namespace does not exist."""


class InvalidSpecError(GatewayError):
    """The request is well-formed but asks for something that is not allowed or not there."""


class ConflictError(GatewayError):
    """The thing exists already, or no GPU has room for it."""


class BackendError(GatewayError):
    """The backend failed to do what was asked."""


@dataclass(frozen=True)
class FunctionSpec:
    """What was deployed; fields mirror OpenFaaS's FunctionDeployment."""

    name: str
    image: str
    namespace: str = DEFAULT_NAMESPACE
    env_process: str = ""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    constraints: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)
    """Kubernetes quantities by resource: ``memory``, ``cpu``, ``nvidia.com/gpu``."""
    requests: Mapping[str, str] = field(default_factory=dict)
    read_only_root_filesystem: bool = False

    @property
    def key(self) -> str:
        """``NAME.NAMESPACE``, the ``function_name`` of metrics and of the feed."""
        return f"{self.name}.{self.namespace}"


@dataclass(frozen=True)
class Replica:
    """One running instance of a function."""

    id: str
    address: str
    """``host:port`` of its HTTP server; empty while it has none (starting)."""
    state: ReplicaState
    pid: int | None = None
    started_at_s: float = 0.0
    """Unix time of its start."""
    machine: str = ""
    """Where it runs, when the backend places replicas on machines."""


@dataclass(frozen=True)
class Usage:
    """Resources a replica uses. ``None`` means not measured, which is not zero."""

    cpu_seconds_total: float | None
    cpu_millicores: float | None
    """Mean over the last measuring interval."""
    memory_bytes: int | None


NOT_MEASURED = Usage(None, None, None)


@dataclass(frozen=True)
class FunctionState:
    """A function as the backend sees it now. ``max_inflight`` 0 means unlimited."""

    spec: FunctionSpec
    desired_replicas: int
    replicas: tuple[Replica, ...]
    max_inflight: int
    created_at_s: float
    restarts: int = 0
    standbys: int = 0
    """Replicas that wait, or are activated."""
    activated: int = 0
    """Those of them that are ready now."""
    caller_key: str = field(default="", repr=False)
    """What its replicas take calls with (:mod:`platform_words.headers`); empty: they take anybody's."""
    activated_s: float = 0.0
    """Seconds in which standbys were activated, summed over them, since the function was created."""
    problems: tuple[str, ...] = ()
    """Why replicas are not ready, in sentences, where the platform knows: one of each reason."""
    sleeps: bool = False
    """The desired replicas are standbys, too."""

    @property
    def ready(self) -> tuple[Replica, ...]:
        return tuple(replica for replica in self.replicas if replica.state == "ready")

    @property
    def available(self) -> int:
        """Ready replicas; with ``sleeps`` as many of the desired ones as are ready or wait, and no other standbys."""
        if not self.sleeps:
            return len(self.ready)
        return min(sum(replica.state in ("ready", "standby") for replica in self.replicas), self.desired_replicas)


@dataclass(frozen=True)
class LogLine:
    """One line of a replica's output; ``timestamp_s`` is Unix time."""

    name: str
    namespace: str
    instance: str
    timestamp_s: float
    text: str


@dataclass(frozen=True)
class Namespace:
    """Where functions may be; annotations and labels are the cluster's."""

    name: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BackendInfo:
    """Shown in ``/system/info``; ``notes`` state in sentences what this backend cannot do here."""

    provider: str
    orchestration: str
    version: str
    notes: tuple[str, ...] = ()
    standbys: bool = False
    """Whether functions may have standbys."""


@dataclass(frozen=True)
class Activation:
    """How many standbys of each function one sender (an ingress) wants activated, all at once."""

    sender: str
    """Replaces what the same sender asked for before; of several senders the largest number counts."""
    levels: Mapping[tuple[str, str], int]
    """(name, namespace) → standbys."""
    lease_s: float
    """Seconds for which it holds unless it is repeated, so that a sender that is gone leaves nothing activated."""


class Backend(Protocol):
    """Starts, stops, limits and counts replicas. Desired state goes in, the backend converges to it.

    Methods raise :class:`GatewayError` subclasses; names are already validated. What is asked about a namespace that is
    not served raises NotFoundError.
    """

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Drain and end every replica, so that nothing is left running; functions that a cluster holds run on."""

    def info(self) -> BackendInfo: ...

    def namespaces(self) -> builtins.list[Namespace]:
        """Where functions may be now, by name; ``openfaas-fn`` is always among them."""

    def check_namespace(self, namespace: str) -> None:
        """Raises InvalidSpecError, with the reason, where functions may not be."""

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        """Raises ConflictError if it exists or no GPU has room, InvalidSpecError for bad limits or missing secrets."""

    async def update(self, spec: FunctionSpec) -> None:
        """Change a function: live where only limits, labels, annotations or max_inflight differ, else by a rolling
        update. Raises NotFoundError, and ConflictError where no GPU has room.
        """

    async def delete(self, name: str, namespace: str) -> None: ...

    async def scale(self, name: str, namespace: str, replicas: int) -> None: ...

    async def activate(self, activation: Activation) -> None:
        """Activate standbys, and release those no longer asked for. Functions that are not there, and standbys beyond
        those that a function has, are ignored. Raises InvalidSpecError where functions have no standbys."""

    def get(self, name: str, namespace: str) -> FunctionState:
        """The function as last observed. Raises NotFoundError."""

    async def look(self, name: str, namespace: str) -> FunctionState:
        """As :meth:`get`; a function not known here, which another gateway may just have made, is looked up."""

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]: ...

    def version(self) -> int:
        """A number that grows with every change of functions or replicas."""

    async def wait_change(self, seen_version: int, timeout_s: float) -> int:
        """Return the version once it differs from ``seen_version``, or after ``timeout_s``."""

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        """Measured use by replica id."""

    def start_seconds(self) -> builtins.list[float]:
        """Start times (spawn to ready) measured since the last call of this method."""

    def report_failure(self, name: str, namespace: str, replica_id: str) -> None:
        """The core could not connect to this replica: look at it now instead of at the next check."""

    def logs(
        self, name: str, namespace: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        """``tail`` <= 0 means all. With ``follow`` the iterator ends when the function is deleted."""

    def secret_names(self, namespace: str) -> builtins.list[str]: ...

    async def put_secret(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        """``create`` and it exists: ConflictError; not ``create`` and it does not: NotFoundError."""

    async def delete_secret(self, name: str, namespace: str) -> None: ...

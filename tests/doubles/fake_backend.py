"""A gateway backend in memory: same contract, replicas are servers in this process (:mod:`tests.doubles.fake_replica`).

Starting can be held back (``hold_starts``) and a replica can be killed without the backend noticing, so that nothing in
a test waits for a clock.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace

from gateway.activations import ActivatedTime
from gateway.backends.process.quantities import limits_of, whole_number
from gateway.changes import Changes
from gateway.contract import (
    DEFAULT_NAMESPACE,
    Activation,
    BackendInfo,
    ConflictError,
    FunctionSpec,
    FunctionState,
    InvalidSpecError,
    LogLine,
    Namespace,
    NotFoundError,
    Replica,
    Usage,
)
from gateway.specs import burst_of
from tests.doubles.fake_replica import FakeReplica, Program, echo


@dataclass
class _Function:
    spec: FunctionSpec
    program: Program
    desired: int
    created_at_s: float
    activated_time: ActivatedTime
    replicas: dict[str, FakeReplica] = field(default_factory=dict)
    lines: builtins.list[LogLine] = field(default_factory=list)
    made: int = 0
    restarts: int = 0
    deleted: bool = False
    activated: int = 0

    def standbys(self) -> int:
        return burst_of(self.spec)[0] + self.desired - self.running() if self.desired else 0

    def running(self) -> int:
        return 0 if burst_of(self.spec)[1] else self.desired


class FakeBackend(Changes):
    """:class:`gateway.contract.Backend`. ``programs`` by image; other images run :func:`echo`."""

    def __init__(
        self, programs: Mapping[str, Program] | None = None, namespaces: Collection[str] = (DEFAULT_NAMESPACE,)
    ) -> None:
        super().__init__()
        self._served = namespaces
        self.programs = dict(programs or {})
        self.hold_starts = False
        """While True new replicas stay ``starting`` until :meth:`let_start`."""
        self.caller_key = ""
        self.clock = time.monotonic
        """For which time standbys are activated."""
        self.failures_reported: builtins.list[str] = []
        self._functions: dict[str, _Function] = {}
        self.secrets: dict[str, dict[str, bytes]] = {}
        self._start_seconds: builtins.list[float] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        return None

    async def close(self) -> None:
        for function in self._functions.values():
            self._end(function)
        self._functions.clear()
        self._changed()

    def info(self) -> BackendInfo:
        return BackendInfo("smoe-fake", "memory", "1", ("Replicas are servers in the gateway's own process.",), True)

    def namespaces(self) -> builtins.list[Namespace]:
        return [Namespace(name) for name in sorted(self._served)]

    def check_namespace(self, namespace: str) -> None:
        if namespace not in self._served:
            raise InvalidSpecError(
                f"namespace {namespace[:80]!r} does not exist; there is {', '.join(sorted(self._served))}"
            )

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        if spec.key in self._functions:
            raise ConflictError(f"function {spec.key} exists already")
        self._check(spec)
        function = _Function(
            spec, self.programs.get(spec.image, echo), replicas, time.time(), ActivatedTime(lambda: self.clock())
        )
        self._functions[spec.key] = function
        await self._reconcile(function)

    async def update(self, spec: FunctionSpec) -> None:
        function = self._function(spec.name, spec.namespace)
        self._check(spec)
        live = {"limits", "labels", "annotations", "requests"}
        before, after = (
            {key: value for key, value in vars(one).items() if key not in live} | {"env_vars": _restarting(one)}
            for one in (function.spec, spec)
        )
        function.spec = spec
        function.program = self.programs.get(spec.image, echo)
        if before != after:
            for replica in list(function.replicas.values()):
                self._drop(function, replica)
        for replica in function.replicas.values():
            replica.max_inflight = whole_number(spec.env_vars, "max_inflight", 0)
        await self._reconcile(function)

    async def delete(self, name: str, namespace: str) -> None:
        function = self._function(name, namespace)
        del self._functions[function.spec.key]
        self._end(function)
        self._changed()

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        if replicas < 0:
            raise InvalidSpecError(f"replicas is {replicas}; it must be 0 or more")
        function = self._function(name, namespace)
        function.desired = replicas
        await self._reconcile(function)

    async def activate(self, activation: Activation) -> None:
        """Without leases: nothing in a test waits for a clock."""
        for function in self._functions.values():
            function.activated = activation.levels.get((function.spec.name, function.spec.namespace), 0)
            function.activated_time.count(min(function.activated, function.standbys()))
            self._open(function)
        self._changed()

    def get(self, name: str, namespace: str) -> FunctionState:
        return self._state(self._function(name, namespace))

    async def look(self, name: str, namespace: str) -> FunctionState:
        return self.get(name, namespace)

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]:
        functions = self._functions.values()
        return [self._state(function) for function in functions if namespace in (None, function.spec.namespace)]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        replicas = self._function(name, namespace).replicas.values()
        return {replica.id: Usage(0.001 * len(replica.requests), 1.0, 1 << 20) for replica in replicas}

    def start_seconds(self) -> builtins.list[float]:
        taken, self._start_seconds = self._start_seconds, []
        return taken

    def report_failure(self, name: str, namespace: str, replica_id: str) -> None:
        self.failures_reported.append(replica_id)
        function = self._functions.get(f"{name}.{namespace}")
        replica = function.replicas.get(replica_id) if function else None
        if function and replica and (replica.server is None or not replica.server.is_serving()):
            function.restarts += 1
            self._drop(function, replica)
            task = asyncio.get_running_loop().create_task(self._reconcile(function))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def logs(
        self, name: str, namespace: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        return self._lines(self._function(name, namespace), instance, since_s, tail, follow)

    async def _lines(
        self, function: _Function, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        def wanted(line: LogLine) -> bool:
            return (instance is None or line.instance == instance) and (since_s is None or line.timestamp_s >= since_s)

        next_line = len(function.lines)
        chosen = [line for line in function.lines if wanted(line)]
        for line in chosen[-tail:] if tail > 0 else chosen:
            yield line
        while follow:
            version = self.version()
            for line in function.lines[next_line:]:
                next_line += 1
                if wanted(line):
                    yield line
            if function.deleted:
                return
            await self.wait_change(version, 60.0)

    def secret_names(self, namespace: str) -> builtins.list[str]:
        return sorted(self.secrets.get(namespace, {}))

    async def put_secret(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        secrets = self.secrets.setdefault(namespace, {})
        if create and name in secrets:
            raise ConflictError(f"secret {name} exists already in {namespace}")
        if not create and name not in secrets:
            raise NotFoundError(f"there is no secret {name} in {namespace}")
        secrets[name] = value

    async def delete_secret(self, name: str, namespace: str) -> None:
        if self.secrets.get(namespace, {}).pop(name, None) is None:
            raise NotFoundError(f"there is no secret {name} in {namespace}")

    # for tests

    def replicas(self, name: str, namespace: str = "openfaas-fn") -> builtins.list[FakeReplica]:
        """The running replicas themselves."""
        return list(self._function(name, namespace).replicas.values())

    def let_start(self) -> None:
        """Everything that is starting becomes ready."""
        self.hold_starts = False
        for function in self._functions.values():
            for replica in function.replicas.values():
                self._ready(replica)
        self._changed()

    def kill(self, name: str, replica_id: str, namespace: str = "openfaas-fn") -> None:
        """The replica's server dies without notice: it stays listed as ready until someone reports it."""
        self._function(name, namespace).replicas[replica_id].end()

    # inside

    def _check(self, spec: FunctionSpec) -> None:
        limits_of(spec, 0)
        whole_number(spec.env_vars, "max_inflight", 0)
        for name in spec.secrets:
            if name not in self.secrets.get(spec.namespace, {}):
                raise InvalidSpecError(f"{spec.name} needs secret {name}, which does not exist in {spec.namespace}")

    def _function(self, name: str, namespace: str) -> _Function:
        try:
            return self._functions[f"{name}.{namespace}"]
        except KeyError:
            raise NotFoundError(f"there is no function {name} in namespace {namespace}") from None

    def _state(self, function: _Function) -> FunctionState:
        return FunctionState(
            spec=function.spec,
            desired_replicas=function.desired,
            replicas=tuple(replica.state for replica in function.replicas.values()),
            max_inflight=whole_number(function.spec.env_vars, "max_inflight", 0),
            created_at_s=function.created_at_s,
            restarts=function.restarts,
            caller_key=self.caller_key,
            standbys=function.standbys(),
            activated=min(function.activated, function.standbys()),
            activated_s=function.activated_time.seconds(),
            sleeps=burst_of(function.spec)[1],
        )

    def _open(self, function: _Function) -> None:
        """The first replicas take calls, the others stand by."""
        started = [one for one in function.replicas.values() if one.state.state in ("ready", "standby")]
        for number, replica in enumerate(started):
            open_ = not function.standbys() or number < function.running() + function.activated
            replica.state = replace(replica.state, state="ready" if open_ else "standby")

    async def _reconcile(self, function: _Function) -> None:
        total = function.running() + function.standbys()
        while len(function.replicas) > total:
            self._drop(function, list(function.replicas.values())[-1])
        while not function.deleted and len(function.replicas) < total:
            function.made += 1
            replica_id = f"{function.spec.name}-{function.made}"
            replica = FakeReplica(
                replica_id,
                function.program,
                lambda instance, text: self._log(function, instance, text),
                whole_number(function.spec.env_vars, "max_inflight", 0),
                Replica(replica_id, "", "starting", started_at_s=time.time()),
            )
            function.replicas[replica_id] = replica
            await replica.listen()
            if not self.hold_starts:
                self._ready(replica)
        self._open(function)
        self._changed()

    def _ready(self, replica: FakeReplica) -> None:
        if replica.state.state == "starting":
            replica.state = replace(replica.state, state="ready")
            self._start_seconds.append(0.001)

    def _drop(self, function: _Function, replica: FakeReplica) -> None:
        replica.end()
        function.replicas.pop(replica.id, None)
        self._changed()

    def _end(self, function: _Function) -> None:
        function.deleted = True
        for replica in list(function.replicas.values()):
            self._drop(function, replica)

    def _log(self, function: _Function, instance: str, text: str) -> None:
        function.lines.append(LogLine(function.spec.name, function.spec.namespace, instance, time.time(), text))
        self._changed()


def _restarting(spec: FunctionSpec) -> dict[str, str]:
    return {key: value for key, value in spec.env_vars.items() if key != "max_inflight"}

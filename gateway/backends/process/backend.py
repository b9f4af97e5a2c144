"""The process backend itself: :class:`gateway.contract.Backend` over forked processes."""

from __future__ import annotations

import asyncio
import builtins
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.activations import Key, Leases
from gateway.backends.attempts import attempt
from gateway.backends.process.cgroup.usage import measure
from gateway.backends.process.function import ManagedFunction
from gateway.backends.process.gpu.shares import GpuShares
from gateway.backends.process.logs import FunctionLog
from gateway.backends.process.machines import MACHINE_VARIABLE, MachineFolders, check_machines, memory_root
from gateway.backends.process.probes import probe
from gateway.backends.process.programs import Prepared, is_command, prepare
from gateway.backends.process.record import Context, Record
from gateway.backends.process.replica_changes import STARTED, Exchanges
from gateway.backends.process.run_folders import LIVE_SETTINGS, RunFolders
from gateway.backends.process.secret import mount as secret_mount
from gateway.backends.process.secret.files import SecretFiles
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.users import CommandUsers
from gateway.backends.process.users import possible as users_possible
from gateway.backends.process.workers.launcher import Launcher
from gateway.changes import Changes
from gateway.contract import (
    DEFAULT_NAMESPACE,
    Activation,
    BackendInfo,
    ConflictError,
    FunctionSpec,
    FunctionState,
    LogLine,
    Namespace,
    NotFoundError,
    Usage,
)
from gateway.specs import check_namespace

log = logging.getLogger(__name__)


class ProcessBackend(Changes):
    """Functions on this machine. To be made inside a running event loop; :meth:`start` starts it."""

    def __init__(self, settings: ProcessSettings, gpus: GpuShares | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._functions: dict[str, ManagedFunction] = {}
        self._run = RunFolders(memory_root(Path(tempfile.gettempdir())))
        self._users = CommandUsers(possible=settings.command_users and users_possible())
        self._secrets = SecretFiles(settings.state, self._run)
        self.machines: MachineFolders | None = None
        if settings.machines:
            check_machines(settings.machines)
            settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.machines = MachineFolders(settings.machines, settings.memory_root or memory_root(settings.state))
        folders = (self._run, self.machines) if self.machines else (self._run,)
        self.launcher = Launcher(settings, tuple(locked.folder for locked in folders))
        self.gpus = gpus or GpuShares(settings)
        self._start_seconds: list[float] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._leaving: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._leases = Leases(self._activate)
        self._context = Context(
            settings=settings,
            launcher=self.launcher,
            starts=asyncio.Semaphore(settings.concurrent_starts),
            exchanges=Exchanges(settings.exchanges),
            gpus=self.gpus,
            machine_environment=self._machine_environment,
            start_seconds=self._start_seconds,
            changed=self._changed,
            spawn=self._spawn,
        )

    async def start(self) -> None:
        """Look for GPUs, start the warm parent and the measuring. Raises BackendError."""
        await self.gpus.find()
        await self.launcher.start()
        self._spawn(self._forever(self._measure_all, self._settings.usage_interval_s))
        self._spawn(self._forever(self._probe_all, self._settings.probe_interval_s))

    async def close(self) -> None:
        """Drain and end every replica, then the warm parent; nothing is left running."""
        self._closing = True
        self._leases.close()
        functions, self._functions = list(self._functions.values()), {}
        await asyncio.gather(*(function.end() for function in functions), *self._leaving)
        for function in functions:
            function.lines.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.launcher.close()
        await self.gpus.close()
        if self.machines is not None:
            self.machines.close()
        self._run.close()
        self._changed()

    def info(self) -> BackendInfo:
        notes = [
            *self.launcher.cgroups.notes,
            *self.gpus.notes(),
            "constraints and readOnlyRootFilesystem are kept but have no effect: replicas are plain processes.",
        ]
        if not self._users.possible:
            notes.append(
                "Commands (fprocess) run as this gateway's user and can read its password and all secrets; a gateway "
                "that runs as root gives each an unprivileged user of its own."
            )
        if not secret_mount.possible():
            notes.append(
                "Secrets are files under the folder named by the environment variable secret_mount_path, "
                f"not under {secret_mount.SECRETS}: this gateway may not make mount namespaces (CAP_SYS_ADMIN)."
            )
        if self._settings.cpu_scale != 1:
            notes.append(f"One configured CPU core is {self._settings.cpu_scale:g} of a real one (cpu_scale).")
        return BackendInfo("smoe-process", "process", __version__, tuple(notes), standbys=True)

    def namespaces(self) -> builtins.list[Namespace]:
        return [Namespace(DEFAULT_NAMESPACE)]

    def check_namespace(self, namespace: str) -> None:
        check_namespace(namespace)

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        if self._closing:
            raise ConflictError("the gateway is shutting down")
        if spec.key in self._functions:
            raise ConflictError(f"function {spec.key} exists already")
        prepared = self._prepare(spec)
        settings = self._settings
        folder = settings.state / "logs" / spec.key
        lines = FunctionLog(
            spec.name, spec.namespace, folder, settings.log_lines, settings.log_file_bytes, settings.log_files
        )
        live_settings = self._run.of(spec.key) / LIVE_SETTINGS
        key = self._run.caller_key(spec.key) if settings.caller_keys else ""
        function = ManagedFunction(spec, prepared, replicas, live_settings, lines, self._context, key)
        self._functions[spec.key] = function
        self._changed()
        function.reconcile()

    async def update(self, spec: FunctionSpec) -> None:
        function = self.function(spec.name, spec.namespace)
        function.update(spec, self._prepare(spec))

    async def delete(self, name: str, namespace: str) -> None:
        function = self.function(name, namespace)
        del self._functions[function.spec.key]
        self.gpus.seats.forget(function.spec.key)
        self._changed()
        task = self._spawn(self._end(function))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        self.function(name, namespace).scale(replicas)

    async def activate(self, activation: Activation) -> None:
        self._leases.put(activation)

    def _activate(self, levels: Mapping[Key, int]) -> None:
        for function in self._functions.values():
            function.activate(levels.get((function.spec.name, function.spec.namespace), 0))

    def get(self, name: str, namespace: str) -> FunctionState:
        return self.function(name, namespace).state()

    async def look(self, name: str, namespace: str) -> FunctionState:
        return self.get(name, namespace)

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]:
        functions = self._functions.values()
        return [function.state() for function in functions if namespace in (None, function.spec.namespace)]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        return {record.id: record.usage for record in self.function(name, namespace).replicas.values()}

    def start_seconds(self) -> builtins.list[float]:
        taken = list(self._start_seconds)
        self._start_seconds.clear()
        return taken

    def report_failure(self, name: str, namespace: str, replica_id: str) -> None:
        function = self._functions.get(f"{name}.{namespace}")
        record = function.replicas.get(replica_id) if function else None
        if function and record and record.state == "ready":
            self._spawn(self._look_at(function, record))

    def logs(
        self, name: str, namespace: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        lines = self.function(name, namespace).lines
        return lines.read(instance=instance, since_s=since_s, tail=tail, follow=follow)

    def secret_names(self, namespace: str) -> builtins.list[str]:
        return self._secrets.names(namespace)

    async def put_secret(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        self._secrets.put(name, namespace, value, create=create)

    async def delete_secret(self, name: str, namespace: str) -> None:
        self._secrets.delete(name, namespace)

    def _prepare(self, spec: FunctionSpec) -> Prepared:
        self._secrets.check(spec)
        try:
            user = self._users.of(spec.key) if is_command(spec, self._settings) else None
        except ValueError as error:
            raise ConflictError(str(error)) from error
        prepared = prepare(spec, self._settings, self._run.of(spec.key), len(self.gpus.seats.gpus), user)
        self._run.make(spec.key, user)
        self._secrets.mount(spec)
        return prepared

    def _machine_environment(self, machine: str) -> dict[str, str]:
        if self.machines is None or not machine:
            return {}
        return {MACHINE_VARIABLE: machine, "smoe_weights_dir": str(self.machines.of(machine))}

    def function(self, name: str, namespace: str) -> ManagedFunction:
        """The function itself, with records of its replicas. Raises NotFoundError."""
        try:
            return self._functions[f"{name}.{namespace}"]
        except KeyError:
            raise NotFoundError(f"there is no function {name} in namespace {namespace}") from None

    async def _end(self, function: ManagedFunction) -> None:
        """Drain a deleted function; its files go unless it was deployed again meanwhile."""
        await function.end()
        function.lines.close()
        if function.spec.key not in self._functions:
            self._run.remove(function.spec.key)
            self._users.forget(function.spec.key)

    def _records(self) -> builtins.list[tuple[ManagedFunction, Record]]:
        return [(function, record) for function in self._functions.values() for record in function.replicas.values()]

    async def _measure_all(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for function, record in self._records():
            if record.slot:
                measure(record, self.launcher.measure(record.slot), now_s)
                if record.memory_waits:
                    function.apply_limits(record)

    async def _probe_all(self) -> None:
        for function, record in self._records():
            if record.state not in STARTED:
                continue
            if await probe(record.address, self._settings.probe_timeout_s) == "answers":
                record.probe_failures = 0
                continue
            record.probe_failures += 1
            if record.probe_failures >= self._settings.probe_failures:
                function.kill(record, f"did not answer {record.probe_failures} health probes in a row: killed")

    async def _look_at(self, function: ManagedFunction, record: Record) -> None:
        """Someone could not connect: only a refused connection is proof, a slow replica is left alone."""
        if await probe(record.address, self._settings.probe_timeout_s) == "refuses" and record.state == "ready":
            function.kill(record, "refused connections although its process was alive: killed")

    async def _forever(self, work: Any, interval_s: float) -> None:
        while True:
            began_s = time.monotonic()
            await attempt(work)
            await asyncio.sleep(max(0.05, interval_s - (time.monotonic() - began_s)))

    def _spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the process backend failed", exc_info=error)

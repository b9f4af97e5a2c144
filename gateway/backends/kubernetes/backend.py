"""The Kubernetes backend itself: :class:`gateway.contract.Backend` over the namespaces of a cluster."""

from __future__ import annotations

import asyncio
import builtins
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from gateway import __version__
from gateway.activations import Key, Leases
from gateway.backends.kubernetes.api import Api
from gateway.backends.kubernetes.connection import Connection, connect
from gateway.backends.kubernetes.namespaces import Namespaces
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.kubernetes.space import Space
from gateway.changes import Changes
from gateway.contract import (
    DEFAULT_NAMESPACE,
    Activation,
    BackendError,
    BackendInfo,
    FunctionSpec,
    FunctionState,
    InvalidSpecError,
    LogLine,
    Namespace,
    NotFoundError,
    Usage,
)
from gateway.specs import check_namespace

log = logging.getLogger(__name__)

OLDEST = (1, 30)
"""Pods that sleep before they get SIGTERM."""
RESIZES = (1, 33)


class KubernetesBackend(Changes):
    """Functions in one namespace of a cluster or in all that are for functions. Made inside a running event loop;
    ``connection`` is for tests."""

    def __init__(self, settings: KubernetesSettings, connection: Connection | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._connection = connection or connect(settings.kubeconfig)
        self._tasks: list[asyncio.Task[Any]] = []
        self._server = (0, 0)
        self.api = Api(self._connection, settings)
        self.spaces: dict[str, Space] = {}
        """Namespaces served, by the name that clients know; the first is home."""
        self._unread: dict[str, str] = {}
        """Namespace that is for functions → why it could not be read."""
        self._start_seconds: builtins.list[float] = []
        """Start times not yet taken, in namespaces that are no longer served."""
        self._leases = Leases(self._activate)
        self._namespaces = Namespaces(self.api, settings) if settings.all_namespaces else None

    async def start(self) -> None:
        """Read the cluster once, then follow it. Raises BackendError where the API server cannot be read."""
        version = await self.api.get("/version")
        self._server = (_number(version.get("major")), _number(version.get("minor")))
        if self._server < OLDEST:
            raise BackendError(
                f"the API server is Kubernetes {self._server[0]}.{self._server[1]}; "
                f"this gateway needs {OLDEST[0]}.{OLDEST[1]} or later"
            )
        await self._open(DEFAULT_NAMESPACE)
        if self._namespaces is not None:
            await self._namespaces.load()
            await self._open_and_close(self._namespaces)
            following = (self._namespaces.follow(), self._attend(self._namespaces))
            self._tasks = [asyncio.create_task(task) for task in following]

    async def close(self) -> None:
        """Stop following. Functions run on: the cluster holds them, and another gateway may serve them."""
        self._leases.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(space.close() for space in self.spaces.values()))
        await self.api.close()
        self._changed()

    def info(self) -> BackendInfo:
        notes = ["Functions outlive this gateway; closing it drains nothing."]
        if self._server < RESIZES:
            notes.append(
                f"Kubernetes {self._server[0]}.{self._server[1]} cannot resize pods (1.33 can): "
                "a change of limits is a rolling update."
            )
        if any(space.measured is False for space in self.spaces.values()):
            notes.append("The cluster has no metrics.k8s.io: usage of replicas is not known here.")
        if self._settings.gpu_memory_mb is None:
            notes.append("gpu_memory_mb is not set: a GPU's tenths share its memory without a limit.")
        notes += [_unread(name, why) for name, why in sorted(self._unread.items())]
        notes += [note for space in self.spaces.values() for note in space.notes()]
        return BackendInfo("smoe-kubernetes", "kubernetes", __version__, tuple(notes), standbys=True)

    def namespaces(self) -> builtins.list[Namespace]:
        if self._namespaces is None:
            return [Namespace(DEFAULT_NAMESPACE)]
        return [self._namespaces.of(name) for name in sorted(self.spaces)]

    def check_namespace(self, namespace: str) -> None:
        if namespace in self.spaces:
            return
        if self._namespaces is None:
            check_namespace(namespace)
            return
        if namespace in self._unread:
            raise InvalidSpecError(_unread(namespace, self._unread[namespace]))
        there = ", ".join(sorted(self.spaces))
        why_not = self._namespaces.why_not(namespace) or f"namespace {namespace!r} is not followed yet"
        raise InvalidSpecError(f"{why_not}; there is {there}")

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        await self._space(spec.namespace).create(spec, replicas)

    async def update(self, spec: FunctionSpec) -> None:
        await self._space(spec.namespace).update(spec)

    async def delete(self, name: str, namespace: str) -> None:
        await self._space(namespace).delete(name)

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        await self._space(namespace).scale(name, replicas)

    async def activate(self, activation: Activation) -> None:
        self._leases.put(activation)

    def _activate(self, levels: Mapping[Key, int]) -> None:
        for namespace, space in self.spaces.items():
            space.activate({name: count for (name, of), count in levels.items() if of == namespace})

    def get(self, name: str, namespace: str) -> FunctionState:
        return self._space(namespace).get(name)

    async def look(self, name: str, namespace: str) -> FunctionState:
        return await self._space(namespace).look(name)

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]:
        spaces = [space for name, space in self.spaces.items() if namespace in (None, name)]
        return [state for space in spaces for state in space.list()]

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        return self._space(namespace).usage(name)

    def start_seconds(self) -> builtins.list[float]:
        taken, self._start_seconds = self._start_seconds, []
        return taken + [seconds for space in self.spaces.values() for seconds in space.start_seconds()]

    def report_failure(self, name: str, namespace: str, replica_id: str) -> None:
        """The kubelet's probes decide; the endpoints show it."""
        log.debug("a call could not connect to %s of %s.%s", replica_id, name, namespace)

    def logs(
        self, name: str, namespace: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        space = self._space(namespace)
        return space.logs(name, instance=instance, since_s=since_s, tail=tail, follow=follow)

    def secret_names(self, namespace: str) -> builtins.list[str]:
        return self._space(namespace).secret_names()

    async def put_secret(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        await self._space(namespace).put_secret(name, value, create=create)

    async def delete_secret(self, name: str, namespace: str) -> None:
        await self._space(namespace).delete_secret(name)

    # inside

    def _space(self, namespace: str) -> Space:
        space = self.spaces.get(namespace)
        if space is None:
            try:
                self.check_namespace(namespace)
            except InvalidSpecError as error:
                raise NotFoundError(str(error)) from None
            raise NotFoundError(f"namespace {namespace!r} is not followed yet")  # before the start
        return space

    async def _open(self, name: str) -> None:
        """Follow a namespace. Raises BackendError."""
        settings = self._settings if name == DEFAULT_NAMESPACE else replace(self._settings, namespace=name)
        space = Space(self.api, settings, name, resizes=self._server >= RESIZES, changed=self._changed)
        await space.start()
        self.spaces[name] = space

    async def _attend(self, namespaces: Namespaces) -> None:
        """Open and close namespaces as their owners annotate them; those that could not be read are tried again."""
        while True:
            await namespaces.next_change(self._settings.resync_s)
            await self._open_and_close(namespaces)

    async def _open_and_close(self, namespaces: Namespaces) -> None:
        wanted = namespaces.annotated()
        for name in self._unread.keys() - wanted:
            del self._unread[name]
        for name in self.spaces.keys() - wanted - {DEFAULT_NAMESPACE}:
            space = self.spaces.pop(name)
            self._start_seconds += space.start_seconds()
            await space.close()
            log.info("namespace %s is served no longer", name)
        for name in sorted(wanted - self.spaces.keys()):
            try:
                await self._open(name)
            except BackendError as error:
                if name not in self._unread:
                    log.warning("%s", _unread(name, str(error)))
                self._unread[name] = str(error)
            else:
                self._unread.pop(name, None)
                log.info("namespace %s is served", name)


def _unread(name: str, why: str) -> str:
    return f"namespace {name} is for functions, but this gateway cannot read it: {why}"


def _number(text: object) -> int:
    digits = "".join(character for character in str(text) if character.isdigit())
    return int(digits) if digits else 0

"""The Kubernetes backend itself: :class:`gateway.contract.Backend` over Deployments, Services and pods."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any

from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.api import Api, ApiError, Object, UnreachableError
from gateway.backends.kubernetes.connection import Connection, connect
from gateway.backends.kubernetes.functions import Functions
from gateway.backends.kubernetes.informer import Informer
from gateway.backends.kubernetes.keeper import Keeper
from gateway.backends.kubernetes.live import FUNCTION_LABEL, live_of
from gateway.backends.kubernetes.logs import PodLogs
from gateway.backends.kubernetes.pods import addresses, is_ready, moment, replicas, restarts
from gateway.backends.kubernetes.secrets import SELECTOR, Secrets
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.kubernetes.usage import PodUsage
from gateway.backends.process.placement import parse_placement
from gateway.contract import (
    BackendError,
    BackendInfo,
    ConflictError,
    FunctionSpec,
    FunctionState,
    InvalidSpecError,
    LogLine,
    NotFoundError,
    Usage,
)
from gateway.specs import MAX_REPLICAS

log = logging.getLogger(__name__)

OLDEST = (1, 30)
"""Pods that sleep before they are told to end."""
RESIZES = (1, 33)
_DELETE_OPTIONS = {"apiVersion": "v1", "kind": "DeleteOptions"}


class KubernetesBackend:
    """Functions in a namespace of a cluster. Made inside a running event loop; ``connection`` is for tests."""

    def __init__(self, settings: KubernetesSettings, connection: Connection | None = None) -> None:
        self._settings = settings
        self._connection = connection or connect(settings.kubeconfig)
        self._version = 0
        self._change = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._server = (0, 0)
        self._seen_starting: dict[str, float] = {}
        """Pod → when this gateway saw it without being ready (monotonic)."""
        self._start_seconds: builtins.list[float] = []
        self._states: dict[str, FunctionState | None] = {}
        """Put together once per change of a function; None: not one of ours."""
        self._touched: set[str] = set()
        """Functions that changed since their pods were last looked at."""
        self._api = Api(self._connection, settings)
        core, space = "/api/v1/namespaces", settings.namespace
        self._pods_path = f"{core}/{space}/pods"
        self._deployments_path = f"/apis/apps/v1/namespaces/{space}/deployments"
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
        selector, changed = FUNCTION_LABEL, self._changed
        self._deployments = Informer(self._api, self._deployments_path, selector, settings, changed)
        self._pods = Informer(self._api, self._pods_path, selector, settings, self._pods_changed)
        self._slices = Informer(self._api, slices, selector, settings, changed)
        self._secret_names = Informer(
            self._api, f"{core}/{space}/secrets", SELECTOR, settings, changed, metadata_only=True
        )
        self._secrets = Secrets(self._api, space)
        self._usage = PodUsage(self._api, space, selector)
        self._keeper = Keeper(self._api, self._pods_path)
        self._functions = Functions(self._api, self._deployments, settings)

    async def start(self) -> None:
        """Read the cluster once, then follow it. Raises BackendError where the API server cannot be read."""
        version = await self._api.get("/version")
        self._server = (_number(version.get("major")), _number(version.get("minor")))
        if self._server < OLDEST:
            raise BackendError(
                f"the API server is Kubernetes {self._server[0]}.{self._server[1]}; "
                f"this gateway needs {OLDEST[0]}.{OLDEST[1]} or later"
            )
        informers = (self._deployments, self._pods, self._slices, self._secret_names)
        await asyncio.gather(*(one.load() for one in informers))
        self._tasks = [asyncio.create_task(one.follow()) for one in informers]
        self._tasks.append(asyncio.create_task(self._keep()))
        self._tasks.append(asyncio.create_task(self._forever(self._usage.measure, self._settings.usage_interval_s)))

    async def close(self) -> None:
        """Stop following. Functions run on: the cluster holds them, and another gateway may serve them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()
        self._changed(None)

    def info(self) -> BackendInfo:
        try:
            version = metadata.version("smoe")
        except metadata.PackageNotFoundError:
            version = "dev"
        notes = ["Functions outlive this gateway; closing it drains nothing."]
        if not self._resizes:
            notes.append(
                f"Kubernetes {self._server[0]}.{self._server[1]} cannot resize pods (1.33 can): "
                "a change of limits is a rolling update."
            )
        if self._usage.available is False:
            notes.append("The cluster has no metrics.k8s.io: usage of replicas is not known here.")
        if self._settings.gpu_memory_mb is None:
            notes.append("gpu_memory_mb is not set: a GPU's tenths share its memory without a limit.")
        notes += self._keeper.notes()
        return BackendInfo("smoe-kubernetes", "kubernetes", version, tuple(notes))

    async def create(self, spec: FunctionSpec, replicas: int) -> None:
        _check_count(replicas)
        objects.check(spec)
        if spec.name in self._deployments.objects or await self._functions.read(spec.name) is not None:
            raise ConflictError(f"function {spec.key} exists already")
        await self._functions.create(spec, replicas, await self._secrets.pull_secrets(spec))

    async def update(self, spec: FunctionSpec) -> None:
        objects.check(spec)
        pull = await self._secrets.pull_secrets(spec)
        document = await self._functions.read(spec.name)
        before = None if document is None else objects.spec_of(document)
        if document is None or before is None:
            raise _missing(spec.name, spec.namespace)
        live = objects.only_live_differs(before, spec) and (
            self._resizes or (before.limits, before.requests) == (spec.limits, spec.requests)
        )
        if live:
            await self._functions.change_metadata(spec)
            if await self._keeper.keep(spec.name, live_of(spec), self._pods_of(spec.name)):
                return
            log.info("function %s: its pods cannot be resized where they are, so they are replaced", spec.key)
        await self._functions.roll_out(spec, pull)
        places = parse_placement(spec)
        if places and places != parse_placement(before):
            await self._functions.scale(spec.name, sum(places.values()))

    async def delete(self, name: str, namespace: str) -> None:
        self._state(name, namespace)
        try:
            await self._api.call(
                "DELETE", f"{self._deployments_path}/{name}", {**_DELETE_OPTIONS, "propagationPolicy": "Background"}
            )
        except ApiError as error:
            if error.code != 404:
                raise
        self._deployments.drop(name)

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        _check_count(replicas)
        self._state(name, namespace)
        await self._functions.scale(name, replicas)

    def get(self, name: str, namespace: str) -> FunctionState:
        return self._state(name, namespace)

    def list(self, namespace: str | None = None) -> builtins.list[FunctionState]:
        states = (self._known(name) for name in self._deployments.objects)
        return [state for state in states if state is not None and namespace in (None, state.spec.namespace)]

    def version(self) -> int:
        return self._version

    async def wait_change(self, seen_version: int, timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._version == seen_version:
                    await self._change.wait()
        return self._version

    def usage(self, name: str, namespace: str) -> Mapping[str, Usage]:
        return {replica.id: self._usage.of(replica.id) for replica in self._state(name, namespace).replicas}

    def start_seconds(self) -> builtins.list[float]:
        taken, self._start_seconds = self._start_seconds, []
        return taken

    def report_failure(self, name: str, namespace: str, replica_id: str) -> None:
        """The kubelet's probes decide; the endpoints show it."""
        log.debug("a call could not connect to %s of %s.%s", replica_id, name, namespace)

    def logs(
        self, name: str, namespace: str, *, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        self._state(name, namespace)

        def pods() -> builtins.list[str] | None:
            return None if self._known(name) is None else [pod["metadata"]["name"] for pod in self._pods_of(name)]

        async def changed() -> None:
            await self.wait_change(self._version, 60.0)

        return PodLogs(self._api, self._pods_path, name, namespace, pods, changed).read(instance, since_s, tail, follow)

    def secret_names(self, namespace: str) -> builtins.list[str]:
        return sorted(self._secret_names.objects)

    async def put_secret(self, name: str, namespace: str, value: bytes, *, create: bool) -> None:
        self._secret_names.put(await self._secrets.put(name, value, create=create))

    async def delete_secret(self, name: str, namespace: str) -> None:
        await self._secrets.delete(name)
        self._secret_names.drop(name)

    # inside

    @property
    def _resizes(self) -> bool:
        return self._server >= RESIZES

    def _state(self, name: str, namespace: str) -> FunctionState:
        state = self._known(name)
        if state is None or state.spec.namespace != namespace:
            raise _missing(name, namespace)
        return state

    def _known(self, name: str) -> FunctionState | None:
        document = self._deployments.objects.get(name)
        if document is None:
            return None
        if name not in self._states:
            self._states[name] = self._put_together(name, document)
        return self._states[name]

    def _put_together(self, name: str, document: Object) -> FunctionState | None:
        spec = objects.spec_of(document)
        if spec is None:
            return None
        pods = self._pods_of(name)
        return FunctionState(
            spec=spec,
            desired_replicas=document["spec"].get("replicas", 1),
            replicas=replicas(pods, addresses(self._slices.by_function.get(name, {}).values())),
            max_inflight=live_of(spec).max_inflight,
            created_at_s=moment(document["metadata"].get("creationTimestamp")),
            restarts=restarts(pods),
        )

    def _pods_of(self, name: str) -> builtins.list[Object]:
        return list(self._pods.by_function.get(name, {}).values())

    def _changed(self, function: str | None) -> None:
        if function is None:
            self._states.clear()
            self._touched.update(self._deployments.objects)
        elif function:
            self._states.pop(function, None)
            self._touched.add(function)
        self._version += 1
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()

    def _pods_changed(self, function: str | None) -> None:
        """Times starts from first sight of a pod until it is seen ready; those that were ready before are not timed."""
        now_s = time.monotonic()
        for pod in self._pods.objects.values() if function is None else self._pods_of(function):
            name = pod["metadata"]["name"]
            if not is_ready(pod):
                self._seen_starting.setdefault(name, now_s)
            elif (begun_s := self._seen_starting.pop(name, None)) is not None:
                self._start_seconds.append(max(1e-6, now_s - begun_s))
        self._changed(function)

    async def _keep(self) -> None:
        """Bring pods in line whenever something changes, and all of them now and then."""
        version, next_s = -1, 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= next_s:
                self._touched.update(self._deployments.objects)
                next_s = now_s + self._settings.resync_s
                self._forget_gone()
            names, self._touched = self._touched, set()
            try:
                await self._keep_in_line(names)
            except (ApiError, UnreachableError) as error:
                log.warning("pods could not all be brought in line, it is tried again: %s", error)
                self._touched |= names
                await asyncio.sleep(1.0)
            version = await self.wait_change(version, max(0.0, next_s - time.monotonic()))

    async def _keep_in_line(self, names: set[str]) -> None:
        for name in sorted(names):
            state, document = self._known(name), self._deployments.objects.get(name)
            if state is None or document is None:
                continue
            if name not in self._slices.by_function and not await self._functions.has_service(name):
                await self._functions.serve(state.spec, document)  # a create was cut off before it came to this
            if self._resizes:
                await self._keeper.keep(name, live_of(state.spec), self._pods_of(name))

    def _forget_gone(self) -> None:
        self._keeper.forget(self._pods.objects)
        for name in self._seen_starting.keys() - self._pods.objects.keys():
            del self._seen_starting[name]

    @staticmethod
    async def _forever(work: Callable[[], Awaitable[None]], interval_s: float) -> None:
        while True:
            await work()
            await asyncio.sleep(interval_s)


def _missing(name: str, namespace: str) -> NotFoundError:
    return NotFoundError(f"there is no function {name} in namespace {namespace}")


def _check_count(replicas: int) -> None:
    if not 0 <= replicas <= MAX_REPLICAS:
        raise InvalidSpecError(f"replicas is {replicas}; it must be between 0 and {MAX_REPLICAS}")


def _number(text: object) -> int:
    digits = "".join(one for one in str(text) if one.isdigit())
    return int(digits) if digits else 0

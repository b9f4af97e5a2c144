"""Namespaces of a cluster that a test run makes and removes again, however it ends."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from autoscaler.errors import FunctionGoneError, PlatformError
from autoscaler.platforms.kubernetes import KubernetesClient
from autoscaler.platforms.kubernetes import connect as connect_controller
from autoscaler.platforms.kubernetes.client import STRATEGIC, Object
from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import FunctionSpec
from tests.doubles.kubernetes.functions import RUN_IMAGE

KUBECONFIG = os.environ.get("SMOE_TEST_KUBECONFIG", "")
WAIT_S = 120.0 if KUBECONFIG else 30.0
PULL = "IfNotPresent"
REMOVED_S = 180.0
"""How long a cluster may take to empty and remove a namespace."""
RUN = "smoe.test-run"
CLUSTER = [pytest.param("cluster", marks=pytest.mark.cluster)] if KUBECONFIG else []
"""One more parameter for suites that run on a cluster too, where one is named."""


class Asking(KubernetesClient):
    """The controller's client with the verbs that tests need besides; raises as it does."""

    def create(self, path: str, document: Object) -> Object:
        """``path`` below the namespace's, such as ``pods``, with the group before it where there is one."""
        return self._call("POST", self._at(path), path, document)

    def read(self, path: str) -> Object:
        return self._call("GET", self._at(path), path)

    def patch(self, path: str, patch: Object) -> Object:
        return self._call("PATCH", self._at(path), path, patch, content_type=STRATEGIC)

    def delete(self, path: str, **options: Any) -> Object:
        return self._call("DELETE", self._at(path), path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _at(self, path: str) -> str:
        group, slash, rest = path.rpartition(":")
        root = f"/apis/{group}" if slash else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{rest}" if rest else f"{root}/namespaces/{self.namespace}"

    def make_namespace(self, labels: dict[str, str]) -> None:
        document = {"metadata": {"name": self.namespace, "labels": labels}}
        self._call("POST", "/api/v1/namespaces", "namespaces", document)

    def _path(self, resource: str) -> str:
        return "/api/v1/namespaces" if resource == "namespaces" else super()._path(resource)

    def deploy(self, function: FunctionSpec, replicas: int = 1) -> None:
        """As the gateway would."""
        settings = KubernetesSettings(namespace=self.namespace, image_pull_policy=PULL)
        document = objects.deployment(function, settings, frozenset())
        document["spec"]["replicas"] = replicas
        made = self.create("apps/v1:deployments", document)
        self.create("services", objects.service(function, made, settings))

    def writes(self) -> int:
        return sum(count for (verb, _, _), count in self.calls.items() if verb not in ("GET", "WATCH"))


START_S = 0.1
"""What a pod takes to be ready: none is before those who watch have seen it, or its start cannot be timed."""


class Kubelet:
    """What no kubelet does where there is none, or a faked one that leaves pods as they are.

    Pods that are not ready are said to be, with an address, and pods that are to end are gone. Where a kubelet was
    faster there is nothing left to do.
    """

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._ended = threading.Event()
        self._cut: Callable[[], None] = lambda: None
        self._addresses: dict[str, str] = {}
        """Of pods by uid: one that is looked at again before its address is seen keeps it."""
        self._thread = threading.Thread(target=self._run, name=f"kubelet of {asking.namespace}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        with suppress(ValueError, OSError):  # the watch has ended by itself
            self._cut()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for pod in self._pods():
                    self._serve(pod)
            except PlatformError:
                self._ended.wait(0.2)  # a watch that broke off, or a pod that somebody else changed

    def _pods(self) -> Iterator[Object]:
        reported: list[str] = []
        yield from list(self._asking.listed("pods", "faas_function", reported.append))
        for kind, pod in self._asking.watch("pods", "faas_function", reported[-1], 60, self._opened):
            if kind in ("ADDED", "MODIFIED"):
                yield pod

    def _opened(self, cut: Callable[[], None]) -> None:
        self._cut = cut
        if self._ended.is_set():
            cut()

    def _serve(self, pod: Object) -> None:
        meta, status = pod["metadata"], pod.get("status", {})
        if "deletionTimestamp" in meta:
            self._asking.delete(f"pods/{meta['name']}", gracePeriodSeconds=0)
        elif not any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or ()):
            self._ended.wait(START_S)
            self._asking.patch(f"pods/{meta['name']}/status", {"status": self._ready(pod)})

    def _ready(self, pod: Object) -> Object:
        next_one = f"10.99.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}"
        address = pod["status"].get("podIP") or self._addresses.setdefault(pod["metadata"]["uid"], next_one)
        containers = [
            {
                "name": one["name"],
                "image": one["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "resources": one.get("resources", {}),
            }
            for one in pod["spec"]["containers"]
        ]
        conditions = [{"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]
        return {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": conditions,
            "containerStatuses": containers,
        }


class Namespaces:
    """Makes namespaces in the cluster of a kubeconfig, and removes them; each has a :class:`Kubelet`, or containers."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._api = connect_controller(kubeconfig)
        self._run = uuid.uuid4().hex[:8]
        self._made = 0
        self._kubelets: list[Kubelet] = []

    @contextmanager
    def one(self) -> Iterator[Asking]:
        """A namespace until the end of the block. The cluster then takes its time to remove it: :meth:`close`."""
        self._made += 1
        asking = self._asking(f"smoe-test-{self._run}-{self._made}")
        try:
            with uninterrupted():
                asking.make_namespace({RUN: self._run})
            if not RUN_IMAGE:
                self._kubelets.append(Kubelet(asking))
            yield self._asking(asking.namespace)
        finally:
            with suppress(FunctionGoneError):
                asking.delete("")

    def close(self) -> None:
        """Wait until all are gone. Raises AssertionError for those that stay."""
        end_s = time.monotonic() + REMOVED_S
        left = {f"all of run {self._run}"}  # until the cluster has been asked
        while left and time.monotonic() < end_s:  # the watch may end before them
            try:
                left = self._left(end_s)
            except PlatformError:
                time.sleep(0.5)  # a cluster that is busy now, or a connection that an interrupt broke off
        for kubelet in self._kubelets:
            kubelet.end()
        self._api.close()
        assert not left, f"the cluster did not remove these namespaces within {REMOVED_S:g} s: {', '.join(left)}"

    def _left(self, end_s: float) -> set[str]:
        """Those that are there still when the last one goes, or the watch ends."""
        asking, reported, selector = self._asking("default"), list[str](), f"{RUN}={self._run}"
        listed = list(asking.listed("namespaces", selector, reported.append))
        for one in listed:
            if "deletionTimestamp" not in one["metadata"]:  # an interrupt came just before it was removed
                with suppress(FunctionGoneError):  # the call that was broken off was served all the same
                    self._asking(one["metadata"]["name"]).delete("")
        left = {one["metadata"]["name"] for one in listed}
        seconds = max(1, round(end_s - time.monotonic()))
        for kind, document in (
            asking.watch("namespaces", selector, reported[-1], seconds, lambda cut: None) if left else ()
        ):
            if kind == "DELETED":
                left.discard(document["metadata"]["name"])
            if not left:
                break
        return left

    def _asking(self, namespace: str) -> Asking:
        return Asking(self._api, namespace)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM are answered after the block, by KeyboardInterrupt: of two calls that cross, one to make and,
    as that was broken off, one to remove, the second may be served first. Other threads are not interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda one, _: came.append(one)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def namespaces_of(kubeconfig: Path) -> Iterator[Namespaces]:
    """Also a run that is told to end (SIGTERM) or interrupted (Ctrl-C) removes its namespaces before."""
    namespaces = Namespaces(kubeconfig)
    # As Ctrl-C, which asyncio's runner answers by cancelling: raised in the midst of a task, KeyboardInterrupt is the
    # task's result, comes again from whoever closes it, and ends the clean-up.
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield namespaces
    finally:
        namespaces.close()
        signal.signal(signal.SIGTERM, before)

"""The controller's side of a cluster: platform, leadership and its own metrics, joined from the settings."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time

from prometheus_client import CollectorRegistry

from autoscaler.errors import UndecidedError
from autoscaler.lease import Elector, LeaseSettings
from autoscaler.platforms.kubernetes import Condition, GpuSettings, KubernetesClient, KubernetesPlatform, Rate, connect
from autoscaler.platforms.kubernetes.metrics import PlatformMetrics
from autoscaler.progress import Progress, stalled_after
from autoscaler.settings import ControllerSettings

log = logging.getLogger("smoe.autoscaler.cluster")


class ClusterSide:
    """Built before the controller, run next to it. ``platform`` is what the controller changes."""

    def __init__(
        self,
        settings: ControllerSettings,
        pipeline: str,
        rate: Rate | None = None,
        progress: Progress | None = None,
        *,
        counted: bool = False,
    ) -> None:
        """Sends nothing yet. ``rate``: another limit of calls than the client's own; ``progress``: called with ticks
        and writes, asked whether they go on; ``counted``: waits to lead no longer than a takeover takes, as its ticks
        are counted. Raises PlatformError where no cluster is named anywhere.
        """
        api = connect(settings.kubeconfig)
        self.progress = progress or Progress(stalled_after(settings.stalled_s, settings.interval_s))
        self._acts = not (settings.dry_run or settings.shadow)
        self._elector: Elector | None = None
        self._leads_within_s = float("inf")
        self._thread: threading.Thread | None = None
        self._logged: tuple[str, ...] = ()
        namespace = settings.kubernetes_namespace or settings.namespace
        if settings.lease is not None and self._acts:
            lease = LeaseSettings(settings.lease, identity())
            store = KubernetesClient(api, namespace, timeout_s=lease.call_s)
            self._elector = Elector(store, lease, goes_on=self.progress.goes_on)
            if counted:
                self._leads_within_s = lease.takeover_s
        client = KubernetesClient(api, namespace, guard=self._before_write, rate=rate)
        gpu = GpuSettings(settings.gpu_memory_mb, settings.gpu_host_ipc)
        wait_s = settings.unschedulable_s
        self.platform = KubernetesPlatform(client, pipeline, gpu=gpu, unschedulable_s=wait_s)
        self._metrics = PlatformMetrics(pipeline, self.conditions, client.calls, self.leads, self.platform.holds.counts)

    def register(self, registry: CollectorRegistry) -> None:
        """Add this side's counters to a registry."""
        registry.register(self._metrics)

    def start(self, stop: threading.Event) -> None:
        """Follow the cluster, and stand for the lease."""
        self.platform.cluster.follow()
        if self._elector is not None:
            self._thread = threading.Thread(target=self._elector.run, args=(stop,), name="lease", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the watches and give the lease back; ``stop`` is set and the last tick has ended."""
        self.platform.close()
        if self._thread is not None and self._elector is not None:
            self._thread.join(timeout=10.0)
            self._elector.release()

    def leads(self) -> bool:
        return self._acts and (self._elector is None or self._elector.leads())

    def wait(self, stop: threading.Event, wait_s: float) -> bool:
        """Whether to end; returns after ``wait_s`` and not before this controller leads (or only watches).

        Raises UndecidedError where ticks are counted and it does not lead in time.
        """
        self.progress.turn()
        ended = stop.wait(wait_s)
        self.progress.turn()
        begun_s = time.monotonic()
        while not ended and self._elector is not None and not self._elector.leads():
            if time.monotonic() - begun_s >= self._leads_within_s:
                waited = f"no tick, as this controller did not lead within {self._leads_within_s:g} s"
                raise UndecidedError(f"{waited}: {self._elector.obstacle()}")
            ended = stop.wait(0.2)
            self.progress.turn()
        return ended

    def keep(self) -> None:
        """After a tick: bring replicas in line, unless this controller only watches. Raises PlatformError."""
        if not self.leads():
            return
        self.platform.keep()
        notes = self.platform.notes()
        if notes != self._logged:
            for note in notes:
                log.info("%s", note)
            self._logged = notes

    def trouble(self) -> str:
        """What is wrong with this side itself, in a sentence; empty where nothing is."""
        if self._thread is not None and not self._thread.is_alive():
            return "nobody stands for the lease any more: its thread has ended"
        return ""

    def _before_write(self) -> None:
        """Raises NotLeaderError where this controller may not act; each write is a sign that its tick goes on."""
        if self._elector is not None:
            self._elector.guard()
        self.progress.sign()

    def conditions(self) -> tuple[Condition, ...]:
        return self.platform.conditions()


def identity() -> str:
    """Who holds a lease: the pod's name and process, unlike any other controller's."""
    return f"{socket.gethostname()}-{os.getpid()}"

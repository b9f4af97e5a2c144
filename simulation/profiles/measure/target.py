"""What a measurement asks of a gateway, and one function under test behind it."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from platform_words.labels import SCALE_MAX, SCALE_MIN
from platform_words.resources import GPU
from simulation.profiles.model.errors import MeasurementError


@dataclass(frozen=True)
class ReplicaSeen:
    """A replica in the gateway's feed."""

    id: str
    address: str
    state: str


@dataclass(frozen=True)
class LogLine:
    """A line of a function's log; ``at_s`` is Unix time."""

    at_s: float
    text: str


@dataclass(frozen=True)
class Snapshot:
    """All replicas of one function when the feed reported them; ``at_s`` is ``time.perf_counter``."""

    at_s: float
    replicas: tuple[ReplicaSeen, ...]

    @property
    def ready(self) -> tuple[ReplicaSeen, ...]:
        return tuple(replica for replica in self.replicas if replica.state == "ready")


class Changes(Protocol):
    """The feed, followed: one snapshot per change."""

    def next(self, timeout_s: float) -> Snapshot:
        """Raises TimeoutError."""


class Gateway(Protocol):
    """The control door of a gateway. Calls raise the caller's own errors, which carry sentences."""

    def deploy(self, deployment: dict[str, Any]) -> str: ...

    def scale(self, name: str, replicas: int) -> None: ...

    def remove(self, name: str) -> None: ...

    def replicas(self, name: str) -> Sequence[ReplicaSeen]:
        """As the feed shows them now."""

    def changes(self, name: str) -> AbstractContextManager[Changes]: ...

    def log_lines(self, name: str, tail: int) -> list[LogLine]:
        """The last lines of the function's log."""


@dataclass(frozen=True)
class Setting:
    """What is set on a function: configured cores or tenths of a GPU, memory limit in MiB, calls at once."""

    cpu_cores: float
    memory_mib: int
    concurrency: int
    gpu_tenths: int = 0


class Function:
    """One deployed function whose limits are changed live, by PUT."""

    def __init__(self, gateway: Gateway, deployment: dict[str, Any], setting: Setting) -> None:
        self._gateway = gateway
        self._deployment = copy.deepcopy(deployment)
        self._deployment["labels"] |= {SCALE_MIN: "1", SCALE_MAX: "8"}
        self.name: str = deployment["service"]
        self.setting = setting
        self._since_s = time.time()

    def start(self, timeout_s: float = 60.0) -> ReplicaSeen:
        """Deploy it and wait for its replica. Raises MeasurementError."""
        self._put()
        return self.wait_ready(timeout_s)

    def resize(self, setting: Setting) -> None:
        """Change limits and concurrency in place; returns when the gateway has answered, which is after it set them."""
        if setting != self.setting:
            self.setting = setting
            self._put()

    def restart(self, setting: Setting) -> None:
        """End the replica and start another under ``setting``; returns before that is ready."""
        self.scale(0)
        self._since_s = time.time()
        self.setting = setting
        self._put()
        self.scale(1)

    def scale(self, replicas: int) -> None:
        """Set the desired number of replicas; for none, wait until they have ended."""
        self._gateway.scale(self.name, replicas)
        if replicas:
            return
        end_s = time.monotonic() + 60.0
        while self._gateway.replicas(self.name):
            if time.monotonic() > end_s:
                raise MeasurementError(f"the replicas of {self.name} did not end within 60 s")
            time.sleep(0.02)

    def wait_ready(self, timeout_s: float = 60.0) -> ReplicaSeen:
        """The one ready replica. Raises MeasurementError with the end of the log when there is none."""
        end_s = time.monotonic() + timeout_s
        while True:
            ready = [replica for replica in self._gateway.replicas(self.name) if replica.state == "ready"]
            if ready:
                return ready[0]
            if self.killed_for_memory() or time.monotonic() > end_s:
                reason = " | ".join(self.last_lines(4)) or "its log is empty"
                raise MeasurementError(f"{self.name} has no ready replica under {self.setting}: {reason}")
            time.sleep(0.02)

    def killed_for_memory(self) -> bool:
        """Whether a replica was killed for its memory since the function was last started."""
        return any("killed because it was out of memory" in line for line in self.last_lines(20))

    def last_lines(self, count: int) -> list[str]:
        """The end of the function's log, as far as it was written since the function was last started."""
        lines = self._gateway.log_lines(self.name, count)
        return [line.text for line in lines if line.at_s >= self._since_s]

    def changes(self) -> AbstractContextManager[Changes]:
        return self._gateway.changes(self.name)

    def remove(self) -> None:
        self._gateway.remove(self.name)

    def _put(self) -> None:
        setting = self.setting
        limits = {"memory": f"{setting.memory_mib}Mi"}
        if setting.gpu_tenths:
            limits[GPU] = str(setting.gpu_tenths)
        else:
            limits["cpu"] = f"{max(1, round(setting.cpu_cores * 1e6))}u"
        self._deployment["limits"] = limits
        self._deployment["requests"] = {}
        self._deployment["envVars"]["max_inflight"] = str(setting.concurrency)
        self._gateway.deploy(self._deployment)

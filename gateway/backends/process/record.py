"""One replica from the decision to start it until it is gone, and what all functions share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.backends.process.gpu.seats import Gpu
from gateway.backends.process.gpu.shares import GpuShares
from gateway.backends.process.replica_changes import Exchanges
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.workers.launcher import Launcher
from gateway.contract import NOT_MEASURED, ReplicaState, Usage


@dataclass
class Record:
    """One replica from the decision to start it until it is gone."""

    id: str
    generation: int
    order: int
    started_at_s: float
    machine: str = ""
    gpu: Gpu | None = None
    state: ReplicaState = "starting"
    start: asyncio.Task[Any] | None = None
    """What launches it."""
    slot: str = ""
    pid: int | None = None
    address: str = ""
    ready_at_s: float | None = None
    """Loop time."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """It is ready, or gone before it was."""
    reason: str = ""
    """Why we killed it, when we did."""
    memory_waits: bool = False
    """A lower memory limit waits until its use fits."""
    probe_failures: int = 0
    low: bool = False
    """It stands by: its CPU limit is the standbys'."""
    turn: int = 0
    """Grows with each activation and release."""
    usage: Usage = NOT_MEASURED
    measured_at_s: float = 0.0

    def draining(self) -> bool:
        """The state may change at every await, which a type checker does not follow for plain fields."""
        return self.state == "draining"


@dataclass(frozen=True)
class Context:
    """What functions share."""

    settings: ProcessSettings
    launcher: Launcher
    starts: asyncio.Semaphore
    exchanges: Exchanges
    gpus: GpuShares
    machine_environment: Callable[[str], Mapping[str, str]]
    """Environment of replicas on a machine, in addition to their function's."""
    start_seconds: list[float]
    changed: Callable[[], None]
    spawn: Callable[..., asyncio.Task[Any]]

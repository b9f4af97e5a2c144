"""The default pipeline's manifest, and a gateway that keeps everything in memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moe.manifest import Manifest, load
from simulation.profiles.measure.target import LogLine, ReplicaSeen, Snapshot


@pytest.fixture(scope="session")
def minilm(minilm_pipeline: Path) -> Manifest:
    return load(minilm_pipeline, verify=False)


@dataclass
class FakeGateway:
    """Functions whose replicas are ready at once, or never."""

    ready: bool = True
    deployed: dict[str, dict[str, Any]] = field(default_factory=dict)
    puts: list[dict[str, Any]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    lines: list[LogLine] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def deploy(self, deployment: dict[str, Any]) -> str:
        name = deployment["service"]
        verb = "updated" if name in self.deployed else "created"
        self.deployed[name] = deployment
        self.counts.setdefault(name, 1)
        self.puts.append({"limits": dict(deployment["limits"]), "env": dict(deployment["envVars"])})
        return verb

    def scale(self, name: str, replicas: int) -> None:
        self.counts[name] = replicas

    def remove(self, name: str) -> None:
        self.removed.append(name)

    def replicas(self, name: str) -> Sequence[ReplicaSeen]:
        state = "ready" if self.ready else "starting"
        return [ReplicaSeen(f"r{place}", f"127.0.0.1:{4000 + place}", state) for place in range(self.counts[name])]

    @contextmanager
    def changes(self, name: str) -> Iterator[FakeChanges]:
        yield FakeChanges(self, name)

    def log_lines(self, name: str, tail: int) -> list[LogLine]:
        return self.lines[-tail:]


@dataclass
class FakeChanges:
    """The feed of the fake gateway: a snapshot of the present whenever asked."""

    gateway: FakeGateway
    name: str

    def next(self, timeout_s: float) -> Snapshot:

        return Snapshot(time.perf_counter(), tuple(self.gateway.replicas(self.name)))


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway()

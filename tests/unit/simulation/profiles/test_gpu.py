"""Measuring GPU shares through a gateway that is played: its workers are real processes that compute on the CPU."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import gpu_shares
from benchmarks.harness.local_pipeline import WorkerProcess, start_worker
from gateway.backends.process.gpu.shares import Found
from moe.manifest import Manifest, load
from moe.preset import PRESETS, preset_source
from moe.split import split
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.gpu import FAMILIES, GpuSettings, check_shares, measure_gpu
from simulation.profiles.measure.target import LogLine, ReplicaSeen, Snapshot
from simulation.profiles.model.errors import ProfileError
from smoe.deployment import function_deployments

SETTINGS = GpuSettings(
    shares=(0.2, 0.5),
    tokens=(4, 16),
    concurrencies=(1, 2),
    beside=((0.2, 0.8), (0.5, 0.5)),
    beside_tokens=16,
    beside_callers=2,
    calls=6,
    seconds_per_point=0.2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    preset = PRESETS["bert-4"]
    folder = tmp_path_factory.mktemp("gpu") / "tiny"
    split(preset_source(preset, None, 64, 0), folder, "tiny", preset.experts, preset.top_k)
    return folder


@dataclass
class FakeGateway:
    """Exchanges a function's worker when its limits change, as the process backend does with a GPU share."""

    folder: Path
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    limits: dict[str, dict[str, str]] = field(default_factory=dict)
    together: list[int] = field(default_factory=list)
    """Tenths of all workers, after each deployment."""

    def deploy(self, deployment: dict[str, Any]) -> str:
        name = deployment["service"]
        if self.limits.get(name) != deployment["limits"]:
            old = self.workers.pop(name, None)
            environ = {**deployment["envVars"], "smoe_pipeline": str(self.folder), "write_timeout": "1s"}
            self.workers[name] = start_worker(name, environ)
            self.limits[name] = deployment["limits"]
            if old is not None:
                self._end(old)
        self.together.append(sum(int(limits["nvidia.com/gpu"]) for limits in self.limits.values()))
        return name

    def scale(self, name: str, replicas: int) -> None:
        raise AssertionError("shares are not measured by scaling")

    def remove(self, name: str) -> None:
        del self.limits[name]
        self._end(self.workers.pop(name))

    def replicas(self, name: str) -> Sequence[ReplicaSeen]:
        reply = self.workers.get(name)
        return [] if reply is None else [ReplicaSeen(str(reply.pid), reply.address, "ready")]

    @contextmanager
    def changes(self, name: str) -> Iterator[Any]:
        gateway = self

        class Feed:
            def next(self, timeout_s: float) -> Snapshot:
                return Snapshot(time.perf_counter(), tuple(gateway.replicas(name)))

        yield Feed()

    def log_lines(self, name: str, tail: int) -> list[LogLine]:
        return []

    def _end(self, process: WorkerProcess) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def run(folder: Path, gateway: FakeGateway) -> list[Row]:
    manifest: Manifest = load(folder, verify=False)
    deployments = {entry["envVars"]["smoe_nodes"]: entry for entry in function_deployments(manifest)}
    with asyncio.Runner() as runner:
        return measure_gpu(gateway, manifest, deployments, ["expert-0-0"], SETTINGS, runner, lambda what, seconds: None)


@pytest.mark.slow
def test_every_share_size_and_neighbour_gives_a_row_and_nothing_is_left_running(folder: Path) -> None:
    gateway = FakeGateway(folder)
    rows = run(folder, gateway)
    counts = {family: sum(row.family == family for row in rows) for family in FAMILIES}
    assert counts == {"gpu_alone": 4, "gpu_busy": 8, "gpu_beside": 2, "gpu_exchange": 1}
    assert {(row.gpu_share, row.beside_share) for row in rows if row.family == "gpu_beside"} == set(SETTINGS.beside)
    assert all(row.p50_s and row.p50_s > 0 and not row.cpu_cores and not row.share for row in rows)
    assert max(gateway.together) <= 10
    assert gateway.workers == {}
    numbers = gpu_shares.summary(rows, 16)["expert-0-0"]
    assert set(numbers["busy_ms"]) == {"0.2", "0.5"}
    assert set(numbers["beside"]) == {"0.2+0.8", "0.5+0.5"}
    assert numbers["exchange_s"] > 0


@pytest.mark.parametrize("share", [0.0, 0.15, 1.1, -0.1])
def test_shares_that_are_no_tenths_are_refused(share: float) -> None:
    with pytest.raises(ProfileError, match=r"shares are 0\.1, 0\.2 … 1"):
        check_shares([0.1, share])


def test_without_a_gpu_the_benchmark_says_so_and_makes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_shares, "find_gpus", Found)
    done = CliRunner().invoke(gpu_shares.main, [])
    assert done.exit_code == 2
    assert "can only be measured on a GPU: NVML finds no NVIDIA GPU" in done.stderr
    assert done.stdout == ""

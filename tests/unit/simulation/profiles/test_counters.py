"""Counters are read from where the kernel keeps them, in both versions of cgroups."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from simulation.profiles.measure.counters import Bandwidth, ReplicaCounters, listening_pid
from simulation.profiles.measure.machine import busy_s, cgroup_version, require_gpu, this_machine, tick_s
from simulation.profiles.model.errors import MeasurementError, ProfileError


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(
        tmp_path / "proc",
        {
            "7/cgroup": "4:memory:/box/a\n2:cpuacct:/box/a\n1:cpu:/box/a\n0::/unified/a\n",
            "7/task/7/schedstat": "1000 2500000000 3\n",
            "7/task/9/schedstat": "1000 500000000 3\n",
        },
    )
    return tmp_path / "proc"


def test_version_one_by_hand(tmp_path: Path, proc: Path) -> None:
    mount = tmp_path / "sys"
    write(
        mount,
        {
            "cpu/box/a/cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 5000000\n",
            "cpu/box/a/cpu.cfs_quota_us": "2500\n",
            "cpu/box/a/cpu.cfs_period_us": "10000\n",
            "cpuacct/box/a/cpuacct.usage": "1500000000\n",
            "memory/box/a/memory.usage_in_bytes": "4096\n",
            "memory/box/a/memory.limit_in_bytes": "8192\n",
        },
    )
    counters = ReplicaCounters(7, mount, proc)
    readings = counters.read()
    assert (readings.cpu_s, readings.periods, readings.throttled_periods, readings.memory_bytes) == (1.5, 40, 10, 4096)
    assert (readings.waiting_s, readings.throttled_s) == (3.0, 0.005)
    assert counters.bandwidth() == Bandwidth(0.0025, 0.01)
    assert counters.memory_limit_bytes() == 8192
    assert cgroup_version(mount) == 1


def test_version_two_by_hand(tmp_path: Path, proc: Path) -> None:
    mount = tmp_path / "sys"
    write(
        mount,
        {
            "cgroup.controllers": "cpu memory\n",
            "unified/a/cpu.stat": "usage_usec 250000\nnr_periods 4\nnr_throttled 1\nthrottled_usec 750000\n",
            "unified/a/cpu.max": "max 100000\n",
            "unified/a/memory.current": "100\n",
            "unified/a/memory.max": "max\n",
        },
    )
    counters = ReplicaCounters(7, mount, proc)
    assert (counters.read().cpu_s, counters.read().throttled_s) == (0.25, 0.75)
    bandwidth = counters.bandwidth()
    assert bandwidth == Bandwidth(None, 0.1)
    assert bandwidth is not None
    assert bandwidth.share is None
    assert counters.memory_limit_bytes() is None
    assert cgroup_version(mount) == 2


def test_what_is_not_there_is_not_known(tmp_path: Path) -> None:
    counters = ReplicaCounters(7, tmp_path / "sys", tmp_path / "proc")
    readings = counters.read()
    assert (readings.cpu_s, readings.periods, readings.waiting_s, readings.memory_bytes) == (None, None, None, None)
    assert readings.throttled_s is None
    assert counters.bandwidth() is None


def test_finds_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listening_pid(f"127.0.0.1:{listener.getsockname()[1]}") == os.getpid()


def test_says_when_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(MeasurementError, match="the replica has ended"):
        listening_pid(f"127.0.0.1:{port}")


def test_busy_seconds_leave_out_idling_and_waiting_for_disks(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 200 9999 9999 0 100 50 7 7\ncpu0 1 1\n")
    assert busy_s(tmp_path / "stat") * os.sysconf("SC_CLK_TCK") == pytest.approx(450)


def test_knows_the_machine_it_runs_on() -> None:
    machine = this_machine()
    assert machine.cpu_model
    assert machine.cpu_cores >= 1
    assert machine.memory_mib > 100
    assert 0 <= tick_s() <= 0.01


def test_gpu_shares_are_refused_where_there_is_no_gpu() -> None:
    require_gpu("NVIDIA H200")
    with pytest.raises(ProfileError, match="no NVIDIA GPU"):
        require_gpu("")

"""cgroup code against folders of plain files; what the kernel does with them is in test_limits.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process.cgroup.limits import Cgroups, CgroupsV1, CgroupsV2, quota
from gateway.backends.process.cgroup.mounts import detect, start_time
from gateway.backends.process.workers.guardian import processes


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "self").mkdir(parents=True)
    (folder / "self" / "cgroup").write_text("0::/\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A version 2 mount that gives cpu and memory."""
    folder = tmp_path / "cgroup"
    folder.mkdir()
    (folder / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (folder / "cgroup.subtree_control").write_text("cpu memory\n")
    return folder


def slot_of(tmp_path: Path, **files: str) -> tuple[CgroupsV2, Path]:
    """A slot whose kernel files are there."""
    base = tmp_path / "base"
    base.mkdir()
    cgroups = CgroupsV2((), base, {"cpu", "memory"}, 0.01)
    assert cgroups.make("s") == [base / "s" / "cgroup.procs"]
    defaults = {"cpu.max": "max 100000", "memory.max": "max", "memory.current": "0", "memory.swap.max": "max"}
    for name, text in {**defaults, **{key.replace("_", "."): value for key, value in files.items()}}.items():
        (base / "s" / name).write_text(text)
    return cgroups, base / "s"


def written(path: Path) -> str:
    """Plain files keep the longer old text's tail, so tests write from an empty file."""
    return path.read_text()


def test_version_2_is_detected_and_notes_what_is_not_delegated(root: Path, proc: Path) -> None:
    cgroups = detect(root, proc, 1, 0.01)
    assert isinstance(cgroups, CgroupsV2)
    own = cgroups.folders[0]
    assert own.parent == root
    assert own.name.startswith(f"smoe-{os.getpid()}-")
    assert "not delegated" in cgroups.notes[0]  # plain files do not hand controllers down to the new folder


def test_version_2_below_our_own_cgroup(root: Path, proc: Path) -> None:
    (proc / "self" / "cgroup").write_text("0::/user.slice/app\n")
    own = root / "user.slice" / "app"
    own.mkdir(parents=True)
    (own / "cgroup.controllers").write_text("memory\n")
    (own / "cgroup.subtree_control").write_text("memory\n")
    cgroups = detect(root, proc, 1, 0.01)
    assert cgroups.folders[0].parent == own
    assert "cpu" in cgroups.notes[0]


def test_nothing_mounted_is_noted(tmp_path: Path, proc: Path) -> None:
    cgroups = detect(tmp_path / "none", proc, 1, 0.01)
    assert type(cgroups) is Cgroups
    assert "not enforced" in cgroups.notes[0]


def test_version_1_uses_what_is_there_and_names_what_is_missing(tmp_path: Path, proc: Path) -> None:
    root = tmp_path / "cgroup"
    (root / "memory").mkdir(parents=True)
    cgroups = detect(root, proc, 1, 0.01)
    assert isinstance(cgroups, CgroupsV1)
    assert "cpu" in cgroups.notes[0]
    assert "memory (" not in cgroups.notes[0]
    cgroups.close()
    assert list((root / "memory").iterdir()) == []


def test_leftovers_of_dead_gateways_are_removed_and_of_live_ones_kept(root: Path, proc: Path) -> None:
    (proc / "77").mkdir()
    (proc / "77" / "stat").write_text("77 (a ) name) S " + " ".join(["0"] * 18) + " 4242 0\n")
    assert start_time(proc, 77) == 4242
    for name in ("smoe-77-4242-1", "smoe-77-1-1", "smoe-999-5-1", "smoe-other"):
        (root / name / "slot").mkdir(parents=True)
    detect(root, proc, 1, 0.01)
    left = {path.name for path in root.iterdir() if path.is_dir()}
    assert {"smoe-77-4242-1", "smoe-other"} <= left
    assert not {"smoe-77-1-1", "smoe-999-5-1"} & left


def test_processes_of_other_namespaces_are_never_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("0\n17\n0\n")
    assert processes(tmp_path) == [17]


def test_version_2_limits(tmp_path: Path) -> None:
    cgroups, slot = slot_of(tmp_path, cpu_max="", memory_max="")
    assert cgroups.set_cpu("s", 0.5)
    assert written(slot / "cpu.max") == "5000 10000"
    assert cgroups.set_memory("s", 1 << 20)
    assert written(slot / "memory.max") == "1048576"


def test_version_2_without_limits_writes_max(tmp_path: Path) -> None:
    cgroups, slot = slot_of(tmp_path, cpu_max="", memory_max="")
    assert cgroups.set_cpu("s", None)
    assert cgroups.set_memory("s", None)
    assert (written(slot / "cpu.max"), written(slot / "memory.max")) == ("max", "max")


def test_version_2_never_sets_a_memory_limit_below_use(tmp_path: Path) -> None:
    cgroups, slot = slot_of(tmp_path, memory_current="5000", memory_max="9000", memory_reclaim="")
    assert not cgroups.set_memory("s", 4000)
    assert written(slot / "memory.reclaim") == "1000"
    assert written(slot / "memory.max") == "9000"


def test_version_2_measures(tmp_path: Path) -> None:
    cgroups, slot = slot_of(tmp_path, memory_current="5000")
    (slot / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (slot / "memory.stat").write_text("anon 1\ninactive_file 2000\n")
    (slot / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    measured = cgroups.measure("s")
    assert (measured.cpu_seconds_total, measured.memory_bytes) == (1.5, 3000)
    assert cgroups.oom_kills("s") == 1
    assert cgroups.measure("gone").memory_bytes is None


@given(st.floats(0.001, 5000), st.floats(0.001, 0.1))
def test_quotas_keep_the_share_and_stay_within_the_kernel_s_bounds(cores: float, period_s: float) -> None:
    quota_us, period_us = quota(cores, period_s)
    assert quota_us >= 1000
    assert 1000 <= period_us <= 1_000_000
    assert abs(quota_us / period_us - cores) <= 1 / period_us + cores * 0.001

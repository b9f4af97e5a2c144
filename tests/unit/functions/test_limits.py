"""The limits of this process's own cgroup, and the line that states them when a function starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from functions import applications
from functions.serving import limits
from functions.serving.settings import FunctionSettings

LAYOUTS = {
    "version 2": ("0::/a/b\n", "a/b/memory.max"),
    "version 2 in a container": ("0::/\n", "memory.max"),
    "version 1": ("4:memory:/a/b\n3:cpu,cpuacct:/other\n0::/\n", "memory/a/b/memory.limit_in_bytes"),
    "version 1 in a container": ("4:memory:/docker/x\n", "memory/memory.limit_in_bytes"),
}
VERSION_1 = "4:memory:/a\n3:cpu,cpuacct:/a\n0::/\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_memory_limit_is_that_of_this_process_s_cgroup_and_is_read_again(tmp_path: Path, layout: str) -> None:
    own, name = LAYOUTS[layout]
    (tmp_path / "listing").write_text(own)
    file = tmp_path / "root" / name
    file.parent.mkdir(parents=True)
    for text, limit in (("1048576\n", 1048576), ("max\n", None), ("9223372036854771712\n", None), ("4096\n", 4096)):
        file.write_text(text)
        read = limits.memory_limit(tmp_path / "root", tmp_path / "listing")
        assert read() == limit
    file.write_text("8192\n")
    assert read() == 8192
    file.write_text("max\n")
    assert read() is None


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        ("0::/a\n", {"a/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        (VERSION_1, {"cpu/a/cpu.cfs_quota_us": "200000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 2),
        (VERSION_1, {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_the_cpu_limit_is_quota_by_period(tmp_path: Path, own: str, files: dict[str, str], cores: float | None) -> None:
    write(tmp_path / "root", files)
    write(tmp_path, {"listing": own})
    assert limits.cpu_limit(tmp_path / "root", tmp_path / "listing") == cores


def test_where_there_is_no_cgroup_nothing_limits(tmp_path: Path) -> None:
    nowhere = (tmp_path, tmp_path / "none")
    assert limits.memory_limit(*nowhere)() is limits.cpu_limit(*nowhere) is None
    assert limits.in_words(*nowhere) == "no limit of memory, no limit of CPU"


@pytest.mark.parametrize(
    ("node", "what"),
    [
        ("expert-0-0", "of weights on the cpu, at most 3 calls"),
        ("ingress", ": texts of at most "),
    ],
)
async def test_a_function_that_starts_logs_what_it_holds_and_its_limits(
    bert: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, node: str, what: str
) -> None:
    monkeypatch.setattr(limits, "in_words", lambda: "448 MiB of memory, 0.5 CPU cores")
    settings = FunctionSettings(bert, (node,), max_inflight=3, address_template="http://{function}:1")
    with caplog.at_level("INFO", applications.log.name):
        application = applications.build(settings, asyncio.get_running_loop())
    application.close()
    (line,) = [one.getMessage() for one in caplog.records if one.name == applications.log.name]
    assert line.startswith(f"{node} of ") and what in line
    assert line.endswith("at once; 448 MiB of memory, 0.5 CPU cores")

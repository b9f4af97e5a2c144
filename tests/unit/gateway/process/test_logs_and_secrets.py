from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.backends.process.logs import MAX_LINE_BYTES, FunctionLog, LineReader
from gateway.backends.process.run_folders import RunFolders
from gateway.backends.process.secret.files import SecretFiles
from gateway.contract import ConflictError, FunctionSpec, InvalidSpecError, LogLine, NotFoundError


def make_log(folder: Path, lines: int = 100, file_bytes: int = 10_000, files: int = 3) -> FunctionLog:
    return FunctionLog("f", "ns", folder, lines, file_bytes, files)


async def read(
    log: FunctionLog, instance: str | None = None, since_s: float | None = None, tail: int = 0
) -> list[LogLine]:
    return [line async for line in log.read(instance=instance, since_s=since_s, tail=tail, follow=False)]


async def test_lines_are_found_by_tail_instance_and_time(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    for number in range(6):
        log.add("ab"[number % 2], f"line {number}")
    everything = await read(log)
    assert [line.text for line in everything] == [f"line {number}" for number in range(6)]
    assert [line.text for line in await read(log, tail=2)] == ["line 4", "line 5"]
    assert [line.text for line in await read(log, instance="a", tail=1)] == ["line 4"]
    assert await read(log, since_s=everything[3].timestamp_s) == everything[3:]


async def test_memory_is_bounded(tmp_path: Path) -> None:
    log = make_log(tmp_path, lines=5)
    for number in range(50):
        log.add("a", str(number))
    assert [line.text for line in await read(log)] == ["45", "46", "47", "48", "49"]


async def test_following_ends_when_the_function_is_deleted(tmp_path: Path) -> None:
    log = make_log(tmp_path)
    log.add("a", "before")
    follower = log.read(instance=None, since_s=None, tail=1, follow=True)
    assert (await anext(follower)).text == "before"
    log.add("a", "after")
    assert (await anext(follower)).text == "after"
    rest = asyncio.ensure_future(anext(follower, None))
    await asyncio.sleep(0)
    log.close()
    assert await rest is None


def test_files_are_rotated_and_old_ones_dropped(tmp_path: Path) -> None:
    log = make_log(tmp_path, file_bytes=400, files=2)
    for replica in range(5):
        for number in range(40):
            log.add(f"r{replica}", f"line {number}")
        os.utime(tmp_path / f"r{replica}.log", (replica, replica))
        log.ended(f"r{replica}")
    assert {path.name for path in tmp_path.glob("*.log")} == {"r2.log", "r3.log", "r4.log"}
    assert all(path.stat().st_size <= 400 for path in tmp_path.iterdir())
    last = (tmp_path / "r4.log").read_text().splitlines()[-1]
    assert last.endswith("Z line 39") or last.endswith("+00:00 line 39")


def test_files_of_living_replicas_are_kept_however_many(tmp_path: Path) -> None:
    log = make_log(tmp_path, files=2)
    for number in range(5):
        for replica in range(30):
            log.add(f"r{replica}", f"line {number}")
    assert [len(path.read_text().splitlines()) for path in tmp_path.iterdir()] == [5] * 30


async def test_pieces_of_output_become_whole_lines() -> None:
    reading, writing = os.pipe()
    lines: list[str] = []
    reader = LineReader(reading, lines.append)
    for piece in (b"on", b"e\ntwo\r\nth", b"ree\xff"):
        os.write(writing, piece)
    os.close(writing)
    reader.close()
    assert lines == ["one", "two", "three\N{REPLACEMENT CHARACTER}"]
    reader.close()


async def test_endless_lines_are_cut() -> None:
    reading, writing = os.pipe()
    lines: list[str] = []
    reader = LineReader(reading, lines.append)
    os.set_blocking(writing, False)
    sent = 0
    while sent < 3 * MAX_LINE_BYTES + 10:
        try:
            sent += os.write(writing, b"x" * 4096)
        except BlockingIOError:
            await asyncio.sleep(0)
    os.close(writing)
    reader.close()
    assert sum(map(len, lines)) == sent
    assert max(map(len, lines)) <= 2 * MAX_LINE_BYTES


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolders]:
    folders = RunFolders(tmp_path)
    yield folders
    folders.close()


def test_secrets_are_private_files_and_never_overwritten_by_create(tmp_path: Path, run: RunFolders) -> None:
    secrets = SecretFiles(tmp_path, run)
    secrets.put("key", "ns", b"\x00value", create=True)
    path = tmp_path / "secrets" / "functions" / "ns" / "key"
    assert path.read_bytes() == b"\x00value"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(ConflictError):
        secrets.put("key", "ns", b"other", create=True)
    with pytest.raises(NotFoundError):
        secrets.put("absent", "ns", b"", create=False)
    assert secrets.names("ns") == ["key"]
    assert secrets.names("elsewhere") == []
    secrets.delete("key", "ns")
    with pytest.raises(NotFoundError):
        secrets.delete("key", "ns")


@pytest.mark.parametrize("name", ["../key", "a/b", "", ".hidden", "x" * 300, "a\0b"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, run: RunFolders, name: str) -> None:
    with pytest.raises(InvalidSpecError):
        SecretFiles(tmp_path, run).put(name, "ns", b"", create=True)


def test_a_function_sees_only_its_own_secrets(tmp_path: Path, run: RunFolders) -> None:
    secrets = SecretFiles(tmp_path, run)
    for name in ("a", "b"):
        secrets.put(name, "ns", name.encode(), create=True)
    run.make("f.ns", None)
    folder = secrets.mount(FunctionSpec("f", "i", namespace="ns", secrets=("a", "b")))
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a": "a", "b": "b"}
    secrets.mount(FunctionSpec("f", "i", namespace="ns", secrets=("b",)))
    assert [path.name for path in folder.iterdir()] == ["b"]
    secrets.put("b", "ns", b"newer", create=False)
    assert (folder / "b").read_text() == "newer"
    secrets.delete("b", "ns")
    assert list(folder.iterdir()) == []

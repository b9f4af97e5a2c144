"""A started backend with the small entries, and ways to wait for it and to call its replicas."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.cgroup.limits import Cgroups
from gateway.backends.process.cgroup.mounts import detect
from gateway.backends.process.settings import ProcessSettings
from gateway.contract import FunctionSpec, FunctionState

ENTRIES = "tests.unit.gateway.process.entries"
IMAGES = {f"test/{name}": f"{ENTRIES}:{name}" for name in ("echo", "crash", "broken", "never_ready")}
NAMESPACE = "openfaas-fn"
WAIT_S = 100.0

Starter = Callable[..., AbstractAsyncContextManager[ProcessBackend]]


@asynccontextmanager
async def _running(state: Path, **changes: Any) -> AsyncIterator[ProcessBackend]:
    options: dict[str, Any] = {"images": IMAGES, "settle_s": 0.05, "blanks": 1, "write_timeout_s": 10.0}
    options |= {"caller_keys": False, **changes}  # tests call replicas themselves
    backend = ProcessBackend(ProcessSettings(state=state, **options))
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture
def running(tmp_path: Path) -> Starter:
    """``async with running(**settings) as backend``."""
    return lambda **changes: _running(tmp_path / "state", **changes)


@pytest.fixture
async def backend(running: Starter) -> AsyncIterator[ProcessBackend]:
    async with running() as started:
        yield started


@pytest.fixture
def enforced(tmp_path: Path) -> None:
    """Skips where this machine lets us write no cgroups."""
    cgroups = detect(Path("/sys/fs/cgroup"), Path("/proc"), 999_999, 0.01)
    notes = cgroups.notes
    cgroups.close()
    if type(cgroups) is Cgroups or notes:
        pytest.skip(f"limits cannot be enforced here: {' '.join(notes)}")


def spec(name: str, image: str = "echo", **fields: Any) -> FunctionSpec:
    return FunctionSpec(name, f"test/{image}:1", **fields)


async def until(backend: ProcessBackend, name: str, wanted: Callable[[FunctionState], bool]) -> FunctionState:
    """Wait for a state of the function, woken by changes. Fails after 30 s with the state it was in."""
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while True:
        version = backend.version()
        state = backend.get(name, NAMESPACE)
        if wanted(state):
            return state
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"did not come to be: {state}; log: {await log_texts(backend, name)}")
        await backend.wait_change(version, 1.0)


def ready(count: int) -> Callable[[FunctionState], bool]:
    """Exactly this many ready replicas and no others."""
    return lambda state: len(state.ready) == count and len(state.replicas) == count


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that sends no notice (files, processes). Fails after 30 s."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def eventually_async(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def logged(backend: ProcessBackend, part: str, times: int = 1, name: str = "f") -> None:
    """Wait until so many of a function's log lines contain ``part``."""

    async def enough() -> bool:
        return sum(part in text for text in await log_texts(backend, name)) >= times

    await eventually_async(enough)


async def arrived(backend: ProcessBackend, path: str, times: int = 1) -> None:
    """Wait until so many calls of ``path`` have reached replicas of function ``f``."""
    await logged(backend, f"asked for {path}", times)


async def ask(
    address: str, path: str = "/", body: bytes = b"", method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """One HTTP exchange on its own connection: status, headers, body."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{lines}\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(WAIT_S):
            raw = await reader.read()
    finally:
        writer.close()
    top, _, payload = raw.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    found = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split()[1]), found, payload


async def ask_json(address: str, path: str = "/") -> dict[str, Any]:
    status, _, body = await ask(address, path)
    assert status == 200
    document = json.loads(body)
    assert isinstance(document, dict)
    return document


async def log_texts(backend: ProcessBackend, name: str) -> list[str]:
    lines = backend.logs(name, NAMESPACE, instance=None, since_s=None, tail=0, follow=False)
    return [line.text async for line in lines]


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaps does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False

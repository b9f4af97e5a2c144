"""Running gateways as fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn.server

from tests.unit.gateway.gateways import Running, Served, Starter, gateway_on


class _Hurried:
    """``asyncio`` as uvicorn's server sees it: it looks every 0.1 s whether it is to end, and closing takes another
    0.1 s, which together are ten times as long as most of these tests."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 20)


@pytest.fixture(scope="session", autouse=True)
def _servers_begin_and_end_at_once() -> Iterator[None]:
    """Loggers are set up once for all servers, as it takes longer than the rest of a start."""
    uvicorn.Config(None, access_log=False, log_level="warning")  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(uvicorn.Config, "configure_logging", lambda config: None)
        patched.setattr(uvicorn.server, "asyncio", _Hurried())
        yield


@pytest.fixture
def start(tmp_path: Path) -> Starter:
    """``async with start(**settings) as running``; a second one may use the same state folder."""
    return lambda **changes: gateway_on(tmp_path / "state", **changes)


@pytest.fixture
async def running(start: Starter) -> AsyncIterator[Running]:
    async with start() as found:
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One gateway for all tests of a module, reached by clients that block."""
    with Served(tmp_path_factory.mktemp("gateway")) as found:
        yield found

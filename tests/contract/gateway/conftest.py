"""The backends under the contract: each factory gives a started backend and an image that answers HTTP there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.backends.fake import FakeBackend
from gateway.backends.process import ProcessSettings, create
from gateway.contract import Backend


@dataclass(frozen=True)
class Case:
    """A started backend and the name of an image that serves ``/`` there and writes a log line per call."""

    backend: Backend
    image: str


Factory = Callable[[Path], AbstractAsyncContextManager[Case]]


@asynccontextmanager
async def fake(state: Path) -> AsyncIterator[Case]:
    backend = FakeBackend()
    await backend.start()
    try:
        yield Case(backend, "test/echo:1")
    finally:
        await backend.close()


@asynccontextmanager
async def process(state: Path) -> AsyncIterator[Case]:
    images = {"test/echo": "tests.unit.process_backend.entries:echo"}
    backend = create(ProcessSettings(state=state, images=images, settle_s=0.05, blanks=1, write_timeout_s=10.0))
    await backend.start()
    try:
        yield Case(backend, "test/echo:1")
    finally:
        await backend.close()


BACKEND_FACTORIES: list[Factory] = [fake, process]


@pytest.fixture(params=BACKEND_FACTORIES, ids=lambda factory: factory.__name__)
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    async with request.param(tmp_path / "state") as found:
        yield found

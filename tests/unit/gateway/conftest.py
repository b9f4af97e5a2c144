"""Running gateways as fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.gateway.gateways import Running, Served, Starter, gateway_on


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

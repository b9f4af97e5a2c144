"""What an instance makes of a replica that is asked for its room, or to free pages, while it is busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import ReplicaAddress
from functions.generation import instance as instances
from functions.generation.instance import Instance, NoKvError, UnreachableError
from functions.wire.messages import Reply, Request
from moe.reference import WholeModel
from tests.unit.functions.conftest import Scripted

FULL = b'{"error": {"message": "Concurrent request limit exceeded"}}'
NONE = b'{"error": {"message": "this worker keeps no keys and values"}}'


class OneFunction:
    """Serves all segments."""

    def address(self, node_id: str) -> tuple[str, str]:
        return "f", f"/stage/{node_id}"


async def instance_of(start: Any, model: WholeModel, script: Callable[[Request], Reply]) -> Instance:
    running = await start(Scripted(script))
    replicas = {"f": ReplicaAddress("r", running.address)}
    dispatcher = Dispatcher(asyncio.get_running_loop())
    return Instance(model.manifest, OneFunction(), None, dispatcher, replicas)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, FULL, UnreachableError),
        (429, b"Concurrent request limit exceeded", UnreachableError),
        (503, b"", UnreachableError),
        (200, b"no JSON", UnreachableError),
        (400, NONE, NoKvError),
        (404, NONE, NoKvError),
    ],
)
async def test_a_busy_replica_is_asked_again_and_one_without_pages_is_not(
    start: Any, model: WholeModel, status: int, body: bytes, error: type[Exception]
) -> None:
    instance = await instance_of(start, model, lambda request: Reply(status, (body,)))
    with pytest.raises(error):
        await instance.open()
    await instance.close()


async def test_pages_that_a_full_replica_did_not_free_are_freed_later(
    start: Any, model: WholeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instances, "FREE_AGAIN_S", (0.0, 0.0, 0.0))
    replies = [Reply(429, (FULL,)), Reply(429, (FULL,)), Reply(200, (b'{"freed": 1}',))]
    instance = await instance_of(start, model, lambda request: replies.pop(0))
    instance.free([7])
    assert await instance.settled() and not replies
    await instance.close()

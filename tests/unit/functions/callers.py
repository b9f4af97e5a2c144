"""A dispatcher for one function, and replicas that refuse: what tests of dispatch share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import zip_longest

from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.dispatch.slots import Rule
from functions.wire.messages import error_reply
from tests.unit.functions.conftest import Running, Scripted


class Caller:
    """A dispatcher for the one function ``f``."""

    def __init__(self, queue_limit: int = 1000, rule: Rule = "least-loaded", own_node: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.dispatcher = Dispatcher(self.loop, queue_limit, rule, own_node)
        self.record = CallRecord()

    def table(
        self, *replicas: Running | str, max_inflight: int = 0, balanced: bool = False, nodes: tuple[str, ...] = ()
    ) -> None:
        addresses = [one if isinstance(one, str) else one.address for one in replicas]
        table = tuple(
            ReplicaAddress(address, address, balanced, node)
            for address, node in zip_longest(addresses, nodes, fillvalue="")
        )
        self.dispatcher.update({"f": FunctionReplicas(max_inflight, table)})

    async def call(self, body: bytes = b"x", within_s: float = 5.0, node: str = "") -> bytes:
        self.record = CallRecord()
        reply = await self.dispatcher.call(
            "f",
            "/",
            [body],
            deadline_s=self.loop.time() + within_s,
            request_id="id-1",
            record=self.record,
            node=node,
        )
        return bytes(reply.body)


@asynccontextmanager
async def calling(rule: Rule, own_node: str = "") -> AsyncIterator[Caller]:
    one = Caller(rule=rule, own_node=own_node)
    yield one
    one.dispatcher.close()
    await asyncio.sleep(0)


def refusing(status: int, platform: bool = True) -> Scripted:
    return Scripted(lambda _: error_reply(status, "code", "a sentence", platform=platform))


DEAD = "127.0.0.1:1"

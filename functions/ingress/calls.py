"""Calls of a pipeline's nodes from within a pass, measured."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from functions.dispatch.client import RawReply, TransportError
from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.serving.instruments import IngressInstruments
from functions.wire import arrays
from functions.wire import format as wire
from functions.wire.arrays import Array, Arrays
from functions.wire.errors import KvFullError, KvLostError, NodeFailedError, NodeRefusedError
from functions.wire.layout import Part
from functions.wire.messages import KV_FULL, KV_MISSING, Body
from moe.grouping import Grouping
from moe.manifest import Manifest

Result = TypeVar("Result")


@dataclass(frozen=True)
class PassContext:
    """What belongs to one request on its way: its id and its deadline on the loop's clock."""

    request_id: str
    deadline_s: float


class NodeCaller:
    """Calls a pipeline's nodes by id through a dispatcher."""

    def __init__(
        self, manifest: Manifest, grouping: Grouping, dispatcher: Dispatcher, instruments: IngressInstruments
    ) -> None:
        self._dispatcher = dispatcher
        self._instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._address = {
            node.id: (grouping.function_of(node.id).name, grouping.function_of(node.id).path(node.id))
            for node in manifest.nodes
        }
        self._segments = frozenset(segment.id for segment in manifest.segments)

    def address(self, node_id: str) -> tuple[str, str]:
        """The function that serves a node, and the path it serves it at."""
        return self._address[node_id]

    async def call(
        self,
        node_id: str,
        tensors: Mapping[str, Array | Part],
        context: PassContext,
        record: CallRecord,
        node: str = "",
        replica: str = "",
        headers: Sequence[tuple[str, str]] = (),
    ) -> Arrays:
        """``node_id`` on some tensors; at a replica on the machine ``node`` if it can, or at this very ``replica``,
        there with ``headers``.
        ``record`` holds afterwards what it cost. Raises CallError, with a ``replica`` also KvError."""
        name, path = self._address[node_id]
        meter = self._instruments.nodes[node_id]
        tokens = _tokens(tensors)
        begun_s = self._loop.time()
        meter.begin(tokens, begun_s)
        chunks = arrays.encode(tensors)
        received_bytes = 0
        try:
            if replica:
                reply = await self._at(name, replica, path, chunks, context, record, headers)
            else:
                reply = await self._dispatcher.call(
                    name,
                    path,
                    chunks,
                    deadline_s=context.deadline_s,
                    request_id=context.request_id,
                    record=record,
                    node=node,
                )
            received_bytes = len(reply.body)
            return arrays.decode(reply.body)
        except wire.WireError as error:
            record.status = "error"
            raise NodeFailedError(f"{node_id} answered something that is no tensor message: {error}") from error
        finally:  # counted in the loop's next turn: a pass that waits for this one call goes on first
            ended_s = self._loop.time()
            self._loop.call_soon(meter.end, tokens, begun_s, ended_s, record)
            if record.node:
                self._loop.call_soon(self._moved, node_id, record.node, wire.total_bytes(chunks), received_bytes)

    def _moved(self, node_id: str, machine: str, sent_bytes: int, received_bytes: int) -> None:
        """A call to a node's replica on ``machine`` took so many bytes."""
        traffic = self._instruments.traffic
        traffic.message(machine, sent_bytes, received_bytes)
        if received_bytes and node_id in self._segments:
            traffic.of(machine).segment_calls += 1

    async def _at(
        self,
        name: str,
        replica: str,
        path: str,
        chunks: Sequence[Body],
        context: PassContext,
        record: CallRecord,
        headers: Sequence[tuple[str, str]],
    ) -> RawReply:
        """A call to one replica that keeps what it goes on from. Raises CallError, KvError."""
        try:
            reply = await self._dispatcher.call_replica(
                name,
                replica,
                path,
                chunks,
                deadline_s=context.deadline_s,
                request_id=context.request_id,
                record=record,
                headers=headers,
            )
        except TransportError as error:
            raise KvLostError(f"{name}: {error}") from None
        if reply.status == 200:
            return reply
        message = f"{name} answered {reply.status}: {bytes(reply.body[:300]).decode('utf-8', 'replace')}"
        if reply.status == KV_FULL:
            raise KvFullError(message)
        if reply.status == KV_MISSING or reply.status >= 500:
            raise KvLostError(message)
        raise NodeRefusedError(message, reply.status)


async def gather_or_cancel(calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """All results in order; when one fails the others are cancelled and its error is raised."""
    if len(calls) == 1:
        return [await calls[0]]
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _tokens(tensors: Mapping[str, Array | Part]) -> int:
    for name in ("x", "token_ids", "hidden"):
        if name in tensors:
            return int(tensors[name].shape[0])
    return 0

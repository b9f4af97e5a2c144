"""One pass over a pipeline: segment, scatter to experts, gather, combine, next segment.

hidden = residual + sum over the top-k experts of gate · y            (in expert order)
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from functions.ingress.exchange import exchange
from functions.shared import arrays, wire
from functions.shared.arrays import Array, Arrays
from functions.shared.dispatch import CallRecord, Dispatcher
from functions.shared.errors import NodeFailedError
from functions.shared.instruments import IngressInstruments
from functions.shared.messages import ALL_LOGITS
from moe.grouping import Grouping
from moe.manifest import Manifest


@dataclass(frozen=True)
class PassContext:
    """What belongs to one request on its way: its id and its deadline on the loop's clock."""

    request_id: str
    deadline_s: float
    all_logits: bool = False


class PipelinePass:
    """Drives passes of one pipeline through a dispatcher."""

    def __init__(
        self, manifest: Manifest, grouping: Grouping, dispatcher: Dispatcher, instruments: IngressInstruments
    ) -> None:
        self._manifest = manifest
        self._dispatcher = dispatcher
        self._instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._address = {
            node.id: (grouping.function_of(node.id).name, grouping.function_of(node.id).path(node.id))
            for node in manifest.nodes
        }
        self._segments = manifest.segments
        self._experts = [manifest.experts(layer) for layer in range(manifest.layers)]

    async def run(self, inputs: Mapping[str, Array], context: PassContext) -> Arrays:
        """A whole pass; returns the last segment's reply. The same steps as ``moe.reference.drive``.

        ``inputs``: ``token_ids [T] int64``, ``lengths [B] int64``; an encoder-decoder also takes
        ``decoder_token_ids`` and ``decoder_lengths``. Raises CallError.
        """
        lengths = inputs["lengths"]
        first = {"token_ids": inputs["token_ids"], "lengths": lengths}
        reply = await self.call(self._segments[0].id, first, context)
        memory: Arrays = {}
        for layer in range(self._manifest.layers):
            tensors = {"hidden": await self.layer(layer, reply, context), "lengths": lengths}
            segment = self._segments[layer + 1]
            if "token_ids" in segment.inputs:  # the encoder ends here and the decoder begins
                memory = {"memory_lengths": lengths}
                lengths = inputs["decoder_lengths"]
                tensors |= {**memory, "token_ids": inputs["decoder_token_ids"], "lengths": lengths}
            elif "memory" in segment.inputs:
                tensors |= memory
            reply = await self.call(segment.id, tensors, context)
            if "memory" in reply:
                memory["memory"] = reply["memory"]
        return reply

    async def layer(self, layer: int, routed: Arrays, context: PassContext) -> Array:
        """The experts of one layer on a segment's reply; returns hidden ``[T, d]``. Raises CallError."""
        residual = routed["residual"]
        nodes = self._experts[layer]
        groups = exchange(routed["expert_ids"], routed["gates"])
        if groups.experts[-1] >= len(nodes):
            raise NodeFailedError(f"segment {layer} chose expert {groups.experts[-1]}; there are {len(nodes)}")
        parts = zip(groups.experts, groups.scatter(routed.get("x", residual)), strict=True)
        begun_s = self._loop.time()
        replies = await gather_or_cancel([self.call(nodes[expert].id, {"x": part}, context) for expert, part in parts])
        self._instruments.barriers[layer].observe(self._loop.time() - begun_s)
        return groups.combine(residual, [reply["y"] for reply in replies])

    async def call(self, node_id: str, tensors: Arrays, context: PassContext) -> Arrays:
        """One node on some tensors, measured. Raises CallError."""
        name, path = self._address[node_id]
        meter = self._instruments.nodes[node_id]
        tokens = _tokens(tensors)
        record = CallRecord()
        begun_s = self._loop.time()
        meter.begin(tokens, begun_s)
        try:
            reply = await self._dispatcher.call(
                name,
                path,
                arrays.encode(tensors),
                deadline_s=context.deadline_s,
                request_id=context.request_id,
                record=record,
                headers=((ALL_LOGITS, "1"),) if context.all_logits else (),
            )
            return arrays.decode(reply.body)
        except wire.WireError as error:
            record.status = "error"
            raise NodeFailedError(f"{node_id} answered something that is no tensor message: {error}") from error
        finally:
            meter.end(tokens, begun_s, self._loop.time(), record)


async def gather_or_cancel(calls: Sequence[Coroutine[Any, Any, Arrays]]) -> list[Arrays]:
    """All results in order; when one fails the others are cancelled and its error is raised."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _tokens(tensors: Arrays) -> int:
    for name in ("x", "token_ids", "hidden"):
        if name in tensors:
            return int(tensors[name].shape[0])
    return 0

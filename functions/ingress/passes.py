"""One pass over a pipeline: segment, scatter to experts, gather, combine, next segment.

hidden = residual + sum over the top-k experts of gate · y            (in expert order)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from functions.dispatch.dispatcher import CallRecord
from functions.ingress.calls import NodeCaller, PassContext
from functions.ingress.exchange import exchange
from functions.ingress.gated import GatedLayers
from functions.ingress.scatter import Scatter
from functions.serving.instruments import IngressInstruments
from functions.wire.arrays import Array, Arrays
from functions.wire.errors import NodeFailedError
from moe.manifest import Manifest


class PipelinePass:
    """Drives passes of one pipeline."""

    def __init__(
        self,
        manifest: Manifest,
        caller: NodeCaller,
        scatter: Scatter,
        instruments: IngressInstruments,
        gated: GatedLayers | None = None,
    ) -> None:
        """``gated``: serves layers whose experts' functions route; None: segments do."""
        self._manifest = manifest
        self._caller = caller
        self._scatter = scatter
        self._gated = gated
        self._instruments = instruments
        self._loop = asyncio.get_running_loop()
        self._segments = manifest.segments
        self._experts = [len(manifest.experts(layer)) for layer in range(manifest.layers)]

    async def run(self, inputs: Mapping[str, Array], context: PassContext) -> Arrays:
        """A whole pass; returns the last segment's reply. The same steps as ``moe.reference.drive``.

        ``inputs``: ``token_ids [T] int64``, ``lengths [B] int64``; an encoder-decoder also takes
        ``decoder_token_ids`` and ``decoder_lengths``. Raises CallError.
        """
        lengths = inputs["lengths"]
        first = {"token_ids": inputs["token_ids"], "lengths": lengths}
        reply = await self._caller.call(self._segments[0].id, first, context, CallRecord())
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
            reply = await self._caller.call(segment.id, tensors, context, CallRecord())
            if "memory" in reply:
                memory["memory"] = reply["memory"]
        return reply

    async def layer(self, layer: int, routed: Arrays, context: PassContext) -> Array:
        """The experts of one layer on a segment's reply; returns hidden ``[T, d]``. Where it is not the segment that
        routes, ``routed`` has ``expert_ids`` and ``gates`` afterwards. Raises CallError."""
        if self._gated is not None:
            return await self._layer_gated(layer, routed, self._gated, context)
        if "expert_ids" not in routed:
            raise NodeFailedError(f"segment {layer} does not route; smoe_gate must be the same for all functions")
        residual, expert_ids = routed["residual"], routed["expert_ids"]
        groups = exchange(expert_ids, routed["gates"])
        if groups.experts[-1] >= self._experts[layer]:
            raise NodeFailedError(
                f"segment {layer} chose expert {groups.experts[-1]}; there are {self._experts[layer]}"
            )
        begun_s = self._loop.time()
        try:
            outputs = await self._scatter.outputs(layer, groups, routed.get("x", residual), expert_ids, context)
        except BaseException:
            self._instruments.activations.add(layer, expert_ids, begun_s)  # chosen, whoever answered
            raise
        self._loop.call_soon(self._count, layer, expert_ids, begun_s, self._loop.time())
        return groups.combine(residual, outputs)

    def _count(self, layer: int, expert_ids: NDArray[np.int64], begun_s: float, ended_s: float) -> None:
        """A layer is done. Called in the loop's next turn, while the next segment is at work."""
        self._instruments.activations.add(layer, expert_ids, begun_s)
        self._instruments.barriers[layer].observe(ended_s - begun_s)

    async def _layer_gated(self, layer: int, routed: Arrays, gated: GatedLayers, context: PassContext) -> Array:
        residual, begun_s = routed["residual"], self._loop.time()
        expert_ids, gates, outputs = await gated.outputs(layer, routed.get("x", residual), context)
        routed["expert_ids"], routed["gates"] = expert_ids, gates
        self._loop.call_soon(self._count, layer, expert_ids, begun_s, self._loop.time())
        return exchange(expert_ids, gates).combine(residual, outputs)

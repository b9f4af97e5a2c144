"""A layer whose experts' functions route its tokens themselves (``smoe_gate=experts``): all rows go to each of them.

One message for each function with experts of the layer, on each machine where the choice among replicas is AEBS's; the
functions make the same choice (:mod:`functions.serving.gated`). What comes back is put together to what segments send
otherwise, so that the sum is the same to the last bit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.ingress.calls import PassContext, gather_or_cancel
from functions.ingress.routes import LayerPlans
from functions.serving.instruments import IngressInstruments
from functions.wire import arrays
from functions.wire import format as wire
from functions.wire.arrays import Array, Arrays
from functions.wire.errors import NodeFailedError
from functions.wire.messages import gate_stage
from moe.grouping import Grouping
from moe.manifest import Manifest

Ids = NDArray[np.int64]
Gates = NDArray[np.float32]


@dataclass(slots=True)
class _Part:
    """One message: a function, and the machine that it computes for ("" where any replica computes everything)."""

    function: str
    machine: str = ""
    choice: Arrays = field(default_factory=dict)
    """``slots`` and ``machine`` of the message, where replicas are chosen."""
    record: CallRecord = field(default_factory=CallRecord)
    reply: Arrays = field(default_factory=dict)
    begun_s: float = 0.0
    ended_s: float = 0.0


class GatedLayers:
    """Serves layers of one pipeline without knowing their routing."""

    def __init__(
        self,
        manifest: Manifest,
        grouping: Grouping,
        dispatcher: Dispatcher,
        instruments: IngressInstruments,
        plans: LayerPlans | None,
    ) -> None:
        """``plans``: the table by which replicas on several machines are chosen; None: the dispatcher's rule alone."""
        self._experts = [[node.id for node in manifest.experts(layer)] for layer in range(manifest.layers)]
        self._functions = [
            list(dict.fromkeys(grouping.function_of(name).name for name in names)) for names in self._experts
        ]
        self._choices = manifest.router.top_k + (manifest.router.shared or 0)
        self._dispatcher = dispatcher
        self._instruments = instruments
        self._plans = plans
        self._loop = asyncio.get_running_loop()

    async def outputs(self, layer: int, x: Array, context: PassContext) -> tuple[Ids, Gates, list[Array]]:
        """``expert_ids [T, k]`` and ``gates [T, k]`` as a segment sends them, and ``y [m, d]`` of each activated
        expert, ascending, on its tokens of ``x [T, d]``. Raises CallError."""
        parts = self._parts(layer)
        await gather_or_cancel([self._call(layer, part, x, context) for part in parts])
        return self._together(layer, parts, len(x))

    def _parts(self, layer: int) -> list[_Part]:
        """Every function once, or once on each machine that it has replicas on."""
        table = None if self._plans is None else self._plans.table(layer)
        if table is None:
            return [_Part(name) for name in self._functions[layer]]
        names, slots = table
        parts = []
        for function in self._functions[layer]:
            held = {replica.node for replica in self._dispatcher.replicas(function)}
            for place, machine in enumerate(names):
                if machine in held:
                    choice = {"slots": slots, "machine": np.array([place], np.int64)}
                    parts.append(_Part(function, machine, choice))
        return parts

    async def _call(self, layer: int, part: _Part, x: Array, context: PassContext) -> None:
        """Fill in the reply. A part may be computed on another machine than it is for: the reply is the same."""
        chunks = arrays.encode({"x": x, **part.choice})
        received_bytes = 0
        part.begun_s = self._loop.time()
        try:
            reply = await self._dispatcher.call(
                part.function,
                f"/stage/{gate_stage(layer)}",
                chunks,
                deadline_s=context.deadline_s,
                request_id=context.request_id,
                record=part.record,
                node=part.machine,
            )
            received_bytes = len(reply.body)
            part.reply = arrays.decode(reply.body)
        except wire.WireError as error:
            raise NodeFailedError(f"{part.function} answered something that is no tensor message: {error}") from error
        finally:
            part.ended_s = self._loop.time()
            if part.record.node:
                self._instruments.traffic.message(part.record.node, wire.total_bytes(chunks), received_bytes)

    def _together(self, layer: int, parts: Sequence[_Part], tokens: int) -> tuple[Ids, Gates, list[Array]]:
        """All parts as one routing. Raises NodeFailedError where functions' routings differ."""
        ids = np.full(tokens * self._choices, -1, np.int64)
        gates = np.zeros(tokens * self._choices, np.float32)
        by_expert: dict[int, Array] = {}
        machines, sizes = [], []
        filled = 0
        for part in parts:
            reply = part.reply
            edges = np.cumsum(reply["counts"])[:-1]
            ids[reply["pairs"]] = np.repeat(reply["experts"], reply["counts"])
            gates[reply["pairs"]] = reply["gates"]
            filled += len(reply["pairs"])
            for expert, count, y in zip(
                reply["experts"].tolist(), reply["counts"].tolist(), np.split(reply["y"], edges), strict=False
            ):
                by_expert[expert] = y
                self._meter(layer, expert, count, part)
                machines.append(part.record.node)
                sizes.append(count)
        if filled != ids.size or (ids < 0).any():
            raise NodeFailedError(
                f"layer {layer}: the experts' functions routed {filled} of {ids.size} choices; "
                "they must compute the same router on equal processors"
            )
        if any(machines):
            self._instruments.traffic.scattered(layer, machines, sizes)
        shape = (tokens, self._choices)
        return ids.reshape(shape), gates.reshape(shape), [by_expert[expert] for expert in sorted(by_expert)]

    def _meter(self, layer: int, expert: int, tokens: int, part: _Part) -> None:
        """Count an expert's part of a message as a call of its own."""
        meter = self._instruments.nodes[self._experts[layer][expert]]
        meter.begin(tokens, part.begun_s)
        meter.end(tokens, part.begun_s, part.ended_s, part.record)

"""A layer's tokens to its experts and back, over whatever nodes the experts' replicas are on.

*Direct*: one message for each activated expert. *Two-phase* (Janus, section 3.2): groups for experts on the same other
node travel in one message through one worker of that node, which spreads them; a token that several of them need
travels once. *Adaptive*: whichever of the two the measured link makes cheaper, node by node and layer by layer.

Unlike the paper's, answers are not summed on the way back: sums in another order would change their last bits, and
groups could no longer fail apart. A group that fails in a shared message is called again on its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest

import numpy as np
from numpy.typing import NDArray

from functions.dispatch.client import TransportError
from functions.dispatch.dispatcher import CallRecord, Dispatcher
from functions.dispatch.replicas import Slot
from functions.ingress.calls import NodeCaller, PassContext, gather_or_cancel
from functions.ingress.exchange import Exchange
from functions.ingress.links import two_phase_pays
from functions.ingress.routes import LayerPlans
from functions.serving.instruments import IngressInstruments
from functions.serving.settings import Transfer
from functions.wire import arrays, bundles
from functions.wire import format as wire
from functions.wire.arrays import Array
from functions.wire.bundles import GROUPS, RELAY_PATH
from moe.manifest import Manifest

log = logging.getLogger(__name__)

REST_S = 5.0
"""How long a node is served directly after a shared message to it failed as a whole."""


@dataclass(slots=True)
class _Group:
    """One activated expert's tokens: where they go, what that cost, and what came back."""

    node_id: str
    x: Array
    tokens: NDArray[np.intp]
    """[m]: rows of the layer's x that ``x [m, d]`` is made of."""
    node: str
    record: CallRecord = field(default_factory=CallRecord)
    y: Array | None = None


@dataclass(slots=True)
class _Member:
    """A group that shares a message, and the replica that serves it; None once its slot was given back."""

    group: _Group
    function: str
    path: str
    slot: Slot | None

    @property
    def address(self) -> str:
        return self.slot.replica.address if self.slot is not None else ""


class Scatter:
    """Serves layers of one pipeline."""

    def __init__(
        self,
        manifest: Manifest,
        caller: NodeCaller,
        dispatcher: Dispatcher,
        instruments: IngressInstruments,
        plans: LayerPlans | None = None,
        transfer: Transfer = "direct",
    ) -> None:
        """``plans``: decides on which nodes a layer's experts are served; None: the dispatcher's rule alone."""
        self._experts = [[node.id for node in manifest.experts(layer)] for layer in range(manifest.layers)]
        self._caller = caller
        self._dispatcher = dispatcher
        self._instruments = instruments
        self._plans = plans
        self._transfer: Transfer = transfer
        self._resting: dict[str, float] = {}
        """Nodes that are served directly, until when."""
        self._loop = asyncio.get_running_loop()

    async def outputs(
        self, layer: int, groups: Exchange, x: Array, expert_ids: NDArray[np.int64], context: PassContext
    ) -> list[Array]:
        """``y [m, d]`` of each of ``groups.experts`` on its tokens of ``x [T, d]``. Raises CallError."""
        names = self._experts[layer]
        at = None if self._plans is None else self._plans.nodes(layer, groups.experts, expert_ids)
        parts = groups.scatter(x)
        if self._transfer == "direct" or len(parts) == 1:
            records = [CallRecord() for _ in parts]
            calls = [
                self._caller.call(names[expert], {"x": part}, context, record, node)
                for expert, part, record, node in zip(groups.experts, parts, records, at or repeat(""), strict=False)
            ]
            outputs = [reply["y"] for reply in await gather_or_cancel(calls)]
        else:
            sent = [
                _Group(names[expert], part, groups.tokens[low:high], node)
                for expert, part, low, high, node in zip(
                    groups.experts, parts, groups.edges, groups.edges[1:], at or repeat(""), strict=False
                )
            ]
            await self._in_two_phases(sent, x, context)
            records = [group.record for group in sent]
            outputs = [group.y for group in sent if group.y is not None]
        if any(record.node for record in records):
            machines, tokens = [record.node for record in records], [len(part) for part in parts]
            self._instruments.traffic.scattered(layer, machines, tokens)
        return outputs

    async def _direct(self, group: _Group, context: PassContext) -> None:
        """A group on its own. Raises CallError."""
        reply = await self._caller.call(group.node_id, {"x": group.x}, context, group.record, group.node)
        group.y = reply["y"]

    async def _in_two_phases(self, sent: Sequence[_Group], x: Array, context: PassContext) -> None:
        """Groups for another node together where that is right, the others on their own. Raises CallError."""
        messages = self._messages(sent, x)
        shared = {member.group.node_id for members in messages for member in members}
        calls = [self._direct(group, context) for group in sent if group.node_id not in shared]
        try:
            await gather_or_cancel([*calls, *(self._together(members, x, context) for members in messages)])
        finally:  # of those that were cancelled before they began
            for members in messages:
                self._give_back(members)

    def _messages(self, sent: Sequence[_Group], x: Array) -> list[list[_Member]]:
        """Groups that share a message, with their replicas taken. The others know the node they would go to."""
        by_node: dict[str, list[_Member]] = {}
        for group in sent:
            function, path = self._caller.address(group.node_id)
            slot = self._dispatcher.take(function, group.node)
            if slot is not None:
                group.node = slot.replica.node
                by_node.setdefault(group.node, []).append(_Member(group, function, path, slot))
        messages = []
        for node, members in by_node.items():
            if len(members) > 1 and self._may_share(node) and self._pays(node, members, x):
                messages.append(members)
            else:
                self._give_back(members)
        return messages

    def _may_share(self, node: str) -> bool:
        """Whether a node is another one, known, and has not just failed to relay."""
        return node not in ("", self._instruments.traffic.machine) and self._resting.get(node, 0.0) <= self._loop.time()

    def _pays(self, node: str, members: Sequence[_Member], x: Array) -> bool:
        """Whether one message is right: always in two phases, by the measured line where that is to decide."""
        if self._transfer == "two-phase":
            return True
        link = self._instruments.traffic.links.get(node)
        if link is None:
            return False
        row_bytes = x.shape[1] * x.itemsize
        sizes = [len(member.group.tokens) for member in members]
        direct = sum(sizes) * row_bytes
        if not two_phase_pays(link, len(members), direct, max(sizes) * row_bytes):  # not even if all tokens were shared
            return False
        wanted = np.zeros(len(x), bool)
        for member in members:
            wanted[member.group.tokens] = True
        return two_phase_pays(link, len(members), direct, int(np.count_nonzero(wanted)) * row_bytes)

    async def _together(self, members: list[_Member], x: Array, context: PassContext) -> None:
        """One message through the worker with the most tokens; groups that fail in it are called again on their own.
        Raises CallError."""
        meters = [self._instruments.nodes[member.group.node_id] for member in members]
        begun_s = self._loop.time()
        for member, meter in zip(members, meters, strict=True):
            meter.begin(len(member.group.tokens), begun_s)
        try:
            await self._send(members, x, context)
        finally:
            ended_s = self._loop.time()
            for member, meter in zip(members, meters, strict=True):
                member.group.record.busy_s += ended_s - begun_s
                meter.end(len(member.group.tokens), begun_s, ended_s, member.group.record)
            self._give_back(members)
        failed = [member.group for member in members if member.group.y is None]
        for group in failed:
            group.record = CallRecord()  # the other one is counted
        if failed:
            await gather_or_cancel([self._direct(group, context) for group in failed])

    async def _send(self, members: Sequence[_Member], x: Array, context: PassContext) -> None:
        """Fill in what came back; a group without an answer has the reason in its record. Raises DeadlineError."""
        head = max(members, key=lambda member: len(member.group.tokens))
        slot = head.slot
        assert slot is not None
        targets = ",".join(("" if one.address == head.address else one.address) + one.path for one in members)
        chunks = arrays.encode(bundles.gather_rows(x, [member.group.tokens for member in members]))
        answers: Sequence[bundles.Answer] = ()
        received_bytes, reason = 0, "broken"
        try:
            reply = await self._dispatcher.send(
                head.function,
                slot,
                RELAY_PATH,
                chunks,
                deadline_s=context.deadline_s,
                request_id=context.request_id,
                headers=((GROUPS, targets),),
            )
            received_bytes = len(reply.body)
            reason = _reason(reply.status)
            if reply.status == 200:
                answers = bundles.parse(reply.body, len(members))
        except TransportError as error:
            reason = error.reason
        except wire.WireError as error:
            log.warning("%s answered a message of groups with something else: %s", head.address, error)
        node = slot.replica.node
        self._instruments.traffic.message(node, wire.total_bytes(chunks), received_bytes)
        if not answers:
            self._resting[node] = self._loop.time() + REST_S
        for member, answer in zip_longest(members, answers):
            _take_in(member.group, answer, node, reason)

    def _give_back(self, members: Sequence[_Member]) -> None:
        """Free the slots that are still taken."""
        for member in members:
            slot, member.slot = member.slot, None
            if slot is not None:
                self._dispatcher.release(member.function, slot)


def _take_in(group: _Group, answer: bundles.Answer | None, node: str, reason: str) -> None:
    """One group's part of the answer; without one, why it will be called again."""
    group.record.node = node
    if answer is not None and answer.status == 200:
        try:
            group.y = arrays.decode(answer.body)["y"]
            group.record.status = "200"
            return
        except (wire.WireError, KeyError):
            reason = "broken"
    elif answer is not None:
        reason = _reason(answer.status)
        group.record.status = str(answer.status) if answer.status else "error"
    group.record.repeats.append(reason)


def _reason(status: int) -> str:
    """Why a call is repeated, as the dispatcher counts it."""
    return {0: "broken", 429: "busy"}.get(status, "status")

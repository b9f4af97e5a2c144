"""A layer scattered over workers of another node: shared messages, and what happens when parts of them fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.ingress.calls import NodeCaller, PassContext
from functions.ingress.exchange import exchange
from functions.ingress.scatter import Scatter
from functions.serving import relay
from functions.serving.instruments import IngressInstruments
from functions.serving.relay import Relay
from functions.serving.settings import Transfer
from functions.serving.traffic import Link
from functions.wire import arrays
from functions.wire.errors import DeadlineError, NodeRefusedError
from functions.wire.messages import Reply, Request, error_reply
from moe.grouping import group
from moe.manifest import load
from tests.unit.functions.conftest import Held, Scripted

X = np.arange(15, dtype=np.float32).reshape(5, 3)
IDS = np.array([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]])
GROUPS = exchange(IDS, np.ones((5, 2), np.float32))
FAST = Link(hop_s=1e-4, message_s=1e-4, spread_s=1e-3, bytes_per_s=1e9)
SLOW = Link(hop_s=1e-4, message_s=1e-4, spread_s=1e-3, bytes_per_s=1e3)


def expert(number: int, refusals: list[int] | None = None) -> Scripted:
    """Multiplies by its number plus one; first answers with ``refusals``, one a call."""

    def script(request: Request) -> Reply:
        if refusals:
            return error_reply(refusals.pop(0), "code", "a sentence", platform=True)
        return Reply(200, arrays.encode({"y": arrays.decode(request.body)["x"] * np.float32(number + 1)}))

    return Scripted(script)


@dataclass
class Layer:
    """Layer 0 of a pipeline whose four experts are applications here."""

    folder: Path
    transfer: Transfer = "two-phase"
    nodes: str = "bbbb"
    max_inflight: int = 4

    async def begin(self, start: Any, applications: list[Any], key: str, spare: Any) -> Layer:
        """``spare``: another replica of expert 0, on the same node."""
        loop = asyncio.get_running_loop()
        manifest = load(self.folder)
        grouping = group(manifest)
        self.dispatcher = Dispatcher(loop)
        self.instruments = IngressInstruments("m", [node.id for node in manifest.nodes], 3, loop.time, own_node="a")
        caller = NodeCaller(manifest, grouping, self.dispatcher, self.instruments)
        self.scatter = Scatter(manifest, caller, self.dispatcher, self.instruments, transfer=self.transfer)
        self.names = [grouping.function_of(node.id).name for node in manifest.experts(0)]
        self.running = [await start(Relay(application, loop, key), caller_key=key) for application in applications]
        self.dispatcher.update(
            {
                name: FunctionReplicas(self.max_inflight, (ReplicaAddress(name, one.address, node=node, key=key),))
                for name, one, node in zip(self.names, self.running, self.nodes, strict=True)
            }
        )
        if spare is not None:
            first = self.dispatcher.replicas(self.names[0])[0]
            second = ReplicaAddress("spare", (await start(spare)).address, node=first.node)
            table = {name: FunctionReplicas(4, tuple(self.dispatcher.replicas(name))) for name in self.names}
            self.dispatcher.update(table | {self.names[0]: FunctionReplicas(4, (first, second))})
        return self

    async def outputs(self, within_s: float = 5.0) -> list[np.ndarray]:
        context = PassContext("id", asyncio.get_running_loop().time() + within_s)
        return await self.scatter.outputs(0, GROUPS, X, IDS, context)

    @property
    def messages(self) -> int:
        return self.instruments.traffic.of("b").messages

    def settled(self) -> bool:
        return not any(self.dispatcher.in_flight(name) for name in self.names)

    def close(self) -> None:
        self.dispatcher.close()


@pytest.fixture
async def layer(bert: Path, start: Any) -> Any:
    made: list[Layer] = []

    async def make(applications: list[Any], *, key: str = "", spare: Any = None, **settings: Any) -> Layer:
        made.append(await Layer(bert, **settings).begin(start, applications, key, spare))
        return made[-1]

    yield make
    for one in made:
        one.close()
    await asyncio.sleep(0)


Make = Callable[..., Any]


def right(outputs: list[np.ndarray]) -> bool:
    expected = [part * np.float32(number + 1) for number, part in enumerate(GROUPS.scatter(X))]
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(outputs, expected, strict=True))


async def test_one_message_serves_all_experts_of_a_node(layer: Make) -> None:
    one = await layer([expert(n) for n in range(4)])
    assert right(await one.outputs())
    assert one.messages == 1
    assert one.instruments.traffic.of("b").expert_calls == 4
    assert one.instruments.traffic.fullest[0] == 4
    assert one.settled()


async def test_the_ingresss_own_node_is_called_directly(layer: Make) -> None:
    one = await layer([expert(n) for n in range(4)], nodes="aabb")
    assert right(await one.outputs())
    assert (one.instruments.traffic.of("a").messages, one.messages) == (2, 1)


async def test_a_group_that_fails_is_called_again_on_its_own(layer: Make) -> None:
    one = await layer([expert(0), expert(1, [503]), expert(2, [429]), expert(3)])
    assert right(await one.outputs())
    nodes = one.instruments.nodes
    assert [nodes[f"expert-0-{n}"].retries for n in range(4)] == [{}, {"status": 1}, {"busy": 1}, {}]
    assert [nodes[f"expert-0-{n}"].calls.get("200") for n in range(4)] == [1, 1, 1, 1]
    assert one.messages == 3
    assert one.settled()


async def test_a_refusal_is_final_and_ends_the_layer(layer: Make) -> None:
    one = await layer([expert(0), expert(1, [400, 400]), expert(2), expert(3)])
    with pytest.raises(NodeRefusedError):
        await one.outputs()
    assert one.settled()


async def test_after_a_message_that_failed_as_a_whole_the_node_is_served_directly(
    layer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MAX_FORWARDED", 0)
    one = await layer([expert(n) for n in range(4)], key="workers'")
    assert right(await one.outputs())
    assert one.messages == 5
    assert right(await one.outputs())
    assert one.messages == 9
    one.scatter._resting.clear()
    assert right(await one.outputs())
    assert one.messages == 14


async def test_a_worker_that_dies_with_the_message_costs_repeats_alone(layer: Make) -> None:
    held = Held()
    one = await layer([held, *(expert(n) for n in range(1, 4))], spare=expert(0))
    call = asyncio.ensure_future(one.outputs())
    await held.wait(1)  # expert 0 has the most tokens (the first of those with as many), so its worker has the message
    one.running[0].server.settings.drain_s = 0.0
    await one.running[0].server.drain()
    assert right(await call)
    assert [one.instruments.nodes[f"expert-0-{n}"].retries for n in range(4)] == [{"broken": 1}] * 4
    assert one.settled()


async def test_an_answer_that_is_no_bundle_is_asked_for_again(layer: Make) -> None:
    one = await layer([expert(n) for n in range(4)])
    for running in one.running:
        relaying = running.server.application

        class Liar:
            submit_ = relaying.submit

            def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
                if request.path == "/relay":
                    answer(Reply(200, (b"nonsense",)))
                else:
                    self.submit_(request, answer)

            def close(self) -> None:
                """Holds nothing."""

        running.server.application = Liar()
    assert right(await one.outputs())
    assert one.messages == 5


async def test_a_cancelled_layer_frees_every_slot(layer: Make) -> None:
    held = Held()
    one = await layer([held, *(expert(n) for n in range(1, 4))])
    call = asyncio.ensure_future(one.outputs())
    await held.wait(1)
    call.cancel()
    await asyncio.wait([call])
    assert one.settled()
    call = asyncio.ensure_future(one.outputs())
    await asyncio.sleep(0)  # slots are taken, nothing is sent yet
    call.cancel()
    await asyncio.wait([call])
    assert one.settled()
    held.answer_all()


async def test_a_spent_deadline_ends_the_layer(layer: Make) -> None:
    held = Held()
    one = await layer([held, *(expert(n) for n in range(1, 4))])
    with pytest.raises(DeadlineError):
        await one.outputs(within_s=0.05)
    assert one.settled()
    held.answer_all()


async def test_groups_that_find_no_slot_wait_on_their_own(layer: Make) -> None:
    one = await layer([expert(n) for n in range(4)], max_inflight=1)
    results = await asyncio.gather(*(one.outputs() for _ in range(5)))
    assert all(right(outputs) for outputs in results)
    assert one.settled()


@pytest.mark.parametrize(("link", "messages"), [(FAST, 4), (SLOW, 1), (None, 4)], ids=["fast", "slow", "unknown"])
async def test_the_measured_line_decides(layer: Make, link: Link | None, messages: int) -> None:
    one = await layer([expert(n) for n in range(4)], transfer="adaptive")
    one.instruments.traffic.links = {"b": link} if link else {}
    assert right(await one.outputs())
    assert one.messages == messages

"""Which instance gets a text, and what becomes of those that none can take."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.generation import generator as module
from functions.generation.api import OpenAiApi
from functions.generation.draining import Drain
from functions.generation.generator import Generator
from functions.generation.instance import ASK_S
from functions.generation.metrics import GenerationMetrics
from functions.generation.run import InstanceRun
from functions.ingress.calls import NodeCaller
from functions.ingress.passes import PipelinePass
from functions.ingress.scatter import Scatter
from functions.serving.instruments import IngressInstruments
from functions.serving.settings import ScheduleSettings
from functions.wire.errors import NoReplicaError, OverloadedError
from functions.wire.messages import Reply, Request
from moe.cache import PAGE_TOKENS
from moe.grouping import group
from moe.manifest import load
from moe.reference import WholeModel
from tests.unit.functions.conftest import turns
from tests.unit.functions.decoder_bench import POSITIONS, Bench, Collected, InProcess
from tests.unit.functions.test_migration import Pair
from tests.unit.moe import tiny


def generator_of(
    directory: Path, timeout_s: float = 60.0, queue_limit: int = 3, schedule: ScheduleSettings | None = None
) -> Generator:
    """Over a dispatcher that knows no replica."""
    manifest, loop = load(directory), asyncio.get_running_loop()
    dispatcher = Dispatcher(loop)
    instruments = IngressInstruments("m", [node.id for node in manifest.nodes], manifest.layers, loop.time)
    caller = NodeCaller(manifest, group(manifest, 0), dispatcher, instruments)
    driver = PipelinePass(manifest, caller, Scatter(manifest, caller, dispatcher, instruments), instruments)
    return Generator(
        manifest, caller, driver, dispatcher, queue_limit=queue_limit, timeout_s=timeout_s, schedule=schedule
    )


def text_of(bench: Bench, name: str) -> tuple[object, Collected]:
    text = bench.text(name, [1, 2, 3], 4)
    assert isinstance(text.sink, Collected)
    return text, text.sink


async def test_a_text_never_goes_to_an_instance_that_is_ending(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    generator = generator_of(model.directory)
    generator.runs.append(bench.run)
    closing = asyncio.Event()
    bench.instance.close = closing.wait  # type: ignore[method-assign, assignment]
    bench.instance.lost = True
    bench.run.wake()
    while not bench.run.over:
        await asyncio.sleep(0)
    text, _ = text_of(bench, "a")
    generator.add(text)  # type: ignore[arg-type]
    assert not bench.run.texts
    assert list(generator.waiting.texts) == [text]
    closing.set()
    await bench.task
    generator.close()


async def test_the_queue_is_bounded_and_what_waits_too_long_gets_the_reason(
    model: WholeModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    bench = Bench(InProcess(model, 40))
    generator = generator_of(model.directory, timeout_s=0.1)
    pairs = [text_of(bench, str(number)) for number in range(3)]
    for text, _ in pairs:
        generator.add(text)  # type: ignore[arg-type]
    with pytest.raises(OverloadedError, match="3 texts wait"):
        generator.add(text_of(bench, "one too many")[0])  # type: ignore[arg-type]
    await bench.over(*(sink for _, sink in pairs))
    assert all(isinstance(sink.error, NoReplicaError) for _, sink in pairs)
    assert generator.measures.ended == {"abort": 3}
    generator.close()
    await bench.end()


@pytest.mark.slow
async def test_a_replica_that_does_not_answer_holds_up_no_text_that_waits(
    model: WholeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    asked: list[asyncio.StreamWriter] = []
    stuck = await asyncio.start_server(lambda _, writer: asked.append(writer), "127.0.0.1", 0)
    generator, bench = generator_of(model.directory, timeout_s=0.3), Bench(InProcess(model, 40))
    port = stuck.sockets[0].getsockname()[1]
    replicas = FunctionReplicas(0, (ReplicaAddress("r", f"127.0.0.1:{port}"),))
    generator._dispatcher.update(dict.fromkeys(generator._segments, replicas))
    (text, sink), (parked, parked_sink) = text_of(bench, "waits"), text_of(bench, "its reader has caught up")
    generator.waiting.parked.append(parked)  # type: ignore[arg-type]
    generator.add(text)  # type: ignore[arg-type]
    async with asyncio.timeout(ASK_S / 2):
        await bench.over(sink, parked_sink)
    assert isinstance(sink.error, NoReplicaError)
    assert len(asked) == 1 and generator.document()["joining"] == 1
    generator.close()
    await turns()
    for writer in asked:
        writer.close()
    stuck.close()
    await bench.end()


async def test_prompts_are_computed_in_parts_of_what_is_set(model: WholeModel) -> None:
    generator, bench = (
        generator_of(model.directory, schedule=ScheduleSettings(chunk_tokens=16)),
        Bench(InProcess(model, 40)),
    )
    instance = InProcess(model, 40)
    generator._begin(instance)  # type: ignore[arg-type]
    text = bench.text("a", tiny.texts((40,))[0], 2)
    generator.add(text)
    assert isinstance(text.sink, Collected)
    await bench.over(text.sink)
    assert [sum(count for _, count in one) for one in instance.iterations] == [16, 16, 8, 1]
    assert generator.document()["chunk_tokens"] == 16
    generator.close()
    await bench.end()


async def test_texts_go_to_the_emptiest_instance_and_parked_ones_come_back(
    model: WholeModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    generator = generator_of(model.directory)
    instances = [InProcess(model, 40), InProcess(model, 40)]
    for instance in instances:
        instance.before = lambda number: asyncio.sleep(0.01)
        run = InstanceRun(
            instance,  # type: ignore[arg-type]
            generator.waiting,
            generator.measures,
            60.0,
            lambda tokens: None,
            generator._place,
        )
        generator.runs.append(run)
        generator._start(run.run())
    bench = Bench(InProcess(model, 40))
    pairs = [text_of(bench, str(number)) for number in range(4)]
    for text, _ in pairs[:2]:
        generator.add(text)  # type: ignore[arg-type]
    assert [len(run.texts) for run in generator.runs] == [1, 1]
    text, sink = pairs[2]
    sink.behind = True
    generator.waiting.parked.append(text)  # type: ignore[arg-type]
    shown = {sample.name: sample.value for one in GenerationMetrics("m", generator).collect() for sample in one.samples}
    assert generator.queued == 1 and shown["vllm:num_requests_waiting"] == 0  # it waits for its reader
    generator._place()
    await turns(500)
    assert not sink.tokens
    sink.behind = False
    await bench.over(*(sink for _, sink in pairs[:3]))
    generator.close()
    await bench.end()


async def test_texts_whose_clients_left_leave_the_queue_of_an_instance_that_is_busy(
    model: WholeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    generator, bench, go_on = generator_of(model.directory), Bench(InProcess(model, 40)), asyncio.Event()
    bench.instance.before = lambda number: go_on.wait()
    sinks = [bench.add(bench.text("running", [1, 2, 3], 4))]
    while not bench.instance.iterations:
        await asyncio.sleep(0)
    head, *behind = [bench.text(str(number), [1, 2, 3], 4) for number in range(3)]
    bench.run.queue.extend([head, *behind])
    generator.runs.append(bench.run)
    for text in behind:
        generator.cancel(text)
    generator._place()
    async with asyncio.timeout(30):
        while len(bench.run.queue) > 1:
            await asyncio.sleep(0.01)
    assert list(bench.run.queue) == [head] and generator.queued == 1
    go_on.set()
    assert isinstance(head.sink, Collected)
    await bench.over(*sinks, head.sink)
    generator.close()
    await bench.end()


async def test_the_context_is_stated_as_far_as_pages_reach(model: WholeModel) -> None:
    generator, loop = generator_of(model.directory), asyncio.get_running_loop()
    api = OpenAiApi(model.manifest, SimpleNamespace(tokenizer=None), None, generator, None, loop)  # type: ignore[arg-type]

    async def stated() -> int:
        answers: list[Reply] = []
        await api.serve(Request("GET", "/v1/models", {}, bytearray(), loop.time()), answers.append)
        return orjson.loads(answers[0].chunks[0])["data"][0]["max_model_len"]  # type: ignore[no-any-return]

    assert await stated() == POSITIONS  # there is no instance yet
    bench = Bench(InProcess(model, 20))
    generator.runs.append(bench.run)
    assert await stated() == 20 * PAGE_TOKENS
    generator.close()
    await bench.end()


async def test_an_instance_that_drains_keeps_its_number_and_one_that_has_ended_has_none(model: WholeModel) -> None:
    generator, pair = generator_of(model.directory), Pair(model)
    generator.phases, generator.runs = pair.phases, pair.runs[::-1]  # 0 died, and came back as the last

    def shown() -> list[tuple[int, str]]:
        return [(one["instance"], one["role"]) for one in generator.document()["instances"]]

    assert shown() == [(1, "decode"), (0, "prefill")]
    pair.runs[0].retire()
    assert shown() == [(1, "decode"), (0, "draining")]
    pair.end(0)
    await pair.tasks[0]
    assert shown() == [(1, "decode")]
    await pair.close()
    generator.close()


async def test_an_instance_ends_its_drain_where_waiting_texts_need_its_replicas(model: WholeModel) -> None:
    """One replica of each of two functions goes, of unlike instances: those that stay make a third."""
    generator = generator_of(model.directory)
    bench = Bench(InProcess(model, 40), waiting=generator.waiting)
    bench.run.drain.most_s = 1000.0
    go_on = asyncio.Event()
    bench.instance.before = lambda number: go_on.wait() if number > 2 else None
    first, waits = bench.text("a", [1, 2, 3], 4), bench.text("b", [1, 2, 3], 4)
    sink = bench.add(first)
    while len(bench.instance.iterations) < 3:
        await asyncio.sleep(0)
    generator.runs.append(bench.run)
    bench.instance.draining = True
    generator.waiting.texts.append(waits)
    generator._make_instances()
    assert bench.run.drain == Drain(1000.0)  # as before: nobody could serve it elsewhere
    there = FunctionReplicas(0, (bench.instance.replicas["any"],))
    generator._dispatcher.update(dict.fromkeys(generator._segments, there))
    generator._make_instances()
    go_on.set()
    async with asyncio.timeout(100):
        await bench.task
    assert len(sink.tokens) == 3 and list(generator.waiting.texts) == [first, waits]
    generator.runs.clear()
    generator.close()
    assert bench.instance.used_pages == 0

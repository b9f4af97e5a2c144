"""Texts that are prefilled on one instance and decoded on another, in this process: the same tokens whatever fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping

import pytest

from functions.generation.measures import Measures
from functions.generation.phases import Phases
from functions.generation.run import InstanceRun
from functions.generation.texts import Text, Waiting
from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Instance, Role, Scheduler
from functions.scheduling.peers import RoundRobin
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile
from functions.scheduling.settings import ArrowSettings, Targets
from functions.wire.errors import DeadlineError, KvFullError, KvLostError
from moe.cache import PAGE_TOKENS
from moe.errors import CacheMissError
from moe.reference import WholeModel
from tests.unit.functions.decoder_bench import Bench, Collected, InProcess, recomputed
from tests.unit.moe import tiny

PROFILE = Profile(PrefillModel(0.0, 1e-3, 0.0), DecodeModel(0.0, 1e-4))
TARGETS = Targets(1.0, 0.1)


class Movable(InProcess):
    """An instance that takes pages over from another one of this process."""

    def __init__(self, model: WholeModel, pages: int) -> None:
        super().__init__(WholeModel(model.directory), pages)
        self.before_pull: Callable[[], Awaitable[None] | None] = lambda: None
        self.full: Iterator[bool] = iter(())
        """For segments in the order in which they pull: whether one has too few pages."""

    async def pull(self, text: Text, source: Movable, limit_s: float) -> int:
        waiting = self.before_pull()
        if waiting is not None:
            await waiting
        moved = 0
        for segment in self.model.manifest.segments:
            ours, theirs = (one.programs[segment.id].cache for one in (self.model, source.model))
            assert ours is not None and theirs is not None
            if ours.bytes_per_token:
                if next(self.full, False):
                    raise KvFullError("no pages")
                data = theirs.read(text.kv_id, 0, -(-text.kept // PAGE_TOKENS))
                try:
                    ours.write(text.kv_id, 0, text.kept, data)
                except CacheMissError as error:
                    raise KvLostError(str(error)) from None
                moved += data.nbytes
        return moved


class Pair:
    """Instance 0 begins with prefill, instance 1 with decode."""

    def __init__(self, model: WholeModel, pages: int = 40, phases: Phases | None = None) -> None:
        self.phases = phases or Phases(RoundRobin({}, TARGETS, 1), 1.0)
        self.waiting, self.measures = Waiting(), Measures()
        self.instances = [Movable(model, pages), Movable(model, pages)]
        self.runs = [
            InstanceRun(one, self.waiting, self.measures, 60.0, lambda tokens: None, self.place, self.phases)  # type: ignore[arg-type]
            for one in self.instances
        ]
        for name, run in enumerate(self.runs):
            self.phases.join(name, run, PROFILE)
        self.tasks = [asyncio.get_running_loop().create_task(run.run()) for run in self.runs]

    def place(self) -> None:
        while self.waiting.texts and self.phases.runs:
            text = self.waiting.texts.popleft()
            self.phases.dispatch(text, asyncio.get_running_loop().time()).expect(text)

    def add(self, *texts: Text) -> list[Collected]:
        self.waiting.texts.extend(texts)
        self.place()
        return [text.sink for text in texts]  # type: ignore[misc]

    def end(self, name: int) -> None:
        self.instances[name].lost = True
        self.runs[name].wake()

    async def close(self) -> None:
        """Nothing is left anywhere."""
        for name in (0, 1):
            self.end(name)
        await asyncio.gather(*self.tasks)
        assert [one.used_pages for one in self.instances] == [0, 0]
        assert not self.phases._held and not any(run.leaving or run.queued for run in self.runs)


class Fixed(Scheduler):
    """``where``: by tens of a prompt's tokens, who computes it and who goes on with its text; else instance 1."""

    roles = False

    def __init__(self, where: Mapping[int, tuple[int, int]]) -> None:
        super().__init__({}, TARGETS, 1)
        self.where = where

    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        return self.instances[self.where.get(tokens // 10, (1, 1))[0]]

    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        return self.instances[self.where.get(tokens // 10, (1, 1))[1]]


@pytest.fixture
def texts(model: WholeModel) -> Callable[..., list[Text]]:
    def make(lengths: tuple[int, ...], tokens: int = 24) -> list[Text]:
        bench = Bench.__new__(Bench)
        return [Bench.text(bench, str(i), prompt, tokens) for i, prompt in enumerate(tiny.texts(lengths, seed=3))]

    return make


async def over(*sinks: Collected) -> None:
    async with asyncio.timeout(600):
        for sink in sinks:
            await sink.over.wait()


async def same(model: WholeModel, pair: Pair, given: list[Text]) -> None:
    """All are written as the whole model writes them."""
    prompts = [list(text.tokens) for text in given]
    sinks = pair.add(*given)
    await over(*sinks)
    for prompt, sink in zip(prompts, sinks, strict=True):
        assert sink.error is None and sink.tokens == recomputed(model, prompt, sink.tokens)


async def test_texts_move_and_write_the_same_tokens(model: WholeModel, texts) -> None:
    pair = Pair(model)
    await same(model, pair, texts((30, 45, 5, 60, 20)))
    assert pair.measures.move.count == 5 and pair.measures.moved_bytes > 0
    prompts_here = [max(count for _, count in one) for one in pair.instances[1].iterations]
    assert set(prompts_here) == {1}  # the decode instance computes no prompt
    await pair.close()


@pytest.mark.slow
async def test_a_small_decode_instance_makes_texts_wait_and_loses_none(model: WholeModel, texts) -> None:
    pair = Pair(model, pages=9)
    await same(model, pair, texts((30, 45, 5, 60, 20, 33), 40))
    await pair.close()


async def test_pages_that_cannot_be_had_mean_prefill_again(model: WholeModel, texts) -> None:
    pair, failures = Pair(model), iter([True, False, True])

    def fail() -> None:
        if next(failures, False):
            raise KvLostError("gone")

    pair.instances[1].before_pull = fail
    await same(model, pair, texts((30, 45, 5)))
    assert pair.measures.lost_sources == 2 and pair.measures.move.count == 3
    await pair.close()


async def test_a_pull_is_tried_again_after_some_of_a_text_had_come(model: WholeModel, texts) -> None:
    pair = Pair(model)
    pair.instances[1].full = iter([False, True, False, True])
    await same(model, pair, texts((30,)))
    assert pair.measures.lost_sources == 0 and pair.measures.move.count == 1
    await pair.close()


@pytest.mark.parametrize("victim", [0, 1])
async def test_an_instance_that_ends_in_the_midst_of_a_move_loses_no_text(
    model: WholeModel,
    texts,
    victim: int,
) -> None:
    pair, moving, go_on = Pair(model), asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        moving.set()
        await go_on.wait()

    pair.instances[1].before_pull = wait
    checked = asyncio.get_running_loop().create_task(same(model, pair, texts((30, 45, 5))))
    await moving.wait()
    pair.end(victim)
    if victim == 0:
        await pair.tasks[0]
    go_on.set()
    await checked
    await pair.close()


async def test_a_text_that_waits_for_a_move_can_be_given_up(model: WholeModel, texts) -> None:
    pair, go_on = Pair(model), asyncio.Event()
    pair.instances[1].before_pull = go_on.wait
    given = texts((30, 45))
    first, second = pair.add(*given)
    while len(pair.runs[1].queued) < 2:
        await asyncio.sleep(0)
    pair.runs[1].give_up_waiting(given[1], DeadlineError("spent"))
    assert isinstance(second.error, DeadlineError)
    go_on.set()
    await over(first)
    assert first.error is None
    await pair.close()


async def test_a_text_stays_where_its_prefill_instance_has_become_one_for_decode(
    model: WholeModel,
    texts,
) -> None:
    arrow = Arrow({}, TARGETS, 1, ArrowSettings())
    pair = Pair(model, phases=Phases(arrow, 1.0))
    sinks = pair.add(*texts((30,)))
    arrow.instances[0].role = Role.DECODE
    await over(*sinks)
    assert pair.measures.move.count == 0 and pair.measures.written_tokens == 24
    await pair.close()


async def test_prompts_do_not_overtake_a_text_that_waits_for_room(model: WholeModel, texts) -> None:
    pair = Pair(model, pages=8, phases=Phases(Fixed({7: (0, 1)}), 1.0))
    running, moves, *small = texts((50, 70, 5, 6, 7))  # 5 pages with its answer, 6, and 2 each
    (sink,) = pair.add(running)
    while not sink.tokens:
        await asyncio.sleep(0)
    sinks = pair.add(moves)
    while not pair.runs[1].queued:
        await asyncio.sleep(0)
    await over(sink, *sinks, *pair.add(*small))
    names = [{name for name, _ in one} for one in pair.instances[1].iterations]
    assert not any(running.request_id in one and one & {text.request_id for text in small} for one in names)
    assert pair.measures.move.count == 1
    await pair.close()


async def test_texts_that_leave_for_each_other_do_not_wait_for_each_others_room(model: WholeModel, texts) -> None:
    pair = Pair(model, pages=8, phases=Phases(Fixed({7: (0, 1), 9: (1, 0)}), 1.0))
    async with asyncio.timeout(60):
        await same(model, pair, texts((70, 90), 4))
    await pair.close()

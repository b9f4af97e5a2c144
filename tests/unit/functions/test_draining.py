"""Instances that are scaled away while texts are written: the whole model's tokens, and nothing computed twice."""

from __future__ import annotations

import asyncio

import pytest

from functions.generation.draining import Drain
from functions.generation.measures import Measures
from functions.generation.phases import Phases
from functions.generation.run import InstanceRun
from functions.generation.texts import Text, Waiting
from functions.scheduling.peers import RoundRobin
from functions.wire.errors import KvLostError
from moe.reference import WholeModel
from tests.unit.functions.decoder_bench import Bench, Collected, recomputed
from tests.unit.functions.test_migration import PROFILE, TARGETS, Movable
from tests.unit.moe import tiny

LONG_S = 1000.0


class Two:
    """Two instances; texts go to the first that is open and has room."""

    def __init__(
        self, model: WholeModel, pages: int = 40, most_s: float = LONG_S, phases: Phases | None = None
    ) -> None:
        self.model, self.phases = model, phases
        self.waiting, self.measures = Waiting(), Measures()
        self.instances = [Movable(model, pages), Movable(model, pages)]
        self.runs = [
            InstanceRun(
                one,  # type: ignore[arg-type]
                self.waiting,
                self.measures,
                60.0,
                lambda tokens: None,
                self.place,
                phases,
                Drain(most_s, self.elsewhere),
            )
            for one in self.instances
        ]
        if phases is not None:
            for name, run in enumerate(self.runs):
                phases.join(name, run, PROFILE)
        self.tasks = [asyncio.get_running_loop().create_task(run.run()) for run in self.runs]
        for task in self.tasks:
            task.add_done_callback(lambda _: self.place())
        self.prompts: dict[int, list[int]] = {}

    def elsewhere(self, text: Text) -> InstanceRun | None:
        if self.phases is not None:
            return None
        return next((run for run in self.runs if run.open and not run.queued and run.fits(text)), None)

    def place(self) -> None:
        while self.waiting.texts and any(run.open for run in self.runs):
            text = self.waiting.texts[0]
            if self.phases is not None:
                self.phases.dispatch(self.waiting.texts.popleft(), asyncio.get_running_loop().time()).expect(text)
                continue
            run = self.elsewhere(text)
            if run is None:
                return
            run.admit(self.waiting.texts.popleft())

    def add(self, length: int, tokens: int, seed: int = 3) -> Collected:
        (prompt,) = tiny.texts((length,), seed=seed)
        text = Bench.text(Bench.__new__(Bench), str(seed), prompt, tokens)
        assert isinstance(text.sink, Collected)
        self.prompts[id(text.sink)] = list(prompt)
        self.waiting.texts.append(text)
        self.place()
        return text.sink

    async def until(self, sink: Collected, tokens: int) -> None:
        async with asyncio.timeout(600):
            while len(sink.tokens) < tokens:
                await asyncio.sleep(0)

    def drain(self, name: int) -> None:
        self.instances[name].draining = True
        self.runs[name].wake()

    def lose(self, name: int) -> None:
        self.instances[name].lost = True
        self.runs[name].wake()

    async def whole(self, *sinks: Collected) -> None:
        """All texts are what the whole model writes."""
        async with asyncio.timeout(600):
            for sink in sinks:
                await sink.over.wait()
                assert sink.error is None and sink.tokens == recomputed(self.model, self.prompts[id(sink)], sink.tokens)

    async def close(self) -> None:
        """Nothing is left anywhere."""
        for name in (0, 1):
            self.lose(name)
        await asyncio.gather(*self.tasks)
        assert [one.used_pages for one in self.instances] == [0, 0]
        assert not any(run.leaving or run.queued or run.texts for run in self.runs)


def prompt_tokens(instance: Movable) -> int:
    """Tokens that it computed in parts of more than one."""
    return sum(count for iteration in instance.iterations for _, count in iteration if count > 1)


async def test_without_room_elsewhere_texts_end_where_they_are_and_the_instance_after_them(model: WholeModel) -> None:
    two = Two(model, pages=8)
    first, second = two.add(70, 40), two.add(70, 50, seed=4)  # five pages and more of eight, so one to each
    await two.until(first, 3)
    await two.until(second, 3)
    two.drain(0)
    await two.whole(first, second)
    async with asyncio.timeout(600):
        await two.tasks[0]
    assert two.measures.recomputed_tokens == 0 and two.measures.move.count == 0
    assert [prompt_tokens(one) for one in two.instances] == [70, 70]
    await two.close()


async def test_where_there_is_room_elsewhere_texts_go_there_with_their_pages(model: WholeModel) -> None:
    two = Two(model)
    sinks = [two.add(30, 40), two.add(45, 40, seed=4)]
    await two.until(sinks[0], 5)
    await two.until(sinks[1], 5)
    two.drain(0)
    async with asyncio.timeout(600):
        await two.tasks[0]
    assert not any(sink.over.is_set() for sink in sinks)  # it did not wait for its texts
    await two.whole(*sinks)
    assert two.measures.move.count == 2 and two.measures.recomputed_tokens == 0
    assert prompt_tokens(two.instances[1]) == 0
    await two.close()


async def test_a_text_whose_prompt_is_half_computed_goes_once_its_first_token_is_there(model: WholeModel) -> None:
    two = Two(model)
    computing = asyncio.Event()
    two.instances[0].before = lambda number: computing.set()  # type: ignore[func-returns-value]
    sink = two.add(520, 10)
    await computing.wait()
    two.drain(0)
    await two.whole(sink)
    assert (prompt_tokens(two.instances[0]), prompt_tokens(two.instances[1])) == (520, 0)
    assert two.measures.move.count == 1 and two.measures.recomputed_tokens == 0
    await two.close()


async def test_an_instance_that_drains_takes_no_new_text(model: WholeModel) -> None:
    two = Two(model, pages=12)
    first = two.add(100, 60)  # ten pages at the end
    await two.until(first, 3)
    two.instances[1].lost = True  # nowhere else to go
    two.drain(0)
    second = two.add(5, 4, seed=4)
    await two.whole(first)
    async with asyncio.timeout(600):
        await two.tasks[0]
    assert not second.tokens and [text.request_id for text in two.waiting.texts] == ["4"]
    await two.close()


@pytest.mark.parametrize("cut", [False, True], ids=["its time is over", "others need its replicas"])
async def test_what_is_left_when_the_drain_ends_is_computed_again(model: WholeModel, cut: bool) -> None:
    two = Two(model, pages=8, most_s=LONG_S if cut else 0.0)
    first, second = two.add(70, 40), two.add(70, 20, seed=4)
    await two.until(first, 3)
    if cut:
        two.runs[0].drain.cut_short()
    two.drain(0)
    async with asyncio.timeout(600):
        await two.tasks[0]
    assert two.measures.recomputed_tokens >= 70 and not first.over.is_set()
    await two.whole(first, second)
    await two.close()


async def test_an_instance_that_is_killed_while_it_drains_loses_no_text(model: WholeModel) -> None:
    two = Two(model, pages=8)
    first, second = two.add(70, 40), two.add(70, 20, seed=4)
    await two.until(first, 3)
    two.drain(0)
    await two.until(first, 6)
    two.lose(0)
    await two.whole(first, second)
    assert two.measures.recomputed_tokens > 70
    await two.close()


@pytest.mark.parametrize("killed", [False, True], ids=["its pages are refused", "it is killed meanwhile"])
async def test_a_text_that_cannot_be_moved_away_is_computed_again(model: WholeModel, killed: bool) -> None:
    two = Two(model)
    moving, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        moving.set()
        await go_on.wait()
        raise KvLostError("gone")

    two.instances[1].before_pull = wait
    sink = two.add(30, 30)
    await two.until(sink, 3)
    two.drain(0)
    async with asyncio.timeout(600):
        await moving.wait()
        if killed:
            two.lose(0)
            await two.tasks[0]
        go_on.set()
    await two.whole(sink)
    assert two.measures.lost_sources == 1
    await two.close()


@pytest.mark.parametrize("name", [0, 1])
async def test_with_roles_an_instance_that_drains_gets_no_more_texts_and_computes_none_twice(
    model: WholeModel, name: int
) -> None:
    two = Two(model, phases=Phases(RoundRobin({}, TARGETS, 1), 1.0))  # 0 begins with prefill, 1 with decode
    before = [two.add(30, 40), two.add(45, 40, seed=4)]
    for sink in before:
        await two.until(sink, 5)
    two.drain(name)
    await asyncio.sleep(0)
    after = two.add(20, 10, seed=5)
    await two.whole(*before, after)
    async with asyncio.timeout(600):
        await two.tasks[name]
    assert two.measures.recomputed_tokens == 0
    computed = [{who for iteration in one.iterations for who, _ in iteration} for one in two.instances]
    assert "5" not in computed[name] and "5" in computed[1 - name]
    await two.close()


async def test_when_all_instances_with_roles_drain_texts_end_where_they_are(model: WholeModel) -> None:
    two = Two(model, phases=Phases(RoundRobin({}, TARGETS, 1), 1.0))
    sinks = [two.add(300, 30), two.add(45, 30, seed=4)]
    await two.until(sinks[1], 2)
    two.drain(0)
    two.drain(1)
    await two.whole(*sinks)
    assert two.measures.recomputed_tokens == 0
    await two.close()

"""The generation loop over an instance in this process: batching, preemption, failures, and who gets what."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from functions.dispatch.replicas import ReplicaAddress
from functions.generation.measures import Measures
from functions.generation.run import InstanceRun, Waiting
from functions.generation.sampling import Chosen, Sampler, Sampling
from functions.generation.texts import Finish, Text, end_tokens
from functions.ingress.calls import PassContext
from functions.wire.arrays import Array
from functions.wire.errors import BadInputError, CallError, DeadlineError, KvFullError, KvLostError, NodeFailedError
from moe.cache import PAGE_TOKENS
from moe.errors import CacheFullError, CacheMissError
from moe.manifest import Tokenizer
from moe.reference import WholeModel, pack
from moe.split import split
from tests.unit.moe import tiny

POSITIONS = 640


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> WholeModel:
    root = tmp_path_factory.mktemp("mixtral")
    checkpoint = tiny.store(tiny.build("mixtral", max_position_embeddings=POSITIONS), root / "checkpoint")
    split(checkpoint, root / "pipeline", "tiny", 4, None)
    return WholeModel(root / "pipeline")


class InProcess:
    """An instance whose segments are programs of this process, each with room for ``pages``."""

    def __init__(self, model: WholeModel, pages: int, stated_pages: int | None = None) -> None:
        self.pages, self.page_tokens = stated_pages or pages, PAGE_TOKENS
        self.model = model
        self.replicas = defaultdict(lambda: ReplicaAddress("this process", "127.0.0.1:1"))
        self.iterations: list[list[tuple[str, int]]] = []
        self.before: Callable[[int], Awaitable[None] | None] = lambda number: None
        """Called with each iteration's number; may raise or wait."""
        self.lost = False
        self.scored_tokens = 1000
        for segment in model.manifest.segments:
            program = model.programs[segment.id]
            bytes_per_token = program.open_cache(1 << 20).bytes_per_token
            program.open_cache(pages * PAGE_TOKENS * bytes_per_token)

    def whole(self) -> bool:
        return not self.lost

    async def run(self, parts: Sequence[tuple[Text, int]], context: PassContext) -> tuple[list[Array], None]:
        self.iterations.append([(text.request_id, count) for text, count in parts])
        waiting = self.before(len(self.iterations))
        if waiting is not None:
            await waiting
        await asyncio.sleep(0)
        tensors = pack([text.tokens[text.kept : text.kept + count] for text, count in parts])
        tensors["sequences"] = torch.tensor([text.kv_id for text, _ in parts])
        tensors["starts"] = torch.tensor([text.kept for text, _ in parts])
        tensors["parents"] = torch.tensor([text.parent for text, _ in parts])
        try:
            logits = self.model.forward(tensors, all_logits=True)["logits"].numpy()
        except CacheFullError as error:
            raise KvFullError(str(error)) from None
        except CacheMissError as error:
            raise KvLostError(str(error)) from None
        rows = np.split(logits, np.cumsum([count for _, count in parts])[:-1])
        return [row if text.scoring else row[-1:] for (text, _), row in zip(parts, rows, strict=True)], None

    def free(self, kv_ids: Sequence[int]) -> None:
        for segment in self.model.manifest.segments:
            cache = self.model.programs[segment.id].cache
            assert cache is not None
            cache.free(kv_ids)

    async def settled(self) -> bool:
        return False

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def used_pages(self) -> int:
        caches = [self.model.programs[segment.id].cache for segment in self.model.manifest.segments]
        return max(cache.used_pages for cache in caches if cache is not None)


@dataclass
class Collected:
    """A sink that keeps what it gets."""

    tokens: list[int] = field(default_factory=list)
    scored: list[Chosen] = field(default_factory=list)
    finish: Finish | None = None
    error: CallError | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    behind: bool = False
    stop_at: int | None = None

    def prompt(self, scored: Sequence[Chosen]) -> None:
        self.scored += scored

    def token(self, chosen: Chosen) -> bool:
        assert not self.over.is_set()
        self.tokens.append(chosen.token)
        return chosen.token == self.stop_at

    def full(self) -> bool:
        return self.behind

    def finished(self, reason: Finish) -> None:
        self.finish = reason
        self.over.set()

    def failed(self, error: CallError) -> None:
        self.error = error
        self.over.set()


@dataclass
class Bench:
    """A run on an instance, and texts given to it."""

    instance: InProcess
    timeout_s: float = 60.0
    waiting: Waiting = field(default_factory=Waiting)
    measures: Measures = field(default_factory=Measures)
    computed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.run = InstanceRun(
            self.instance,  # type: ignore[arg-type]
            self.waiting,
            self.measures,
            self.timeout_s,
            self.computed.append,
            self.place,
        )
        self.task = asyncio.get_running_loop().create_task(self.run.run())

    def place(self) -> None:
        while self.waiting.texts and self.run.fits(self.waiting.texts[0]):
            self.run.admit(self.waiting.texts.popleft())

    def text(self, name: str, prompt: list[int], max_tokens: int, **options: object) -> Text:
        sampler = options.pop("sampler", None) or Sampler(Sampling())
        now_s = asyncio.get_running_loop().time()
        return Text(
            list(prompt),
            max_tokens,
            sampler,
            Collected(),
            frozenset(),
            name,
            POSITIONS,
            now_s,
            **options,  # type: ignore[arg-type]
        )

    def add(self, text: Text) -> Collected:
        self.waiting.texts.append(text)
        self.place()
        self.run.wake()
        assert isinstance(text.sink, Collected)
        return text.sink

    async def over(self, *sinks: Collected) -> None:
        async with asyncio.timeout(600):
            for sink in sinks:
                await sink.over.wait()

    async def end(self) -> None:
        self.instance.lost = True
        self.run.wake()
        await self.task
        assert self.instance.used_pages == 0


def recomputed(model: WholeModel, prompt: list[int], written: list[int]) -> list[int]:
    """What greedy recomputation writes where it wrote ``written`` so far, at each place."""
    logits = model.logits_ids([[*prompt, *written[:-1]]], all_tokens=True)
    return logits.argmax(-1)[len(prompt) - 1 :].tolist()


async def test_texts_together_write_what_each_writes_alone_even_when_preempted(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 12))
    prompts = tiny.texts((30, 45, 5, 60), seed=3)
    sinks = [bench.add(bench.text(str(i), prompt, 60)) for i, prompt in enumerate(prompts)]
    await bench.over(*sinks)
    for prompt, sink in zip(prompts, sinks, strict=True):
        assert sink.finish == "length"
        assert len(sink.tokens) == 60
        assert sink.tokens == recomputed(model, prompt, sink.tokens)
    assert bench.measures.preemptions > 0
    assert bench.instance.used_pages == bench.run.prefixes.pages
    assert bench.measures.written_tokens == 240
    assert bench.measures.prompt_tokens == sum(map(len, prompts))
    await bench.end()


async def test_decodes_come_first_and_prompts_in_parts(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 100))
    first = bench.add(bench.text("a", tiny.texts((3,))[0], 8))
    while not bench.instance.iterations:
        await asyncio.sleep(0)
    second = bench.add(bench.text("b", tiny.texts((600,))[0], 2))
    await bench.over(first, second)
    both = [iteration for iteration in bench.instance.iterations if len(iteration) == 2]
    assert both[:3] == [[("a", 1), ("b", 255)], [("a", 1), ("b", 255)], [("a", 1), ("b", 90)]]
    assert sum(bench.computed) == 3 + 7 + 600 + 1
    await bench.end()


async def test_the_one_that_arrived_last_is_preempted_and_goes_on_later(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 4))
    old = bench.add(bench.text("old", tiny.texts((20,))[0], 40))
    new = bench.add(bench.text("new", tiny.texts((20,), seed=5)[0], 40))
    await bench.over(old)
    assert not new.over.is_set()
    assert len(new.tokens) < 40
    await bench.over(new)
    assert new.tokens == recomputed(model, tiny.texts((20,), seed=5)[0], new.tokens)
    await bench.end()


async def test_pages_that_another_ingress_holds_are_waited_for(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 4, stated_pages=8))
    stranger = torch.tensor([77])
    ids = {"sequences": stranger, "starts": torch.tensor([0]), "parents": torch.tensor([-1])}
    model.forward({**pack([tiny.texts((40,))[0]]), **ids})
    sink = bench.add(bench.text("a", tiny.texts((20,))[0], 5))
    while len(bench.instance.iterations) < 3:
        await asyncio.sleep(0.01)
    assert not sink.tokens
    bench.instance.free([77])
    await bench.over(sink)
    assert sink.tokens == recomputed(model, tiny.texts((20,))[0], sink.tokens)
    await bench.end()


async def test_what_can_never_fit_is_refused(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 4))
    assert bench.run.refusal(bench.text("a", [1] * 30, 34)) is None
    assert isinstance(bench.run.refusal(bench.text("a", [1] * 30, 35)), BadInputError)
    assert bench.run.refusal(bench.text("a", [1] * 30, 500, bounded=False)) is None
    assert bench.run.refusal(bench.text("a", [1] * 64, 1, bounded=False)) is not None
    sink = bench.add(bench.text("a", [1] * 30, 500, bounded=False))
    await bench.over(sink)
    assert (len(sink.tokens), sink.finish) == (34, "length")
    await bench.end()


async def test_an_iteration_that_failed_is_repeated(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 20))

    def fail(number: int) -> None:
        if number in (2, 3, 5):
            raise NodeFailedError("an expert is gone")

    bench.instance.before = fail
    prompt = tiny.texts((9,))[0]
    sink = bench.add(bench.text("a", prompt, 6))
    await bench.over(sink)
    assert sink.tokens == recomputed(model, prompt, sink.tokens)
    await bench.end()


async def test_without_experts_a_text_is_given_up_when_its_time_is_spent(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 20), timeout_s=0.2)

    def fail(number: int) -> None:
        raise NodeFailedError("an expert is gone")

    bench.instance.before = fail
    sink = bench.add(bench.text("a", [1, 2], 6))
    await bench.over(sink)
    assert isinstance(sink.error, NodeFailedError)
    assert bench.measures.ended == {"abort": 1}
    await bench.end()


async def test_a_deadline_of_the_client_ends_a_text(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 20))
    now_s = asyncio.get_running_loop().time()
    sink = bench.add(bench.text("a", [1, 2], 600, deadline_s=now_s - 1.0))
    await bench.over(sink)
    assert isinstance(sink.error, DeadlineError)
    await bench.end()


async def test_a_text_that_nobody_reads_stops_within_an_iteration(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    text = bench.text("a", [1, 2], 600)
    sink = bench.add(text)
    while len(sink.tokens) < 3:
        await asyncio.sleep(0)
    text.cancelled = True
    begun = len(bench.instance.iterations)
    while bench.run.texts:
        await asyncio.sleep(0)
    assert len(bench.instance.iterations) <= begun
    assert bench.instance.used_pages == 0
    assert not sink.over.is_set()
    await bench.end()


async def test_a_reader_that_is_behind_gives_its_pages_back(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    prompt = tiny.texts((9,))[0]
    text = bench.text("a", prompt, 30)
    sink = bench.add(text)
    while len(sink.tokens) < 4:
        await asyncio.sleep(0)
    sink.behind = True
    while not bench.waiting.parked:
        await asyncio.sleep(0)
    assert bench.instance.used_pages == 0
    sink.behind = False
    bench.waiting.texts.append(bench.waiting.parked.pop())
    bench.run.wake()
    await bench.over(sink)
    assert sink.tokens == recomputed(model, prompt, sink.tokens)
    await bench.end()


async def test_when_a_replica_is_lost_texts_wait_in_order_and_are_computed_again(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    prompts = tiny.texts((9, 17, 4))
    texts = [bench.text(str(i), prompt, 20) for i, prompt in enumerate(prompts)]
    sinks = [bench.add(text) for text in texts]

    def lose(number: int) -> None:
        if number == 6:
            raise KvLostError("segment-1 is gone")

    bench.instance.before = lose
    while not bench.run.over:
        await asyncio.sleep(0.01)
    await bench.task
    assert list(bench.waiting.texts) == texts
    assert [text.kept for text in texts] == [0, 0, 0]
    assert all(0 < len(sink.tokens) < 20 for sink in sinks)
    again = Bench(InProcess(model, 40), waiting=bench.waiting)
    await again.over(*sinks)
    for prompt, sink in zip(prompts, sinks, strict=True):
        assert sink.tokens == recomputed(model, prompt, sink.tokens)
    await again.end()


@pytest.mark.parametrize(("pages", "at_once"), [(80, 1000), (80, 7), (27, 7)])
async def test_a_prompts_own_tokens_are_scored_whatever_runs_beside_and_after_preemption(
    model: WholeModel, pages: int, at_once: int
) -> None:
    bench = Bench(InProcess(model, pages))
    bench.instance.scored_tokens = at_once
    prompts = tiny.texts((45, 1, 300), seed=31)
    await bench.over(bench.add(bench.text("kept", prompts[2], 1)))  # what it left is not begun with
    plain = [bench.add(bench.text("plain", prompt, 60)) for prompt in tiny.texts((30, 9), seed=4)]
    scored = [
        bench.add(bench.text("scored", prompt, most, prompt_logprobs=2))
        for prompt, most in zip(prompts, (40, 3, 0), strict=True)
    ]
    await bench.over(*plain, *scored)
    for prompt, most, sink in zip(prompts, (40, 3, 0), scored, strict=True):
        assert sink.finish == "length"
        assert len(sink.tokens) == most
        assert [one.token for one in sink.scored] == prompt
        assert sink.scored[0].logprob is None
        wanted = torch.log_softmax(model.logits_ids([prompt], all_tokens=True), -1)
        for place, one in enumerate(sink.scored[1:]):
            assert one.logprob == pytest.approx(float(wanted[place, prompt[place + 1]]), abs=1e-4)
            assert [token for token, _ in one.top] == wanted[place].topk(2).indices.tolist()
    assert (bench.measures.preemptions > 0) == (pages == 27)
    await bench.end()


async def test_a_text_that_begins_like_a_finished_one_goes_on_from_its_pages(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    prompt = tiny.texts((50,), seed=21)[0]
    first = bench.add(bench.text("a", prompt, 20))
    await bench.over(first)
    assert first.tokens == recomputed(model, prompt, first.tokens)
    conversation = [*prompt, *first.tokens, 5, 6, 7]  # 73 tokens, of which 69 were kept, 64 in whole pages
    other = [*prompt[:33], 1, 2, 3]
    bench.instance.iterations.clear()
    sinks = [bench.add(bench.text("b", conversation, 15)), bench.add(bench.text("c", other, 15))]
    await bench.over(*sinks)
    assert bench.instance.iterations[0] == [("b", 73 - 64), ("c", 36 - 32)]
    for text, sink in zip((conversation, other), sinks, strict=True):
        assert sink.tokens == recomputed(model, text, sink.tokens)
    assert (bench.measures.found_tokens, bench.measures.asked_tokens) == (96, 50 + 73 + 36)
    assert bench.run.pages == 0
    assert bench.instance.used_pages == bench.run.prefixes.pages == 5 + 2 + 2
    same = bench.add(bench.text("d", prompt, 20))
    await bench.over(same)
    assert same.tokens == first.tokens
    assert bench.run.prefixes.pages == 9  # others have all of its whole pages
    await bench.end()


async def test_kept_texts_make_room_before_anybody_waits_or_is_preempted(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 14))
    prompts = tiny.texts((50, 60), seed=22)
    for number in range(12):
        prompt = prompts[number % 2]
        text = [*prompt[: 16 * (1 + number % 3)], number, *prompt]
        sink = bench.add(bench.text(str(number), text, min(25, 128 - len(text))))
        await bench.over(sink)
        assert sink.tokens == recomputed(model, text, sink.tokens)
    assert bench.measures.preemptions == 0
    assert bench.measures.found_tokens > 0
    await bench.end()


async def test_a_text_alone_is_never_stuck_with_the_rest_of_the_one_it_began_with(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 8))
    prompt = tiny.texts((90,), seed=23)[0]
    await bench.over(bench.add(bench.text("long", prompt, 10)))
    start = prompt[:17]
    sink = bench.add(bench.text("grows", start, 100))
    await bench.over(sink)
    assert sink.tokens == recomputed(model, start, sink.tokens)
    await bench.end()


async def test_pages_of_a_first_iteration_that_failed_halfway_are_freed(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    computed = bench.instance.run

    async def halfway(parts: Sequence[tuple[Text, int]], context: PassContext) -> tuple[list[Array], None]:
        await computed(parts, context)
        raise KvLostError("the last segment is gone")

    bench.instance.run = halfway  # type: ignore[method-assign]
    bench.add(bench.text("a", [1, 2, 3], 5))
    await bench.task
    assert bench.instance.used_pages == 0


async def test_samples_do_not_depend_on_neighbours(model: WholeModel) -> None:
    sampling = Sampling(temperature=1.3, top_k=20, top_p=0.9, seed=11, frequency_penalty=0.4)
    written = []
    for neighbours in (0, 3):
        bench = Bench(InProcess(model, 60))
        others = [bench.add(bench.text("n", prompt, 30)) for prompt in tiny.texts((4, 9, 2), seed=8)[:neighbours]]
        sink = bench.add(bench.text("a", [5, 6, 7], 30, sampler=Sampler(sampling)))
        await bench.over(sink, *others)
        written.append(sink.tokens)
        await bench.end()
    assert written[0] == written[1]
    assert len(set(written[0])) > 5


def test_the_sampler_follows_every_option() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, 1.0])
    draws = [Sampler(Sampling(temperature=1.0, top_k=2, seed=seed)).choose(logits).token for seed in range(60)]
    assert set(draws) == {1, 2}
    draws = [Sampler(Sampling(temperature=1.0, top_p=0.6, seed=seed)).choose(logits).token for seed in range(60)]
    assert set(draws) == {1}
    assert Sampler(Sampling(logit_bias={3: 5.0})).choose(logits).token == 3
    assert Sampler(Sampling(logit_bias={1: -100.0})).choose(logits).token == 2
    greedy = Sampler(Sampling(frequency_penalty=0.6))
    assert [greedy.choose(logits).token for _ in range(4)] == [1, 1, 2, 1]  # 3, 2.4, then 1.8 < 2, then 1.8 > 1.4
    greedy = Sampler(Sampling(presence_penalty=1.5))
    assert [greedy.choose(logits).token for _ in range(3)] == [1, 2, 1]
    chosen = Sampler(Sampling(), logprobs=2).choose(logits)
    wanted = torch.log_softmax(logits, -1)
    assert chosen.logprob == pytest.approx(float(wanted[1]))
    assert [token for token, _ in chosen.top] == [1, 2]
    assert np.isclose(chosen.top[1][1], float(wanted[2]))
    unseeded = {tuple(_ten(Sampler(Sampling(temperature=5.0)), logits)) for _ in range(8)}
    assert len(unseeded) > 1


def test_the_smallest_temperature_takes_the_largest_logit() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, -torch.inf])
    assert set(_ten(Sampler(Sampling(temperature=1e-40, seed=1)), logits)) == {1}


async def test_a_text_whose_token_cannot_be_chosen_fails_alone(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 60))
    beyond = Sampler(Sampling(logit_bias={10**6: 1.0}))  # no such token
    failed = bench.add(bench.text("a", [1, 2, 3], 5, sampler=beyond))
    other = bench.add(bench.text("b", [4, 5], 5))
    await bench.over(failed, other)
    assert isinstance(failed.error, CallError)
    assert other.error is None
    assert len(other.tokens) == 5
    await bench.end()


def _ten(sampler: Sampler, logits: torch.Tensor) -> list[int]:
    return [sampler.choose(logits).token for _ in range(10)]


def test_512_steps_in_small_pages(model: WholeModel) -> None:
    async def go() -> list[int]:
        bench = Bench(InProcess(model, 40))
        sink = bench.add(bench.text("a", [1, 2, 3], 512))
        await bench.over(sink)
        await bench.end()
        return sink.tokens

    written = asyncio.run(go())
    assert written == recomputed(model, [1, 2, 3], written)


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [(Tokenizer("t.json", 9, special={"eos": 0, "bos": 1}), {0}), (Tokenizer("t.json", 9), set()), (None, set())],
)
def test_a_text_ends_with_the_tokenizers_token_for_it(
    model: WholeModel, tokenizer: Tokenizer | None, tokens: set[int]
) -> None:
    assert end_tokens(replace(model.manifest, tokenizer=tokenizer)) == tokens

"""The generation loop over an instance in this process: batching, preemption, failures, and who gets what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from functions.generation.prefixes import Prefixes
from functions.generation.reader import MOST_UNREAD, Outbox, Piece
from functions.generation.run import IDLE_S
from functions.generation.sampling import Sampler, Sampling
from functions.generation.texts import Text, end_tokens
from functions.ingress.calls import PassContext
from functions.wire.arrays import Array
from functions.wire.errors import BadInputError, CallError, DeadlineError, KvLostError, NodeFailedError
from moe.cache import PAGE_TOKENS
from moe.manifest import Tokenizer
from moe.reference import WholeModel, pack
from tests.unit.functions.decoder_bench import Bench, Collected, InProcess, recomputed
from tests.unit.moe import tiny


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
    assert bench.run.refusal(bench.text("a", [1] * 63, 1, bounded=False)) is None
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


async def test_a_text_that_does_not_go_on_within_its_time_is_ended(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 60), timeout_s=0.2)
    text = bench.text("a", [1, 2], 2)
    text.progress_s -= 0.3
    sink = bench.add(text)
    await bench.over(sink)
    assert isinstance(sink.error, DeadlineError) and "has not gone on for 0.2 s (smoe_timeout)" in str(sink.error)
    await bench.end()


@pytest.mark.slow
async def test_a_prompt_may_take_longer_in_all_than_the_time_of_each_of_its_parts(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 60), timeout_s=1.0)
    bench.instance.before = lambda number: asyncio.sleep(0.4)
    prompt = tiny.texts((620,))[0]  # in three parts
    sink = bench.add(bench.text("a", prompt, 2))
    await bench.over(sink)
    assert sink.error is None and sink.tokens == recomputed(model, prompt, sink.tokens)
    await bench.end()


async def test_a_prompt_goes_before_a_long_one_when_half_of_its_time_is_spent(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 120), timeout_s=60.0)
    long, short = bench.text("long", tiny.texts((600,))[0], 2), bench.text("short", tiny.texts((20,))[0], 2)
    short.progress_s -= 31.0
    sinks = [bench.add(text) for text in (long, short)]
    await bench.over(*sinks)
    assert bench.instance.iterations[:2] == [[("short", 20), ("long", 236)], [("short", 1), ("long", 255)]]
    await bench.end()


async def test_prompts_go_on_next_to_as_many_texts_as_a_part_has_tokens(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 120), chunk_tokens=4)
    written = [bench.add(bench.text(str(number), [number + 1], 300)) for number in range(4)]
    while not all(sink.tokens for sink in written):
        await asyncio.sleep(0)
    sink = bench.add(bench.text("prompt", tiny.texts((9,))[0], 1))
    await bench.over(sink)
    assert sink.error is None and not any(one.over.is_set() for one in written)
    await bench.end()


def test_a_text_that_is_computed_again_goes_on_once_it_is_where_it_was() -> None:
    text = Text([1, 2, 3, 4], 1, Sampler(Sampling()), Collected(), frozenset(), "a", 9, 0.0)
    for count, now_s, expected in ((3, 1.0, 1.0), (None, 2.0, 1.0), (2, 3.0, 1.0), (2, 4.0, 4.0)):
        if count is None:
            text.forget()
        else:
            text.computed(count, now_s)
        assert text.progress_s == expected


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


async def test_a_reader_that_is_behind_gives_its_pages_back_to_who_needs_them(model: WholeModel) -> None:
    bench = Bench(InProcess(model, 40))
    prompt = tiny.texts((200,))[0]
    text = bench.text("a", prompt, 30)
    sink = bench.add(text)
    while len(sink.tokens) < 4:
        await asyncio.sleep(0)
    sink.behind = True
    while not bench.waiting.parked:
        await asyncio.sleep(0)
    assert bench.run.pages == 0
    sink.behind, begun = False, len(bench.computed)
    bench.waiting.texts.append(bench.waiting.parked.pop())
    bench.run.wake()
    await bench.over(sink)
    assert max(bench.computed[begun:]) <= PAGE_TOKENS  # nobody needed them
    assert sink.tokens == recomputed(model, prompt, sink.tokens)
    await bench.end()


async def test_a_reader_has_caught_up_once_half_is_read() -> None:
    outbox, seen = Outbox(), []
    for number in range(MOST_UNREAD):
        assert not outbox.full
        outbox.put(Piece(number))
    while outbox.full:
        seen.append((await outbox.get()).index)
    assert seen == list(range(MOST_UNREAD // 2))


@pytest.mark.parametrize("shares", [False, True])
async def test_a_text_that_no_pass_was_for_begins_again_before_workers_free_it(model: WholeModel, shares: bool) -> None:
    """As a prompt that was put off, and one that was to begin with a kept text's pages. The instance goes on."""
    bench, prompt = Bench(InProcess(model, 40)), tiny.texts((300,))[0]
    if shares:
        await bench.over(bench.add(bench.text("before", prompt[:100], 2)))
    text, begun = bench.text("a", prompt, 5), len(bench.instance.iterations)

    def leave_alone(number: int) -> None:
        if number == begun + 1 + (not shares):
            text.passed_s -= IDLE_S + 1.0
            bench.instance.free([text.kv_id, text.parent])
            raise NodeFailedError("an expert is gone")

    bench.instance.before = leave_alone
    sink = bench.add(text)
    while not (sink.over.is_set() or bench.run.over):
        await asyncio.sleep(0.01)
    assert sink.tokens == recomputed(model, prompt, sink.tokens) and len(sink.tokens) == 5
    await bench.end()


async def test_a_kept_text_counts_as_used_again_once_a_pass_has_begun_with_it(model: WholeModel) -> None:
    bench, tokens = Bench(InProcess(model, 40)), tiny.texts((40,))[0]
    prefixes, kept = Prefixes(PAGE_TOKENS), bench.text("kept", tokens, 1)
    kept.kept = 40
    assert prefixes.keep(kept)
    for passes in (False, True):
        child = bench.text("child", tokens, 1)
        prefixes.use(child, *prefixes.find(tokens, 85.0))
        if passes:
            child.passed_s = 86.0
            prefixes.renew(child)
        prefixes.leave(child)
        assert prefixes.find(tokens, 155.0) == ((kept.kv_id, 2) if passes else (-1, 0))
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("tokenizer", "tokens"),
    [
        (Tokenizer("t.json", 9, special={"eos": 0, "bos": 1}), {0}),
        (Tokenizer("t.json", 9, special={"eos": 0}, ends=(0, 7)), {0, 7}),
        (Tokenizer("t.json", 9), set()),
        (None, set()),
    ],
)
def test_a_text_ends_with_the_tokenizers_tokens_for_it(
    model: WholeModel, tokenizer: Tokenizer | None, tokens: set[int]
) -> None:
    assert end_tokens(replace(model.manifest, tokenizer=tokenizer)) == tokens

"""Text generation through real worker processes: the tokens of the whole model, streamed, and nothing kept after."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.local_pipeline import LocalPipeline
from functions.generation.texts import end_tokens
from moe.manifest import load
from moe.preset import byte_tokenizer
from moe.reference import WholeModel, drive, pack
from moe.split import split
from tests.doubles.generation import generate
from tests.unit.moe import tiny

if TYPE_CHECKING:
    import openai

PROMPTS = ["Only the chosen experts", "see", "A sum does not mind its order"]


@pytest.fixture(scope="module", params=["mixtral", "gpt2"])
def decoder(request: pytest.FixtureRequest, pipeline_of: Callable[[str], Path]) -> Path:
    return pipeline_of(request.param)


@pytest.fixture(scope="module")
def served(decoder: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(decoder, environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline


def client_of(pipeline: LocalPipeline) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=f"{pipeline.url}/v1", api_key="none", max_retries=0, timeout=100)


def pages_at(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/kv", timeout=100) as reply:
        return sum(node["used_pages"] for node in json.load(reply)["nodes"].values())


def used_pages(pipeline: LocalPipeline) -> int:
    return sum(pages_at(worker.address) for worker in pipeline.workers if "segment" in worker.function)


def until_free(pipeline: LocalPipeline) -> None:
    """Until no text is under way, and nothing is kept but what finished texts left for others."""
    for _ in range(1000):
        with urllib.request.urlopen(f"{pipeline.url}/metrics", timeout=100) as reply:
            if b'vllm:kv_cache_usage_perc{model_name="tiny"} 0.0' in reply.read():
                return
        time.sleep(0.02)
    raise AssertionError("pages are still in use")


def test_greedy_completions_are_the_whole_models_streamed_and_not(served: LocalPipeline, decoder: Path) -> None:
    wanted = generate(WholeModel(decoder), PROMPTS, 6)
    client = client_of(served)
    answer = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=6, temperature=0)
    assert [choice.text for choice in answer.choices] == [one.text for one in wanted]
    assert [choice.finish_reason for choice in answer.choices] == [
        "stop" if one.finished else "length" for one in wanted
    ]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(one.token_ids) for one in wanted)
    for prompt, one in zip(PROMPTS, wanted, strict=True):
        pieces = list(client.completions.create(model="tiny", prompt=prompt, max_tokens=6, temperature=0, stream=True))
        assert "".join(piece.choices[0].text for piece in pieces) == one.text
        assert pieces[-1].choices[0].finish_reason is not None
    until_free(served)


TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if messages[0].role == 'bad' %}{{ raise_exception('no such role') }}{% endif %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral with room for long texts and a chat template."""
    root = tmp_path_factory.mktemp("long")
    model = tiny.build("mixtral", vocab_size=300, max_position_embeddings=4096, eos_token_id=299)
    checkpoint = tiny.store(model, root / "checkpoint")
    byte_tokenizer(256).save(str(checkpoint / "tokenizer.json"))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    split(checkpoint, root / "tiny", "tiny", 4, None)
    return root / "tiny"


@pytest.fixture(scope="module")
def two_instances(long: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(long, replicas=2, environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline


def whole_greedy(model: WholeModel, prompt: str, tokens: int) -> str:
    """What the whole model writes, the whole text recomputed for each token."""
    return generate(model, [prompt], tokens)[0].text


def test_a_conversation_goes_through_the_checkpoints_template(two_instances: LocalPipeline, long: Path) -> None:
    import openai

    client = client_of(two_instances)
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    model = WholeModel(long)
    ids = model.tokenizer.encode_rendered("user: hello\nassistant:")
    written: list[int] = []
    for _ in range(5):
        written.append(int(model.logits_ids([ids + written])[0].argmax()))
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=5, temperature=0)
    assert answer.choices[0].message.content == model.tokenizer.decode(ids[-6:] + written)[6:]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 5)
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
        max_tokens=5,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=2,
    )
    *pieces, last = list(stream)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == answer.choices[0].message.content
    logprobs = [one for piece in pieces for one in (piece.choices[0].logprobs.content or [])]  # type: ignore[union-attr]
    assert len(logprobs) == 5
    assert all(one.logprob == one.top_logprobs[0].logprob and len(one.top_logprobs) == 2 for one in logprobs)
    assert last.choices == []
    assert last.usage == answer.usage
    with pytest.raises(openai.BadRequestError, match="no such role"):
        client.chat.completions.create(model="tiny", messages=[{"role": "bad", "content": "x"}], max_tokens=1)  # type: ignore[list-item]


def test_a_stop_sequence_ends_a_text_also_across_tokens(two_instances: LocalPipeline, long: Path) -> None:
    client = client_of(two_instances)
    whole = whole_greedy(WholeModel(long), "abc", 30)
    stop = whole[7:10]
    place = whole.find(stop)
    for stream in (False, True):
        answer = client.completions.create(
            model="tiny", prompt="abc", max_tokens=30, temperature=0, stop=[stop, "not there"], stream=stream
        )
        pieces = list(answer) if stream else [answer]
        assert "".join(piece.choices[0].text for piece in pieces) == whole[:place]  # type: ignore[union-attr]
        assert pieces[-1].choices[0].finish_reason == "stop"  # type: ignore[union-attr]


def test_the_end_token_does_not_end_texts_that_are_to_ignore_it(two_instances: LocalPipeline, long: Path) -> None:
    (end,) = end_tokens(load(long, verify=False))
    client = client_of(two_instances)
    finishes = []
    for extra in ({}, {"ignore_eos": True}):
        answer = client.completions.create(
            model="tiny", prompt="ab", max_tokens=5, temperature=0, logit_bias={str(end): 100}, extra_body=extra
        )
        assert answer.usage is not None
        finishes.append((answer.choices[0].finish_reason, answer.usage.completion_tokens))
    assert finishes[0][0] == "stop" and finishes[1] == ("length", 5)


def test_a_repetition_penalty_counts_the_prompts_tokens_too(two_instances: LocalPipeline, long: Path) -> None:
    from transformers import RepetitionPenaltyLogitsProcessor

    model, theirs = WholeModel(long), RepetitionPenaltyLogitsProcessor(1.9)
    prompts = (random.Random(number).sample(range(97, 200), 60) for number in range(100))
    ids = next(ids for ids in prompts if int(model.logits_ids([ids])[0].argmax()) in ids)
    tokens = list(ids)
    for _ in range(6):
        tokens.append(int(theirs(torch.tensor([tokens]), model.logits_ids([tokens])[0][None]).argmax()))
    assert tokens[len(ids)] != int(model.logits_ids([ids])[0].argmax())
    asked: dict[str, Any] = {"model": "tiny", "prompt": ids, "max_tokens": 6, "temperature": 0, "echo": True}
    answer = client_of(two_instances).completions.create(**asked, extra_body={"repetition_penalty": 1.9})
    assert answer.choices[0].text == model.tokenizer.decode(tokens)


@pytest.mark.slow
def test_seeds_texts_of_one_request_and_echo(two_instances: LocalPipeline, long: Path) -> None:
    ids = WholeModel(long).tokenizer.encode("ab")
    client = client_of(two_instances)

    def ask(**fields: Any) -> list[str]:
        answer = client.completions.create(model="tiny", prompt="ab", max_tokens=12, seed=5, **fields)
        return [choice.text for choice in answer.choices]

    three = ask(n=3, temperature=1.5)
    assert len(set(three)) == 3
    assert ask(n=2, temperature=1.5) == three[:2]
    assert ask(temperature=1.5, echo=True) == ["ab" + three[0]]
    answer = client.completions.create(model="tiny", prompt=ids, max_tokens=12, seed=5, temperature=1.5, logprobs=3)
    assert answer.choices[0].text == three[0]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.token_logprobs) == 12
    assert all(3 <= len(top) <= 4 for top in logprobs.top_logprobs)  # the token that was drawn, too
    assert logprobs.tokens is not None
    assert logprobs.text_offset == sorted(logprobs.text_offset or ())
    assert len(logprobs.tokens) == len(logprobs.text_offset)


def likelihoods(model: WholeModel, ids: list[int]) -> torch.Tensor:
    """Log probabilities ``[tokens - 1, vocab]`` of what follows each token, by the whole model."""
    return torch.log_softmax(model.logits_ids([ids], all_tokens=True)[:-1], -1)


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_echo_with_logprobs_gives_the_whole_models_likelihoods_of_prompts(
    two_instances: LocalPipeline, long: Path, max_tokens: int
) -> None:
    model = WholeModel(long)
    texts = ["a prompt " * 40, "see", "grün and blue 🙂"]
    ids = [model.tokenizer.encode(text) for text in texts]
    client = client_of(two_instances)
    for prompts in (texts, ids):
        answer = client.completions.create(
            model="tiny", prompt=prompts, max_tokens=max_tokens, logprobs=3, echo=True, temperature=0
        )
        for text, tokens, choice in zip(texts, ids, answer.choices, strict=True):
            assert choice.text.startswith(text)
            logprobs, wanted = choice.logprobs, likelihoods(model, tokens)
            assert logprobs is not None
            own, tops = logprobs.token_logprobs, logprobs.top_logprobs
            assert own is not None
            assert tops is not None
            assert len(own) == len(tops) == len(logprobs.tokens or ()) == len(tokens) + max_tokens
            assert own[0] is None
            assert tops[0] is None
            assert np.allclose(own[1 : len(tokens)], wanted[range(len(wanted)), tokens[1:]], atol=1e-4)
            best = [max(top.values()) for top in tops[1 : len(tokens)]]
            assert np.allclose(best, wanted.max(-1).values, atol=1e-4)
            if text.isascii():
                assert (logprobs.text_offset or [])[: len(tokens)] == list(range(len(tokens)))
    assert logprobs.text_offset is not None
    smile = [place for place, offset in enumerate(logprobs.text_offset) if offset == texts[2].index("🙂")]
    assert len(smile) == 4  # a token for each of its bytes
    streamed = client.completions.create(
        model="tiny", prompt=ids[0], max_tokens=max_tokens, logprobs=1, echo=True, temperature=0, stream=True
    )
    pieces = [piece.choices[0] for piece in streamed]
    assert (
        sum(len(piece.logprobs.token_logprobs or ()) for piece in pieces if piece.logprobs) == len(ids[0]) + max_tokens
    )
    assert "".join(piece.text for piece in pieces) == answer.choices[0].text
    until_free(two_instances)


def test_the_experts_that_each_token_was_chosen_after_are_reported_on_request(
    two_instances: LocalPipeline, long: Path
) -> None:
    model, routes = WholeModel(long), []

    def call(node_id: str, tensors: dict[str, torch.Tensor], all_logits: bool) -> dict[str, torch.Tensor]:
        reply = model.programs[node_id].run(tensors, all_logits=all_logits)
        routes.extend([reply["expert_ids"]] if "expert_ids" in reply else [])
        return reply

    ids = model.tokenizer.encode("abc")
    asked: dict[str, Any] = {"model": "tiny", "prompt": ids, "max_tokens": 9, "temperature": 0, "logprobs": 0}
    client, wish = client_of(two_instances), {"return_routed_experts": True}
    assert not hasattr(client.completions.create(**asked).choices[0], "routed_experts")
    pieces = [piece.choices[0] for piece in client.completions.create(**asked, stream=True, extra_body=wish)]
    choice = client.completions.create(**asked, extra_body=wish).choices[0]
    told = choice.routed_experts  # type: ignore[attr-defined]
    assert [one for piece in pieces for one in piece.routed_experts] == told  # type: ignore[attr-defined]
    written = [int(model.logits_ids([ids])[0].argmax())]
    while len(written) < 9:
        written.append(int(model.logits_ids([ids + written])[0].argmax()))
    drive(model.manifest, call, pack([ids + written[:-1]]))
    wanted = torch.stack(routes, 1)[len(ids) - 1 :]  # [tokens, layers, k]
    assert torch.equal(torch.tensor(told).sort(-1).values, wanted.sort(-1).values)


def test_the_ingress_exposes_vllms_metrics(two_instances: LocalPipeline) -> None:
    def values() -> dict[str, float]:
        with urllib.request.urlopen(f"{two_instances.url}/metrics", timeout=100) as reply:
            families = text_string_to_metric_families(reply.read().decode())
            return {sample.name: sample.value for family in families for sample in family.samples}

    before = values()
    client_of(two_instances).completions.create(model="tiny", prompt="abcd", max_tokens=7, temperature=0)
    after = values()
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 4
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 7
    for name, count in (("to_first_token", 1), ("per_output_token", 6)):
        key = f"vllm:time_{name}_seconds_count"
        assert after[key] - before[key] == count
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    grown = {name: value - before[name] for name, value in after.items() if name.endswith(("_sum", "_count"))}
    for name, tokens in (("prompt_tokens", 4), ("generation_tokens", 7), ("max_num_generation_tokens", 7)):
        assert grown[f"vllm:request_{name}_count"] == 1 and grown[f"vllm:request_{name}_sum"] == tokens
    parts = [grown[f"vllm:request_{part}_time_seconds_sum"] for part in ("queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(grown["vllm:e2e_request_latency_seconds_sum"])
    assert sum(parts[:2]) == pytest.approx(grown["vllm:time_to_first_token_seconds_sum"])
    assert grown["vllm:inter_token_latency_seconds_count"] == 6


def test_a_client_that_leaves_ends_its_text_and_frees_its_pages(two_instances: LocalPipeline) -> None:
    before = used_pages(two_instances)
    stream = client_of(two_instances).completions.create(
        model="tiny", prompt="xyz" * 100, max_tokens=3000, temperature=0, stream=True
    )
    next(iter(stream))
    assert used_pages(two_instances) > before
    stream.close()
    while used_pages(two_instances) > before:
        time.sleep(0.02)


@pytest.mark.slow
def test_while_clients_leave_and_workers_die_every_text_is_right_and_pages_are_freed(long: Path) -> None:
    model = WholeModel(long)
    letters = random.Random(3)
    prompts = ["".join(letters.choices("abcdefgh ", k=letters.randrange(150, 400))) + "z" for _ in range(8)]
    wanted = {prompt: whole_greedy(model, prompt, 24) for prompt in prompts}
    with LocalPipeline(long, replicas=2, max_inflight=64, environ={"smoe_kv_mb": "1"}) as pipeline:
        client = client_of(pipeline)
        answered = threading.Semaphore(0)

        def write(number: int) -> bool:
            prompt, leaves = prompts[number % len(prompts)], number % 3 == 0
            stream = client.completions.create(
                model="tiny", prompt=prompt, max_tokens=2000 if leaves else 24, temperature=0, stream=True
            )
            text = ""
            for piece in stream:
                text += piece.choices[0].text
                if leaves and len(text) > 4:
                    stream.close()
                    break
            answered.release()
            return leaves or text == wanted[prompt]

        with ThreadPoolExecutor(24) as pool:
            right = [pool.submit(write, number) for number in range(150)]
            for _ in range(40):
                answered.acquire()
            dead = [next(one for one in pipeline.workers if one.function.endswith(end)) for end in ("t-1", "t-1-2")]
            for worker in dead:
                os.kill(worker.pid, signal.SIGKILL)
            assert all(future.result() for future in right)
        for worker in dead:
            pipeline.workers.remove(worker)
            worker.wait()
        until_free(pipeline)


@pytest.mark.slow
def test_many_at_once_on_two_instances_write_what_each_writes_alone(two_instances: LocalPipeline, long: Path) -> None:
    model = WholeModel(long)
    prompts = [f"prompt {number} " * (1 + number) for number in range(8)]
    wanted = [whole_greedy(model, prompt, 20) for prompt in prompts]
    client = client_of(two_instances)

    def write(prompt: str) -> str:
        stream = client.completions.create(model="tiny", prompt=prompt, max_tokens=20, temperature=0, stream=True)
        return "".join(piece.choices[0].text for piece in stream)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, prompts)) == wanted
    until_free(two_instances)


@pytest.mark.slow
def test_encoders_make_embeddings_and_no_text(bert: Path) -> None:
    import openai

    wanted = WholeModel(bert).embed(["one", "two texts"])
    with LocalPipeline(bert) as pipeline:
        client = client_of(pipeline)
        for form in ("float", "base64"):  # the client reads both
            answer = client.embeddings.create(model="tiny", input=["one", "two texts"], encoding_format=form)  # type: ignore[arg-type]
            vectors = [
                one.embedding if form == "float" else np.frombuffer(base64.b64decode(str(one.embedding)), "<f4")
                for one in answer.data
            ]
            assert np.allclose(np.array(vectors), wanted.numpy(), atol=1e-5)
        assert answer.usage.prompt_tokens == sum(map(len, WholeModel(bert).tokenizer.encode_all(["one", "two texts"])))
        (listed,) = client.models.list()
        assert listed.id == "tiny" and "max_model_len" not in listed.model_dump()  # by which decoders are known
        with pytest.raises(openai.BadRequestError, match="no decoder"):
            client.completions.create(model="tiny", prompt="a")

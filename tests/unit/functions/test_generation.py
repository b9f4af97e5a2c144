"""Text generation through real worker processes: the tokens of the whole model, streamed, and nothing kept after."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.reference import WholeModel
from tests.doubles.generation import generate

PROMPTS = ["Only the chosen experts", "see", "A sum does not mind its order"]


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe", "olmoe", "gpt2"])
def decoder(request: pytest.FixtureRequest, pipeline_of: Callable[[str], Path]) -> Path:
    return pipeline_of(request.param)


@pytest.fixture(scope="module")
def served(decoder: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(decoder, environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline


def client_of(pipeline: LocalPipeline) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{pipeline.url}/v1", api_key="none", max_retries=0, timeout=100)


def used_pages(pipeline: LocalPipeline) -> int:
    used = 0
    for worker in pipeline.workers:
        if "segment" in worker.function:
            with urllib.request.urlopen(f"http://{worker.address}/kv", timeout=30) as reply:
                used += sum(node["used_pages"] for node in json.load(reply)["nodes"].values())
    return used


def until_free(pipeline: LocalPipeline) -> None:
    for _ in range(1000):
        if not used_pages(pipeline):
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

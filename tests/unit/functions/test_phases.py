"""Texts prefilled on one instance and decoded on another, through real workers: the same tokens, none lost."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from moe.reference import WholeModel
from tests.doubles.generation import generate

pytestmark = pytest.mark.slow

PROMPTS = ["Only the chosen experts", "see", "A sum does not mind its order", "abc" * 8]


def served(decoder: Path, rule: str, **environ: str) -> LocalPipeline:
    return LocalPipeline(decoder, replicas=3, environ={"smoe_schedule": rule, "smoe_timeout": "60s", **environ})


def written(pipeline: LocalPipeline, prompt: str, tokens: int) -> str:
    client = openai.OpenAI(base_url=f"{pipeline.url}/v1", api_key="none", max_retries=0, timeout=100)
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=tokens, temperature=0).choices[0].text


def generation(pipeline: LocalPipeline) -> dict[str, Any]:
    with urllib.request.urlopen(f"{pipeline.url}/statistics", timeout=100) as reply:
        document: dict[str, Any] = json.load(reply)["generation"]
        return document


def until_ready(pipeline: LocalPipeline) -> None:
    """Until every instance has joined, which takes a text or a change of replicas to begin."""
    written(pipeline, "warm", 2)
    while len(generation(pipeline)["instances"]) < 3:
        time.sleep(0.02)


@pytest.mark.parametrize("rule", ["arrow", "minimal-load", "round-robin"])
def test_texts_that_move_write_what_the_whole_model_writes(
    rule: str, pipeline_of: Callable[[str], Path], tmp_path: Path
) -> None:
    decoder = pipeline_of("mixtral")
    wanted = [one.text for one in generate(WholeModel(decoder), PROMPTS, 12)]
    with served(decoder, rule, smoe_profiles=str(tmp_path), smoe_ttft="60s", smoe_tpot="10s") as pipeline:
        until_ready(pipeline)
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda prompt: written(pipeline, prompt, 12), PROMPTS * 4))
        document = generation(pipeline)
        assert texts == wanted * 4
        assert document["moved"]["texts"] > 0 and document["moved"]["bytes"] > 0
        assert document["moved"]["lost_sources"] == 0
        assert [one["role"] for one in document["instances"]].count("prefill") >= 1
    assert len(list(tmp_path.glob("tiny-*.json"))) == 3


@pytest.mark.parametrize("rule", ["arrow", "deadline"])
def test_a_dead_source_means_prefill_again_and_no_lost_request(rule: str, pipeline_of: Callable[[str], Path]) -> None:
    decoder = pipeline_of("mixtral")
    wanted = generate(WholeModel(decoder), PROMPTS, 30)
    with served(decoder, rule, smoe_ttft="60s", smoe_tpot="10s") as pipeline, ThreadPoolExecutor(8) as pool:
        until_ready(pipeline)
        running = [pool.submit(written, pipeline, prompt, 30) for prompt in PROMPTS * 4]
        victim = next(worker for worker in pipeline.workers if "segment-1" in worker.function)
        os.kill(victim.pid, signal.SIGKILL)
        assert [one.result(timeout=100) for one in running] == [one.text for one in wanted] * 4


def test_instances_without_roles_write_what_the_whole_model_writes_whatever_is_late(
    pipeline_of: Callable[[str], Path],
) -> None:
    decoder = pipeline_of("mixtral")
    wanted = [one.text for one in generate(WholeModel(decoder), PROMPTS, 12)]
    with served(decoder, "deadline", smoe_ttft="1ms", smoe_tpot="1ms") as pipeline:
        until_ready(pipeline)
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda prompt: written(pipeline, prompt, 12), PROMPTS * 4))
        document = generation(pipeline)
    assert texts == wanted * 4
    assert {one["role"] for one in document["instances"]} == {"both"} and document["flips"] == 0

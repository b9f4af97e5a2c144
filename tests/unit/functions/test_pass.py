"""The pass through real worker processes equals the whole model in one process."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from gateway.backends.process.workers.parent_client import Exit
from moe.reference import WholeModel
from tests.doubles.generation import generate
from tests.unit.moe import tiny

TEXTS = ["Only the chosen experts see a token.", "ok", "A sum does not mind its order."]


def ask(url: str, body: Any, timeout_s: float = 30.0, headers: dict[str, str] | None = None) -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def refusal(url: str, body: Any, **options: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, body, **options)
    with caught.value as error:
        return error.code, json.load(error)["error"]["message"]


def assert_close(ours: Any, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    assert float(np.abs(np.asarray(ours, dtype=np.float32) - theirs).max()) <= 1e-5 * float(np.abs(theirs).max())


@pytest.fixture(scope="module")
def served(bert: Path) -> Iterator[LocalPipeline]:
    with LocalPipeline(bert, environ={"smoe_timeout": "20s"}) as pipeline:
        yield pipeline


def test_embeddings_and_states_equal_the_whole_models(served: LocalPipeline, bert: Path) -> None:
    whole = WholeModel(bert)
    answer = ask(served.url, {"inputs": TEXTS, "states": True})
    assert_close(answer["embeddings"], whole.embed(TEXTS))
    ids = whole.tokenizer.encode_all(TEXTS)
    assert answer["tokens"] == sum(map(len, ids))
    assert [len(states) for states in answer["states"]] == [len(text) for text in ids]
    for states, embedding in zip(answer["states"], answer["embeddings"], strict=True):
        assert_close(np.mean(states, axis=0), embedding)


def test_one_text_may_be_sent_without_a_list(served: LocalPipeline, bert: Path) -> None:
    assert_close(ask(served.url, {"inputs": TEXTS[0]})["embeddings"], WholeModel(bert).embed(TEXTS[:1]))


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b'{"inputs": "\xff"}', "not UTF-8"),
        ([], "must be an object"),
        ({}, '"inputs" is missing'),
        ({"inputs": "a", "input": 1}, "'input' is not known"),
        ({"inputs": 3}, "takes a text"),
        ({"inputs": []}, "0 texts"),
        ({"inputs": ["a"] * 257}, "257 texts"),
        ({"inputs": ["a", ""]}, "Text 1 is empty"),
        ({"inputs": "a" * 60}, "has 60 tokens.*at most 40"),
        ({"inputs": "a", "states": 1}, "true or false"),
        ({"inputs": "a", "max_new_tokens": 3}, "'max_new_tokens' is not known"),
    ],
)
def test_bad_input_gets_400_and_a_sentence(served: LocalPipeline, body: Any, word: str) -> None:
    status, message = refusal(served.url, body)
    assert status == 400
    assert re.search(word, message), message


def test_a_wrong_content_type_gets_400(served: LocalPipeline) -> None:
    status, message = refusal(served.url, {"inputs": "a"}, headers={"content-type": "image/png"})
    assert status == 400
    assert "image/png" in message


def test_get_describes_the_model(served: LocalPipeline) -> None:
    with urllib.request.urlopen(served.url, timeout=100) as reply:
        document = json.load(reply)
    assert (document["model"], document["task"], document["layers"]) == ("tiny", "embedding", 3)


def test_a_spent_deadline_gets_504(served: LocalPipeline) -> None:
    assert refusal(served.url, {"inputs": "a"}, headers={"X-Timeout-Ms": "0.01"})[0] == 504


def test_metrics_count_every_node_that_worked(served: LocalPipeline, bert: Path) -> None:
    ask(served.url, {"inputs": TEXTS})
    with urllib.request.urlopen(served.url + "/metrics", timeout=100) as reply:
        text = reply.read().decode()
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    seen: dict[str, int] = {}
    trace = WholeModel(bert, trace=lambda node, tensors, reply: seen.__setitem__(node, len(tensors)))
    trace.embed(TEXTS)
    for node in seen:
        assert float(lines[f'smoe_node_calls_total{{code="200",node="{node}",pipeline="tiny"}}']) >= 1
    assert float(lines['smoe_requests_total{code="200",pipeline="tiny"}']) >= 1
    assert float(lines['smoe_node_in_flight{node="segment-0",pipeline="tiny"}']) == 0


@contextmanager
def asking(url: str, expected: Any, times: int) -> Iterator[list[BaseException]]:
    """Four clients that ask and compare ``times`` each; what went wrong, all of it when the block has ended."""
    failures: list[BaseException] = []

    def client() -> None:
        for _ in range(times):
            try:
                assert_close(ask(url, {"inputs": TEXTS[0]})["embeddings"], expected)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    yield failures
    for thread in threads:
        thread.join()


@pytest.mark.slow
def test_grouped_functions_answer_the_same(bert: Path) -> None:
    with LocalPipeline(bert, max_functions=4) as pipeline:
        assert len(pipeline.workers) == 3
        assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], WholeModel(bert).embed(TEXTS))


@pytest.mark.slow
def test_killed_replicas_and_drained_ones_lose_no_request(bert: Path) -> None:
    expected = WholeModel(bert).embed(TEXTS[:1])
    with LocalPipeline(bert, replicas=2, max_functions=3) as pipeline:
        victims = [pipeline.workers[0], pipeline.workers[2]]
        with asking(pipeline.url, expected, times=40) as failures:
            for victim, number in zip(victims, (signal.SIGKILL, signal.SIGTERM), strict=True):
                ask(pipeline.url, {"inputs": TEXTS[0]})
                os.kill(victim.pid, number)
                assert victim.wait() == Exit(0, number if number == signal.SIGKILL else 0)
    assert failures == []


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in tiny.ENCODERS if family != "bert"])
def test_encoders_give_the_whole_models_embeddings(pipeline_of: Callable[[str], Path], family: str) -> None:
    folder = pipeline_of(family)
    with LocalPipeline(folder) as pipeline:
        assert_close(ask(pipeline.url, {"inputs": TEXTS})["embeddings"], WholeModel(folder).embed(TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in tiny.BUILDERS if family not in tiny.ENCODERS])
def test_decoders_give_the_whole_models_logits_and_texts(pipeline_of: Callable[[str], Path], family: str) -> None:
    folder = pipeline_of(family)
    whole = WholeModel(folder)
    with LocalPipeline(folder) as pipeline:
        assert_close(ask(pipeline.url, {"inputs": TEXTS})["logits"], whole.logits(TEXTS))
        greedy = ask(pipeline.url, {"inputs": TEXTS[:2], "max_new_tokens": 4, "logits": True})
        assert_close(greedy["logits"], whole.logits(TEXTS[:2]))
        for ours, theirs in zip(greedy["outputs"], generate(whole, TEXTS[:2], 4), strict=True):
            assert (ours["token_ids"], ours["text"], ours["finished"]) == (
                theirs.token_ids,
                theirs.text,
                theirs.finished,
            )
        sampling = {"temperature": 0.8, "top_k": 20, "seed": 7}
        sampled = ask(pipeline.url, {"inputs": TEXTS[:2], "max_new_tokens": 4, **sampling})
        drawn = generate(whole, TEXTS[:2], 4, **sampling)  # type: ignore[arg-type]
        assert [one["token_ids"] for one in sampled["outputs"]] == [one.token_ids for one in drawn]
        assert refusal(pipeline.url, {"inputs": "a", "temperature": -1})[0] == 400
        assert refusal(pipeline.url, {"inputs": "a", "states": True})[0] == 400

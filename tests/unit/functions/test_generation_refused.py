"""What ``/v1`` of real worker processes refuses: fields, bodies, and texts without room for keys and values."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.local_pipeline import LocalPipeline
from tests.unit.functions.test_generation import long  # noqa: F401


@pytest.fixture(scope="module")
def served(long: Path) -> Iterator[LocalPipeline]:  # noqa: F811
    with LocalPipeline(long, environ={"smoe_timeout": "60s"}) as pipeline:
        yield pipeline


@pytest.mark.parametrize(
    ("fields", "status", "param", "word"),
    [
        ({"tools": [{"type": "function"}]}, 400, "tools", "not supported"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format", "not supported"),
        ({"repetition_penalty": 0}, 400, "repetition_penalty", "to 2"),
        ({"min_p": 0.1}, 400, "min_p", "not supported"),
        ({"top_n_sigma": 1}, 400, "top_n_sigma", "'top_n_sigma' is not supported"),
        ({"temperature": 3}, 400, "temperature", "from 0 to 2"),
        ({"n": 0}, 400, "n", "from 1 to 128"),
        ({"max_tokens": 0}, 400, "max_tokens", "of at least 1"),
        ({"max_tokens": 5000}, 400, "prompt", "maximum context length is 4096"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias", "token ids"),
        ({"logit_bias": {"300": 1}}, 400, "logit_bias", "outside 0 to 299"),
        ({"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, 400, "logit_bias", "has 1025 token ids"),
        ({"prompt": ["x" * 2**19] * 3}, 400, "prompt", "characters together"),
        ({"stop": [""]}, 400, "stop", "none of them empty"),
        ({"stop": ["a", "b" * 1001]}, 400, "stop", "more than 1000 characters"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream: true"),
        ({"prompt": [[300]]}, 400, "prompt", "outside 0 to 299"),
        ({"prompt": []}, 400, "prompt", "takes a text"),
        ({"prompt": ["a"] * 257}, 400, "prompt", "257 texts; it takes at most 256"),
        ({"prompt": "x" * 5000}, 400, "prompt", "5000 tokens"),
        ({"model": "other"}, 404, "model", "does not exist"),
        ({"user": "me", "store": False, "tools": [], "n": None}, 200, None, ""),
        ({"repetition_penalty": 1.3, "temperature": 0}, 200, None, ""),
        ({"temperature": 1e-46, "stream_options": {"include_usage": None}}, 200, None, ""),
    ],
)
def test_fields_are_refused_by_name_or_taken(
    served: LocalPipeline, fields: dict[str, Any], status: int, param: str | None, word: str
) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, **fields}
    code, document = posted(f"{served.url}/v1/completions", json.dumps(body).encode())
    assert code == status
    if status != 200:
        assert document["error"]["param"] == param
        assert word in document["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("completions", b"{", "not JSON"),
        ("completions", b"[]", "no JSON object"),
        ("completions", b"\xff", "not JSON"),
        ("chat/completions", b'{"messages": []}', "at least one"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "only text"),
        ("chat/completions", b'{"messages": [{"role": "user"}]}', "takes a text"),
        ("chat/completions", b'{"messages": "hello"}', "at least one"),
        ("chat/completions", b'{"messages": [[]]}', "role and content"),
        ("chat/completions", b'{"messages": [{"role": 1, "content": "x"}]}', "role and content"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": 3}]}', "takes a text"),
        ("chat/completions", b'{"messages": [{"role": "tool", "content": "", "tool_calls": [1]}]}', "tool_calls"),
        ("chat/completions", b'{"messages": [%s{}]}' % (b"{}," * 4096), "4097 messages do not fit"),
        ("completions", b'{"prompt": "a\\ud800"}', "not JSON"),
        ("completions", b'{"prompt": "a\xff"}', "not JSON"),
        ("completions", b'{"prompt": [true]}', "takes a text"),
        ("completions", b'{"prompt": [[1], []]}', "takes a text"),
        ("completions", b'{"prompt": [1e400]}', "not JSON"),
        ("completions", b"[" * 5000, "not JSON"),
        ("completions", b'{"prompt": ""}', "empty"),
        ("embeddings", b'{"input": "a"}', "no embeddings"),
        ("audio", b"{}", "there is no POST"),
    ],
)
def test_malformed_bodies_get_a_sentence(served: LocalPipeline, path: str, body: bytes, word: str) -> None:
    code, document = posted(f"{served.url}/v1/{path}", body)
    assert code in (400, 404)
    assert word in document["error"]["message"]


def posted(url: str, body: bytes) -> tuple[int, Any]:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=100) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
def test_without_room_for_keys_and_values_it_is_refused_in_a_sentence(long: Path) -> None:  # noqa: F811
    with LocalPipeline(long, environ={"smoe_kv_mb": "0"}) as pipeline:
        code, document = posted(f"{pipeline.url}/v1/completions", b'{"prompt": "a"}')
    assert code == 501
    assert "keeps no keys and values" in document["error"]["message"]

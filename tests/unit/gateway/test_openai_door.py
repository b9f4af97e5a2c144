"""``/v1`` of the gateway: calls go to the function that the model names, and keys are asked for beyond loopback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from platform_words.labels import CONTEXT, NODES_LABEL
from platform_words.memory import INGRESS_BODY_BYTES
from tests.unit.gateway.gateways import Running, gateway_on

LABELS = {"labels": {NODES_LABEL: "ingress"}}


async def test_the_model_names_the_function_and_the_body_goes_along(running: Running) -> None:
    await running.deploy("m", **LABELS)
    body = json.dumps({"model": "m", "prompt": "é" * 100_000}).encode()
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings"):
        answer = await running.call("POST", path, body=body)
        assert answer.status == 200
    requests = running.replicas("m")[0].requests
    assert [one.target for one in requests] == ["/v1/completions", "/v1/chat/completions", "/v1/embeddings"]
    assert all(one.body == body for one in requests)


async def test_a_text_that_is_streamed_is_asked_for_as_events_and_nothing_else_is(running: Running) -> None:
    """of-watchdog flushes what was asked for so; OpenAI's clients ask for JSON and ``"stream": true``."""
    await running.deploy("m", **LABELS)
    for fields in ('"stream": true', '"stream": false', '"n": 1'):
        body = b'{"model": "m", %b}' % fields.encode()
        assert (await running.call("POST", "/v1/completions", body, accept="application/json")).status == 200
    accepted = [one.headers["accept"] for one in running.replicas("m")[0].requests]
    assert accepted == ["text/event-stream", "application/json", "application/json"]


async def test_models_are_the_pipelines_ingresses(running: Running) -> None:
    await running.deploy("b", **LABELS)
    await running.deploy("a", **LABELS, annotations={CONTEXT: "8192"})
    await running.deploy("other")
    document = (await running.call("GET", "/v1/models")).json()
    assert [(model["id"], model.get("max_model_len")) for model in document["data"]] == [("a", 8192), ("b", None)]
    assert (await running.call("GET", "/v1/models/b")).json() == document["data"][1]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/completions", b'{"model": "none"}', 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"model": "other"}', 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"model": 3}', 400, "missing_model"),
        ("POST", "/v1/completions", b"[" * 100_000, 400, "missing_model"),
        ("POST", "/v1/completions", b"\xff", 400, "missing_model"),
        ("POST", "/v1/images", b"{}", 404, "unknown_url"),
        ("GET", "/v1/models/other", b"", 404, "model_not_found"),
        ("POST", "/v1/models/other", b"{}", 405, "method_not_allowed"),
        ("GET", "/v1/completions", b"", 405, "method_not_allowed"),
        ("POST", "/v1/completions", b" " * (INGRESS_BODY_BYTES + 1), 413, "too_large"),
    ],
)
async def test_what_cannot_be_routed_gets_openais_error(
    running: Running, method: str, path: str, body: bytes, status: int, code: str
) -> None:
    await running.deploy("other")
    answer = await running.call(method, path, body=body)
    assert answer.status == status
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["message"]


@pytest.mark.slow
async def test_a_body_without_room_is_the_servers_error_and_not_the_requests(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, held_bytes=4096) as running:
        answer = await running.call("POST", "/v1/completions", b" " * 5000)
        assert (answer.status, answer.json()["error"]["type"]) == (503, "server_error")


async def test_the_key_is_asked_for_where_it_is_on(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, api_key=True) as running:
        await running.deploy("m", **LABELS)
        key = (tmp_path / "secrets" / "api-key").read_text()
        for header, status in (("", 401), ("Bearer no", 401), (f"Basic {key}", 401), (f"Bearer {key}", 200)):
            given = {"authorization": header} if header else {}
            assert (await running.call("GET", "/v1/models", **given)).status == status
            assert (await running.call("POST", "/v1/completions", b'{"model": "m"}', **given)).status == status


async def test_beyond_loopback_the_key_is_always_asked_for(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, host="0.0.0.0") as running:
        assert (await running.call("GET", "/v1/models")).status == 401


async def test_the_page_calls_models_with_the_password_in_place_of_the_key(tmp_path: Path) -> None:
    async with gateway_on(tmp_path, api_key=True) as running:
        await running.deploy("m", **LABELS)
        key, body = (tmp_path / "secrets" / "api-key").read_text(), b'{"model": "m"}'
        for given in ({}, {"authorization": f"Bearer {key}"}):
            assert (await running.call("GET", "/ui/v1/models", **given)).status == 401
            assert (await running.call("POST", "/ui/v1/completions", body, **given)).status == 401
        answer = await running.system("GET", "/ui/v1/models")
        assert [model["id"] for model in answer.json()["data"]] == ["m"]
        own = {"authorization": running.basic}
        assert (await running.call("POST", "/ui/v1/completions", body, cookie="a=b", **own)).status == 200
        foreign = await running.call("POST", "/ui/v1/completions", body, **own, origin="http://else.example")
        assert foreign.status == 403
        (request,) = running.replicas("m")[0].requests
        assert request.target == "/v1/completions"
        assert not {"authorization", "cookie"} & {
            name.lower() for name in request.headers
        }  # no secret goes to functions

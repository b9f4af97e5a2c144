"""Input that clients should not send: a clear refusal, never a crash, and nothing half done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import BackendError, FunctionSpec, InvalidSpecError, LogLine
from gateway.inputs import flag, moment, whole
from gateway.specs import deployment_of, parse_deployment, split_name
from tests.doubles.fake_backend import FakeBackend
from tests.unit.gateway.client import ask, connect, request, send_raw
from tests.unit.gateway.gateways import Running, Starter

TEXT = st.text(max_size=12)
DEPLOYMENT = {"service": "f", "image": "i"}


async def post(running: Running, body: bytes, target: str = "/system/functions") -> tuple[int, str]:
    answer = await ask(running.address, "POST", target, body, authorization=running.basic)
    return answer.status, answer.text


# parsing


@given(TEXT, st.none() | TEXT)
def test_a_name_is_split_at_its_last_dot_or_refused_where_the_namespaces_differ(
    name: str, namespace: str | None
) -> None:
    head, dot, tail = name.rpartition(".")
    if not (dot and head):
        assert split_name(name, namespace) == (name, namespace or "openfaas-fn")
    elif namespace in (None, "", tail):
        assert split_name(name, namespace) == (head, tail)
    else:
        with pytest.raises(InvalidSpecError, match="but namespace is"):
            split_name(name, namespace)


@given(
    st.dictionaries(TEXT, TEXT, max_size=3),
    st.lists(TEXT, max_size=3),
    TEXT,
    st.booleans(),
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
)
def test_a_deployment_is_read_back_from_what_is_stored(
    texts: dict[str, str], words: list[str], command: str, flag: bool, name: str
) -> None:
    spec = FunctionSpec(
        name, "i", env_process=command, env_vars=texts, constraints=tuple(words), secrets=tuple(words),
        labels=texts, annotations=texts, limits=texts, requests=texts, read_only_root_filesystem=flag,
    )  # fmt: skip
    assert parse_deployment(json.loads(json.dumps(deployment_of(spec)))) == spec


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
    )
)
def test_any_json_is_a_deployment_or_a_sentence(document: Any) -> None:
    for body in (document, {**DEPLOYMENT, "labels": document}, {**DEPLOYMENT, "secrets": document}):
        try:
            parse_deployment(body)
        except InvalidSpecError as error:
            assert str(error)


@given(TEXT)
def test_numbers_flags_and_times_of_the_query_are_read_or_refused(text: str) -> None:
    for reader in (flag, whole, moment):
        try:
            reader({"x": text}, "x")
        except InvalidSpecError as error:
            assert str(error).startswith("x is ")


@pytest.mark.parametrize(("text", "number"), [("", 0), ("-1", -1), ("007", 7), ("999999999999999999", 10**18 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole({"tail": text}, "tail") == number
    assert whole({}, "tail") == 0


@pytest.mark.parametrize("text", ["1_000", "+1", " 1", "1.0", "१", "1e3", "0x1", "9" * 19])
def test_what_only_looks_like_a_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match="takes a whole number"):
        whole({"tail": text}, "tail")


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_times_at_the_ends_of_the_calendar_are_times(text: str) -> None:
    assert moment({"since": text}, "since") is not None


# bodies


@pytest.mark.parametrize(
    "body",
    [
        b'{"service": "f", "image": "\\ud800"}',
        b'{"service": "f", "image": "i", "labels": {"\\uDC00": "x"}}',
        b'{"service": "f", "image": "i", "annotations": {"a": NaN}}',
        b'{"service": "f", "image": Infinity}',
        '{"service": "f", "image": "i"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"service": "f", "image": "i"}',
        b'{"service": "f", "image": "i"} trailing',
        b'{"service": "f", "image": ' + b"1" * 5000 + b"}",
        b'{"a":' * 50_000,
    ],
)
async def test_what_could_not_be_stored_or_shown_is_refused_and_leaves_nothing(running: Running, body: bytes) -> None:
    status, text = await post(running, body)
    assert (status, text.startswith("the body is not JSON: ")) == (400, True)
    assert (await running.system("GET", "/system/functions")).json() == []


async def test_escaped_pairs_are_text(running: Running) -> None:
    assert (await post(running, b'{"service": "f", "image": "i", "annotations": {"a": "\\ud83d\\ude00"}}'))[0] == 202
    assert (await running.system("GET", "/system/function/f")).json()["annotations"] == {"a": "\U0001f600"}


async def test_the_name_and_the_namespace_must_agree(running: Running) -> None:
    status, text = await post(running, b'{"service": "f.openfaas-fn", "image": "i", "namespace": "other"}')
    assert (status, "but namespace is 'other'" in text) == (400, True)
    answer = await running.system("GET", "/system/function/f.openfaas-fn?namespace=other")
    assert answer.status == 400


@pytest.mark.parametrize("name", [7, [], {}, False, 0])
async def test_names_must_be_strings(running: Running, name: Any) -> None:
    await running.deploy()
    for method, target, document in (
        ("POST", "/system/scale-function/f", {"serviceName": name, "replicas": 1}),
        ("DELETE", "/system/functions", {"functionName": name}),
        ("DELETE", "/system/secrets", {"name": name}),
        ("POST", "/system/secrets", {"name": name, "value": "v"}),
    ):
        answer = await running.system(method, target, document)
        assert (answer.status, answer.text) == (400, "the name must be a string")


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [
        ({"value": 7}, "value of the secret must be a string"),
        ({"rawValue": ["a"]}, "rawValue of the secret must be a string"),
        ({"value": "v", "rawValue": "not base64"}, "rawValue of the secret must be base64"),
        ({"rawValue": ""}, "a secret takes value (text) or rawValue (base64)"),
        ({"value": "v", "namespace": "other"}, "namespace 'other' does not exist; there is openfaas-fn"),
    ],
)
async def test_secrets_that_are_none_are_refused(running: Running, secret: dict[str, Any], sentence: str) -> None:
    answer = await running.system("POST", "/system/secrets", {"name": "key", **secret})
    assert (answer.status, answer.text) == (400, sentence)
    assert running.backend.secret_names("openfaas-fn") == []


@pytest.mark.parametrize("label", ["min", "max"])
@pytest.mark.parametrize("value", ["5001", "99999", "1.5", "", "٣"])
async def test_labels_that_count_replicas_are_checked_before_anything_starts(
    running: Running, label: str, value: str
) -> None:
    document = {**DEPLOYMENT, "labels": {f"com.openfaas.scale.{label}": value}}
    answer = await running.system("POST", "/system/functions", document)
    assert (answer.status, "it takes a whole number up to 5000" in answer.text) == (400, True)


@pytest.mark.parametrize(
    "target", ["/system/replicas?follow=maybe", "/system/logs?name=f&follow=2", "/system/function/f?usage=x"]
)
async def test_flags_are_true_or_false(running: Running, target: str) -> None:
    await running.deploy()
    answer = await running.system("GET", target)
    assert (answer.status, "it takes true or false" in answer.text) == (400, True)


# paths and methods


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("TRACE", "/function/f", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        ("GET", "/async-function/f", "POST"),
        ("GET", "/%61sync-function/f", "POST"),
    ],
)
async def test_a_405_lists_what_is_allowed(running: Running, method: str, target: str, allowed: str) -> None:
    answer = await running.call(method, target)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("target", [b"/function/\xff", b"/\xc3\xa9", b"/system/function/\xe2\x82"])
async def test_bytes_that_are_no_text_in_the_path_are_refused(running: Running, target: bytes) -> None:
    raw = b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nauthorization: " + running.basic.encode()
    answer = await send_raw(running.address, raw + b"\r\nconnection: close\r\n\r\n")
    assert answer.split()[1] in (b"400", b"404")


# a backend that fails


class Failing(FakeBackend):
    """Accepts a function and cannot scale it."""

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        raise BackendError("no more memory")


async def test_a_backends_failure_is_500_with_its_sentence_and_is_not_remembered(start: Starter) -> None:
    async with start(backend=Failing()) as running:
        await running.system("POST", "/system/functions", DEPLOYMENT)
        answer = await running.system("POST", "/system/scale-function/f", {"replicas": 3})
        assert (answer.status, answer.text) == (500, "no more memory")
    async with start() as running:
        assert running.backend.get("f", "openfaas-fn").desired_replicas == 1


class Vanishing(FakeBackend):
    """The function is deleted by someone else while it is scaled."""

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        await super().scale(name, namespace, replicas)
        await self.delete(name, namespace)


async def test_a_function_deleted_while_it_is_scaled_does_not_come_back(start: Starter) -> None:
    async with start(backend=Vanishing()) as running:
        await running.system("POST", "/system/functions", DEPLOYMENT)
        await running.system("DELETE", "/system/functions", {"functionName": "f"})
        await running.deploy("f")
        assert (await running.system("POST", "/system/scale-function/f", {"replicas": 3})).status == 404
    async with start() as running:
        assert running.backend.list() == []


async def test_a_stored_function_that_is_broken_is_left_out_and_the_others_come_back(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as running:
        for name in ("a", "b", "c", "d"):
            await running.system("POST", "/system/functions", {"service": name, "image": "i"})
        folder = running.gateway.settings.state / "functions"
    (folder / "a.openfaas-fn.json").write_text('{"deployment": {}}')
    (folder / "b.openfaas-fn.json").write_bytes(b"\xff\x00")
    (folder / "c.openfaas-fn.json").write_text(
        '{"deployment": {"service": "c", "image": "i", "secrets": ["gone"]}, "replicas": 1}'
    )
    async with start() as running:
        assert [state.spec.name for state in running.backend.list()] == ["d"]
    assert caplog.text.count("is left out") == 2
    assert "function c.openfaas-fn was not brought back: c needs secret gone" in caplog.text


# clients that leave


class Watched(FakeBackend):
    """Counts log streams that are open."""

    open = 0

    async def _lines(self, *arguments: Any) -> AsyncIterator[LogLine]:
        self.open += 1
        try:
            async for line in super()._lines(*arguments):
                yield line
        finally:
            self.open -= 1


async def test_a_client_that_leaves_an_idle_log_leaves_nothing_behind(start: Starter) -> None:
    backend = Watched()
    async with start(backend=backend) as running:
        await running.deploy()
        _, writer = await connect(running.address)
        writer.write(request("GET", "/system/logs?name=f&follow=true", authorization=running.basic))
        await running.until(lambda: backend.open == 1)
        writer.transport.abort()
        await running.until(lambda: backend.open == 0)
        assert (await running.system("GET", "/system/logs?name=f")).status == 200


async def test_followers_end_when_the_gateway_does(start: Starter) -> None:
    async with start() as running:
        await running.deploy()
        streams = [await connect(running.address) for _ in range(2)]
        for (_, writer), target in zip(
            streams, ("/system/logs?name=f&follow=1", "/system/replicas?follow=1"), strict=True
        ):
            writer.write(request("GET", target, close=False, authorization=running.basic))
        for reader, _ in streams:
            await reader.readuntil(b"\r\n\r\n")
    for reader, writer in streams:
        assert (await asyncio.wait_for(reader.read(), 100)).endswith(b"0\r\n\r\n")
        writer.close()

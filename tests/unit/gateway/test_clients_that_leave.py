"""Clients that go away within a body are nothing that the gateway's log has to report."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.unit.gateway.client import connect
from tests.unit.gateway.gateways import Starter

PART = b"content-length: 100000\r\n\r\n" + b"x" * 5000
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def leave(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "reset":
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("answer", [b"", BEGUN, WHOLE], ids=["silent", "begun", "whole"])
async def test_within_the_body_of_a_call(
    start: Starter, caplog: pytest.LogCaptureFixture, how: str, answer: bytes
) -> None:
    async with start(buffer_bytes=1000) as running:
        await running.deploy()
        running.replicas()[0].on_head = lambda connection: connection.write(answer)
        _, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\n" + PART)
        await running.until(lambda: running.replicas()[0].heads == 1)
        leave(writer, how)
        await running.until(lambda: running.gateway.metrics.invocations["f.openfaas-fn"] == 1)
    assert reported(caplog) == []


@pytest.mark.parametrize("how", ["reset", "closed"])
@pytest.mark.parametrize("path", ["/system/functions", "/system/alert", "/ui/login", "/v1/embeddings"])
async def test_within_the_body_of_another_request(
    start: Starter, caplog: pytest.LogCaptureFixture, how: str, path: str
) -> None:
    async with start() as running:
        _, writer = await connect(running.address)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: t\r\nauthorization: {running.basic}\r\n".encode() + PART[:1000])
        assert (await running.call("GET", "/healthz")).status == 200
        leave(writer, how)
    assert reported(caplog) == []  # the servers have ended, and so have all requests


async def test_a_body_that_grows_too_large_while_the_reply_comes_cuts_the_connection_with_a_line(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(buffer_bytes=1000, max_body_bytes=20_000) as running:
        await running.deploy()
        running.replicas()[0].on_head = lambda connection: connection.write(BEGUN)
        reader, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"1388\r\n" + b"x" * 5000 + b"\r\n")
        assert b"hello" in await reader.readuntil(b"hello")
        writer.write((b"1388\r\n" + b"x" * 5000 + b"\r\n") * 4)
        assert not (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()
    assert any("the body is larger than 20000 bytes" in line for line in reported(caplog))
    assert "Traceback" not in caplog.text

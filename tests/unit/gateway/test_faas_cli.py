"""Requests of the real faas-cli, recorded, against this gateway; the statuses are those its source accepts.

The session: login (right, wrong), list, secrets, deploy of a stack (new, unchanged, --replace), describe, invoke (also
asynchronous and of an unknown function), logs, namespaces, ready, version, refused deployments, remove.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.fake_backend import FakeBackend
from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.unit.gateway.client import connect, parse
from tests.unit.gateway.gateways import Running, Starter

STEPS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("faas_cli_requests.json").read_text())["steps"]


def wire(step: dict[str, Any], authorization: str, *, chunked: bool) -> bytes:
    """The bytes of a step; with ``chunked`` framed as faas-cli does under FAAS_DEBUG."""
    lines = [f"{step['method']} {step['target']} HTTP/1.1", "Host: gateway.test", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in step["headers"].items()]
    if authorization:
        lines.append(f"Authorization: {authorization}")
    body = str(step["body"]).encode()
    if body and chunked:
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    elif body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def status_of(running: Running, step: dict[str, Any], *, chunked: bool) -> int:
    """Status of the reply; of a followed stream only the first line is awaited."""
    logins = {"right": running.basic, "wrong": "Basic YWRtaW46d3Jvbmc=", "none": ""}
    reader, writer = await connect(running.address)
    try:
        writer.write(wire(step, logins[step["login"]], chunked=chunked))
        async with asyncio.timeout(100):
            if "follow=true" in step["target"]:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"\n")
                return int(head.split()[1])
            return parse(await reader.read(), step["method"]).status
    finally:
        writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_the_whole_session_gets_the_statuses_faas_cli_accepts(start: Starter, chunked: bool) -> None:
    async def upper(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(200, seen.body.upper()))

    async with start(backend=FakeBackend({"functions/alpine:latest": upper})) as running:
        answered = [await status_of(running, step, chunked=chunked) for step in STEPS]
    wanted = [step["status"] for step in STEPS]
    odd = [(step["method"], step["target"], status) for step, status in zip(STEPS, answered, strict=True)]
    assert answered == wanted, [one for one, status in zip(odd, wanted, strict=True) if one[2] != status]


async def test_every_write_of_faas_cli_is_among_them() -> None:
    writes = {(step["method"], step["target"]) for step in STEPS if step["method"] != "GET"}
    assert {("POST", "/system/functions"), ("PUT", "/system/functions"), ("DELETE", "/system/functions")} <= writes
    assert {("POST", "/system/secrets"), ("PUT", "/system/secrets"), ("DELETE", "/system/secrets")} <= writes

"""``/system/logs``: lines, choices, and following."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.unit.gateway.client import connect, request
from tests.unit.gateway.gateways import Running, deploy


async def test_logs_are_ndjson_with_the_fields_of_openfaas(running: Running) -> None:
    await deploy(running, labels={})
    for number in range(3):
        await running.call("GET", f"/function/f/{number}")
    answer = await running.system("GET", "/system/logs?name=f&tail=2")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["text"] for line in lines] == ["GET /1", "GET /2"]
    assert {(line["name"], line["namespace"], line["instance"]) for line in lines} == {("f", "openfaas-fn", "f-1")}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", line["timestamp"]) for line in lines)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("name=f", 3),
        ("name=f.openfaas-fn&tail=-1", 3),
        ("name=f&namespace=openfaas-fn&tail=1", 1),
        ("name=f&instance=nobody", 0),
        ("name=f&since=2000-01-01T00:00:00Z", 3),
        ("name=f&since=2100-01-01T00:00:00%2B02:00", 0),
        ("name=f&follow=false", 3),
    ],
)
async def test_logs_can_be_chosen(running: Running, query: str, count: int) -> None:
    await deploy(running, labels={})
    for _ in range(3):
        await running.call("GET", "/function/f")
    assert len((await running.system("GET", f"/system/logs?{query}")).text.splitlines()) == count


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("name=g", 404), ("name=f&tail=x", 400), ("name=f&since=yesterday", 400), ("name=f&namespace=n", 404)],
)
async def test_wrong_log_requests_are_refused(running: Running, query: str, status: int) -> None:
    await deploy(running)
    answer = await running.system("GET", f"/system/logs?{query}")
    assert answer.status == status
    assert answer.text


async def test_followed_logs_come_line_by_line_and_end_with_the_function(running: Running) -> None:
    await deploy(running, labels={})
    reader, writer = await connect(running.address)
    writer.write(request("GET", "/system/logs?name=f&follow=true", authorization=running.basic))
    await reader.readuntil(b"\r\n\r\n")
    for number in range(2):
        await running.call("GET", f"/function/f/{number}")
        assert f"GET /{number}".encode() in await asyncio.wait_for(reader.readuntil(b"}\n"), 100)
    await running.system("DELETE", "/system/functions", {"functionName": "f"})
    assert (await asyncio.wait_for(reader.read(), 100)).endswith(b"0\r\n\r\n")
    writer.close()

"""The gateway's own OpenAPI file: the same routes as the application, and schemas that hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway import __version__
from tests.unit.gateway.client import connect, request
from tests.unit.gateway.gateways import TIMEOUT_S, Running, Served

DOCUMENT: dict[str, Any] = yaml.safe_load(resources.files("gateway").joinpath("openapi.yaml").read_bytes())
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")


def test_the_file_and_the_application_have_the_same_routes(served: Served) -> None:
    described = {
        (method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in METHODS if method in item
    }
    assert described == served.running.gateway.served()


@pytest.mark.slow
async def test_the_file_is_served_without_a_password_as_it_is(running: Running) -> None:
    assert DOCUMENT["info"]["version"] == __version__
    answer = await running.call("GET", "/openapi.yaml")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/yaml")
    assert yaml.safe_load(answer.body) == DOCUMENT


def test_every_schema_of_the_file_is_a_schema_and_every_reference_leads_somewhere() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert schema.get("description") or schema.get("type"), name
    for path in references(DOCUMENT):
        found: Any = DOCUMENT
        for key in path.removeprefix("#/").split("/"):
            found = found[key]


def references(document: Any) -> Iterator[str]:
    """Every ``$ref`` in a document."""
    if isinstance(document, dict):
        if isinstance(document.get("$ref"), str):
            yield document["$ref"]
        for value in document.values():
            yield from references(value)
    elif isinstance(document, list):
        for value in document:
            yield from references(value)


async def test_lines_of_logs_and_feed_are_as_their_schemas_say(running: Running) -> None:
    await running.deploy("echo", labels={"smoe.metrics": "true"})
    await running.call("GET", "/function/echo")
    (line,) = (await running.system("GET", "/system/logs?name=echo")).text.splitlines()
    assert list(validator("LogLine").iter_errors(json.loads(line))) == []
    reader, writer = await connect(running.address)
    writer.write(request("GET", "/system/replicas?follow=true", close=True, authorization=running.basic))
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(TIMEOUT_S):
        _, _, snapshot = (await reader.readuntil(b"}\n")).partition(b"\r\n")  # behind the chunk's length
    writer.close()
    assert list(validator("ReplicaSnapshot").iter_errors(json.loads(snapshot))) == []


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({**DOCUMENT, "$ref": f"#/components/schemas/{name}"})

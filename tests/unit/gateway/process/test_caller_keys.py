"""Who may call a replica by itself: the gateway, and who reads the replica feed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.contract import FunctionSpec
from platform_words.labels import PIPELINE_LABEL
from tests.unit.gateway.gateways import Running, gateway_on
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ask, ready, spec, until

HEADER = "x_smoe_caller_key"


@pytest.fixture
async def keyed(running: Starter, tmp_path: Path) -> AsyncIterator[tuple[ProcessBackend, Running]]:
    """A gateway whose workers have keys."""
    backend = running(caller_keys=True)
    async with backend as started, gateway_on(tmp_path / "state", cast(Any, _Started(started))) as gateway:
        yield started, gateway


class _Started:
    """A backend that somebody else starts and closes."""

    def __init__(self, backend: ProcessBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def start(self) -> None:
        """It is."""

    async def close(self) -> None:
        """It will be."""


async def test_a_command_takes_calls_of_the_gateway_only_and_does_not_see_the_key(
    keyed: tuple[ProcessBackend, Running],
) -> None:
    backend, gateway = keyed
    await backend.create(FunctionSpec("f", "x/y", env_process="env"), 1)
    replica = (await until(backend, "f", ready(1))).ready[0]
    for headers in ({}, {HEADER: "wrong"}, {HEADER: ""}):
        status, _, body = await ask(replica.address, **headers)
        assert (status, b"of its gateway only" in body) == (403, True)
    assert (await ask(replica.address, "/_/health", method="GET"))[0] == 200
    answer = await gateway.call("POST", "/function/f", x_smoe_caller_key="a client's own")
    key = backend.get("f", NAMESPACE).caller_key
    assert (answer.status, "Http_Host" in answer.text) == (200, True)
    assert key not in answer.text
    assert "caller_key" not in answer.text.lower().replace("smoe_caller_key_file", "")
    assert (await ask(replica.address, **{HEADER: key}))[0] == 200


@pytest.mark.slow
async def test_the_feed_has_the_keys_and_each_command_one_of_its_own(keyed: tuple[ProcessBackend, Running]) -> None:
    backend, gateway = keyed
    for name in "ab":
        await backend.create(spec(name), 0)
    for name in "fg":
        await backend.create(FunctionSpec(name, "x/y", env_process="cat"), 0)
    feed = (await gateway.system("GET", "/system/replicas")).json()["functions"]
    keys = [feed[f"{name}.{NAMESPACE}"]["key"] for name in "abfg"]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(len(key) == 32 for key in keys)
    assert keys[0] not in repr(backend.get("a", NAMESPACE))


@pytest.mark.slow
async def test_a_gateway_s_keys_are_made_anew_at_each_start(running: Starter) -> None:
    keys = set()
    for _ in range(2):
        async with running(caller_keys=True) as backend:
            await backend.create(spec("a"), 0)
            keys.add(backend.get("a", NAMESPACE).caller_key)
    assert len(keys) == 2


@pytest.mark.parametrize(
    "path",
    ["/metrics", "/statistics", "/statistics?x=1", "/relay", "/kv", "/kv/free", "//metrics", "/%6detrics", "/metrics/"],
)
async def test_what_siblings_and_controllers_ask_is_not_served_at_the_front_door(tmp_path: Path, path: str) -> None:
    async with gateway_on(tmp_path) as gateway:
        await gateway.deploy("inner", labels={PIPELINE_LABEL: "minilm"})
        await gateway.deploy("other")
        answer = await gateway.call("GET", f"/function/inner{path}")
        assert (answer.status, "controller and its siblings only" in answer.text) == (404, True)
        assert (await gateway.call("GET", f"/function/other{path}")).status == 200
        assert (await gateway.call("POST", "/function/inner")).status == 200


async def test_an_image_that_does_not_look_at_the_key_answers_without_it(keyed: tuple[ProcessBackend, Running]) -> None:
    backend, _ = keyed
    await backend.create(spec("f"), 1)
    assert (await ask((await until(backend, "f", ready(1))).ready[0].address))[0] == 200

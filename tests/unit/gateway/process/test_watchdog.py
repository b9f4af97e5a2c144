"""Functions that are a command per call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.watchdog.command import call_environment
from gateway.backends.watchdog.server import Watchdog
from gateway.backends.watchdog.settings import WatchdogError, from_environment
from gateway.contract import FunctionSpec
from tests.unit.gateway.process.conftest import (
    NAMESPACE,
    Starter,
    alive,
    ask,
    eventually,
    eventually_async,
    log_texts,
    logged,
    ready,
    until,
)


def command(name: str, process: str, **environment: str) -> FunctionSpec:
    return FunctionSpec(name, "alpine/any:latest", env_process=process, env_vars=environment)


@pytest.fixture
async def as_gateway(running: Starter) -> AsyncIterator[ProcessBackend]:
    """Whose commands may read what lies in pytest's folders."""
    async with running(command_users=False) as started:
        yield started


async def address_of(backend: ProcessBackend, spec: FunctionSpec) -> str:
    await backend.create(spec, 1)
    return (await until(backend, spec.name, ready(1))).ready[0].address


async def test_the_body_goes_in_and_the_output_comes_back(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "cat"))
    body = bytes(range(256)) * 2000
    status, headers, answer = await ask(address, body=body)
    assert (status, answer) == (200, body)
    assert 0 < float(headers["x-duration-seconds"]) < 30
    assert headers["content-type"].startswith("text/plain")
    texts = await log_texts(backend, "f")
    assert any("Forking fprocess" in text for text in texts)
    assert any(f"Wrote {len(body)} Bytes" in text for text in texts)


async def test_method_path_query_and_headers_are_in_the_environment(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "env", own="yes", content_type="text/x-env"))
    _, headers, answer = await ask(address, "/a/b%20c?x=1&y=2", method="PUT", x_my_header="v")
    lines = answer.decode().splitlines()
    for line in ("Http_Method=PUT", "Http_Path=/a/b%20c", "Http_Query=x=1&y=2", "Http_X_My_Header=v", "own=yes"):
        assert line in lines
    assert headers["content-type"] == "text/x-env"


@pytest.mark.slow
async def test_the_command_is_split_on_spaces_and_no_shell_is_involved(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "echo $HOME; 'a b' | cat"))
    assert (await ask(address))[2] == b"$HOME; 'a b' | cat\n"


@pytest.mark.parametrize(
    ("last", "statuses"),
    [
        pytest.param({"type": "http.disconnect"}, [], id="it-left"),
        pytest.param({"type": "http.request", "body": b"more"}, [413], id="too-large"),
    ],
)
async def test_a_body_that_is_not_whole_runs_no_command(
    tmp_path: Path, last: dict[str, Any], statuses: list[int]
) -> None:
    settings = from_environment({"fprocess": f"touch {tmp_path / 'ran'}"})
    watchdog = Watchdog(replace(settings, max_body_bytes=12), {})
    messages = iter([{"type": "http.request", "body": b"only this", "more_body": True}, last])
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(messages)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    await watchdog(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == statuses
    assert list(tmp_path.iterdir()) == []


async def test_a_failing_command_is_a_500_and_its_errors_are_logged(as_gateway: ProcessBackend, tmp_path: Path) -> None:
    program = tmp_path / "fail.py"
    program.write_text("import sys; print('out'); print('this went wrong', file=sys.stderr); sys.exit(7)")
    address = await address_of(as_gateway, command("f", f"{sys.executable} {program}", combine_output="false"))
    status, _, answer = await ask(address)
    assert status == 500
    assert b"exit status 7" in answer
    assert b"went wrong" not in answer
    assert any("this went wrong" in text for text in await log_texts(as_gateway, "f"))


@pytest.mark.slow
async def test_a_command_that_does_not_exist_is_a_500(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "no-such-command-at-all"))
    status, headers, _ = await ask(address)
    assert (status, headers["x-openfaas-internal"]) == (500, "classic-watchdog")


@pytest.mark.slow
async def test_exec_timeout_kills_the_command_and_its_children(as_gateway: ProcessBackend, tmp_path: Path) -> None:
    program = tmp_path / "deep.py"
    program.write_text(
        "import subprocess, sys, pathlib\nc = subprocess.Popen(['sleep', '600'])\n"
        "pathlib.Path(sys.argv[1]).write_text(str(c.pid))\nc.wait()\n"
    )
    pid_file = tmp_path / "pid"
    address = await address_of(as_gateway, command("f", f"{sys.executable} {program} {pid_file}", exec_timeout="1s"))
    status, _, answer = await ask(address)
    assert (status, b"exec_timeout" in answer) == (504, True)
    child = int(pid_file.read_text())
    await eventually(lambda: not alive(child))


@pytest.mark.slow
async def test_more_calls_than_max_inflight_are_refused_and_the_limit_changes_live(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "sleep 0.5", max_inflight="1"))
    first = asyncio.create_task(ask(address))

    async def at_limit() -> bool:
        return (await ask(address, "/_/ready", method="GET"))[0] == 429

    await eventually_async(at_limit)
    status, headers, body = await ask(address)
    assert (status, headers["retry-after"]) == (429, "1")
    assert b"Max concurrent requests: 1" in body
    assert (await ask(address, "/_/health", method="GET"))[0] == 200
    assert (await first)[0] == 200
    pid = backend.get("f", NAMESPACE).ready[0].pid
    await backend.update(command("f", "sleep 0.5", max_inflight="3"))
    await logged(backend, "max_inflight is now 3")
    assert [status for status, _, _ in await asyncio.gather(*(ask(address) for _ in range(3)))] == [200] * 3
    assert backend.get("f", NAMESPACE).ready[0].pid == pid


@pytest.mark.slow
async def test_a_drain_lets_commands_finish(backend: ProcessBackend) -> None:
    address = await address_of(backend, command("f", "sleep 0.5"))
    calls = [asyncio.create_task(ask(address)) for _ in range(3)]
    await logged(backend, "Forking", 3)
    await backend.scale("f", NAMESPACE, 0)
    assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 3
    await until(backend, "f", ready(0))


@pytest.mark.slow
async def test_a_command_reads_its_secret_from_the_mount(as_gateway: ProcessBackend, tmp_path: Path) -> None:
    await as_gateway.put_secret("key", NAMESPACE, b"s3cret", create=True)
    program = tmp_path / "read.py"
    program.write_text("import os; print(open(os.environ['secret_mount_path'] + '/key').read(), end='')")
    spec = FunctionSpec("f", "x/y", env_process=f"{sys.executable} {program}", secrets=("key",))
    address = await address_of(as_gateway, spec)
    assert (await ask(address))[2] == b"s3cret"
    await as_gateway.put_secret("key", NAMESPACE, b"new", create=False)
    assert (await ask(address))[2] == b"new"


@given(st.lists(st.tuples(st.text("abcXYZ-09_.é", min_size=1, max_size=12), st.text(max_size=8)), max_size=6))
def test_any_header_makes_a_legal_environment(headers: list[tuple[str, str]]) -> None:
    environment = call_environment({"own": "1"}, "GET", "/", "", headers)
    assert environment["own"] == "1"
    for key, value in environment.items():
        assert key.isascii()
        assert "=" not in key
        assert "\0" not in value


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({}, "fprocess"),
        ({"fprocess": "cat", "exec_timeout": "soon"}, "exec_timeout"),
        ({"fprocess": "cat", "max_inflight": "-1"}, "max_inflight"),
    ],
)
def test_bad_settings_are_sentences(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(WatchdogError, match=sentence):
        from_environment(environment)

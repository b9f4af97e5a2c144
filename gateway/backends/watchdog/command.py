"""Runs the command for one call: body to its standard input, its output is the answer."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil

from gateway.backends.watchdog.settings import WatchdogSettings

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True)
class Outcome:
    """``code`` is the exit code (negative: a signal), None when it ran into ``exec_timeout`` or could not start."""

    code: int | None
    output: bytes
    errors: bytes
    seconds: float
    timed_out: bool = False


def call_environment(
    base: Mapping[str, str], method: str, path: str, query: str, headers: Iterable[tuple[str, str]]
) -> dict[str, str]:
    """Environment of one call: the function's own, ``Http_Method``, ``Http_Path``, ``Http_Query``, ``Http_<Header>``.

    Dashes and whatever else a variable's name cannot hold become ``_``; header names are capitalised word by word.
    """
    environment = dict(base)
    for name, value in headers:
        title = "-".join(word.capitalize() for word in name.split("-"))
        environment["Http_" + _UNSAFE.sub("_", title)] = value.replace("\0", "")
    environment.update(Http_Method=method, Http_Path=path.replace("\0", ""), Http_Query=query)
    return environment


async def run(settings: WatchdogSettings, body: bytes, environment: Mapping[str, str]) -> Outcome:
    """Run to the end, or until ``exec_timeout``, when the command and everything below it is killed.

    The command stays in the replica's process group, so that whoever ends the replica ends it too.
    """
    began = time.perf_counter()
    try:
        process = await asyncio.create_subprocess_exec(
            *settings.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if settings.combine_output else subprocess.PIPE,
            env=dict(environment),
            close_fds=False,  # none is inheritable; a user who may not list its own would try each number there can be
        )
    except (OSError, ValueError) as error:
        return Outcome(None, b"", str(error).encode(), time.perf_counter() - began)
    limit_s = settings.exec_timeout_s or None
    try:
        async with asyncio.timeout(limit_s):
            output, errors = await process.communicate(body)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()
        return Outcome(None, b"", b"", time.perf_counter() - began, timed_out=True)
    except asyncio.CancelledError:
        kill_tree(process.pid)
        raise
    return Outcome(process.returncode, output, errors or b"", time.perf_counter() - began)


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                one.kill()

"""A gateway for tests that kill it: ``python -m tests.unit.gateway.process.gateway_program STATE``.

Starts functions with and without a command, prints one JSON line with every process id, then waits for ever.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import psutil

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.settings import ProcessSettings
from gateway.contract import FunctionSpec
from tests.unit.gateway.process.conftest import IMAGES, NAMESPACE, ask, ready, until


async def main(state: Path) -> None:
    backend = ProcessBackend(
        ProcessSettings(state=state, images=IMAGES, blanks=2, command_users=False, caller_keys=False)
    )
    await backend.start()
    await backend.create(FunctionSpec("echo", "test/echo"), 2)
    await backend.create(FunctionSpec("shell", "x/shell", env_process=f"{sys.executable} {state / 'deep.py'}"), 1)
    await until(backend, "echo", ready(2))
    command = (await until(backend, "shell", ready(1))).ready[0]
    call = asyncio.create_task(ask(command.address))
    while not (state / "deep.pids").exists():
        await asyncio.sleep(0.01)
    below = [process.pid for process in psutil.Process().children(recursive=True)]
    deep = [int(text) for text in (state / "deep.pids").read_text().split()]
    cgroups = [str(folder) for folder in backend.launcher.cgroups.folders]
    found = {"parent": backend.launcher.parent_pid, "pids": sorted({*below, *deep}), "cgroups": cgroups}
    print(json.dumps(found), flush=True)
    await call
    assert backend.get("echo", NAMESPACE)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gateway.process.conftest import alive, eventually

pytestmark = pytest.mark.slow

# A command that starts a process of its own, in its group, and one that leaves the group and session.
DEEP = """
import os, subprocess, sys, time
from pathlib import Path

near = subprocess.Popen(["sleep", "600"])
far = subprocess.Popen(["sleep", "600"], start_new_session=True)
part = Path(sys.argv[0]).with_name("deep.part")
part.write_text(f"{os.getpid()} {near.pid} {far.pid}")
part.rename(part.with_name("deep.pids"))
near.wait()
"""


async def started(state: Path) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
    state.mkdir()
    (state / "deep.py").write_text(DEEP)
    gateway = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.gateway.process.gateway_program",
        str(state),
        stdout=asyncio.subprocess.PIPE,
    )
    assert gateway.stdout
    line = await asyncio.wait_for(gateway.stdout.readline(), 60)
    return gateway, json.loads(line)


@pytest.mark.parametrize("killed", ["gateway", "gateway and parent", "gateway, parent and guardian"])
@pytest.mark.usefixtures("enforced")
async def test_everything_is_gone_after_sigkill_of(tmp_path: Path, killed: str) -> None:
    gateway, found = await started(tmp_path / "state")
    pids = found["pids"]
    assert len(pids) >= 8
    guardian = next(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "smoe-guardian\n")
    victims = [gateway.pid]
    victims += [found["parent"]] if "parent" in killed else []
    victims += [guardian] if "guardian" in killed else []
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    await gateway.wait()
    if "guardian" in killed:
        # Nobody is left to do it: replicas die by the kernel, the rest when the next gateway starts.
        deep = [int(text) for text in (tmp_path / "state" / "deep.pids").read_text().split()]
        await eventually(lambda: not any(alive(pid) for pid in pids if pid not in deep))
        second, _ = await started(tmp_path / "second")
        second.kill()
        await second.wait()
    await eventually(lambda: not any(alive(pid) for pid in pids))
    await eventually(lambda: not any(Path(folder).exists() for folder in found["cgroups"]))

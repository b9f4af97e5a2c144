"""The MPS control daemon: found, started, ended with the gateway. The program is a fake, no GPU is needed."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.backends.process.gpu.mps import PID_FILE, Mps
from gateway.contract import BackendError
from tests.unit.gateway.process import fake_mps_control
from tests.unit.gateway.process.conftest import alive, eventually


@pytest.fixture
def state() -> Iterator[Path]:
    """A folder with a short path, as sockets want it."""
    folder = Path(tempfile.mkdtemp(prefix="mps"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def control(tmp_path: Path) -> str:
    program = tmp_path / "fake-control"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -E -S {fake_mps_control.__file__} "$@"\n')
    program.chmod(0o755)
    return str(program)


def made(state: Path, control: str, **environ: str) -> Mps:
    given = {"CUDA_MPS_PIPE_DIRECTORY": str(state / "nobody"), **environ}
    return Mps(state, sys.executable, control, given)


def pid_of(pipe: Path) -> int:
    return int((pipe / PID_FILE).read_text())


async def test_a_daemon_is_started_once_and_ends_with_the_gateway(
    state: Path, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-the-gateway")
    mps = made(state, control)
    await asyncio.gather(*(mps.ready() for _ in range(3)))
    assert mps.pipe == state / "mps" / "pipe"
    assert (mps.pipe / "started_with").read_text() == f"{state / 'mps' / 'log'}|"
    pid = pid_of(mps.pipe)
    await mps.ready()
    assert pid_of(mps.pipe) == pid
    await mps.close()
    assert not alive(pid)
    assert not (mps.pipe / PID_FILE).exists()


@pytest.mark.slow
async def test_a_daemon_that_died_is_started_again(state: Path, control: str) -> None:
    mps = made(state, control)
    await mps.ready()
    keeper = mps.keeper
    assert keeper is not None
    first = pid_of(mps.pipe)
    subprocess.run(["kill", "-9", str(first)], check=True)
    await asyncio.to_thread(keeper.wait, 10)
    (mps.pipe / "control").unlink()
    await mps.ready()
    assert pid_of(mps.pipe) != first
    await mps.close()


@pytest.mark.slow
async def test_who_gives_up_within_the_start_leaves_it_to_the_next(state: Path, control: str) -> None:
    mps = made(state, control)
    first = asyncio.ensure_future(mps.ready())
    await eventually(lambda: mps.keeper is not None)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert mps.keeper is None
    (state / "mps" / "pipe" / "control").unlink(missing_ok=True)
    await mps.ready()
    assert alive(pid_of(mps.pipe))
    await mps.close()


@pytest.mark.slow
async def test_a_daemon_goes_even_when_the_gateway_is_killed(state: Path, control: str) -> None:
    program = (
        "import asyncio, pathlib, sys\nfrom gateway.backends.process.gpu.mps import Mps\n"
        f"given = {{'CUDA_MPS_PIPE_DIRECTORY': {str(state / 'nobody')!r}}}\n"
        f"asyncio.run(Mps(pathlib.Path({str(state)!r}), sys.executable, {control!r}, given).ready())\n"
        "print('ready', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        assert await asyncio.to_thread(gateway.stdout.readline) == b"ready\n"
        pid = pid_of(state / "mps" / "pipe")
        assert alive(pid)
        gateway.kill()
    await eventually(lambda: not alive(pid))


async def test_a_daemon_that_runs_is_used_and_left_running(state: Path, control: str) -> None:
    theirs = state / "theirs"
    theirs.mkdir()
    other = subprocess.Popen([control, "-f"], env={"CUDA_MPS_PIPE_DIRECTORY": str(theirs)})
    try:
        await eventually((theirs / PID_FILE).exists)
        mps = made(state, control, CUDA_MPS_PIPE_DIRECTORY=str(theirs))
        await mps.ready()
        assert mps.pipe == theirs
        await mps.close()
        assert other.poll() is None
        (theirs / "default_percentage").write_text("10.0")
        with pytest.raises(BackendError, match="at most 10 % of a GPU"):
            await made(state, control, CUDA_MPS_PIPE_DIRECTORY=str(theirs)).ready()
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
async def test_what_a_killed_daemon_left_behind_is_not_taken_for_one(state: Path, control: str) -> None:
    theirs = state / "theirs"
    theirs.mkdir()
    (theirs / PID_FILE).write_text("1")
    mps = made(state, control, CUDA_MPS_PIPE_DIRECTORY=str(theirs))
    await mps.ready()
    assert mps.pipe == state / "mps" / "pipe"
    await mps.close()


async def test_a_missing_program_and_a_long_path_are_reported_in_a_sentence(state: Path, control: str) -> None:
    with pytest.raises(BackendError, match=r"GPU shares need .*missing-control, which cannot be run: No such file"):
        await made(state, str(state / "missing-control")).ready()
    with pytest.raises(BackendError, match="choose a state folder with a shorter path"):
        await made(state / ("long" * 20), control).ready()

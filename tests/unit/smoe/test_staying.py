"""``smoe up --foreground`` until its gateway ends: by Ctrl-C, or by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from rich.console import Console

from smoe.commands.service import _stay
from smoe.errors import SmoeError

pytestmark = pytest.mark.timeout(100)


def gateway(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", f"import os, signal, sys; {program}"])


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and so does a test run that is one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_stops_the_gateway_and_the_exit_status_tells(tmp_path: Path) -> None:
    process = gateway("os.kill(os.getppid(), signal.SIGINT); signal.pause()")
    try:
        with pytest.raises(click.Abort):  # the command line's 130
            _stay(process, tmp_path, Console(stderr=True))
        assert process.poll() is not None
    finally:
        process.kill()


def test_a_gateway_that_fails_by_itself_is_an_error_and_one_that_was_stopped_elsewhere_is_none(tmp_path: Path) -> None:
    with pytest.raises(SmoeError, match=r"ended with status 3; .*gateway\.log has the reason"):
        _stay(gateway("sys.exit(3)"), tmp_path, Console(stderr=True))
    _stay(gateway("sys.exit(0)"), tmp_path, Console(stderr=True))

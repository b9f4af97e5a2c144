"""Worker processes end with whoever started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from evaluation.processes import worker_processes

STARTS_ONE = """
import os, signal
from evaluation.processes import worker_processes

if __name__ == "__main__":
    with worker_processes(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        signal.pause()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_when_its_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "starts_one.py"
    script.write_text(STARTS_ONE)
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env={"PYTHONPATH": str(root)}
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        assert worker.is_running()
        parent.send_signal(number)
        parent.wait(10)
        worker.wait(20)  # raises TimeoutExpired if it is still there
    assert not worker.is_running()


def test_workers_do_what_they_are_given() -> None:
    with worker_processes(2) as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]

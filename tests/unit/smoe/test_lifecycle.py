"""How a gateway's process is started and ended."""

from __future__ import annotations

import signal
import subprocess
import sys

from smoe.lifecycle import stop_process


def test_a_process_is_asked_to_end_before_it_is_killed() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    stop_process(process)
    assert process.returncode == -signal.SIGTERM


def test_a_process_that_does_not_end_when_asked_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"deaf\n"
    stop_process(process, timeout_s=0.2)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL

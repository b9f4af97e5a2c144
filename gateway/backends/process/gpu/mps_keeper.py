"""Runs an MPS control daemon (``PROGRAM -f``) for as long as the gateway lives.

Started by ``mps`` only (``python -m gateway.backends.process.gpu.mps_keeper PROGRAM``), with a pipe as standard input
whose other end the gateway holds. When that is closed, however the gateway ended, the daemon is ordered to quit, then
killed with everything it started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

from gateway.backends.process import kernel

_LOOK_S = 0.5
_QUIT_TIMEOUT_S = 5.0


def main() -> int:
    """Code 0 when it was ordered to end, else the daemon's own."""
    program = sys.argv[1]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the daemon would inherit
    kernel.name_process("smoe-mps-keeper")
    me = os.getpid()
    daemon = subprocess.Popen(
        [program, "-f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: kernel.die_with_parent(me),  # this process has one thread
    )
    try:
        while daemon.poll() is None:
            readable, _, _ = select.select([0], [], [], _LOOK_S)
            if readable and not os.read(0, 4096):
                _quit(program, daemon)
                return 0
        return daemon.returncode or 1
    finally:
        kernel.kill_group(daemon.pid)


def _quit(program: str, daemon: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(
            [program],
            input=b"quit\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_QUIT_TIMEOUT_S,
            check=False,
        )
        daemon.wait(_QUIT_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())

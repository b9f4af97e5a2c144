"""A worker in a Python of its own that imports everything and reads its own weights (no pre-initialisation).

``bench_fresh_after`` names a file: until it is there, workers are forked, so that what a row scales from is quickly up.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from benchmarks.live_scaling.ablations import private
from gateway.backends.process import kernel

READY_TIMEOUT_S = 300.0
AFTER = "bench_fresh_after"


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Start the process on the listener's port, say when it accepts, pass SIGTERM on, end with it."""
    if AFTER in environ and not Path(environ[AFTER]).exists():
        private.main(environ, listener, ready)
        return
    listener.close()
    me = os.getpid()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.live_scaling.ablations.fresh"],
        env={**environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: kernel.die_with_parent(me),
    )
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    end_s = time.monotonic() + READY_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end_s:
        if _serves(int(environ["port"])):
            ready()
            break
        time.sleep(0.05)
    sys.exit(process.wait())


def _serves(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)
    with suppress(OSError, http.client.HTTPException), closing(connection):
        connection.request("GET", "/_/ready")
        return connection.getresponse().status == 200
    return False


def _run() -> int:
    from functions import worker
    from moe import runtime

    runtime.read_mapped = private.read_private
    return worker._run_from_environment()


if __name__ == "__main__":
    sys.exit(_run())

"""A worker forked from the test's own process, so that what a test has put in place of parts is in the worker, too.

Workers that need no such parts come from ``benchmarks.harness.local_pipeline.start_worker``.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping

from benchmarks.harness.local_pipeline import LOOPBACK, WorkerProcess
from functions import worker
from gateway.backends.process.kernel import die_with_parent


def fork_worker(function: str, environ: Mapping[str, str]) -> WorkerProcess:
    """Fork a worker and wait until it is ready. Raises RuntimeError when it ends before."""
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    port = listener.getsockname()[1]
    read_end, write_end = os.pipe()
    parent_pid = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(read_end)
            die_with_parent(parent_pid)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            worker.main(environ, listener, lambda: _report_ready(write_end))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write_end)
    listener.close()
    try:
        if os.read(read_end, 1) != b"r":
            os.waitpid(pid, 0)
            raise RuntimeError(f"the worker of {function} ended before it was ready; its error is above")
    finally:
        os.close(read_end)
    return WorkerProcess(function, pid, port)


def _report_ready(write_end: int) -> None:
    os.write(write_end, b"r")
    os.close(write_end)

"""Worker processes for long computations: spawned, and never left behind."""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor


def worker_processes(count: int) -> ProcessPoolExecutor:
    """A pool of ``count`` spawned processes, each of which ends when this process does, however it does.

    The library's own workers wait for work for ever when whoever gave it is killed.
    """
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)

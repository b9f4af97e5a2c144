"""Worker processes for long computations: spawned, and never left behind."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


def worker_processes(count: int) -> ProcessPoolExecutor:
    """A pool of ``count`` spawned processes, each of which ends when this process does, however it does.

    The library's own workers wait for work for ever when whoever gave it is killed.
    """
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)


def run_tasks(
    workers: int,
    tasks: Mapping[Task, Callable[[], Result]],
    take: Callable[[Task, Callable[[], Result]], object],
) -> None:
    """Runs ``tasks`` (name → call) in ``workers`` processes, a single one in this process.

    ``take`` gets each name as its task is done, and what returns the result or raises the task's error. What ``take``
    raises, or an interrupt, cancels the tasks that wait; those under way end first.
    """
    if workers <= 1:
        for task, call in tasks.items():
            take(task, call)
        return
    with worker_processes(workers) as pool:
        waiting = {pool.submit(call): task for task, call in tasks.items()}
        try:
            for future in as_completed(waiting):
                take(waiting[future], future.result)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), name="end-with-parent", daemon=True).start()


def _end_after(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)

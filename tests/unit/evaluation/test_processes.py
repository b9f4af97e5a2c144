"""Worker processes end with whoever started them, and do what they are given."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

from evaluation import processes
from evaluation.processes import run_tasks, worker_processes

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


@pytest.mark.parametrize("workers", [1, 2])
def test_each_result_and_each_error_is_taken_with_its_task(workers: int) -> None:
    results: dict[str, object] = {}

    def take(task: str, call: Callable[[], int]) -> None:
        try:
            results[task] = call()
        except ValueError as error:
            results[task] = str(error).partition(":")[0]

    run_tasks(workers, {"four": partial(abs, -4), "none": partial(int, "x"), "five": partial(int, "5")}, take)
    assert results == {"four": 4, "five": 5, "none": "invalid literal for int() with base 10"}


def test_a_failure_cancels_the_tasks_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun = threading.Event(), list[int]()

    class Pool(ThreadPoolExecutor):
        """One worker, which goes on with its second task once the waiting ones were cancelled or have to be awaited."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(False, cancel_futures=cancel_futures)
            go.set()
            super().shutdown(wait)

    def task(number: int) -> None:
        begun.append(number)
        if number:
            assert go.wait(20)

    def fail(_: int, result: Callable[[], None]) -> None:
        result()
        raise ValueError("the first is enough")

    monkeypatch.setattr(processes, "worker_processes", lambda count: Pool(1))
    with pytest.raises(ValueError, match="enough"):
        run_tasks(2, {number: partial(task, number) for number in range(10)}, fail)
    assert begun in ([0], [0, 1])

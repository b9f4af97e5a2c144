"""How fast the machine is while something else runs on it: a fixed piece of work, once a second, by its CPU seconds.

A virtual core changes its speed within minutes, so lone requests sent before a run do not show how fast it was in the
run. CPU seconds of work that is always the same do; waiting for a core is not in them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np

EVERY_S = 1.0
PRODUCTS, SIZE, ADDITIONS = 120, 64, 20_000
"""Products of square matrices (64: small enough that no library uses a second thread) and additions in Python, each
about a millisecond or two: three thousandths of a core in all."""


def piece_cpu_s() -> float:
    """CPU seconds that this thread takes for the piece of work, caches warm."""
    matrix = np.full((SIZE, SIZE), 1 / SIZE, np.float32)
    begun_ns = 0
    for _ in range(2):  # once to warm up
        begun_ns = time.thread_time_ns()
        for _ in range(PRODUCTS):
            np.matmul(matrix, matrix)
        sum(range(ADDITIONS))
    return (time.thread_time_ns() - begun_ns) / 1e9


class SpeedClock:
    """Context manager: ``samples`` are (Unix time, CPU seconds of the piece) from its beginning to its end."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="speed clock", daemon=True)

    def __enter__(self) -> SpeedClock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self.samples.append((time.time(), piece_cpu_s()))
            self._ended.wait(EVERY_S)


def typical_s(samples: Sequence[Sequence[float]]) -> float:
    """Median CPU seconds of the piece. ``samples``: (Unix time, CPU seconds) each."""
    return float(np.median([one[1] for one in samples]))

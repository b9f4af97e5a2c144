"""How busy the whole machine was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

FULL = 0.95
"""Part of the cores from which a second counts as one of a full machine."""


@contextmanager
def cores_busy() -> Iterator[list[float]]:
    """Busy cores in every second of the block."""
    over, taken = threading.Event(), list[float]()

    def look() -> None:
        psutil.cpu_percent()
        while not over.wait(1.0):
            taken.append(psutil.cpu_percent() / 100 * cores())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


def cores() -> int:
    """How many this machine has."""
    return psutil.cpu_count() or 1

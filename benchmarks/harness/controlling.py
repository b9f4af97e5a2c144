"""The controller's loop in a thread, for as long as a ``with`` block lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autoscaler.contract import TickReport
from autoscaler.loop import Controller, run

STOP_TIMEOUT_S = 30.0


@contextmanager
def controlling(controller: Controller, interval_s: float, window_s: float) -> Iterator[list[TickReport]]:
    """Ticks every ``interval_s``; the list grows with their reports."""
    reports: list[TickReport] = []
    stop = threading.Event()
    thread = threading.Thread(
        target=run, args=(controller, interval_s, stop.wait, reports.append), kwargs={"window_s": window_s}, daemon=True
    )
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(STOP_TIMEOUT_S)

"""The load of ``smoe run`` where no rate is given: what overloads the pipeline as deployed, on this machine, today.

A rate in requests per second is no measure of load: machines differ by a factor of two and more, and one machine
between hours, so that the same rate leaves experts idle here and overloads them there. So it is measured how many
requests the pipeline answers in a second when callers never pause, and the trace is scaled until its busiest seconds
ask for more than that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numpy as np

from smoe.errors import SmoeError
from traces import scale
from traces.model import Trace

OVERLOAD = 1.6
"""What the busiest ``BUSY_S`` of a replay ask for, over what the pipeline can answer as deployed."""
BUSY_S = 10.0
CALLERS = 16
"""Callers at once while capacity is measured; a pass has 13 stages, so that every layer has work."""
SETTLE_S, MEASURE_S = 3.0, 8.0
"""What unused quota lets through at first is left out of the measurement."""


def capacity_rps(callers: list[Callable[[], None]], settle_s: float = SETTLE_S, measure_s: float = MEASURE_S) -> float:
    """Answers a second, each of ``callers`` (a call and its answer) repeated in a thread of its own without a pause.

    Raises SmoeError where nothing is answered, and what the first failing caller raised.
    """
    begun_s, ends_s, failures = time.monotonic(), [], list[BaseException]()
    until_s = begun_s + settle_s + measure_s

    def repeat(call: Callable[[], None]) -> None:
        try:
            while not failures and time.monotonic() < until_s:
                call()
                ends_s.append(time.monotonic())
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    counted = sum(begun_s + settle_s <= end_s < until_s for end_s in ends_s)
    if not counted:
        raise SmoeError(f"no prompt was answered within {settle_s + measure_s:g} s; give the rate (--mean-rps)")
    return counted / measure_s


def busiest_over_mean(trace: Trace, duration_s: float) -> float:
    """The requests of the busiest ``BUSY_S`` of ``trace`` compressed to ``duration_s``, over what they are on average.

    Windows begin at any request. Needs at least one request.
    """
    window_s = min(1.0, BUSY_S / duration_s) * trace.duration_s
    last = np.searchsorted(trace.arrival_s, trace.arrival_s + window_s, side="left")
    most = int((last - np.arange(trace.requests)).max())
    return most / window_s / trace.mean_rps


def overloading_rps(trace: Trace, duration_s: float, capacity: float) -> float:
    """Mean requests a second at which the busiest ``BUSY_S`` of the compressed ``trace`` ask for ``OVERLOAD`` times
    ``capacity`` (requests/s)."""
    return OVERLOAD * capacity / busiest_over_mean(trace, duration_s)


def in_length_and_rate(trace: Trace, duration_s: float, mean_rps: float, seed: int) -> Trace:
    """``trace`` compressed to ``duration_s`` at ``mean_rps``, its minutes as uneven as they were (:mod:`traces.scale`).

    Raises SmoeError where no request is left, TraceError.
    """
    speed = trace.duration_s / duration_s
    replayed = scale.compress(scale.at_rate(trace, mean_rps / speed, seed), speed)
    if not replayed.requests or not math.isfinite(mean_rps):
        raise SmoeError("the trace has no request in this length and rate")
    return replayed

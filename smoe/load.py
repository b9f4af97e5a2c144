"""The load of ``smoe run`` where no rate is given: what overloads the pipeline as deployed, on this machine, today.

A rate in requests per second is no measure of load: machines differ by a factor of two and more, and one machine
between hours, so that the same rate leaves experts idle here and overloads them there. So it is measured how many
requests the pipeline answers in a second when callers never pause, and the trace is scaled until its busiest seconds
ask for more than that.

How much more hangs on the machine, too: what a prompt costs in CPU seconds is counted meanwhile, and the busiest
seconds never ask for more than a third of what all cores together could do. Beyond that no scaling keeps any target.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smoe.errors import SmoeError
from traces import scale
from traces.model import Trace

OVERLOAD = 1.6
"""What the busiest ``BUSY_S`` of a replay ask for, over what the pipeline can answer as deployed."""
MOST_OF_CORES = 0.35
"""What the busiest ``BUSY_S`` of a replay may ask for, over what the machine's cores could do. Two seconds within them
ask for twice as much, and prompts that come one by one find colder caches than those it was measured with."""
BUSY_S = 10.0
CALLERS = 16
"""Callers at once while capacity is measured; a pass has 13 stages, so that every layer has work."""
SETTLE_S, MEASURE_S = 3.0, 8.0
"""What unused quota lets through at first is left out of the measurement."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pipeline answers as deployed."""

    rps: float
    """Answers a second."""
    cpu_s: float
    """CPU seconds of an answer, in all processes together."""

    def most_rps(self, cores: float) -> float:
        """Answers a second that ``cores`` could give if they did nothing else and no limit held them back."""
        return cores / self.cpu_s if self.cpu_s > 0 else math.inf

    def overload_rps(self, cores: float) -> float:
        """Requests a second that the busiest ``BUSY_S`` of a replay ask for: ``OVERLOAD`` times what is answered as
        deployed, at most ``MOST_OF_CORES`` of what ``cores`` could do."""
        return min(OVERLOAD * self.rps, MOST_OF_CORES * self.most_rps(cores))


def measure_capacity(
    callers: Sequence[Callable[[], object]],
    spent_s: Callable[[], float],
    settle_s: float = SETTLE_S,
    measure_s: float = MEASURE_S,
) -> Capacity:
    """Each of ``callers`` (a call and its answer) is repeated in a thread of its own without a pause. ``spent_s``: CPU
    seconds so far of all that serves them.

    Raises SmoeError where nothing is answered, and what the first failing caller raised.
    """
    begun_s, ends_s, failures = time.monotonic(), [], list[BaseException]()
    until_s = begun_s + settle_s + measure_s

    def repeat(call: Callable[[], object]) -> None:
        try:
            while not failures and time.monotonic() < until_s:
                call()
                ends_s.append(time.monotonic())
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in callers]
    for thread in threads:
        thread.start()
    time.sleep(settle_s)
    before_s = spent_s()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    after_s = spent_s()
    counted = sum(begun_s + settle_s <= end_s < until_s for end_s in ends_s)
    if not counted:
        raise SmoeError(f"no prompt was answered within {settle_s + measure_s:g} s; give the rate (--mean-rps)")
    return Capacity(counted / measure_s, (after_s - before_s) / counted)


def busiest_over_mean(trace: Trace, duration_s: float) -> float:
    """The requests of the busiest ``BUSY_S`` of ``trace`` compressed to ``duration_s``, over what they are on average.

    Windows begin at any request. Needs at least one request.
    """
    window_s = min(1.0, BUSY_S / duration_s) * trace.duration_s
    last = np.searchsorted(trace.arrival_s, trace.arrival_s + window_s, side="left")
    most = int((last - np.arange(trace.requests)).max())
    return most / window_s / trace.mean_rps


def mean_rps_of(trace: Trace, duration_s: float, busiest_rps: float) -> float:
    """Mean requests a second at which the busiest ``BUSY_S`` of the compressed ``trace`` ask for ``busiest_rps``."""
    return busiest_rps / busiest_over_mean(trace, duration_s)


def in_length_and_rate(trace: Trace, duration_s: float, mean_rps: float, seed: int) -> Trace:
    """``trace`` compressed to ``duration_s`` at ``mean_rps``, its minutes as uneven as they were (:mod:`traces.scale`).

    Raises SmoeError where no request is left, TraceError.
    """
    speed = trace.duration_s / duration_s
    replayed = scale.compress(scale.at_rate(trace, mean_rps / speed, seed), speed)
    if not replayed.requests or not math.isfinite(mean_rps):
        raise SmoeError("the trace has no request in this length and rate")
    return replayed

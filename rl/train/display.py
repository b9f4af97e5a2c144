"""What ``smoe lab train`` and ``train-staffing`` show while they learn, and how they are stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from rl.train.limit import Limit

EVERY_S, REFRESH_S = 60.0, 0.5
"""How often a line comes off a terminal, and the bar is drawn on one."""


class Display:
    """In every phase a bar on a terminal, else a line a minute: windows and minutes of processor time, each of how
    many, and when the limit ends it."""

    def __init__(
        self,
        console: Console,
        limit: Limit,
        windows: int,
        wait: Callable[[float], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``wait``: for so many seconds, True where the display has ended by then. ``clock``: seconds of wall time."""
        self._console, self._limit, self._windows, self._clock = console, limit, windows, clock
        self._begun_s, self._spent_s = clock(), limit.spent_s
        self._ended = threading.Event()
        self._wait = wait or self._ended.wait
        columns = (BarColumn(), TextColumn("{task.description}"))
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(self.line(), total=limit.minutes)
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Display:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._bar.stop()

    def _show(self) -> None:
        while not self._wait(REFRESH_S if self._console.is_terminal else EVERY_S):
            if self._console.is_terminal:
                self._bar.update(self._task, description=self.line(), completed=self._limit.spent_s / 60)
            else:
                self._console.print(self.line(), soft_wrap=True, markup=False, highlight=False)

    def line(self) -> str:
        """Where the run is, in a line."""
        limit = self._limit
        return (
            f"{limit.phase}: {limit.windows} of {self._windows} windows, {limit.spent_s / 60:.1f} of {limit.minutes:g} "
            f"min, ends within {self._left_min():.1f} min"
        )

    def _left_min(self) -> float:
        """Until the limit, where processor time goes on as slowly as it did."""
        spent_s = self._limit.spent_s - self._spent_s
        slower = (self._clock() - self._begun_s) / spent_s if spent_s > 0 else 1.0
        return max(0.0, self._limit.minutes - self._limit.spent_s / 60) * max(1.0, slower)

    def validation(self, entry: dict[str, Any]) -> None:
        """An actor was judged."""
        self._console.print(line_of(entry))


def line_of(entry: Mapping[str, Any]) -> str:
    """A validation in a line."""
    return (
        f"{entry['windows']:6d} windows {entry['minutes']:6.1f} min: cost {entry['cost']:.3f} of the reference, "
        f"{100 * entry['violated']:.1f} % of windows over λ{', kept' if entry['best'] else ''}"
    )


@contextmanager
def interruptible(console: Console) -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM (``timeout``, CI), so that the run ends soon and stores what it has; a second one ends
    it at once."""
    stop = threading.Event()

    def interrupt(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        console.print("stopping soon, and storing what was learnt; Ctrl-C again ends at once")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

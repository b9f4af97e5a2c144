"""What ``smoe lab train`` shows while it learns, and how it is stopped."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rl.train.run import Run

EVERY_S = 60.0
"""Off a terminal a line comes this often."""


class Display:
    """A bar on a terminal, else a line a minute: windows, and minutes of processor time, each of how many."""

    def __init__(self, console: Console, windows: int, minutes: float, run: Run) -> None:
        self._console, self._windows, self._minutes, self._run = console, windows, minutes, run
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(self._spent(), total=windows, completed=run.agent.num_timesteps)
        self._line_s = time.monotonic()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def window(self, count: int) -> None:
        """So many more windows were simulated; 0: none, but time went by."""
        self._bar.update(self._task, advance=count, description=self._spent())
        if not self._console.is_terminal and time.monotonic() >= self._line_s + EVERY_S:
            self._line_s = time.monotonic()
            self._console.print(f"{self._run.agent.num_timesteps} of {self._windows} windows, {self._spent()}")

    def validation(self, entry: dict[str, Any]) -> None:
        """An actor was judged."""
        self._console.print(line_of(entry))

    def _spent(self) -> str:
        return f"{self._run.progress.minutes:.1f} of {self._minutes:g} min"


def line_of(entry: Mapping[str, Any]) -> str:
    """A validation in a line."""
    return (
        f"{entry['windows']:6d} windows {entry['minutes']:6.1f} min: cost {entry['cost']:.3f} of the reference, "
        f"{100 * entry['violated']:.1f} % of windows over λ{', kept' if entry['best'] else ''}"
    )


@contextmanager
def interruptible(console: Console) -> Iterator[threading.Event]:
    """Set by Ctrl-C or SIGTERM (``timeout``, CI), so that the run ends after its round and stores what it has; a second
    one ends it at once."""
    stop = threading.Event()

    def interrupt(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        console.print("stopping after this round, the actor is stored; Ctrl-C again ends at once")

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

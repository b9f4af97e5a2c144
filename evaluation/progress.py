"""Progress of long work: a bar on a terminal, elsewhere a line a minute."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

EVERY_S = 60.0
"""Between two lines where there is no terminal."""


class LongWork(Progress):
    """A bar that vanishes when it ends; off a terminal what is under way and how much of it is done, on standard error,
    no more often than each :data:`EVERY_S`."""

    def __init__(self, console: Console, *columns: ProgressColumn) -> None:
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._next_s = time.monotonic() + EVERY_S

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._line(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._line(task_id)

    def _line(self, task_id: TaskID) -> None:
        now_s = time.monotonic()
        if not self.disable or now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        task = next(task for task in self.tasks if task.id == task_id)
        share = "" if task.total is None else f"{task.percentage:.0f} %, "
        click.echo(f"{task.description}: {share}after {(task.elapsed or 0.0) / 60:.0f} minutes", err=True)

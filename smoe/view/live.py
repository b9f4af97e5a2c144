"""Keeps a view on the screen; where there is no terminal it prints one plain line per window."""

from __future__ import annotations

import os
from types import TracebackType

from rich.console import Console
from rich.live import Live

from smoe.view.model import ViewState
from smoe.view.render import plain_line, render


class View:
    """Use as a context manager and call :meth:`show` whenever there is something new.

    On a terminal the screen is redrawn. Elsewhere (pipe, file, CI, ``TERM=dumb``) a line is printed for each new
    window, recognised by ``elapsed_s``; calls within a window, and before the first, add nothing. Colour follows
    ``NO_COLOR`` through rich.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.interactive = self.console.is_terminal and os.environ.get("TERM") != "dumb"
        self._live: Live | None = None
        self._last_line_s = float("-inf")

    def __enter__(self) -> View:
        if self.interactive:
            self._live = Live(console=self.console, auto_refresh=False, transient=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, state: ViewState) -> None:
        """Put ``state`` on the screen."""
        if self._live is not None:
            self._live.update(render(state, self.console.width, self.console.height), refresh=True)
        elif state.window_s > 0 and state.elapsed_s >= self._last_line_s + 0.999 * state.window_s:
            self._last_line_s = state.elapsed_s
            self.console.print(plain_line(state), soft_wrap=True, markup=False, highlight=False)

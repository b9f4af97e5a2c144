"""ServeGen's per-client window statistics: ``client,window_start_s,rate_rps,iat_cv,pattern,param1,param2``.

One row is one client in one window of 600 s; a window that is not there was idle. The requests themselves are not
published, so arrivals are drawn: ``rate * 600`` inter-arrival times from a law, then rescaled to fill the window
(as the publisher does; shape*scale is not always 1/rate). Two laws: *measured-cv*, a Gamma with shape
``1/iat_cv^2``, whose CV is the measured one; *published*, the fitted law of the row (its Weibull fits miss the
measured CV by a factor of 0.3 to 1.7). A finite draw from a heavy law shows a smaller CV than the law's: measure
the CV of what was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from traces.errors import NoMatchError, TraceError, broken
from traces.rows import Row, read_table, real_number, whole_number
from traces.trace import MAX_REQUESTS, FloatArray, Trace, make_trace

Law = Literal["measured-cv", "published"]

COLUMNS = ("client", "window_start_s", "rate_rps", "iat_cv", "pattern", "param1", "param2")
LAWS = ("Gamma", "Weibull")
WINDOW_S = 600
MAX_RATE_RPS = 1e6
MAX_CLIENT = 10**9
MAX_START_S = 10**9


@dataclass(frozen=True)
class ClientWindow:
    """One row: a client's arrivals in the 600 s from ``window_start_s`` on."""

    line: int
    client: int
    window_start_s: int
    rate_rps: float
    iat_cv: float
    law: str
    """``Gamma`` or ``Weibull``, with ``shape`` and ``scale_s`` as the publisher fitted them."""
    shape: float
    scale_s: float

    @property
    def requests(self) -> int:
        return round(self.rate_rps * WINDOW_S)


def read_windows(path: Path, clients: Iterable[int] | None = None) -> Iterator[ClientWindow]:
    """Rows in file order, all or those of ``clients``. Raises TraceError (names line and rule)."""
    table = read_table(path)
    if tuple(table.header.cells) != COLUMNS:
        raise broken(path, table.header.line, f"foreign columns; the header is {','.join(COLUMNS)}")
    wanted = None if clients is None else frozenset(clients)
    seen: set[tuple[int, int]] = set()
    for row in table.rows:
        window = _parse(path, row)
        key = (window.client, window.window_start_s)
        if key in seen:
            raise broken(path, row.line, f"client {key[0]} has window {key[1]} s twice")
        seen.add(key)
        if wanted is None or window.client in wanted:
            yield window


def draw(
    path: Path,
    windows: Sequence[ClientWindow],
    *,
    start_s: int,
    duration_s: int,
    seed: int = 0,
    law: Law = "measured-cv",
) -> Trace:
    """Arrivals of one client's ``windows`` that lie in the span; the same seed gives the same trace. Raises
    TraceError.

    A window's draw depends on (seed, client, window start) only, so a clip does not change with the span around it.
    """
    if start_s % WINDOW_S or duration_s % WINDOW_S or duration_s <= 0 or start_s < 0:
        raise TraceError(f"start ({start_s} s) and duration ({duration_s} s) must be multiples of {WINDOW_S} s")
    inside = sorted(
        (window for window in windows if start_s <= window.window_start_s < start_s + duration_s),
        key=lambda window: window.window_start_s,
    )
    if len({window.client for window in inside}) > 1:
        raise TraceError("draw takes the windows of one client at a time")
    if not inside:
        raise NoMatchError(f"{path}: nothing arrives between {start_s} s and {start_s + duration_s} s")
    if sum(window.requests for window in inside) > MAX_REQUESTS:
        raise TraceError(f"{path}: more than {MAX_REQUESTS} requests in the span; choose a shorter one")
    parts = [draw_window(window, seed, law) + (window.window_start_s - start_s) for window in inside]
    return make_trace(
        np.concatenate(parts),
        duration_s=float(duration_s),
        source=f"{path.name} client {inside[0].client} from {start_s} s, drawn ({law}, seed {seed})",
    )


def draw_window(window: ClientWindow, seed: int, law: Law = "measured-cv") -> FloatArray:
    """[round(rate*600)] float64 seconds from the window's start, the last one at its end."""
    count = window.requests
    if count == 0:
        return np.zeros(0, dtype=np.float64)
    rng = np.random.default_rng((seed, window.client, window.window_start_s))
    if law == "measured-cv":
        gaps = rng.gamma(1.0 / max(window.iat_cv, 0.01) ** 2, size=count)
    elif window.law == "Gamma":
        gaps = rng.gamma(window.shape, window.scale_s, size=count)
    else:
        gaps = window.scale_s * rng.weibull(window.shape, size=count)
    total = float(gaps.sum())
    if not np.isfinite(total) or total <= 0:
        gaps, total = np.ones(count), float(count)
    arrivals: FloatArray = np.minimum(np.cumsum(gaps * (WINDOW_S / total)), float(WINDOW_S))
    return arrivals


def _parse(path: Path, row: Row) -> ClientWindow:
    cells, line = row.cells, row.line
    start_s = whole_number(path, line, COLUMNS[1], cells[1], MAX_START_S)
    if start_s % WINDOW_S:
        raise broken(path, line, f"column window_start_s: {start_s} is not a multiple of {WINDOW_S}")
    if cells[4] not in LAWS:
        raise broken(path, line, f"column pattern: {cells[4][:40]!r}, allowed are {' and '.join(LAWS)}")
    return ClientWindow(
        line=line,
        client=whole_number(path, line, COLUMNS[0], cells[0], MAX_CLIENT),
        window_start_s=start_s,
        rate_rps=real_number(path, line, COLUMNS[2], cells[2], low=0.0, high=MAX_RATE_RPS),
        iat_cv=real_number(path, line, COLUMNS[3], cells[3], low=0.0, high=1e6),
        law=cells[4],
        shape=real_number(path, line, COLUMNS[5], cells[5], low=1e-9, high=1e9),
        scale_s=real_number(path, line, COLUMNS[6], cells[6], low=0.0, high=1e9),
    )

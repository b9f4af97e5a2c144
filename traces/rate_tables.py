"""A data set as requests per row and step of time: what hours and days are searched and summed in.

A step is a minute where a format counts requests (Azure Functions 2019), 600 s where it publishes statistics
(ServeGen). Everything fits into memory for the sets of :data:`traces.catalog.KNOWN`; the full fourteen days of Azure
Functions do not, and are read by :mod:`traces.hours`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from traces import arrival_process, splits
from traces.columns import foreign, read_blocks
from traces.errors import TraceError
from traces.formats import azure_functions_2019, servegen
from traces.model import FloatArray, IntArray, Trace, make_trace
from traces.rows import read_header
from traces.sources import one


@dataclass(frozen=True, eq=False)
class RateTable:
    """Rows are functions or clients; all of them lie on the same steps from the file's zero on."""

    name: str
    path: Path
    step_s: int
    names: list[str]
    requests: IntArray
    """[rows, steps] int64."""
    cv: FloatArray | None
    """[rows, steps] CV of inter-arrival times as measured by the publisher; None: the file only counts."""

    @property
    def span_s(self) -> int:
        return int(self.requests.shape[1]) * self.step_s

    def by(self, span_s: int) -> IntArray:
        """[rows, spans, steps of a span] int64; steps after the last whole span are left out."""
        steps = span_s // self.step_s
        spans = self.requests.shape[1] // steps
        parts: IntArray = self.requests[:, : spans * steps].reshape(len(self.names), spans, steps)
        return parts

    def sets(self, span_s: int) -> IntArray:
        """[rows, spans] index into SPLITS or -1, by function and time (:func:`traces.splits.assign`)."""
        rows, spans = self.by(span_s).shape[:2]
        row, start = np.repeat(np.arange(rows), spans), np.tile(np.arange(spans) * span_s, rows)
        assigned: IntArray = splits.assign(row, self.names, start, self.span_s).reshape(rows, spans)
        return assigned

    def draw(self, row: int, start_s: int, span_s: int, seed: int) -> Trace:
        """Arrivals of one row at its own rate; the same seed gives the same ones.

        Counts lie uniformly in their minutes. ServeGen's windows are Gamma intervals of the measured CV, scaled to fill
        the window as the publisher does, then turned by a random phase: unturned, every client's window would end with
        a request in the same instant. Raises TraceError.
        """
        first, steps = start_s // self.step_s, span_s // self.step_s
        requests = self.requests[row, first : first + steps]
        if self.cv is None:
            arrival_s = arrival_process.place(requests, "uniform", seed)
            how = f"placed uniformly in their minutes, seed {seed}"
        else:
            cvs = self.cv[row, first : first + steps]
            arrival_s = np.concatenate([
                self._window(row, first + step, int(count), float(cv), seed) + step * self.step_s
                for step, (count, cv) in enumerate(zip(requests, cvs, strict=True))
            ])  # fmt: skip
            how = f"Gamma intervals of the measured CV, seed {seed}"
        source = f"{self.name} {self.names[row][:16]} from {start_s} s, {how}"
        return make_trace(arrival_s, duration_s=float(span_s), source=source)

    def _window(self, row: int, step: int, count: int, cv: float, seed: int) -> FloatArray:
        start_s = step * self.step_s
        rate = count / servegen.WINDOW_S
        window = servegen.ClientWindow(0, self.names[row], start_s, rate, cv, "Gamma", 1 / max(cv, 0.01) ** 2, 1.0)
        phase = np.random.default_rng((seed, row, start_s)).uniform(0, self.step_s)
        turned: FloatArray = np.sort((servegen.draw_window(window, seed) + phase) % self.step_s)
        return turned


@lru_cache(maxsize=8)
def rate_table(name: str, path: Path) -> RateTable:
    """The table of a file of Azure Functions 2019 or of ServeGen (one table). Raises TraceError."""
    return _of_windows(name, path) if name.startswith("servegen") else _of_counts(name, path)


def _of_counts(name: str, path: Path) -> RateTable:
    blocks = list(azure_functions_2019.read_blocks_of_days(path))
    if len({block.first_minute for block in blocks}) > 1:
        raise TraceError(f"{path}: several days of counts are not held as one table")
    names = [row for block in blocks for row in block.rows]
    return RateTable(name, path, 60, names, np.concatenate([block.counts for block in blocks]), None)


def _of_windows(name: str, path: Path) -> RateTable:
    with one(path) as source:
        header = read_header(source.label, source.stream).header
        if not servegen.is_header(header.cells):
            raise foreign(source, header, ",".join(servegen.COLUMNS))
        blocks = list(read_blocks(source, servegen.KINDS, header))
    if not blocks:
        raise TraceError(f"{path}: the file holds no rows")
    wanted = ("client", "window_start_s", "rate_rps", "iat_cv")
    client, start_s, rate, measured = (np.concatenate([block.arrays[name] for block in blocks]) for name in wanted)
    numbers, row = np.unique(client, return_inverse=True)
    step = start_s // servegen.WINDOW_S
    steps = int(step.max()) + 1
    requests = np.zeros((numbers.size, steps), dtype=np.int64)
    cv = np.ones((numbers.size, steps))
    requests[row, step] = np.rint(rate * servegen.WINDOW_S)
    cv[row, step] = measured
    if np.unique(row * steps + step).size < row.size:
        raise TraceError(f"{path}: a client has the same window twice")
    return RateTable(name, path, servegen.WINDOW_S, [str(number) for number in numbers], requests, cv)

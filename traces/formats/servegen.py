"""ServeGen's per-client window statistics, in its published form and as one table.

Published: a folder ``data/CATEGORY/MODEL`` with one ``chunk-N-trace.csv`` a client, without a header: window start
in seconds (multiples of 600), rate in requests/s, CV of inter-arrival times, pattern, two parameters; a rate of 0
with an empty pattern is an idle window. Such a folder, the whole repository or its archive are read; a client is
``CATEGORY/MODEL/N`` then, or ``N`` where the folder is the model's own. One table: ``client,window_start_s,rate_rps,
iat_cv,pattern,param1,param2``, one row a client and window; a window that is not there was idle.

The requests themselves are not published, so arrivals are drawn: ``rate * 600`` inter-arrival times from a law, then
rescaled to fill the window (as the publisher does; shape*scale is not always 1/rate). Two laws: *measured-cv*, a
Gamma with shape ``1/iat_cv^2``, whose CV is the measured one; *published*, the fitted law of the row (its Weibull
fits miss the measured CV by a factor of 0.3 to 1.7). A finite draw from a heavy law shows a smaller CV than the
law's: measure the CV of what was drawn.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from traces.columns import Block, Column, foreign, read_blocks
from traces.errors import NoMatchError, TraceError
from traces.formats.servegen_lengths import Lengths
from traces.model import MAX_REQUESTS, FloatArray, IntArray, Trace, make_trace
from traces.rows import read_header
from traces.sources import Source, sources

Law = Literal["measured-cv", "published"]

COLUMNS = ("client", "window_start_s", "rate_rps", "iat_cv", "pattern", "param1", "param2")
LAWS = ("Gamma", "Weibull")
WINDOW_S = 600
MAX_RATE_RPS = 1e6
LENGTHS_SEED = 1
"""Part of the seed of lengths, which are drawn apart from arrivals."""
MAX_CLIENT = 10**9
MAX_START_S = 10**9
CHUNK_FILE = re.compile(r"chunk-(\d{1,9})-trace\.csv", re.ASCII)
KINDS = (
    Column("client", "whole", high=MAX_CLIENT),
    Column("window_start_s", "whole", high=MAX_START_S),
    Column("rate_rps", "real", high=MAX_RATE_RPS),
    Column("iat_cv", "real", high=1e6),
    Column("pattern", "text", allowed=LAWS),
    Column("param1", "real", low=1e-9, high=1e9),
    Column("param2", "real", high=1e9),
)
CHUNK_KINDS = (
    *KINDS[1:4],
    Column("pattern", "text", allowed=("", *LAWS), may_be_empty=True),
    Column("param1", "real", high=1e9),
    Column("param2", "real", high=1e9),
)


@dataclass(frozen=True)
class ClientWindow:
    """A client's arrivals in the 600 s from ``window_start_s`` on."""

    line: int
    client: str
    """Number in the table, ``CATEGORY/MODEL/N`` in a published tree."""
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


def is_header(cells: list[str]) -> bool:
    return tuple(cells) == COLUMNS


def is_chunk(name: str) -> bool:
    """The name of a client's file in the published tree."""
    return CHUNK_FILE.fullmatch(name) is not None


def read_windows(path: Path, client: str | None = None) -> Iterator[ClientWindow]:
    """Active windows in file order, all or those of ``client``. Raises TraceError (names line and rule)."""
    any_source = False
    for source in sources(path):
        if is_chunk(source.name):
            any_source = True
            name = _client_name(path, source)
            if client is None or name == client:
                yield from _chunk(source, name)
        elif path.is_file() and source.member is None:
            any_source = True
            for window in _table(source):
                if client is None or window.client == client:
                    yield window
    if not any_source:
        raise TraceError(f"{path}: holds no ServeGen client file (chunk-N-trace.csv)")


def _table(source: Source) -> Iterator[ClientWindow]:
    header = read_header(source.label, source.stream).header
    if not is_header(header.cells):
        raise foreign(source, header, ",".join(COLUMNS))
    keys: set[tuple[int, int]] = set()
    for block in read_blocks(source, KINDS, header):
        starts = _on_grid(block)
        clients = block.whole("client").tolist()
        for index, key in enumerate(zip(clients, starts.tolist(), strict=True)):
            if key in keys:
                raise block.refuse(index, f"client {key[0]} has window {key[1]} s twice")
            keys.add(key)
        yield from _windows(block, [str(number) for number in clients])


def _chunk(source: Source, client: str) -> Iterator[ClientWindow]:
    last = -1
    for block in read_blocks(source, CHUNK_KINDS):
        starts = _on_grid(block)
        early = np.flatnonzero(np.diff(starts, prepend=last) <= 0)
        if early.size:
            raise block.refuse(int(early[0]), f"times are unsorted: window {starts[early[0]]} s does not follow")
        last = int(starts[-1])
        yield from _windows(block, [client] * block.size)


def _on_grid(block: Block) -> IntArray:
    starts = block.whole("window_start_s")
    off = np.flatnonzero(starts % WINDOW_S)
    if off.size:
        value = starts[off[0]]
        raise block.refuse(int(off[0]), f"column window_start_s: {value} is not a multiple of {WINDOW_S}")
    return starts


def _windows(block: Block, clients: list[str]) -> Iterator[ClientWindow]:
    index, names = block.text("pattern")
    columns = [block.arrays[name].tolist() for name in ("window_start_s", "rate_rps", "iat_cv", "param1", "param2")]
    for at, (start, rate, cv, shape, scale) in enumerate(zip(*columns, strict=True)):
        law = names[index[at]]
        if law and shape < KINDS[5].low:
            raise block.refuse(at, f"column param1: {shape:g} is outside {KINDS[5].low:g} to {KINDS[5].high:g}")
        if rate and not law:
            raise block.refuse(at, f"column pattern is empty (a gap) though the rate is {rate:g}")
        if law:
            yield ClientWindow(block.first_line + at, clients[at], start, rate, cv, law, shape, scale)


def _client_name(path: Path, source: Source) -> str:
    """``CATEGORY/MODEL/N`` by the folders below ``data``, or below what was asked for."""
    match = CHUNK_FILE.fullmatch(source.name)
    number = str(int(match[1])) if match else source.name
    if source.member is not None:
        folders = source.member.split("/")[:-1]
    else:
        folders = list(source.path.relative_to(path).parts[:-1]) if path.is_dir() else []
    if "data" in folders:
        folders = folders[folders.index("data") + 1 :]
    return "/".join([*folders, number])


def draw(
    path: Path,
    windows: Sequence[ClientWindow],
    *,
    start_s: int,
    duration_s: int,
    seed: int = 0,
    law: Law = "measured-cv",
    lengths: Lengths | None = None,
) -> Trace:
    """Arrivals of one client's ``windows`` that lie in the span, with tokens drawn from ``lengths`` where given; the
    same seed gives the same trace. Raises TraceError.

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
        most = max(inside, key=lambda window: window.requests)
        raise TraceError(
            f"{path}:{most.line}: more than {MAX_REQUESTS} requests in the span, {most.requests} of them in this "
            "window; choose a shorter one"
        )
    parts = [draw_window(window, seed, law) + (window.window_start_s - start_s) for window in inside]
    tokens = [] if lengths is None else [_tokens(window, lengths, seed) for window in inside]
    return make_trace(
        np.concatenate(parts),
        duration_s=float(duration_s),
        source=f"{path.name} client {inside[0].client} from {start_s} s, drawn ({law}, seed {seed})",
        context_tokens=np.concatenate([prompts for prompts, _ in tokens]) if tokens else None,
        generated_tokens=np.concatenate([answers for _, answers in tokens]) if tokens else None,
    )


def _tokens(window: ClientWindow, lengths: Lengths, seed: int) -> tuple[IntArray, IntArray]:
    rng = np.random.default_rng((seed, _client_seed(window.client), window.window_start_s, LENGTHS_SEED))
    return lengths.draw(window.window_start_s, window.requests, rng)


def draw_window(window: ClientWindow, seed: int, law: Law = "measured-cv") -> FloatArray:
    """[round(rate*600)] float64 seconds from the window's start, the last one at its end."""
    count = window.requests
    if count == 0:
        return np.zeros(0, dtype=np.float64)
    rng = np.random.default_rng((seed, _client_seed(window.client), window.window_start_s))
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


def _client_seed(client: str) -> int:
    """The number of a numbered client, a hash of a named one."""
    return int(client) if client.isascii() and client.isdecimal() else zlib.crc32(client.encode())

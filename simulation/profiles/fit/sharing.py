"""What calls cost next to others, from rows at a full core: calls of one batch, and passes in flight. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from simulation.latency.contract import Sharing
from simulation.profiles.fit.rows import Row

SEVERAL = 1.2
"""Mean calls of a product from which on those after the first are counted."""
LEAST, MOST = 0.3, 3.0
"""Bounds of what requests in flight make of a call's cost."""


def further_s(rows: Sequence[Row], again_s: Callable[[float], float], most_tokens: int) -> float:
    """CPU seconds of each call of a batch but the first, besides its tokens: least squares of relative errors over
    ``rows`` with several calls in flight. ``again_s``: CPU seconds of a lone call of so many tokens, right after
    another; batches of more than ``most_tokens`` are left out. 0 where calls of batches were not counted."""
    design, wanted = [], []
    for row in rows:
        calls = row.batch_calls or 1.0
        if calls < SEVERAL or row.cpu_s_per_call is None or calls * row.tokens > most_tokens:
            continue
        whole_s = calls * row.cpu_s_per_call
        design.append((calls - 1) / whole_s)
        wanted.append(1 - again_s(calls * row.tokens) / whole_s)
    return max(0.0, float(np.dot(design, wanted) / np.dot(design, design))) if design else 0.0


def in_flight(rows: Sequence[Row], batch_s: Callable[[int, float], float]) -> tuple[float, ...]:
    """``Sharing.in_flight``: what calls cost within passes of which several are in flight, over ``batch_s`` (CPU
    seconds of a batch of calls of so many tokens, and so many of them, within a lone pass). ``rows``: of family
    ``stopped``, at a full core. Linear between numbers of requests that were measured; (1,) without any."""
    times: dict[int, list[float]] = {}
    for row in rows:
        if row.cpu_s_per_call is not None:
            calls = max(1.0, row.batch_calls or 1.0)
            ratio = calls * row.cpu_s_per_call / batch_s(row.tokens, calls)
            times.setdefault(row.concurrency, []).append(min(MOST, max(LEAST, ratio)))
    if not times:
        return (1.0,)
    by_requests = {1: 1.0, **{requests: median(ratios) for requests, ratios in sorted(times.items())}}
    return tuple(np.interp(np.arange(1, max(by_requests) + 1), list(by_requests), list(by_requests.values())).tolist())


def fit_sharing(
    busy: Sequence[Row], passes: Sequence[Row], again_s: Callable[[float], float], pass_s: Callable[[float], float],
    most_tokens: int,
) -> Sharing:  # fmt: skip
    """``busy``: several calls in flight on one replica; ``passes``: family ``stopped``; both at a full core.
    ``pass_s``: CPU seconds of a lone call of so many tokens within a lone pass."""
    more_s = further_s(busy, again_s, most_tokens)
    return Sharing(more_s, in_flight(passes, lambda tokens, calls: pass_s(tokens * calls) + (calls - 1) * more_s))

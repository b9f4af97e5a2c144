"""Burst activation: how many standbys of a function are wanted, from the requests that arrive alone.

The ingress sees a request before any layer does. Tokens that arrived within a short look-back, times the seconds of a
replica that a token costs a function, are the work that is on its way to it: ``W`` replicas' worth. ``headroom · W +
spare · √W`` replicas are wanted (square-root staffing: Poisson arrivals vary by the root of their mean); what exceeds
those that always run is taken from the standbys, in all layers at the same moment, and given back a while after it was
wanted last. With ``sleep_s`` nothing always runs: once no request came for so long, a function costs its memory alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from platform_words.bursts import parse_burst

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


MEASURE_S = 5.0
"""Seconds between two measurements of what a token costs each function."""
FORGET = 0.8
"""Weight of measurements after each later one."""


class MeasuredWork:
    """Replica-seconds that a token of the pipeline costs each function, from tokens that were answered.

    A measurement weighs as much as its function was busy. Below its CPU quota a call takes a fraction of what one of a
    steady stream does (decision 7), and a burst is such a stream: what quiet times measured would keep standbys shut
    while calls queue. Tokens that only arrived would do the same: where replicas are too few, all of them are busy and
    more tokens come, so each would seem to cost the less the more there are.
    """

    def __init__(self, functions: int) -> None:
        self.seconds_per_token: Floats = np.zeros(functions)
        self._busy_s: Floats = np.zeros(functions)
        """Weighted, as are the tokens."""
        self._tokens: Floats = np.zeros(functions)

    def add(self, busy_s: Floats, tokens: float, steps: int = 1) -> None:
        """What was measured since the last time, ``steps`` times ``MEASURE_S`` ago: ``busy_s`` [functions]
        replica-seconds with at least one call, and ``tokens`` that were answered, more than none."""
        self._busy_s = FORGET**steps * self._busy_s + busy_s * busy_s
        self._tokens = FORGET**steps * self._tokens + busy_s * tokens
        self.seconds_per_token = np.divide(
            self._busy_s, self._tokens, out=np.zeros(self._busy_s.size), where=self._tokens > 0
        )


@dataclass(frozen=True)
class Burst:
    """What a policy decides of one function's standbys. Raises ValueError."""

    standbys: int
    """Replicas that are started and wait."""
    headroom: float = 1.2
    """k: replicas for each replica's worth of work."""
    spare: float = 1.0
    """z: replicas for each root of it."""
    hold_s: float = 15.0
    """Seconds that an activated standby stays after it was wanted last."""
    look_back_s: float = 0.5
    """Seconds of arrivals that make the work."""
    token_s: float | None = field(default=None, kw_only=True)
    """Seconds of a replica that a token of the pipeline costs; None: what the ingress, or the simulation, measures."""
    sleep_s: float | None = field(default=None, kw_only=True)
    """Seconds without a request after which the replicas, too, wait for the next one; None: they always run. The
    ingress lets nothing sleep while it has a request; the simulator goes by arrivals alone, so it needs more seconds
    than requests take."""

    def __post_init__(self) -> None:
        for name, value, holds, allowed in (
            ("standbys", self.standbys, self.standbys >= 0, "0 or more"),
            ("headroom", self.headroom, 0 <= self.headroom < np.inf, "0 or more"),
            ("spare", self.spare, 0 <= self.spare < np.inf, "0 or more"),
            ("hold_s", self.hold_s, 0 <= self.hold_s < np.inf, "0 or more"),
            ("look_back_s", self.look_back_s, 0 < self.look_back_s < np.inf, "above 0"),
            ("token_s", self.token_s, self.token_s is None or 0 < self.token_s < np.inf, "above 0"),
            ("sleep_s", self.sleep_s, self.sleep_s is None or 0 < self.sleep_s < np.inf, "above 0"),
        ):
            if not holds:
                raise ValueError(f"burst: {name} is {value!r}; allowed is {allowed}")

    def wanted(self, tokens_per_s: Floats, seconds_per_token: float) -> Ints:
        """Replicas in all, [requests] int64, for the token rates ``tokens_per_s`` [requests] at their arrivals.

        Worked example: headroom 1.2, spare 1 and 200 tokens/s of 0.02 s each are 4 replicas' worth: 4.8 + 2, so 7.
        """
        work = tokens_per_s * seconds_per_token
        return np.ceil(self.headroom * work + self.spare * np.sqrt(work) - 1e-9).astype(np.int64)

    def held_s(self, number: int, replicas: int, under_way_s: float = 0.0) -> float:
        """How long the ``number``-th replica of all, from 0, stays after it was wanted last; one that sleeps only
        once requests are no longer ``under_way_s``."""
        return self.hold_s if self.sleep_s is None or number >= replicas else self.sleep_s + under_way_s

    def running(self, replicas: int) -> int:
        """How many of ``replicas`` always run."""
        return replicas if self.sleep_s is None else 0

    def waiting(self, replicas: int) -> int:
        """How many wait until they are wanted, next to ``replicas`` or among them."""
        return self.standbys + replicas - self.running(replicas)


def burst_from(text: str) -> Burst:
    """The rule of an annotation ``smoe.burst``. Raises ValueError with a sentence."""
    standbys, numbers = parse_burst(text)
    return Burst(standbys, **numbers)


def token_rates(arrival_s: Floats, tokens: NDArray[np.unsignedinteger], first: int, look_back_s: float) -> Floats:
    """Tokens per second of the look-back that ends with each request from ``first`` on, itself included: [N - first].

    ``arrival_s [N]`` seconds, never falling; ``tokens [N]``.
    """
    begin = np.searchsorted(arrival_s, arrival_s[first:] - look_back_s, side="right")
    earliest = int(begin[0]) if begin.size else 0  # nothing before counts, and an hour's windows are asked for in turn
    total = np.concatenate([[0.0], np.cumsum(tokens[earliest:], dtype=np.float64)])
    return np.asarray((total[first + 1 - earliest :] - total[begin - earliest]) / look_back_s)


@dataclass
class Level:
    """One standby: until when it is wanted, as far as the arrivals so far say."""

    until_s: float | None = None
    """None: not activated."""

    def spans(self, wanted_s: Floats, hold_s: float, end_s: float) -> Iterator[tuple[float | None, float | None]]:
        """(activated, released) in seconds, from ``wanted_s`` [arrivals]: when it was wanted, up to ``end_s``.

        Activated is None where that was before, released where that comes after ``end_s``; then the next call goes on
        from here.
        """
        begun: float | None = None
        if wanted_s.size:
            last_s, next_s = wanted_s[:-1], wanted_s[1:]
            gaps = np.flatnonzero((next_s - last_s > hold_s) & (next_s > last_s + hold_s))
            begun_s: list[float | None] = [None, *next_s[gaps].tolist()]
            if self.until_s is None:
                begun_s[0] = float(wanted_s[0])
            elif wanted_s[0] > self.until_s:
                yield None, self.until_s
                begun_s[0] = float(wanted_s[0])
            yield from zip(begun_s, (last_s[gaps] + hold_s).tolist(), strict=False)
            begun, self.until_s = begun_s[-1], float(wanted_s[-1]) + hold_s
        if self.until_s is None:
            return
        if self.until_s < end_s:
            yield begun, self.until_s
            self.until_s = None
        elif begun is not None:
            yield begun, None


@dataclass
class Standbys:
    """The standbys of one function, from window to window."""

    burst: Burst
    replicas: int
    """Those that were ordered: they always run, or are the first of the standbys."""
    levels: list[Level] = field(init=False)

    def __post_init__(self) -> None:
        self.levels = [Level() for _ in range(self.burst.waiting(self.replicas))]

    def spans(
        self, arrival_s: Floats, wanted: Ints, end_s: float, under_way_s: float = 0.0
    ) -> Sequence[tuple[int, float | None, float | None]]:
        """(standby, activated, released) up to ``end_s``, in order of activation, those activated before first.

        ``arrival_s`` [arrivals] seconds, ``wanted`` [arrivals] replicas in all; ``under_way_s``: how long requests
        take, where that is known.
        """
        running = self.burst.running(self.replicas)
        extra = np.maximum(wanted, self.replicas) - running
        spans = [
            (number, begun_s, released_s)
            for number, level in enumerate(self.levels)
            for begun_s, released_s in level.spans(
                arrival_s[extra > number], self.burst.held_s(number + running, self.replicas, under_way_s), end_s
            )
        ]
        return sorted(spans, key=lambda span: (-np.inf if span[1] is None else span[1], span[0]))

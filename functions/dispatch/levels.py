"""The rule of :mod:`functions.dispatch.activation` as requests come: levels of all functions at once, a few numpy calls
a request however many functions there are."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from functions.dispatch.activation import Burst, Floats


class Arrivals:
    """Tokens that arrived within a look-back."""

    def __init__(self, look_back_s: float) -> None:
        self._look_back_s = look_back_s
        self._kept: deque[tuple[float, int]] = deque()
        self._tokens = 0

    def rate(self, now_s: float, tokens: int) -> float:
        """Tokens per second of the look-back that ends with an arrival of ``tokens`` now, itself included."""
        self._kept.append((now_s, tokens))
        self._tokens += tokens
        while self._kept[0][0] <= now_s - self._look_back_s:
            self._tokens -= self._kept.popleft()[1]
        return self._tokens / self._look_back_s


class _Group:
    """Functions that share a rule."""

    def __init__(self, burst: Burst, replicas: Mapping[str, int], before: Levels | None) -> None:
        self.burst, self.functions = burst, tuple(replicas)
        self._replicas = np.array(list(replicas.values()), dtype=np.int64)
        self._running = np.array([burst.running(count) for count in replicas.values()], dtype=np.int64)
        waiting = [burst.waiting(count) for count in replicas.values()]
        self._numbers = np.arange(max(waiting))
        there = self._numbers < np.array(waiting)[:, None]
        self._sleeps = there & (self._numbers + self._running[:, None] < self._replicas[:, None])
        """[functions, standbys] ordered replicas, which sleep between requests."""
        self._hold_s = np.where(self._sleeps, burst.sleep_s or 0.0, burst.hold_s)
        self._there = there
        self._measured: Mapping[str, float] = {}
        self._seconds: Floats = np.zeros(len(replicas))
        self.until_s: Floats = np.full(there.shape, -np.inf)
        """[functions, standbys]: until when each is wanted."""
        for row, function in enumerate(replicas):
            kept = np.empty(0) if before is None else before.until_s(function)[: waiting[row]]
            self.until_s[row, : len(kept)] = kept

    def arrived(self, now_s: float, tokens_per_s: float, seconds_per_token: Mapping[str, float]) -> None:
        if seconds_per_token is not self._measured:
            self._measured = seconds_per_token
            self._seconds = np.array([seconds_per_token.get(function, 0.0) for function in self.functions])
        wanted = np.maximum(self.burst.wanted(tokens_per_s * self._seconds, 1.0), self._replicas)
        beyond = self._there & (self._numbers < (wanted - self._running)[:, None])
        self.until_s[beyond] = now_s + self._hold_s[beyond]

    def stay(self, now_s: float, looked_s: float) -> None:
        """What was awake when it was ``looked`` at falls asleep ``sleep_s`` from now at the earliest."""
        awake = self._sleeps & (self.until_s > looked_s)
        self.until_s[awake] = now_s + self._hold_s[awake]


class Levels:
    """How many standbys of each function are wanted now. ``rules``: function → rule, and replicas that were ordered;
    ``before``: what is activated stays so where a rule changes."""

    def __init__(self, rules: Mapping[str, tuple[Burst, int]], before: Levels | None = None) -> None:
        self.rules = dict(rules)
        self._looked_s: float = -np.inf if before is None else before._looked_s
        self._arrivals: dict[float, Arrivals]
        bursts = dict.fromkeys(burst for burst, _ in rules.values())
        self.sleep = any(burst.sleep_s is not None for burst in bursts)
        """Whether any replicas sleep between requests."""
        kept: Mapping[float, Arrivals] = {} if before is None else before._arrivals
        self._arrivals = {one.look_back_s: kept.get(one.look_back_s) or Arrivals(one.look_back_s) for one in bursts}
        self._groups = [
            _Group(burst, {name: count for name, (one, count) in rules.items() if one == burst}, before)
            for burst in bursts
        ]

    def until_s(self, function: str) -> Floats:
        """[standbys] until when each of a function's is wanted; empty for a function without any."""
        for group in self._groups:
            if function in group.functions:
                until_s: Floats = group.until_s[group.functions.index(function)]
                return until_s
        return np.empty(0)

    def arrived(self, now_s: float, tokens: int, seconds_per_token: Mapping[str, float]) -> None:
        """A request of ``tokens`` arrived; ``seconds_per_token``: function → replica-seconds, those measured so far."""
        rates = {look_back_s: arrivals.rate(now_s, tokens) for look_back_s, arrivals in self._arrivals.items()}
        for group in self._groups:
            group.arrived(now_s, rates[group.burst.look_back_s], seconds_per_token)

    def stay(self, now_s: float) -> None:
        """Requests are still under way: what serves them does not fall asleep."""
        for group in self._groups:
            group.stay(now_s, self._looked_s)

    def counts(self, now_s: float) -> dict[str, int]:
        """Function → standbys that are wanted now; functions of which none is wanted are left out."""
        self._looked_s = now_s
        counts: dict[str, int] = {}
        for group in self._groups:
            of_each = (group.until_s > now_s).sum(axis=1)
            counts |= {group.functions[row]: int(of_each[row]) for row in np.flatnonzero(of_each)}
        return counts

    def next_release_s(self, now_s: float) -> float | None:
        """When the first standby that is wanted now no longer is, if no more arrives."""
        ends = [group.until_s[group.until_s > now_s] for group in self._groups]
        return min((float(end.min()) for end in ends if end.size), default=None)

"""A valid bound for the P95: trimmed means instead of percentiles.

The 95th percentile of the requests' latencies is at most λ only if at least 95 % of them are. So of any group of
requests all but that many are in time, and so the mean of that many of its fastest is at most λ. The mean of the lowest
part (LTM) is superadditive and monotone, hence ``LTM(Σ_i max_j τ_ij) ≥ Σ_i max_j LTM(τ_ij)``: a choice of
configurations whose trimmed means exceed λ cannot meet the SLO. That is the deterministic problem with LTM in the place
of latencies. Queueing depends on other experts' choices, so τ is the call's own work alone.

Any group gives a valid bound, so several are tried: all requests, and the ones with the most tokens, among which those
that decide the percentile are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.contract import SLO_QUANTILE
from simulation.arrays import Floats, Ints

HEAVIEST = (1.0, 0.3, 0.12)
"""Shares of the requests in a group, those with the most tokens."""


@dataclass(frozen=True, eq=False)
class Group:
    """Some requests of a window, and how many of them are in time at least."""

    member: np.ndarray
    """[count] bool"""
    in_time: int

    def mean(self, values: Floats) -> float:
        """LTM of ``values [count]``."""
        return float(self.means(np.arange(len(self.member)), values[None])[0])

    def means(self, called: Ints, values: Floats) -> Floats:
        """[rows] LTM of ``values [rows, calls]`` of the requests ``called``; the other ones have 0."""
        inside = self.member[called]
        silent = int(self.member.sum() - inside.sum())
        return sum_of_lowest(values[:, inside], silent, self.in_time) / max(1, self.in_time)


def kept(requests: int) -> int:
    """How many of the fastest are at most the percentile, by every common definition of it (the fewest is taken)."""
    return int(np.floor(SLO_QUANTILE * (requests - 1))) + 1 if requests else 0


def everyone(requests: int) -> Group:
    """All requests of a window."""
    return Group(np.ones(requests, np.bool_), kept(requests))


def groups(tokens: np.ndarray, shares: tuple[float, ...] = HEAVIEST) -> list[Group]:
    """For each share the requests with the most tokens ``[count]``, where some of them are surely in time."""
    count = len(tokens)
    # With most tokens: where they decide the percentile, the mean over all requests would hide how slow they are.
    order = np.argsort(-tokens.astype(np.int64), kind="stable")
    late = count - kept(count)
    result = []
    for share in shares:
        size = int(np.ceil(share * count))
        if size > late or share == 1.0:  # a group that may be late as a whole bounds nothing
            member = np.zeros(count, np.bool_)
            member[order[:size]] = True
            result.append(Group(member, max(0, size - late)))
    return result


def sum_of_lowest(values: Floats, silent: int, count: int) -> Floats:
    """[rows]: sum of the ``count`` lowest of each row of ``values [rows, …]``, 0 or more, and ``silent`` zeros."""
    taken = count - silent
    if taken <= 0:
        return np.zeros(len(values))
    if taken >= values.shape[1]:
        return np.asarray(values.sum(axis=1))
    return np.asarray(np.partition(values, taken - 1, axis=1)[:, :taken].sum(axis=1))

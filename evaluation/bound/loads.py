"""What a window asks of every expert, and the mean seconds and cost of every configuration by the queueing model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import NodeObservation
from autoscaler.prices import Meter
from evaluation.bound.frontier import ExpertTable
from evaluation.bound.physics import NodeRows, Physics
from evaluation.bound.queueing import serve
from simulation.arrays import Floats, Ints, Tokens
from simulation.engine.requests import Requests


@dataclass(frozen=True, eq=False)
class WindowLoad:
    """What the clairvoyant sees: requests ``first`` to ``last`` (excluded), those of a window of ``window_s``."""

    physics: Physics
    requests: Requests
    first: int
    last: int
    window_s: float

    @property
    def count(self) -> int:
        return self.last - self.first

    @property
    def arrival_s(self) -> Floats:
        """[count]"""
        return self.requests.arrival_s[self.first : self.last]

    def tokens(self, row: int) -> Tokens:
        """[count]: row 0 the requests' tokens, row 1 + e those of expert e, in order of layer and number."""
        return self.requests.counts[row, self.first : self.last]


def windows(physics: Physics, requests: Requests, window_s: float, end_s: float) -> Iterator[WindowLoad]:
    """Consecutive windows from 0 until ``end_s``, the last one as long as the others."""
    for number in range(int(np.ceil(end_s / window_s - 1e-9))):
        first, last = np.searchsorted(requests.arrival_s, (number * window_s, (number + 1) * window_s), side="left")
        yield WindowLoad(physics, requests, int(first), int(last), window_s)


def load_of(observation: NodeObservation) -> tuple[float, float] | None:
    """(calls per second, tokens of a mean call) of a node; None where one is not known."""
    calls_per_s, tokens_per_s = observation.requests_per_s, observation.tokens_per_s
    if calls_per_s is None or tokens_per_s is None:
        return None
    return calls_per_s, tokens_per_s / calls_per_s if calls_per_s else 0.0


def call_s(rows: NodeRows, tokens: float) -> Floats:
    """[rows] seconds of a call with so many tokens, linear between whole numbers; the tables end at the longest."""
    at = min(max(tokens, 0.0), rows.seconds.shape[1] - 1.0)
    low = min(int(at), rows.seconds.shape[1] - 2)
    return np.asarray(rows.seconds[:, low] + (at - low) * (rows.seconds[:, low + 1] - rows.seconds[:, low]))


def expected_tables(load: WindowLoad, meter: Meter) -> tuple[list[list[ExpertTable]], float]:
    """[layers, experts] tables by the queueing model, and the mean seconds outside of experts."""
    physics, row = load.physics, 0
    until = np.searchsorted(load.arrival_s, load.arrival_s + physics.workload.slo_s, side="right")
    tables = []
    for layer, nodes in zip(physics.experts, physics.layers, strict=True):
        line = []
        for rows, node in zip(layer, nodes, strict=True):
            row += 1
            calls, alone_s = mean_call(rows, load.tokens(row))
            least = physics.least_memory(node, peak_tokens(load.tokens(row), until))
            line.append(expert_table(physics, rows, calls / load.window_s, alone_s, least, load.window_s, meter))
        tables.append(line)
    inside_s = [segment_s(physics, rows, load.tokens(0), load.window_s) for rows in physics.segments]
    return tables, physics.constant_s + sum(inside_s)


def expert_table(
    physics: Physics, rows: NodeRows, calls_per_s: float, alone_s: Floats, least: Ints, window_s: float, meter: Meter
) -> ExpertTable:
    """One expert with ``calls_per_s`` calls that take ``alone_s [rows]`` alone on average."""
    space = physics.space_arrays
    served = serve(calls_per_s, alone_s, rows.speedup, space.replicas, space.concurrencies)
    if meter == "busy":
        return ExpertTable(served.latency_s, served.busy_replicas * window_s, least)
    there = np.broadcast_to(space.replicas[:, None] * window_s, space.shape)
    return ExpertTable(served.latency_s, np.ascontiguousarray(there), least)


def mean_call(rows: NodeRows, tokens: Tokens) -> tuple[int, Floats]:
    """How many calls there are (those with tokens), and [rows] their mean seconds alone; 0 without any."""
    counts = np.bincount(tokens, minlength=2).astype(np.float64)
    calls = int(counts[1:].sum())
    if not calls:
        return 0, np.zeros(len(rows.seconds))
    return calls, np.asarray(rows.seconds[:, 1 : len(counts)] @ counts[1:] / calls)


def segment_s(physics: Physics, rows: NodeRows, tokens: Tokens, window_s: float) -> float:
    """Mean seconds in a segment with its fixed configuration."""
    fixed = physics.workload.segment_configuration
    calls, alone_s = mean_call(rows, tokens)
    one = (np.array([fixed.replicas]), np.array([fixed.concurrency]))
    return float(serve(calls / window_s, alone_s, rows.speedup, *one).latency_s[0, 0, 0])


def peak_tokens(tokens: Tokens, until: Ints) -> float:
    """Most tokens in flight at once where request k's call is gone when request ``until[k]`` arrives: P of Eq. (2)."""
    running = np.zeros(len(tokens) + 1)
    np.cumsum(tokens, out=running[1:])
    return float((running[until] - running[:-1]).max(initial=0.0))

"""What a simulated decoder counts in a window: of its functions as the pass simulation does, and of its texts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from simulation.arrays import Floats
from simulation.engine import kernel
from simulation.engine.simulation import BOUNDS, Window

_BOUNDS: list[float] = BOUNDS.tolist()


@dataclass(frozen=True, eq=False, kw_only=True)
class TextsWindow(Window):
    """A window of a decoder, with what the ingress counts of texts."""

    ttft_s: Floats
    """[first tokens in the window] seconds from the text's arrival at the ingress."""
    tpot_s: Floats
    """From one token of a text to its next, of all that were written in the window."""
    prompt_tokens: int
    preemptions: int
    running: int
    """At the window's end, as the next three."""
    waiting: int
    kv_usage: float
    instances: int


class Meters:
    """Counters of one window: lists, as they are written one by one."""

    def __init__(self, nodes: int, layers: int) -> None:
        self._nodes, self._layers = nodes, layers
        self.meter = [[0.0] * kernel.METERS for _ in range(nodes)]
        self.reset()

    def reset(self) -> None:
        """Begin a window; tokens in flight stay."""
        flight = [row[kernel.FLIGHT] for row in self.meter]
        self.meter = [[0.0] * kernel.METERS for _ in range(self._nodes)]
        for row, tokens in zip(self.meter, flight, strict=True):
            row[kernel.FLIGHT] = row[kernel.PEAK] = tokens
        self.histogram = [[0] * len(_BOUNDS) for _ in range(self._nodes)]
        self.barrier = [[0] * len(_BOUNDS) for _ in range(self._layers)]
        self.ready_s = [0.0] * self._nodes
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []
        self.finished: list[int] = []
        self.latency_s: list[float] = []
        self.arrived = self.prompt_tokens = self.preemptions = 0

    def asked(self, node: int, tokens: int) -> None:
        """A call of so many tokens came."""
        row = self.meter[node]
        row[kernel.TOKENS] += tokens
        row[kernel.FLIGHT] += tokens
        row[kernel.PEAK] = max(row[kernel.PEAK], row[kernel.FLIGHT])

    def replied(self, node: int, tokens: int, served_s: float, waited_s: float) -> None:
        """It has ended."""
        row = self.meter[node]
        row[kernel.CALLS] += 1
        row[kernel.SERVED_S] += served_s
        row[kernel.WAITED_S] += waited_s
        row[kernel.LATENCY_S] += served_s + waited_s
        row[kernel.FLIGHT] -= tokens
        self.histogram[node][bisect_left(_BOUNDS, served_s + waited_s)] += 1

    def busy(self, node: int, seconds: float, cpu_s: float) -> None:
        """A replica computed, and used so many CPU seconds."""
        self.meter[node][kernel.BUSY_S] += seconds
        self.meter[node][kernel.CPU_S] += cpu_s

    def gathered(self, layer: int, seconds: float) -> None:
        """All experts of a layer have replied."""
        self.barrier[layer][bisect_left(_BOUNDS, seconds)] += 1

    def window(self, start_s: float, end_s: float, ready: list[int], starting: list[int], texts: Texts) -> TextsWindow:
        """All of it. ``ready`` and ``starting`` replicas of each node at the end."""
        latency_s = np.array(self.latency_s, dtype=np.float64)
        bounds = np.searchsorted(BOUNDS, latency_s, side="left")
        nothing = np.zeros(self._nodes)
        return TextsWindow(
            start_s=start_s,
            end_s=end_s,
            arrived=self.arrived,
            finished=np.array(self.finished, dtype=np.uint32),
            latency_s=latency_s,
            in_flight=texts.in_flight,
            meter=np.array(self.meter),
            histogram=np.array(self.histogram, dtype=np.int64),
            barrier=np.array(self.barrier, dtype=np.int64).reshape(self._layers, len(_BOUNDS)),
            request_histogram=np.bincount(bounds, minlength=len(_BOUNDS)),
            replicas={"ready": np.array(ready), "starting": np.array(starting)},
            ready_s=np.array(self.ready_s),
            activated_s=nothing,
            ttft_s=np.array(self.ttft_s),
            tpot_s=np.array(self.tpot_s),
            prompt_tokens=self.prompt_tokens,
            preemptions=self.preemptions,
            running=texts.running,
            waiting=texts.waiting,
            kv_usage=texts.kv_usage,
            instances=texts.instances,
        )


@dataclass(frozen=True)
class Texts:
    """Where a window's end finds them."""

    running: int
    waiting: int
    kv_usage: float
    instances: int

    @property
    def in_flight(self) -> int:
        return self.running + self.waiting

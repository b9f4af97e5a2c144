"""How many instances: the published rule of NVIDIA Dynamo's SLA planner, and this project's, which counts at the input.

Both only read what a front end sees (:class:`FrontEnd`), of a simulation or of a running pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from functions.scheduling.cluster import Role
from functions.scheduling.predictor import least_squares
from functions.scheduling.settings import Targets
from simulation.generation.hardware import Hardware
from simulation.generation.scaled import Means


class FrontEnd(Protocol):
    """What is known where requests arrive; requests are numbered in the order in which they ended."""

    @property
    def ended(self) -> int:
        """Requests that have ended."""

    def arrived(self, now_s: float) -> int:
        """Requests that had come by then."""

    def means(self, since: int) -> Means | None:
        """Means of the requests that have ended, without the first ``since`` of them; None where there are none."""

    def instances(self, role: Role | None = None) -> int:
        """Instances that have started and stay, of a role or all."""


def decode_batch(hardware: Hardware, context: float, room: float, interval_s: float, prompt_s: float = 0.0) -> float:
    """Most texts of ``context`` tokens in an iteration of at most ``interval_s``, each of ``room`` tokens with its
    answer; each brings ``prompt_s`` of prompts to every iteration."""
    per_text_s = hardware.token_s + hardware.context_s * context + prompt_s
    return min((interval_s - hardware.iteration_s) / per_text_s, hardware.kv_tokens / room)


class Forecast(Protocol):
    """The next interval's requests from those of the intervals so far."""

    def __call__(self, counts: Sequence[float]) -> float: ...


def constant(counts: Sequence[float]) -> float:
    """As the last one; what the planner's default, ARIMA, gives for its first five intervals, too."""
    return counts[-1]


def kalman(counts: Sequence[float]) -> float:
    """Local linear trend, filtered; the planner's settings. By numbers: a matrix product's last bits are its CPU's."""
    level, slope = counts[0], 0.0
    upper, across, lower = 1000.0, 0.0, 1000.0
    for count in counts[1:]:
        level, upper, across, lower = level + slope, upper + 2 * across + lower + 1.0, across + lower, lower + 0.1
        off, gains = count - level, (upper / (upper + 10.0), across / (upper + 10.0))
        level, slope = level + gains[0] * off, slope + gains[1] * off
        upper, across, lower = upper - gains[0] * upper, across - gains[0] * across, lower - gains[1] * across
    return max(0.0, level + slope)


@dataclass
class SlaPlanner:
    """ai-dynamo/dynamo, components/planner planner_core.py at 0761925 (with ``correction``), and without it
    components/src/dynamo/planner/core/throughput_scaling.py at 0c9050c.

    Every ``interval_s``: requests that *ended* in it, forecast; prefill instances = ceil(tokens/s · min(1, TTFT over
    its profile's) / tokens/s of one); decode instances = ceil(tokens/s / tokens/s of one at inter-token target over
    correction, whose correction is the inter-token time over its profile's at the mean concurrency). Its profile is
    exact here: it is computed from the simulated instance."""

    hardware: Hardware
    targets: Targets
    interval_s: float = 180.0
    forecast: Forecast = constant
    correction: bool = True
    at_input: bool = False
    """Whether requests are counted when they arrive; the planner's front end counts them when they end."""
    most: int | None = None
    """Most instances together; its default is 8 GPUs."""
    _counts: list[float] = field(default_factory=list)
    _ended: int = 0
    _arrived: int = 0
    _next_s: float | None = None

    def wanted(self, now_s: float, world: FrontEnd) -> Mapping[Role | None, int]:
        self._next_s = self.interval_s if self._next_s is None else self._next_s
        if now_s < self._next_s:
            return {}
        self._next_s += self.interval_s
        means, ended, self._ended = world.means(self._ended), world.ended - self._ended, world.ended
        arrived, self._arrived = world.arrived(now_s) - self._arrived, world.arrived(now_s)
        if means is None:
            return {}
        self._counts.append(arrived if self.at_input else ended)
        rps = self.forecast(self._counts) / self.interval_s
        ttft_factor, decode_factor = self._corrections(ended, means, world) if self.correction else (1.0, 1.0)
        prefill = math.ceil(rps * self.hardware.prefill_s(round(means.prompt)) * min(1.0, ttft_factor))
        context = means.prompt + means.output / 2
        interval_s = self.targets.tpot_s / decode_factor
        batch = max(1.0, decode_batch(self.hardware, context, context, interval_s))
        taken_s = self.hardware.iteration_s + batch * (self.hardware.token_s + self.hardware.context_s * context)
        return self._within(max(1, prefill), max(1, math.ceil(rps * means.output * taken_s / batch)))

    def _corrections(self, ended: int, means: Means, world: FrontEnd) -> tuple[float, float]:
        """Measured over expected: time of the first token, and between tokens."""
        context = means.prompt + means.output / 2
        lasted_s = means.ttft_s + means.tpot_s * (means.output - 1)
        texts = ended / max(1, world.instances(Role.DECODE)) * lasted_s / self.interval_s
        texts = min(texts, self.hardware.kv_tokens / context)
        per_text_s = self.hardware.token_s + self.hardware.context_s * context
        expected_s = self.hardware.iteration_s + texts * per_text_s
        return means.ttft_s / self.hardware.prefill_s(round(means.prompt)), means.tpot_s / expected_s

    def _within(self, prefill: int, decode: int) -> dict[Role | None, int]:
        if self.most is not None and prefill + decode > self.most:
            prefill = max(1, round(prefill * self.most / (prefill + decode)))
            decode = max(1, self.most - prefill)
        return {Role.PREFILL: prefill, Role.DECODE: decode}


@dataclass
class AtInput:
    """Instances of any role for requests that *arrive*: enough for the rate now and at the time when an instance
    ordered now has started (a line through the last ``look_s``), and for the texts that are in flight."""

    hardware: Hardware
    targets: Targets
    start_s: float
    interval_s: float = 10.0
    look_s: float = 120.0
    full: float = 0.9
    """Part of an instance's rate that is planned for."""
    patience: float = 0.0
    """Part of the TTFT target for which requests in flight may wait: what instances get done in that time needs no
    more of them."""
    prompt: float = 1000.0
    output: float = 100.0
    """Means until requests have ended."""
    _next_s: float = 0.0

    def instance(self, prompt: float, output: float) -> tuple[float, float]:
        """(Requests a second, texts at once) of one that computes both phases at 0.95 of the inter-token target."""
        prompt_s = self.hardware.chunk_s(0, round(prompt)) / output
        pace_s = 0.95 * self.targets.tpot_s
        batch = decode_batch(self.hardware, prompt + output / 2, prompt + output, pace_s, prompt_s)
        per_text_s = self.hardware.token_s + self.hardware.context_s * (prompt + output / 2) + prompt_s
        return batch / (output * (self.hardware.iteration_s + batch * per_text_s)), batch

    def wanted(self, now_s: float, world: FrontEnd) -> Mapping[Role | None, int]:
        if now_s < self._next_s:
            return {}
        self._next_s = now_s + self.interval_s
        means = world.means(max(0, world.ended - 200))
        rps, texts = self.instance(*((self.prompt, self.output) if means is None else means[:2]))
        for_rate = self._rate(now_s, now_s + self.start_s + self.interval_s, world) / (self.full * rps)
        texts += self.patience * self.targets.ttft_s * rps
        for_texts = (world.arrived(now_s) - world.ended) / texts
        return {None: max(1, math.ceil(max(for_rate, for_texts)))}

    def _rate(self, now_s: float, at_s: float, world: FrontEnd) -> float:
        """Predicted arrivals a second, the more of now and ``at_s``."""
        parts = max(2, round(min(self.look_s, now_s) / self.interval_s))
        ends_s = now_s - self.interval_s * np.arange(parts)
        rates = (
            np.array([world.arrived(end) - world.arrived(end - self.interval_s) for end in ends_s]) / self.interval_s
        )
        slope, level = least_squares((ends_s - self.interval_s / 2).tolist(), rates.tolist(), 1)
        return max(0.0, level + slope * now_s, level + slope * at_s)

"""How many instances: the published rule of NVIDIA Dynamo's SLA planner, and this project's, which counts at the input.

Both only read what a front end sees (:class:`simulation.generation.scaled.ScaledSimulation`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from functions.scheduling.cluster import Role
from functions.scheduling.settings import Targets
from simulation.generation.hardware import Hardware
from simulation.generation.scaled import ScaledSimulation


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


def kalman(counts: Sequence[float], level: float = 1.0, trend: float = 0.1, noise: float = 10.0) -> float:
    """Local linear trend, filtered; the planner's settings."""
    state, spread = np.array([counts[0], 0.0]), np.eye(2) * 1000.0
    step, added = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([level, trend])
    for count in counts[1:]:
        state, spread = step @ state, step @ spread @ step.T + added
        gain = spread[:, 0] / (spread[0, 0] + noise)
        state, spread = state + gain * (count - state[0]), spread - np.outer(gain, spread[0])
    return max(0.0, float((step @ state)[0]))


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

    def wanted(self, now_s: float, world: ScaledSimulation) -> Mapping[Role | None, int]:
        self._next_s = self.interval_s if self._next_s is None else self._next_s
        if now_s < self._next_s:
            return {}
        self._next_s += self.interval_s
        ended, self._ended = world.completed[self._ended :], len(world.completed)
        arrived, self._arrived = world.arrived(now_s) - self._arrived, world.arrived(now_s)
        if not ended:
            return {}
        prompt = float(np.mean([world.request(at).prompt for at in ended]))
        output = float(np.mean([world.request(at).output for at in ended]))
        self._counts.append(arrived if self.at_input else len(ended))
        rps = self.forecast(self._counts) / self.interval_s
        ttft_factor, decode_factor = self._corrections(ended, prompt, output, world) if self.correction else (1.0, 1.0)
        prefill = math.ceil(rps * self.hardware.prefill_s(round(prompt)) * min(1.0, ttft_factor))
        context = prompt + output / 2
        interval_s = self.targets.tpot_s / decode_factor
        batch = max(1.0, decode_batch(self.hardware, context, context, interval_s))
        taken_s = self.hardware.iteration_s + batch * (self.hardware.token_s + self.hardware.context_s * context)
        return self._within(max(1, prefill), max(1, math.ceil(rps * output * taken_s / batch)))

    def _corrections(
        self, ended: list[int], prompt: float, output: float, world: ScaledSimulation
    ) -> tuple[float, float]:
        """Measured over expected: time of the first token, and between tokens."""
        ttft_s = [world.measured(at)[0] for at in ended]
        tpot_s = [world.measured(at)[1] for at in ended]
        lasted_s = float(np.mean([ttft + tpot * (output - 1) for ttft, tpot in zip(ttft_s, tpot_s, strict=True)]))
        texts = len(ended) / max(1, world.instances(Role.DECODE)) * lasted_s / self.interval_s
        texts = min(texts, self.hardware.kv_tokens / (prompt + output / 2))
        per_text_s = self.hardware.token_s + self.hardware.context_s * (prompt + output / 2)
        expected_s = self.hardware.iteration_s + texts * per_text_s
        return float(np.mean(ttft_s)) / self.hardware.prefill_s(round(prompt)), float(np.mean(tpot_s)) / expected_s

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

    def wanted(self, now_s: float, world: ScaledSimulation) -> Mapping[Role | None, int]:
        if now_s < self._next_s:
            return {}
        self._next_s = now_s + self.interval_s
        ended = world.completed[-200:]
        prompt = float(np.mean([world.request(at).prompt for at in ended])) if ended else self.prompt
        output = float(np.mean([world.request(at).output for at in ended])) if ended else self.output
        rps, texts = self.instance(prompt, output)
        for_rate = self._rate(now_s, now_s + self.start_s + self.interval_s, world) / (self.full * rps)
        for_texts = (world.arrived(now_s) - len(world.completed)) / texts
        return {None: max(1, math.ceil(max(for_rate, for_texts)))}

    def _rate(self, now_s: float, at_s: float, world: ScaledSimulation) -> float:
        """Predicted arrivals a second, the more of now and ``at_s``."""
        parts = max(2, round(min(self.look_s, now_s) / self.interval_s))
        ends_s = now_s - self.interval_s * np.arange(parts)
        rates = (
            np.array([world.arrived(end) - world.arrived(end - self.interval_s) for end in ends_s]) / self.interval_s
        )
        slope, level = np.polyfit(ends_s - self.interval_s / 2, rates, 1)
        return max(0.0, float(level + slope * now_s), float(level + slope * at_s))

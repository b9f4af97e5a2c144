"""How much slower an instance of a decoder computes while another one computes next to it, each on a core of its own.

Cores share caches and memory bandwidth. What is compared is the CPU time of the same work, alone and next to a busy
instance, in turns: unlike its duration it does not grow where other programs take the core, but it does where the core
waits for memory.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import aiohttp
import numpy as np
import psutil

from simulation.profiles.generation.measure import Decoder, _prompt, _stream
from simulation.profiles.measure.machine import cpu_s
from simulation.profiles.model.errors import ProfileError

PHASES = ("prefill", "decode")
WORK = {"prefill": (1, 128, 1), "decode": (4, 4, 8)}
"""Texts at once, tokens of each one's prompt, tokens that each writes."""
TIMEOUT_S = 300.0
SETTLE_S = 1.0
"""From the neighbour's first request to the measuring; and for what processes take that have nothing to do."""


@dataclass(frozen=True)
class Turn:
    """One piece of work."""

    phase: str
    """What it computed."""
    other: str | None
    """What the neighbour computed; None: nothing."""
    cpu_s: float
    wall_s: float


def cpu_of(pid: int) -> float:
    """CPU seconds so far of a process and of those that it started."""
    return cpu_s([pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))])


def measure_interference(
    measured: Decoder,
    other: Decoder,
    own_cpu_s: Callable[[], float],
    repeats: int = 15,
    seed: int = 0,
    step: Callable[[int], object] = lambda repeat: None,
) -> list[Turn]:
    """``repeats`` times each phase alone and next to each, in a new random order. Raises ProfileError."""
    drawn, turns = np.random.default_rng(seed), []
    cases = [(phase, beside) for phase in PHASES for beside in (None, *PHASES)]
    try:
        for decoder in (measured, other):
            for phase in PHASES:
                asyncio.run(_work(decoder, phase, drawn, TIMEOUT_S))
        idle = own_cpu_s()
        time.sleep(SETTLE_S)
        idle = (own_cpu_s() - idle) / SETTLE_S
        for repeat in range(repeats):
            step(repeat)
            for place in drawn.permutation(len(cases)):
                phase, beside = cases[place]
                neighbour = _Neighbour(other, beside, int(drawn.integers(1 << 30)))
                with neighbour:
                    begun_cpu_s, begun_s = own_cpu_s(), time.perf_counter()
                    asyncio.run(_work(measured, phase, drawn, TIMEOUT_S))
                    wall_s = time.perf_counter() - begun_s
                    turns.append(Turn(phase, beside, own_cpu_s() - begun_cpu_s - idle * wall_s, wall_s))
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError, KeyError, psutil.Error) as error:
        raise ProfileError(f"the neighbour cannot be measured: {type(error).__name__} {str(error)[:200]}") from error
    return turns


def slowdown(turns: Sequence[Turn], of: Callable[[Turn], float] = lambda turn: turn.cpu_s) -> tuple[float, ...]:
    """Medians of a time over that alone in the same repeat: prefill next to prefill and to decode, decode next to
    prefill and to decode; at least 1."""
    factors = []
    for phase in PHASES:
        alone = [of(one) for one in turns if (one.phase, one.other) == (phase, None)]
        for beside in PHASES:
            taken = [of(one) for one in turns if (one.phase, one.other) == (phase, beside)]
            factors.append(max(1.0, median(a / b for a, b in zip(taken, alone, strict=True))))
    return tuple(factors)


async def _work(decoder: Decoder, phase: str, drawn: np.random.Generator, timeout_s: float) -> None:
    texts, length, tokens = WORK[phase]
    limit = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=limit) as session:
        prompts = [_prompt(drawn, decoder, length) for _ in range(texts)]
        await asyncio.gather(*(_stream(session, decoder, prompt, tokens) for prompt in prompts))


class _Neighbour:
    """Does one phase's work again and again on a thread of its own."""

    def __init__(self, decoder: Decoder, phase: str | None, seed: int) -> None:
        self._decoder, self._phase, self._drawn = decoder, phase, np.random.default_rng(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._failed: Exception | None = None

    def __enter__(self) -> None:
        if self._phase is not None:
            self._thread.start()
            time.sleep(SETTLE_S)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._phase is not None:
            self._thread.join()
        if self._failed is not None:
            raise ProfileError(f"the neighbour stopped: {self._failed}")

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                asyncio.run(_work(self._decoder, self._phase or "", self._drawn, TIMEOUT_S))
        except Exception as error:
            self._failed = error

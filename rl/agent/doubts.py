"""When the learnt policy itself would not be followed: it was never trained on the like, or calls take other times than
those that it plans with."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoscaler.contract import NodeObservation, Observation
from rl.agent.contract import State
from rl.agent.errors import NetworkError
from rl.agent.export import made
from rl.features import Encoder
from rl.features.ranges import Ranges

log = logging.getLogger("smoe.agent")
RANGES = "ranges"
"""Key of the ranges in an actor's file, next to how it was made."""
FEWEST_CALLS = 10
"""Calls of an expert in a window from which its mean is looked at."""
ALONE = 1.0
"""Mean calls at a replica up to which a call counts as alone there, as the policy's call times have it."""
TIMES = 2.0
"""So many times slower or faster than planned calls may be, in the median of the experts that are looked at."""


class Doubts:
    """The doubts of one actor for one pipeline. ``ranges``: None where its file has none, so that only call times are
    judged."""

    def __init__(self, encoder: Encoder, ranges: Ranges | None) -> None:
        self._encoder, self._ranges = encoder, ranges

    def sentence(self, state: State, observation: Observation) -> str:
        """The reason to doubt what is decided in ``state``, which was made of ``observation``; empty: none."""
        beyond = "" if self._ranges is None else self._ranges.outside(state)
        return beyond or self._call_times(state, observation)

    def _call_times(self, state: State, observation: Observation) -> str:
        encoder = self._encoder
        functions = [function for row in encoder.configuration_index.functions for function in row]
        places = dict(zip(functions, state.present[encoder.configuration_index.mask][:, 1].tolist(), strict=True))
        ratios = [
            seconds / float(encoder.calls.seconds[places[node.function]])
            for node in observation.nodes
            if node.function in places and (seconds := alone_s(node, observation.window_s)) is not None
        ]
        ratio = _median(ratios)
        if 1 / TIMES <= ratio <= TIMES:
            return ""
        return f"calls take {ratio:.2g} times as long as planned, in the median of {len(ratios)} experts"


def ranges_of(path: Path) -> Ranges | None:
    """The ranges of an actor's file; None, and a line in the log, where it was made without. Raises NetworkError."""
    stored = made(path).get(RANGES)
    if stored is None:
        log.warning("%s does not state what it was trained on: states beyond that will not be noticed", path)
        return None
    try:
        return Ranges.from_json(stored)
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise NetworkError(f"{path}: its {RANGES} are not those of an actor ({error})") from error


def alone_s(node: NodeObservation, window_s: float) -> float | None:
    """Mean seconds of a call at a replica where it mostly had it for itself; None where that is not known."""
    numbers = (node.busy_s, node.requests_per_s, node.in_flight, node.ready_replicas)
    if any(number is None or not number > 0 for number in numbers):
        return None
    busy_s, rate, in_flight, ready = (float(number) for number in numbers if number is not None)
    if rate * window_s < FEWEST_CALLS or in_flight > ALONE * ready:
        return None
    return busy_s / (rate * window_s)


def _median(ratios: Sequence[float]) -> float:
    """1 where there are none."""
    return float(np.median(ratios)) if ratios else 1.0

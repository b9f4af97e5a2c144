"""The targets, and what Arrow's paper leaves open (docs/decisions/0017-arrow.md gives the reasons)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from platform_words.memory import CALL_TOKENS

CHUNK_TOKENS = 256
"""Tokens of an iteration where nothing else is set: more would hold back the texts that decode, fewer cost more hops
for each prompt."""
CHUNK_RANGE = (16, CALL_TOKENS)
"""Fewest and most that may be set: a page of keys and values, and what functions take in one call under any memory
limit."""


class SchedulingError(ValueError):
    """What a scheduler was given makes no sense; the text is one sentence."""


@dataclass(frozen=True)
class Targets:
    """SLO of every request, both in seconds. Raises SchedulingError unless both are positive and finite."""

    ttft_s: float
    """Time to first token."""
    tpot_s: float
    """Mean time per output token after the first."""

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s)):
            if not 0 < value < math.inf:
                raise SchedulingError(f"the target {name} must be positive and finite, got {value!r}")


@dataclass(frozen=True)
class ArrowSettings:
    """What the paper names without a value. Raises SchedulingError unless all are finite and in order."""

    expand_load: float = 0.9
    """L_EXPAND: decode load at which a prefill instance is flipped."""
    shrink_load: float = 0.2
    """L_SHRINK: prefill load up to which idle prefill instances are flipped, and decode load that asks for it."""
    low_decode_load: float = 0.8
    """Below it, "decode load is low": a decode instance may be flipped to prefill."""
    cooldown_s: float = 5.0
    """Least time from any flip to the next flip from prefill to decode."""
    update_s: float = 1.0
    """Update interval of the monitoring loop."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < math.inf:
                raise SchedulingError(f"{field.name} must be at least 0 and finite, got {value!r}")
        if self.update_s == 0:
            raise SchedulingError("update_s must be positive, got 0")
        if self.shrink_load > self.expand_load:
            raise SchedulingError(
                f"shrink_load ({self.shrink_load:g}) must not be above expand_load ({self.expand_load:g})"
            )

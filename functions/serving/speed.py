"""How long a node takes for a number of tokens, learnt from its own recent batches."""

from __future__ import annotations


class Speed:
    """Largest seconds per token seen lately; forgets slowly, so one fast batch does not hide a slow node.

    The first batch is expected to take no time: nothing is known, and it gives the first measurement.
    """

    __slots__ = ("_s_per_token",)

    DECAY = 0.9
    """Weight of the past when a batch was faster than expected."""
    FIXED_TOKENS = 32
    """Smaller batches count as this many tokens: mostly they pay for the call itself and for reading the weights."""

    def __init__(self) -> None:
        self._s_per_token = 0.0

    def observe(self, tokens: int, spent_s: float) -> None:
        """A batch of ``tokens`` took ``spent_s`` seconds."""
        rate = spent_s / max(self.FIXED_TOKENS, tokens)
        if rate < self._s_per_token:
            rate = self.DECAY * self._s_per_token + (1 - self.DECAY) * rate
        self._s_per_token = rate

    def expected_s(self, tokens: int) -> float:
        """Seconds that ``tokens`` will take; an overestimate for large batches, whose fixed costs are shared."""
        return self._s_per_token * tokens

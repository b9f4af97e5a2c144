"""λ as targets of the tail: of whole requests, and of a decoder's first and following tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.checked import Checked, Positive
from autoscaler.contract import Observation


class Tail(NamedTuple):
    """One target and how a window met it, in seconds; None: nothing of it ended in the window."""

    name: str
    target_s: float
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None = None

    def reached(self, share: float) -> float | None:
        """Seconds within which ``share`` (0.5 to 0.95) was done, on the line from P50 to P95."""
        if self.p50_s is None or self.p95_s is None:
            return None
        return self.p50_s + (self.p95_s - self.p50_s) * (share - 0.5) / (0.95 - 0.5)


@dataclass(frozen=True)
class Targets(Checked):
    """What the P95 of each may take, in seconds; those that are None are no target."""

    title = "targets"
    slo_s: Positive | None = None
    """From a request's arrival to its end."""
    ttft_s: Positive | None = None
    """From a text's arrival to its first token."""
    tpot_s: Positive | None = None
    """From one token of a text to its next."""

    @property
    def any(self) -> bool:
        return not (self.slo_s is None and self.ttft_s is None and self.tpot_s is None)

    def tails(self, observation: Observation) -> tuple[Tail, ...]:
        """Every target with the window's quantiles."""
        window, texts = observation, observation.generation
        tails = []
        if self.slo_s is not None:
            tails.append(Tail("P95", self.slo_s, window.latency_p50_s, window.latency_p95_s, window.latency_p99_s))
        if self.ttft_s is not None:
            p50_s, p95_s = (None, None) if texts is None else (texts.ttft_p50_s, texts.ttft_p95_s)
            tails.append(Tail("TTFT", self.ttft_s, p50_s, p95_s))
        if self.tpot_s is not None:
            p50_s, p95_s = (None, None) if texts is None else (texts.tpot_p50_s, texts.tpot_p95_s)
            tails.append(Tail("TPOT", self.tpot_s, p50_s, p95_s))
        return tuple(tails)

    def excess(self, observation: Observation) -> float | None:
        """The largest P95 over its target; None where no target's is known, or one is no number."""
        ratios = [tail.p95_s / tail.target_s for tail in self.tails(observation) if tail.p95_s is not None]
        return max(ratios) if ratios and all(ratio >= 0 for ratio in ratios) else None

"""Times of one instance: what an iteration of decodes and parts of prompts takes.

:class:`Hardware` is arithmetic: linear in decodes and context, quadratic in a prompt; measured times are
:class:`simulation.generation.measured.Measured`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from functions.scheduling.predictor import Profile, fit_decode, fit_prefill

Part = tuple[int, int]
"""(tokens of a prompt that are computed already, tokens of it that are computed now)."""

ALONE = (1.0, 1.0, 1.0, 1.0)
"""Time over time alone: of prompts next to an instance that computes prompts, of prompts next to decodes, of decodes
next to prompts, of decodes next to decodes. Here: instances do not slow each other down."""


def beside(slowdown: Sequence[float], prompts: float, others: Iterable[float]) -> float:
    """Factor on an iteration whose tokens are prompts' to the part ``prompts``, next to instances whose tokens are to
    the parts ``others``. Measured is one neighbour; more are added up."""
    this, more = (prompts, 1.0 - prompts), 0.0
    for other in others:
        of = (other, 1.0 - other)
        more += sum(this[a] * of[b] * (slowdown[2 * a + b] - 1.0) for a in (0, 1) for b in (0, 1))
    return 1.0 + more


class Times(Protocol):
    """One instance, as the simulation asks for it."""

    @property
    def chunk_tokens(self) -> int:
        """Most tokens of one iteration."""

    @property
    def kv_tokens(self) -> int:
        """Room for keys and values of an instance."""

    @property
    def front_s(self) -> float:
        """What a client waits for its first token beyond iterations."""

    @property
    def slowdown(self) -> tuple[float, ...]:
        """By what instances next to it compute (:data:`ALONE`)."""

    def iteration(self, decodes: int, context: int, parts: Sequence[Part]) -> float:
        """Seconds of one: ``decodes`` texts of ``context`` tokens together go on by one token, and ``parts`` of
        prompts are computed."""

    def transfer_s(self, tokens: int) -> float:
        """Keys and values of so many tokens to another instance."""


@dataclass(frozen=True)
class Hardware:
    """Defaults are arithmetic from data sheets for an 8-billion-parameter bf16 model (36 layers, 8 KV heads of 128) on
    a GPU with 148 TFLOP/s at 60 %, 4 TB/s at 80 %, 20 GB/s of network. They are not measured. Computing is added to
    the reading of weights, without overlap."""

    iteration_s: float = 6e-3
    """Every iteration: weights read once, and launches."""
    token_s: float = 1.85e-4
    """Every token that is computed, of a prompt or of a decode."""
    attention_s: float = 3.3e-9
    """Times the square of a prompt's length."""
    context_s: float = 4.6e-8
    """Every token of context of a decode."""
    chunk_tokens: int = 2048
    """Most tokens of one iteration."""
    kv_tokens: int = 700_000
    """Room for keys and values of an instance."""
    token_bytes: int = 147_456
    """Keys and values of one token."""
    network_bytes_s: float = 20e9

    front_s: float = 0.0
    slowdown: tuple[float, ...] = ALONE

    def iteration(self, decodes: int, context: int, parts: Sequence[Part]) -> float:
        """As in :class:`Times`."""
        return self.decode_s(decodes, context) + sum(self.chunk_s(*part) for part in parts)

    def decode_s(self, requests: int, context: int) -> float:
        """An iteration of ``requests`` decodes with ``context`` tokens together."""
        return self.iteration_s + self.token_s * requests + self.context_s * context

    def chunk_s(self, start: int, tokens: int) -> float:
        """What ``tokens`` of a prompt from ``start`` on add to an iteration."""
        return self.token_s * tokens + self.attention_s * ((start + tokens) ** 2 - start**2)

    def prefill_s(self, tokens: int) -> float:
        """A prompt alone on an instance."""
        return -(-tokens // self.chunk_tokens) * self.iteration_s + self.chunk_s(0, tokens)

    def transfer_s(self, tokens: int) -> float:
        return tokens * self.token_bytes / self.network_bytes_s

    def profile(self, context: int = 1000) -> Profile:
        """What a profiler would fit: prompts of 64 to 16,384 tokens, 1 to 256 texts of ``context`` tokens."""
        lengths = [64 * 2**power for power in range(9)]
        batches = [2**power for power in range(9)]
        return Profile(
            fit_prefill(lengths, [self.prefill_s(length) for length in lengths]),
            fit_decode([batch * context for batch in batches], [self.decode_s(b, b * context) for b in batches]),
        )

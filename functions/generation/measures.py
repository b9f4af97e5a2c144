"""What the generation loop counts: times to first and next tokens, tokens, texts by how they ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from functions.generation.texts import Text
from functions.serving.instruments import Distribution

SIZES = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
"""Bounds of histograms of tokens, as vLLM's."""


def _sizes() -> Distribution:
    return Distribution(SIZES)


@dataclass
class Measures:
    """Counters of one ingress."""

    first_token: Distribution = field(default_factory=Distribution)
    next_token: Distribution = field(default_factory=Distribution)
    whole: Distribution = field(default_factory=Distribution)
    queue: Distribution = field(default_factory=Distribution)
    """From arrival until an instance takes a text; this and the following are measured of complete texts."""
    prefill: Distribution = field(default_factory=Distribution)
    decode: Distribution = field(default_factory=Distribution)
    prompt_sizes: Distribution = field(default_factory=_sizes)
    written_sizes: Distribution = field(default_factory=_sizes)
    most_written: Distribution = field(default_factory=_sizes)
    """The longest of each request's texts."""
    prompt_tokens: int = 0
    written_tokens: int = 0
    preemptions: int = 0
    asked_tokens: int = 0
    """Tokens of texts when they were admitted, and how many of them were there already."""
    found_tokens: int = 0
    move_wait: Distribution = field(default_factory=Distribution)
    """From a text's first token until its pages begin to move to the instance that goes on with it (q2)."""
    move: Distribution = field(default_factory=Distribution)
    """Until they are there (c)."""
    moved_bytes: int = 0
    lost_sources: int = 0
    """Texts that were computed again, as their pages could not be had."""
    recomputed_tokens: int = 0
    """Tokens of which an instance had keys and values when it ended under them."""
    ended: dict[str, int] = field(default_factory=dict)
    """Texts by reason: ``stop``, ``length``, ``abort``."""

    def admitted(self, text: Text, now_s: float) -> None:
        """A text begins, or begins again."""
        if text.begun_s is None:
            text.begun_s = now_s
        self.asked_tokens += len(text.tokens)
        self.found_tokens += text.kept

    def token(self, text: Text, now_s: float) -> None:
        """A text's next token is there; ``text`` as it was before."""
        if text.written:
            self.next_token.observe(now_s - text.moved_s)
        else:
            text.first_s = now_s
            self.first_token.observe(now_s - text.arrived_s)
            self.prompt_tokens += len(text.tokens)
        self.written_tokens += 1

    def prompt_only(self, text: Text) -> None:
        """A text is through of which no token is written."""
        self.prompt_tokens += len(text.tokens)

    def lost(self, texts: Iterable[Text]) -> None:
        """An instance ends with these texts, which are computed again."""
        self.recomputed_tokens += sum(text.kept for text in texts)

    def moved(self, count: int, waited_s: float, took_s: float) -> None:
        """A text of ``count`` bytes is at the instance that goes on with it."""
        self.move_wait.observe(waited_s)
        self.move.observe(took_s)
        self.moved_bytes += count

    def moved_document(self) -> dict[str, float]:
        """What moved so far, and the mean times that the paper calls q2 and c."""
        texts = self.move.count
        return {
            "texts": texts,
            "bytes": self.moved_bytes,
            "lost_sources": self.lost_sources,
            "waited_ms": 1000 * self.move_wait.total / texts if texts else 0.0,
            "took_ms": 1000 * self.move.total / texts if texts else 0.0,
        }

    def finished(self, text: Text, reason: str, now_s: float) -> None:
        """A text has ended."""
        self.ended[reason] = self.ended.get(reason, 0) + 1
        self.whole.observe(now_s - text.arrived_s)
        if reason == "abort":
            return
        begun_s = now_s if text.begun_s is None else text.begun_s
        first_s = now_s if text.first_s is None else text.first_s
        self.queue.observe(begun_s - text.arrived_s)
        self.prefill.observe(first_s - begun_s)
        self.decode.observe(now_s - first_s)
        self.prompt_sizes.observe(len(text.tokens) - text.written)
        self.written_sizes.observe(text.written)

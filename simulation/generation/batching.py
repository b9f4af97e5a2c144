"""Continuous batching of one instance, as the ingress runs it without a schedule (``functions.generation.run``).

An iteration: first every text with one token to compute, then parts of prompts, up to ``chunk_tokens`` together. A text
is admitted when pages of all its tokens are free; where a growing text finds none, the text that arrived last gives its
pages back and is computed again. No prompt begins like another one.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_TEXTS = 128
"""Texts of an instance at once (``functions.generation.run.MAX_RUNNING``)."""
PAGE_TOKENS = 16
"""Tokens of a page of keys and values (``moe.cache.PAGE_TOKENS``)."""


@dataclass(eq=False)
class Text:
    """One request on its way. Tokens and seconds."""

    name: int
    arrival_s: float
    prompt: int
    output: int
    written: int = 0
    kept: int = 0
    """Tokens whose keys and values are there."""
    first_s: float | None = None
    last_s: float | None = None
    """When the latest token was written."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.written

    @property
    def pages(self) -> int:
        return -(-self.tokens // PAGE_TOKENS)

    def again(self) -> Text:
        """Its keys and values are gone; what it wrote stays written."""
        self.kept = 0
        return self


Iteration = list[tuple[Text, int]]
"""Texts and how many of their tokens are computed next."""


class Batch:
    """The texts of one instance, in order of admission."""

    def __init__(self, kv_tokens: int, chunk_tokens: int) -> None:
        self.pages = kv_tokens // PAGE_TOKENS
        self.texts: list[Text] = []
        self._chunk_tokens = chunk_tokens

    @property
    def used_pages(self) -> int:
        return sum(text.pages for text in self.texts)

    def fits(self, text: Text) -> bool:
        """Whether there is room for it now."""
        return len(self.texts) < MOST_TEXTS and self.used_pages + text.pages <= self.pages

    def preempted(self) -> list[Text]:
        """Those that give their pages back, the one that arrived last first."""
        gone = []
        while self.used_pages > self.pages and len(self.texts) > 1:
            last = max(self.texts, key=lambda text: text.arrival_s)
            self.texts.remove(last)
            gone.append(last.again())
        return gone

    def iteration(self) -> Iteration:
        """What is computed next; empty where there is nothing."""
        chosen = [(text, 1) for text in self.texts if text.tokens - text.kept == 1]
        room = self._chunk_tokens - len(chosen)
        for text in self.texts:
            left = text.tokens - text.kept
            if left > 1 and room > 0:
                chosen.append((text, min(left, room)))
                room -= left
        return chosen

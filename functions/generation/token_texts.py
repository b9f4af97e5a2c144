"""A text's tokens one by one: each as text, and where in the text it begins."""

from __future__ import annotations

from collections.abc import Sequence

from functions.generation.reader import BROKEN, Writer
from moe.tokenize import TextTokenizer


class TokenTexts:
    """Names tokens of one text in the order in which they come."""

    def __init__(self, tokenizer: TextTokenizer, before: Sequence[int] = ()) -> None:
        """``before``: tokens that the first one follows."""
        self._tokenizer = tokenizer
        self._before = list(before[-1:])
        self._writer = Writer(tokenizer, before)
        self.offset = 0
        """Characters of the text that are complete, so where the next token begins."""

    def text(self, token: int) -> str | None:
        """``token`` as the next one; None where it is no whole character, or a special token."""
        written = self._tokenizer.decode([*self._before, token])
        text = written[len(self._tokenizer.decode(self._before)) :] if self._before else written
        return None if not text or BROKEN in text else text

    def name(self, token: int) -> str:
        """As ``text``, in its place the vocabulary's own word, or its id where there is none."""
        return self.text(token) or self._tokenizer.word(token) or f"token_id:{token}"

    def add(self, token: int) -> None:
        """``token`` is the next one."""
        self.offset += len(self._writer.add(token))
        self._before = [token]

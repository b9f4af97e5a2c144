"""Tokens into text as they come: whole characters only, up to a stop sequence; and the queue to whoever reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from functions.generation.sampling import Chosen
from functions.generation.texts import Finish
from functions.wire.errors import CallError
from moe.tokenize import TextTokenizer

MOST_UNREAD = 256
"""Pieces that a request's reader may be behind."""
CONTEXT_TOKENS = 6
"""Tokens of the prompt by which a tokenizer decides whether the first new token begins with a space."""
MOST_HELD = 16
"""Tokens that a character may take; what is no character after so many never becomes one."""
BROKEN = "\ufffd"
"""What decoding gives for bytes that are no character."""


class Writer:
    """A text's new characters. A token may end within a character: it is held until the character is whole."""

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._out = len(self._ids)
        """Tokens of ``_ids`` whose characters are out."""

    def add(self, token: int) -> str:
        """The characters that one more token completes."""
        self._ids.append(token)
        text = self._new()
        if text.endswith(BROKEN) and len(self._ids) - self._out < MOST_HELD:
            return ""
        del self._ids[: max(0, self._out - CONTEXT_TOKENS)]
        self._out = len(self._ids)
        return text

    def rest(self) -> str:
        """What is still held, at the end of the text."""
        text = self._new()
        self._out = len(self._ids)
        return text

    def _new(self) -> str:
        before = self._tokenizer.decode(self._ids[: self._out])
        text, out = self._tokenizer.decode(self._ids), len(before)
        while out and before[out - 1] == BROKEN != text[out - 1 : out]:  # a character that the prompt had begun
            out -= 1
        return text[out:]


class _Stop:
    """How many characters of a stop sequence a text ends with, in steps as many as its characters."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = _borders(text)
        self._begun = 0

    def begun(self, more: str) -> int:
        """Characters of it that the text ends with after ``more``, which does not complete it."""
        for character in more:
            self._begun = _longer(self.text, self._borders, self._begun, character)
        return self._begun


def _longer(stop: str, borders: Sequence[int], begun: int, character: str) -> int:
    while begun and stop[begun] != character:
        begun = borders[begun - 1]
    return begun + (stop[begun] == character)


@lru_cache(256)
def _borders(stop: str) -> list[int]:
    """For each beginning of it, the longest shorter one that it ends with (Knuth, Morris and Pratt)."""
    borders = [0]
    for character in stop[1:]:
        borders.append(_longer(stop, borders, borders[-1], character))
    return borders


class StopFilter:
    """Passes characters on that cannot be part of a stop sequence any more."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(stop) for stop in stops]
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What may go out now; and whether a stop sequence is complete: then nothing after it counts."""
        self._held += text
        ends = [place for stop in self._stops if (place := self._held.find(stop.text)) >= 0]
        if ends:
            return self._held[: min(ends)], True
        keep = max((stop.begun(text) for stop in self._stops), default=0)
        out = self._held[: len(self._held) - keep]
        self._held = self._held[len(out) :]
        return out, False

    def rest(self) -> str:
        """What was held back, as the text has ended without a stop sequence."""
        return self._held


@dataclass(slots=True)
class Piece:
    """News of one of a request's texts: characters, tokens with log probabilities, why it ended, or an error."""

    index: int
    text: str = ""
    chosen: Sequence[Chosen] = ()
    finish: Finish | None = None
    error: CallError | None = None


class Outbox:
    """Pieces on their way to one request's reader."""

    def __init__(self) -> None:
        self.full = False
        """From ``MOST_UNREAD`` pieces on, until half of them are read: a text that is parked is not back at once."""
        self._pieces: deque[Piece] = deque()
        self._there = asyncio.Event()

    def put(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self.full = self.full or len(self._pieces) >= MOST_UNREAD
        self._there.set()

    async def get(self) -> Piece:
        """The next piece, once there is one."""
        while not self._pieces:
            self._there.clear()
            await self._there.wait()
        piece = self._pieces.popleft()
        self.full = self.full and len(self._pieces) > MOST_UNREAD // 2
        return piece


class Reader:
    """The sink of one text (:class:`functions.generation.texts.Sink`)."""

    def __init__(self, index: int, outbox: Outbox, writer: Writer, stops: Sequence[str]) -> None:
        self._index = index
        self._outbox = outbox
        self._writer = writer
        self._stops = StopFilter(stops)
        self._chosen: list[Chosen] = []
        self._stopped = False

    def prompt(self, scored: Sequence[Chosen]) -> None:
        self._chosen += scored

    def token(self, chosen: Chosen) -> bool:
        text, self._stopped = self._stops.push(self._writer.add(chosen.token))
        self._chosen.append(chosen)
        if text:
            self._put(text)
        return self._stopped

    def full(self) -> bool:
        return self._outbox.full

    def finished(self, reason: Finish) -> None:
        text = ""
        if not self._stopped:
            text, stopped = self._stops.push(self._writer.rest())
            text += "" if stopped else self._stops.rest()
        self._put(text, reason)

    def failed(self, error: CallError) -> None:
        self._outbox.put(Piece(self._index, error=error))

    def _put(self, text: str, finish: Finish | None = None) -> None:
        self._outbox.put(Piece(self._index, text, self._chosen, finish))
        self._chosen = []

"""Texts under way: what the generation loop knows of a request's text, and who takes its tokens."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from functions.generation.sampling import Chosen, Sampler
from functions.wire.errors import CallError
from moe.manifest import Manifest

Finish = Literal["stop", "length"]


class Sink(Protocol):
    """Takes a text's tokens on the event loop as they are chosen. Nothing comes after ``finished`` or ``failed``."""

    def prompt(self, scored: Sequence[Chosen]) -> None:
        """The next of the prompt's own tokens with their log probabilities, where they are wanted."""

    def token(self, chosen: Chosen) -> bool:
        """One more token; True: that is enough, a stop sequence was written."""

    def full(self) -> bool:
        """Whether the reader is far behind: the text then gives its pages back until it has caught up."""

    def finished(self, reason: Finish) -> None:
        """The text is complete."""

    def failed(self, error: CallError) -> None:
        """There will be no more of it."""


@dataclass(eq=False)
class Gathered:
    """A sink that keeps a text's new tokens (:class:`Sink`)."""

    tokens: list[int] = field(default_factory=list)
    over: asyncio.Future[Finish] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def prompt(self, scored: Sequence[Chosen]) -> None:
        """Nobody asks for it."""

    def token(self, chosen: Chosen) -> bool:
        self.tokens.append(chosen.token)
        return False

    def full(self) -> bool:
        return False

    def finished(self, reason: Finish) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    def failed(self, error: CallError) -> None:
        if not self.over.done():
            self.over.set_exception(error)


def end_tokens(manifest: Manifest) -> frozenset[int]:
    """Tokens with which the model ends a text."""
    return manifest.tokenizer.end_tokens if manifest.tokenizer else frozenset()


def new_id() -> int:
    """An id under which segments keep a text, unlike any other's."""
    return secrets.randbits(62)


@dataclass(eq=False, slots=True)
class Text:
    """One text that is being continued. ``tokens``: its prompt and what was written since."""

    tokens: list[int]
    max_tokens: int
    sampler: Sampler
    sink: Sink
    end: frozenset[int]
    """Tokens that end it, and are not part of it."""
    request_id: str
    longest: int
    """Tokens that it may have at most."""
    arrived_s: float
    """On the loop's clock, as all times here."""
    bounded: bool = True
    """Whether the client set ``max_tokens``; else the text may end where the pages do."""
    deadline_s: float | None = None
    """Where the client set one."""
    kv_id: int = field(default_factory=new_id)
    kept: int = 0
    """Tokens whose keys and values the segments have."""
    parent: int = -1
    """The text whose first pages are this one's too, by its ``kv_id``; -1: none."""
    shared_pages: int = 0
    prompt_logprobs: int | None = None
    """How many of the likeliest tokens are reported at each place of the prompt, next to its own token; None: nothing
    is."""
    routed: bool = False
    """Whether its tokens are reported with the experts that they were chosen after."""
    scored: int = 0
    """Tokens of the prompt that were reported."""
    passed_s: float = 0.0
    """When the pass began after which the segments have so many."""
    written: int = 0
    begun_s: float | None = None
    """When an instance first took it, and chose its first token; None: not yet."""
    first_s: float | None = None
    moved_s: float = field(init=False)
    """When its last token was chosen, or it arrived."""
    furthest: int = 0
    """The most tokens that were ever computed of it."""
    progress_s: float = field(init=False)
    """When it last went on: its last token, or as far in its prompt as never before."""
    cancelled: bool = False

    def __post_init__(self) -> None:
        self.moved_s = self.progress_s = self.arrived_s

    @property
    def last(self) -> int:
        """Tokens it has when ``max_tokens`` are written."""
        return len(self.tokens) - self.written + self.max_tokens

    @property
    def scoring(self) -> bool:
        """Whether the next pass is to give logits of all its tokens, as the prompt's own are not all reported."""
        return self.prompt_logprobs is not None and self.scored < len(self.tokens) - self.written

    def forget(self) -> None:
        """What the segments had of it is gone: it is computed again from its beginning."""
        self.kv_id, self.kept, self.parent, self.shared_pages = new_id(), 0, -1, 0

    def computed(self, count: int, now_s: float) -> None:
        """The segments have ``count`` tokens more. A text that is computed again goes on once it is where it was."""
        self.kept += count
        if self.kept > self.furthest:
            self.furthest, self.progress_s = self.kept, now_s

    def choose(self, chosen: Chosen, now_s: float) -> Finish | None:
        """Take a token; returns why the text is complete, None where it goes on."""
        self.moved_s = self.progress_s = now_s
        if chosen.token in self.end:
            return "stop"
        self.tokens.append(chosen.token)
        self.written += 1
        if self.sink.token(chosen):
            return "stop"
        return "length" if self.written >= self.max_tokens or len(self.tokens) >= self.longest else None


@dataclass
class Waiting:
    """Texts that no instance has: in order, preempted ones first; and those whose readers are behind."""

    texts: deque[Text] = field(default_factory=deque)
    parked: list[Text] = field(default_factory=list)

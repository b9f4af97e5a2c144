"""A token trace as streamed completions: prompts of the trace's lengths, and the answers' events with their times."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from traces.errors import ReplayError
from traces.model import IntArray, Trace
from traces.results import Outcome

RESERVED = ("prompt", "max_tokens", "stream", "stream_options", "n", "inputs")
"""Fields of the body that the replay sets itself."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of each request as they are asked for."""

    prompt: IntArray
    """[N] int64, at least 1."""
    answer: IntArray
    """[N] int64, at least 1."""
    cut: int
    """Requests that were too long for the context."""


def lengths_of(trace: Trace, divisor: float, context: int | None) -> Lengths:
    """The trace's lengths divided by ``divisor`` (rounded, at least 1), cut so that prompt and answer fit ``context``
    tokens together: the answer to the larger of half the context and what the prompt leaves, then the prompt.

    Raises ReplayError for a trace without token counts, a divisor below 1 and a context below 2.
    """
    if trace.context_tokens is None or trace.generated_tokens is None:
        raise ReplayError(f"{trace.source} has no token counts, which completions need")
    if not 1 <= divisor < np.inf:
        raise ReplayError(f"the length divisor must be a number of at least 1, got {divisor!r}")
    prompt = np.maximum(1, np.rint(trace.context_tokens / divisor).astype(np.int64))
    answer = np.maximum(1, np.rint(trace.generated_tokens / divisor).astype(np.int64))
    if context is None:
        return Lengths(prompt, answer, 0)
    if context < 2:
        raise ReplayError(f"a context of {context} tokens has no room for a prompt and an answer")
    cut = int((prompt + answer > context).sum())
    answer = np.minimum(answer, np.maximum(context // 2, context - prompt))
    return Lengths(np.minimum(prompt, context - answer), answer, cut)


def token_ids(texts: Sequence[str], tokenizer: Path) -> IntArray:
    """``texts`` one after the other as token ids [M] int64, without special tokens.

    ``tokenizer``: a ``tokenizer.json`` or a folder with one. Raises ReplayError.
    """
    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not path.is_file():
        raise ReplayError(
            f"{path} is not there: prompts of a trace's lengths need the pipeline's tokenizer (--tokenizer); "
            "without it, --send inputs sends texts"
        )
    try:
        encoder = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for bad files
        raise ReplayError(f"{path} is not a readable tokenizer ({error})") from error
    encoder.no_truncation()
    encoder.no_padding()
    encoded = encoder.encode_batch([f"{text}\n" for text in texts], add_special_tokens=False)
    ids = np.array([token for one in encoded for token in one.ids], dtype=np.int64)
    if not ids.size:
        raise ReplayError(f"the texts have no tokens under {path}")
    return ids


@dataclass(frozen=True)
class TokenTargets:
    """What goodput counts as kept, in seconds; None: not a condition."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True)
class Completions:
    """What a replay sends to ``/v1/completions``. Prompts are token ids, so their lengths are exact."""

    lengths: Lengths
    ids: IntArray
    """[M] int64: prompt ``i`` is a run of these from a random place on, going round at the end."""
    seed: int
    targets: TokenTargets = TokenTargets()
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the body."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """How the requests were made, for the summary."""

    def __post_init__(self) -> None:
        taken = sorted(set(RESERVED) & set(self.fields))
        if taken:
            raise ReplayError(f"fields must not hold {', '.join(taken)}: the replay sets them for completions")

    def body(self, index: int) -> bytes:
        """The JSON of request ``index``."""
        start = int(np.random.default_rng((self.seed, index)).integers(self.ids.size))
        places = np.arange(start, start + int(self.lengths.prompt[index]))
        document = {
            **self.fields,
            "prompt": self.ids.take(places, mode="wrap").tolist(),
            "max_tokens": int(self.lengths.answer[index]),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(document).encode()


class StreamError(Exception):
    """A stream that is no whole answer; ``outcome`` is what the record gets."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


@dataclass(frozen=True)
class Streamed:
    """A whole streamed answer; times by the reader's clock, None where it holds no token."""

    first_s: float | None
    """When the first token's event came."""
    last_s: float | None
    tokens: int
    """``usage.completion_tokens``; without it the events that held text."""

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None below two tokens."""
        if self.first_s is None or self.last_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.tokens - 1)


async def read_stream(lines: AsyncIterable[bytes], clock: Callable[[], float]) -> Streamed:
    """Read server-sent events to ``[DONE]``; nothing but times and counts is kept.

    Raises StreamError: server_error where an event holds an error, broken where an event is no completion or the
    stream ends before ``[DONE]``.
    """
    first_s: float | None = None
    last_s: float | None = None
    events, counted = 0, None
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        now_s, data = clock(), line[5:].strip()
        if data == b"[DONE]":
            return Streamed(first_s, last_s, events if counted is None else counted)
        has_text, is_piece, usage = _event(data)
        if has_text or (is_piece and not events):  # an end alone, after the last token's text, is no token
            first_s = now_s if first_s is None else first_s
            last_s = now_s
            events += has_text
        counted = usage if usage is not None else counted
    raise StreamError("broken")


def _event(data: bytes) -> tuple[bool, bool, int | None]:
    """Whether the event has text, whether it is a piece of the answer (text or its end), and the tokens of its usage.
    Raises StreamError."""
    try:
        document = json.loads(data)
        if document.get("error") is not None:
            raise StreamError("server_error")
        choices, usage = document["choices"], document.get("usage")
        has_text = any(choice["text"] for choice in choices)
        is_end = any(choice.get("finish_reason") for choice in choices)
        return has_text, has_text or is_end, None if usage is None else int(usage["completion_tokens"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StreamError("broken") from None

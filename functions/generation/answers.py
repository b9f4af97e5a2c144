"""Answers of the API that OpenAI's clients speak, as JSON documents."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from functions.generation.request import FieldError
from functions.generation.sampling import Chosen
from functions.generation.token_texts import TokenTexts
from functions.wire.errors import CallError
from functions.wire.messages import PLATFORM_FAILED, Reply

_TYPES = {429: "rate_limit_error", 501: "not_supported_error"}


def error_document(status: int, message: str, field: str | None, code: str | None) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}


def error_answer(error: CallError) -> Reply:
    """A failed call as an answer."""
    document = error_document(error.status, str(error), getattr(error, "field", None), error.code)
    headers = {PLATFORM_FAILED: "smoe"} if error.platform else {}
    if isinstance(error, FieldError) and error.allow:
        headers["allow"] = error.allow
    if error.status in (429, 503):
        headers["retry-after"] = "1"
    return Reply(error.status, (orjson.dumps(document),), headers=headers)


def not_served(method: str, path: str, served: Mapping[str, str]) -> FieldError:
    """The request names another path than those ``served``, or not the method of one."""
    is_path = path in served
    error = FieldError(f"there is no {method} {path}", code="method_not_allowed" if is_path else "unknown_url")
    error.status, error.allow = (405, served[path]) if is_path else (404, "")
    return error


def model_not_found(model: object, served: str) -> FieldError:
    """The request names another model than this one."""
    error = FieldError(
        f"the model {str(model)[:80]!r} does not exist here; this is {served}", "model", "model_not_found"
    )
    error.status = 404
    return error


def model_document(name: str, created: int, context: int | None) -> dict[str, Any]:
    """A model of ``GET /v1/models``; ``context``: tokens of a decoder's context, under the name that vLLM gives it."""
    document = {"id": name, "object": "model", "created": created, "owned_by": "smoe"}
    return document if context is None else {**document, "max_model_len": context}


def embeddings_document(model: str, vectors: NDArray[np.float32], tokens: int, *, as_base64: bool) -> bytes:
    """``vectors [B, d]``."""
    data: list[dict[str, Any]] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(row.astype("<f4").tobytes()).decode() if as_base64 else row,
        }
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "model": model, "data": data, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


class Form:
    """What one request's answers look like: whole, or in pieces; of a conversation, or of completions."""

    def __init__(
        self, model: str, request_id: str, texts: Sequence[TokenTexts], *, chat: bool, logprobs: bool, routed: bool
    ) -> None:
        """``texts``: one a choice, to name its tokens; ``logprobs`` and ``routed``: what is asked for of each token."""
        self._chat, self._with_logprobs, self._routed = chat, logprobs, routed
        self._token_texts = texts
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, choices: Sequence[tuple[str, Sequence[Chosen], str | None]], usage: dict[str, int]) -> bytes:
        """All texts at once: each with its tokens, and why it ended."""
        written = []
        for index, (text, chosen, finish) in enumerate(choices):
            content: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text, "refusal": None}} if self._chat else {"text": text}
            )
            written.append({"index": index, **content, **self._tokens(index, chosen), "finish_reason": finish})
        kind = "chat.completion" if self._chat else "text_completion"
        return orjson.dumps({**self._head, "object": kind, "choices": written, "usage": usage})

    def piece(
        self, index: int, text: str, chosen: Sequence[Chosen], finish: str | None, *, first: bool, usage: bool
    ) -> bytes:
        """A part of one text as an event."""
        delta: dict[str, Any] = {"text": text}
        if self._chat:
            delta = {"delta": {**({"role": "assistant"} if first else {}), **({"content": text} if text else {})}}
        choice = {"index": index, **delta, **self._tokens(index, chosen), "finish_reason": finish}
        return self._event({"choices": [choice], **({"usage": None} if usage else {})})

    def last(self, usage: dict[str, int]) -> bytes:
        """The event that states how many tokens it took."""
        return self._event({"choices": [], "usage": usage})

    def _event(self, document: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return event({**self._head, "object": kind, **document})

    def _tokens(self, index: int, chosen: Sequence[Chosen]) -> dict[str, Any]:
        """What is asked for of each token."""
        answer: dict[str, Any] = {"logprobs": self._logprobs(index, chosen) if self._with_logprobs else None}
        if self._routed:
            answer["routed_experts"] = [one.experts for one in chosen]
        return answer

    def _logprobs(self, index: int, chosen: Sequence[Chosen]) -> dict[str, Any]:
        texts = self._token_texts[index]
        if self._chat:
            content = []
            for one in chosen:
                top = [_named(texts, token, value) for token, value in one.top]
                content.append({**_named(texts, one.token, one.logprob), "top_logprobs": top})
                texts.add(one.token)
            return {"content": content, "refusal": None}
        tokens, tops, offsets = [], [], []
        for one in chosen:
            tokens.append(texts.name(one.token))
            tops.append(_top(texts, one))
            offsets.append(texts.offset)
            texts.add(one.token)
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in chosen],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def _top(texts: TokenTexts, chosen: Chosen) -> dict[str, float] | None:
    """The likeliest tokens and the one that is there, by name; of two of one name the likelier. None for a first token,
    which follows nothing."""
    if chosen.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, value in [*chosen.top, (chosen.token, chosen.logprob)]:
        top.setdefault(texts.name(token), value)
    return top


def _named(texts: TokenTexts, token: int, logprob: float | None) -> dict[str, Any]:
    text = texts.text(token)
    return {
        "token": texts.name(token),
        "logprob": logprob,
        "bytes": None if text is None else list(text.encode()),
    }


def event(document: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(document) + b"\n\n"


DONE = b"data: [DONE]\n\n"

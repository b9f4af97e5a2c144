"""Bodies of ``/v1/completions``, ``/v1/chat/completions`` and ``/v1/embeddings``, checked field by field.

A field that would change the answer and is not supported is refused by its name; one that would not is ignored
(``HARMLESS``). A field that is null counts as not given. What is taken: docs/generation.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from functions.generation.sampling import Sampling
from functions.wire.errors import BadInputError
from moe.reference import COLDEST

Document = Mapping[str, Any]

MOST_TEXTS = 128
"""Texts that one request may have written."""
MOST_GIVEN = 2 * MOST_TEXTS
"""Texts that one request may give: prompts, or inputs to embed."""
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1000
MOST_BIASES = 1024
MOST_LOGPROBS = 20
COMPLETION_TOKENS = 16
"""``max_tokens`` of completions that set none, as OpenAI's."""
HARMLESS = frozenset(
    [
        "user",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "prediction",
    ]
)
ROUTED = "return_routed_experts"
"""An extension: each token with the experts that it was chosen after."""
_PENALTIES = frozenset(["frequency_penalty", "presence_penalty", "repetition_penalty"])
_SAMPLING = _PENALTIES | {"temperature", "top_p", "top_k", "seed", "logit_bias"}
_COMMON = _SAMPLING | {"model", "max_tokens", "n", "stop", "stream", "stream_options", "logprobs", "ignore_eos", ROUTED}
_CHAT = _COMMON | {"messages", "max_completion_tokens", "top_logprobs"}
_COMPLETION = _COMMON | {"prompt", "echo"}
_STREAM_OPTIONS = frozenset(["include_usage", "include_obfuscation", "continuous_usage_stats"])
"""The last one, vLLM's, is ignored: usage comes once, at the end."""
_EMBEDDING = frozenset(("model", "input", "encoding_format"))
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "suffix": ("",),
    "min_p": (0, 0.0),
}
"""Fields of which only the value that changes nothing is taken."""


class FieldError(BadInputError):
    """A request breaks a rule at one field."""

    def __init__(self, message: str, field: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.field = field
        self.code = code
        self.allow = ""
        """The method that the path takes, where it is the method that is wrong."""


@dataclass(frozen=True)
class Asked:
    """A checked request for texts. ``prompts`` are texts or token ids; a conversation is one prompt of ``messages``."""

    sampling: Sampling
    prompts: list[str] | list[list[int]]
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None
    n: int = 1
    stops: tuple[str, ...] = ()
    stream: bool = False
    usage: bool = False
    """A stream ends with how many tokens it took."""
    logprobs: int | None = None
    echo: bool = False
    routed: bool = False
    ignore_eos: bool = False
    """An extension, as vLLM's: the token that ends texts does not end these; it is written like any other."""


def document_of(body: bytes | bytearray) -> Document:
    """The body as a JSON object without its nulls. Raises FieldError."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise FieldError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(document, dict):
        raise FieldError("the body is no JSON object", code="invalid_json")
    return {name: value for name, value in document.items() if value is not None}


def completion(document: Document) -> Asked:
    """A request for completions. Raises FieldError."""
    _check_names(document, _COMPLETION)
    logprobs = _whole(document, "logprobs", None, 0, MOST_LOGPROBS)
    fewest = 0 if _flag(document, "echo") else 1
    return _asked(document, logprobs, _whole(document, "max_tokens", COMPLETION_TOKENS, fewest), _prompts(document))


def chat(document: Document, longest: int) -> Asked:
    """A request for an answer in a conversation with a model of ``longest`` positions. Raises FieldError."""
    _check_names(document, _CHAT)
    count = _whole(document, "top_logprobs", 0, 0, MOST_LOGPROBS)
    logprobs = count if _flag(document, "logprobs") else None
    if "top_logprobs" in document and logprobs is None:
        raise FieldError("top_logprobs needs logprobs to be true", "top_logprobs")
    most = _whole(document, "max_tokens", None, 1)
    return _asked(
        document, logprobs, _whole(document, "max_completion_tokens", most, 1), [], _messages(document, longest)
    )


def embedding(document: Document) -> tuple[list[str] | list[list[int]], bool]:
    """Texts or token ids to embed, and whether as base64. Raises FieldError."""
    _check_names(document, _EMBEDDING)
    form = document.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise FieldError(f"encoding_format is {form!r}; it takes float or base64", "encoding_format")
    return _texts_or_ids(document, "input"), form == "base64"


def _asked(
    document: Document,
    logprobs: int | None,
    max_tokens: int | None,
    prompts: list[str] | list[list[int]],
    messages: list[dict[str, Any]] | None = None,
) -> Asked:
    options = document.get("stream_options", {})
    if not isinstance(options, dict) or not options.keys() <= _STREAM_OPTIONS:
        raise FieldError("stream_options takes an object with include_usage", "stream_options")
    options = {name: value for name, value in options.items() if value is not None}
    stream = _flag(document, "stream")
    if options and not stream:
        raise FieldError("stream_options goes with stream: true", "stream_options")
    n = _whole(document, "n", 1, 1, MOST_TEXTS) or 1
    if n * max(1, len(prompts)) > MOST_TEXTS:
        raise FieldError(f"n times the prompts are more than {MOST_TEXTS} texts", "n")
    return Asked(
        sampling=Sampling(
            temperature=_warmth(document),
            top_p=_real(document, "top_p", 1.0, 1e-6, 1.0),
            top_k=max(0, _whole(document, "top_k", 0, -1) or 0),
            seed=_whole(document, "seed", None, -(2**63)),
            frequency_penalty=_real(document, "frequency_penalty", 0.0, -2.0, 2.0),
            presence_penalty=_real(document, "presence_penalty", 0.0, -2.0, 2.0),
            repetition_penalty=_real(document, "repetition_penalty", 1.0, 1e-6, 2.0),
            logit_bias=_bias(document),
        ),
        prompts=prompts,
        messages=messages,
        max_tokens=max_tokens,
        n=n,
        stops=_stops(document),
        stream=stream,
        usage=_flag(options, "include_usage"),
        logprobs=logprobs,
        echo=_flag(document, "echo"),
        routed=_flag(document, ROUTED),
        ignore_eos=_flag(document, "ignore_eos"),
    )


def _check_names(document: Document, allowed: frozenset[str]) -> None:
    for name, value in document.items():
        if name in allowed or name in HARMLESS:
            continue
        if name not in _ONLY:
            raise FieldError(f"the field {name!r} is not supported", name, "unsupported_parameter")
        if value not in _ONLY[name]:
            raise FieldError(f"{name} = {str(value)[:60]!r} is not supported", name, "unsupported_value")


def _prompts(document: Document) -> list[str] | list[list[int]]:
    if "prompt" not in document:
        raise FieldError('the field "prompt" is missing', "prompt", "missing_required_parameter")
    return _texts_or_ids(document, "prompt")


def _texts_or_ids(document: Document, name: str) -> list[str] | list[list[int]]:
    given = document.get(name)
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given and all(type(one) is int for one in given):
        return [given]
    if isinstance(given, list) and len(given) > MOST_GIVEN:
        raise FieldError(f"{name} has {len(given)} texts; it takes at most {MOST_GIVEN}", name)
    if isinstance(given, list) and given:
        if all(isinstance(one, str) for one in given):
            return given
        if all(isinstance(one, list) and one and all(type(token) is int for token in one) for one in given):
            return given
    raise FieldError(f"{name} takes a text, a list of texts, token ids, or a list of lists of token ids", name)


def _messages(document: Document, longest: int) -> list[dict[str, Any]]:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        raise FieldError("messages takes a list with at least one message", "messages")
    if len(messages) > longest:
        message = f"{len(messages)} messages do not fit this model's maximum context length of {longest} tokens"
        raise FieldError(message, "messages", "context_length_exceeded")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise FieldError(f"{where} takes an object with role and content", where)
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise FieldError(f"{where}.{name} is not supported", where, "unsupported_parameter")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise FieldError(f"{where}.content holds a part that is no text; only text is supported", where)
        content = "".join(str(part.get("text", "")) for part in content)
    if not isinstance(content, str):
        raise FieldError(f"{where}.content takes a text or a list of text parts", where)
    return {"role": message["role"], "content": content}


def _stops(document: Document) -> tuple[str, ...]:
    stop = document.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise FieldError(f"stop takes a text or up to {MOST_STOPS} texts, none of them empty", "stop")
    if any(len(one) > MOST_STOP_CHARACTERS for one in stops):
        raise FieldError(f"stop has a text of more than {MOST_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def _bias(document: Document) -> dict[int, float]:
    bias = document.get("logit_bias", {})
    try:
        numbers = {int(token): float(value) for token, value in bias.items()}
    except (AttributeError, TypeError, ValueError):
        numbers = {-1: 0.0}
    if len(numbers) > MOST_BIASES:
        raise FieldError(f"logit_bias has {len(numbers)} token ids; it takes at most {MOST_BIASES}", "logit_bias")
    if any(token < 0 or not -100 <= value <= 100 for token, value in numbers.items()):
        raise FieldError("logit_bias takes an object of token ids and numbers from -100 to 100", "logit_bias")
    return numbers


def _warmth(document: Document) -> float:
    """The temperature; one so small that it draws the likeliest token, and that float32 knows no other number for, is
    0."""
    temperature = _real(document, "temperature", 1.0, 0.0, 2.0)
    return temperature if temperature >= COLDEST else 0.0


def _flag(document: Document, name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise FieldError(f"{name} is {str(value)[:60]!r}; it takes true or false", name)
    return value


def _whole(document: Document, name: str, default: int | None, low: int, high: int = 2**63 - 1) -> int | None:
    if name not in document:
        return default
    value: int = document[name]
    if type(value) is not int or not low <= value <= high:
        bounds = f"from {low} to {high}" if high < 2**63 - 1 else f"of at least {low}"
        raise FieldError(f"{name} is {str(value)[:60]!r}; it takes a whole number {bounds}", name)
    return value


def _real(document: Document, name: str, default: float, low: float, high: float) -> float:
    value = document.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise FieldError(f"{name} is {str(value)[:60]!r}; it takes a number from {low:g} to {high:g}", name)
    return float(value)

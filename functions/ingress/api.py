"""The model's JSON API: what a request may hold, checked field by field, and how answers look.

Encoders:  ``{"inputs": "text" | ["text", …], "states": false}`` → ``{"embeddings": [[…]], "tokens": n}``
Decoders:  ``{"inputs": …, "max_new_tokens": n, "temperature": 0, "top_k": 0, "seed": 0}`` → ``outputs``, one
continuation a text; without ``max_new_tokens``, or with ``"logits": true``, each text's next-token ``logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from functions.wire.arrays import Array, Arrays, as_float32
from functions.wire.errors import BadInputError, TooLargeError
from functions.wire.format import MAX_BYTES
from moe.manifest import Manifest

MAX_TEXTS = 256
MAX_NEW_TOKENS = 1024
_ENCODER_FIELDS = ("inputs", "states")
_DECODER_FIELDS = ("inputs", "max_new_tokens", "temperature", "top_k", "seed", "logits")


@dataclass(frozen=True)
class ModelRequest:
    """A checked request. ``max_new_tokens`` 0 asks for logits alone."""

    texts: list[str]
    states: bool = False
    max_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    seed: int = 0
    logits: bool = False


def parse(body: bytes | bytearray, content_type: str, task: str) -> ModelRequest:
    """Check a request body. Raises BadInputError with the first broken rule."""
    kind = content_type.split(";", 1)[0].strip().lower()
    if kind not in ("", "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded"):
        raise BadInputError(f"the content type is {kind}; it must be application/json")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInputError(_why_not_json(body, error)) from None
    if not isinstance(document, dict):
        raise BadInputError(
            f'the body is a JSON {_kind(document)}; it must be an object such as {{"inputs": "a text"}}'
        )
    allowed = _ENCODER_FIELDS if task == "embedding" else _DECODER_FIELDS
    for name in document:
        if name not in allowed:
            raise BadInputError(f"the field {name!r} is not known; allowed are {', '.join(allowed)}")
    return ModelRequest(
        texts=_texts(document),
        states=_flag(document, "states"),
        max_new_tokens=_number(document, "max_new_tokens", 0, 0, MAX_NEW_TOKENS),
        temperature=_real(document, "temperature", 0.0, 0.0, 100.0),
        top_k=_number(document, "top_k", 0, 0, 1_000_000),
        seed=_number(document, "seed", 0, 0, 2**63 - 1),
        logits=_flag(document, "logits"),
    )


def embedding_answer(model: str, reply: Arrays, lengths: list[int], states: bool) -> bytes:
    """``embedding [B, d]`` and, when asked for, ``states [T, d]`` cut by text."""
    answer: dict[str, Any] = {
        "model": model,
        "embeddings": as_float32(reply["embedding"]),
        "tokens": sum(lengths),
    }
    if states:
        edges = np.cumsum(lengths)[:-1]
        answer["states"] = np.split(as_float32(reply["states"]), edges)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def logits_answer(model: str, logits: Array, tokens: int) -> bytes:
    """``logits [B, vocab]``."""
    answer = {"model": model, "logits": as_float32(logits), "tokens": tokens}
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def generation_answer(model: str, outputs: list[dict[str, Any]], logits: Array | None, tokens: int) -> bytes:
    """One object a text: ``text``, ``token_ids``, ``finished``; and ``logits [B, vocab]`` where asked for."""
    answer: dict[str, Any] = {"model": model, "outputs": outputs, "tokens": tokens}
    if logits is not None:
        answer["logits"] = as_float32(logits)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def check_size(manifest: Manifest, lengths: list[int], most_in_text: int) -> None:
    """Refuse what would not fit into the answer's memory, and a text of more tokens than a function takes at once
    (``most_in_text``; 0: any number). Raises BadInputError, TooLargeError."""
    if most_in_text and max(lengths) > most_in_text:
        raise TooLargeError(
            f"a text has {max(lengths)} tokens; the functions of this deployment take at most {most_in_text} at once "
            "(smoe_max_tokens)"
        )
    numbers = manifest.architecture.get("encoder", manifest.architecture)
    per_token = 2 * 4 * int(numbers["hidden_size"]) + 12 * manifest.router.calls
    most = (MAX_BYTES - 4096) // per_token
    if sum(lengths) > most:
        raise BadInputError(f"the texts have {sum(lengths)} tokens together; at most {most} go into one request")
    if manifest.task != "embedding":
        vocabulary = int(manifest.architecture.get("decoder", manifest.architecture)["vocab_size"])
        most = max(1, (MAX_BYTES - 4096) // (4 * vocabulary))
        if len(lengths) > most:
            raise BadInputError(f"inputs holds {len(lengths)} texts; at most {most} fit this model's logits")


def description(manifest: Manifest) -> bytes:
    """Answer to ``GET /``: what this model is and takes."""
    document = {
        "model": manifest.name,
        "task": manifest.task,
        "family": manifest.family,
        "layers": manifest.layers,
        "experts_per_layer": [len(manifest.experts(layer)) for layer in range(manifest.layers)],
        "top_k": manifest.router.top_k,
        "max_tokens": manifest.tokenizer.max_tokens if manifest.tokenizer else None,
        "max_texts": MAX_TEXTS,
        "fields": list(_ENCODER_FIELDS if manifest.task == "embedding" else _DECODER_FIELDS),
    }
    return orjson.dumps(document)


def _texts(document: Mapping[str, Any]) -> list[str]:
    inputs = document.get("inputs")
    if inputs is None:
        raise BadInputError('the field "inputs" is missing; it takes a text or a list of texts')
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadInputError(f"inputs is a JSON {_kind(inputs)}; it takes a text or a list of texts")
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise BadInputError(f"inputs holds {len(texts)} texts; allowed are 1 to {MAX_TEXTS}")
    return texts


def _flag(document: Mapping[str, Any], name: str) -> bool:
    value = document.get(name, False)
    if not isinstance(value, bool):
        raise BadInputError(f"{name} is {value!r}; it takes true or false")
    return value


def _number(document: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = document.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadInputError(f"{name} is {value!r}; it takes a whole number from {low} to {high}")
    return value


def _real(document: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = document.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise BadInputError(f"{name} is {value!r}; it takes a number from {low:g} to {high:g}")
    return float(value)


def _why_not_json(body: bytes | bytearray, error: orjson.JSONDecodeError) -> str:
    if not body:
        return 'the body is empty; it takes JSON such as {"inputs": "a text"}'
    try:
        bytes(body).decode("utf-8")
    except UnicodeDecodeError as where:
        return f"the body is not UTF-8 (byte {where.start})"
    return f"the body is not JSON: {error}"


def _kind(value: Any) -> str:
    kinds = {list: "array", str: "string", bool: "boolean", dict: "object", type(None): "null"}
    return kinds.get(type(value), "number")

"""Options of the command ``replay`` for token traces, and the questions that the pipeline answers before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp
import click

from traces.completions import Completions, TokenTargets, lengths_of, token_ids
from traces.errors import ReplayError
from traces.model import Trace
from traces.prompts import PromptSet

F = TypeVar("F", bound=Callable[..., Any])
CORPUS_TEXTS = 2000
"""Texts, drawn at random, whose tokens prompts are made of."""
COMPLETIONS = "/v1/completions"


def token_options(command: F) -> F:
    """The options that :class:`TokenOptions` holds."""
    more_than_zero = click.FloatRange(min=0, min_open=True)
    options = (
        click.option(
            "--send", type=click.Choice(["auto", "inputs", "completions"]), default="auto", show_default=True,
            help="Texts, or completions with the trace's token counts. auto: completions where the trace has token "
            "counts and PIPELINE is a decoder.",
        ),
        click.option("--ttft-ms", type=more_than_zero, default=None, help="Goodput: longest time to the first token."),
        click.option("--tpot-ms", type=more_than_zero, default=None, help="Goodput: longest time per output token."),
        click.option(
            "--length-divisor", type=click.FloatRange(min=1), default=None,
            help="Divide the trace's token counts. [default: 1]",
        ),
        click.option(
            "--tokenizer", type=click.Path(path_type=Path), default=None,
            help="tokenizer.json of the pipeline, or its folder. [default: STATE/pipelines/PIPELINE]",
        ),
    )  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True)
class TokenOptions:
    """How a token trace is sent."""

    send: Literal["auto", "inputs", "completions"] = "auto"
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    length_divisor: float | None = None
    tokenizer: Path | None = None

    @property
    def ask_for_completions(self) -> bool:
        """Whether one of the options makes no sense but for completions."""
        others = (self.ttft_ms, self.tpot_ms, self.length_divisor, self.tokenizer)
        return self.send == "completions" or any(option is not None for option in others)


@dataclass(frozen=True)
class Model:
    """What ``/v1/models`` of a function states; ``context`` in tokens, None where it is not stated."""

    name: str
    context: int | None


def completions_of(
    trace: Trace, texts: PromptSet, url: str, tokenizer: Path, options: TokenOptions, fields: Mapping[str, Any],
    seed: int, timeout_s: float,
) -> Completions | None:  # fmt: skip
    """What to send to the function at ``url`` as completions; None: it gets texts.

    ``tokenizer``: where it is expected without the option. Raises ReplayError where completions are asked for and
    cannot be sent.
    """
    must = options.ask_for_completions
    if options.send == "inputs":
        if any((options.ttft_ms, options.tpot_ms, options.length_divisor, options.tokenizer)):
            raise ReplayError("--ttft-ms, --tpot-ms, --length-divisor and --tokenizer do not go with --send inputs")
        return None
    if trace.context_tokens is None or trace.generated_tokens is None:
        if must:
            raise ReplayError(f"{trace.source} has no token counts; completions need a trace that has them")
        return None
    model = asyncio.run(_model(url, timeout_s, must=must))
    if model is None:
        return None
    divisor = options.length_divisor or 1.0
    completions = Completions(
        lengths_of(trace, divisor, model.context),
        token_ids(texts.choose(CORPUS_TEXTS, seed), options.tokenizer or tokenizer),
        seed,
        TokenTargets(_seconds(options.ttft_ms), _seconds(options.tpot_ms)),
        {"model": model.name, "temperature": 0, **fields},
    )
    ignores_eos = asyncio.run(_ignores_eos(f"{url}{COMPLETIONS}", completions, timeout_s))
    return replace(
        completions,
        fields={**completions.fields, "ignore_eos": True} if ignores_eos else completions.fields,
        facts={"length_divisor": divisor, "context": model.context, "ignore_eos": ignores_eos},
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _answer(method: str, url: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
    """Status and body of one call. Raises TimeoutError after ``timeout_s`` for the whole, aiohttp.ClientError."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
        session.request(method, url, json=body, allow_redirects=False) as reply,
    ):
        return reply.status, await reply.read()


async def _model(url: str, timeout_s: float, *, must: bool) -> Model | None:
    """The function's model where it writes texts. ``must``: any other outcome is a ReplayError."""
    model: Model | None = None
    address = f"{url}/v1/models"
    try:
        status, answer = await _answer("GET", address, timeout_s)
        reason = f"answered {status}: {_start(answer)}"
        if status == 200:
            document = json.loads(answer)["data"][0]
            context = document.get("max_model_len")
            if context is not None and type(context) is not int:
                raise ReplayError(f"{address} states a context of {str(context)[:60]!r} tokens, no whole number")
            model = Model(str(document["id"]), context)
    except (TimeoutError, aiohttp.ClientError) as error:
        reason = f"cannot be reached ({str(error)[:200] or type(error).__name__})"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        reason = f"gave no list of models ({type(error).__name__})"
    if must and model is None:
        raise ReplayError(f"{address} {reason}; completions need a decoder")
    return model if must or (model is not None and model.context is not None) else None


async def _ignores_eos(url: str, completions: Completions, timeout_s: float) -> bool:
    """Whether the API takes ``ignore_eos``, asked by a request of one token. Raises ReplayError where it refuses the
    request without it, too."""
    body = {**completions.fields, "prompt": completions.ids[:1].tolist(), "max_tokens": 1}
    for further in ({"ignore_eos": True}, {}):
        try:
            status, answer = await _answer("POST", url, timeout_s, {**body, **further})
        except (TimeoutError, aiohttp.ClientError):  # the replay records what happens to each request
            return False
        if status < 400:
            return bool(further)
        if status == 429:
            return False
    if status < 500 or status == 501:
        raise ReplayError(f"{url} answered {status}: {_start(answer)}")
    return False


def _start(answer: bytes) -> str:
    return answer[:300].decode("utf-8", "replace").strip()

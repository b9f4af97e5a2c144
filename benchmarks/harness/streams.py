"""Streamed completions as their client sees them, what functions count meanwhile, and what token traces ask for."""

from __future__ import annotations

import http.client
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from traces import catalog, loading
from traces.model import Trace, make_trace

WHOLE = "whole"


@dataclass
class Stream:
    """One text; seconds of the monotonic clock, which is the same in all processes of a machine."""

    due_s: float
    asked: int
    """Tokens that were asked for."""
    tokens_s: list[float] = field(default_factory=list)
    text: str = ""
    outcome: str = "broken"
    """``whole``, or why it is not."""


async def read(session: aiohttp.ClientSession, url: str, body: dict[str, Any], stream: Stream) -> None:
    """Send a completion's ``body`` and fill ``stream`` while it is written."""
    try:
        async with session.post(f"{url}/v1/completions", json={**body, "temperature": 0, "stream": True}) as reply:
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    document = orjson.loads(line[6:])
                    if "error" in document:
                        stream.outcome = f"error: {document['error']['message']}"
                        return
                    written = [choice["text"] for choice in document["choices"] if choice["text"]]
                    stream.tokens_s += [time.monotonic()] * len(written)
                    stream.text += "".join(written)
                elif line.startswith(b"data: [DONE]"):
                    stream.outcome = WHOLE
                elif line.strip() and reply.status != 200:
                    stream.outcome = f"{reply.status}: {line[:200]!r}"
    except (aiohttp.ClientError, TimeoutError) as error:
        stream.outcome = f"broken: {type(error).__name__} after {len(stream.tokens_s)} tokens"


def pieces(address: str, body: dict[str, Any]) -> Generator[str]:
    """The texts of a completion as they come, for threads. Raises OSError where it does not come whole, or not at all:
    its status and the answer's beginning."""
    with closing(http.client.HTTPConnection(address, timeout=600)) as connection:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", orjson.dumps({**body, "temperature": 0, "stream": True}), headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise OSError(f"the pipeline answered {reply.status}: {reply.read(300)!r}")
        for line in reply:
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: {"):
                document = orjson.loads(line[6:])
                if "error" in document:
                    raise OSError(f"the stream ended with an error: {document['error']['message']}")
                yield from (choice["text"] for choice in document["choices"] if choice["text"])
        raise OSError("the stream ended before its text did")


def session(timeout_s: float) -> aiohttp.ClientSession:
    """One for any number of streams, each of at most ``timeout_s``."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s), connector=aiohttp.TCPConnector(limit=0)
    )


def samples_of(address: str, prefixes: tuple[str, ...] = ("",)) -> list[Sample]:
    """What a function counts, of names that begin so. Raises requests.RequestException."""
    with requests.Session() as session:
        session.trust_env = False
        reply = session.get(f"http://{address}/metrics", timeout=10)
    reply.raise_for_status()
    lines = "\n".join(line for line in reply.text.splitlines() if line.startswith(prefixes))
    return [sample for family in text_string_to_metric_families(lines + "\n") for sample in family.samples]


def first_requests(name: str, data: Path | None, most: int, skip: int = 0) -> Trace:
    """The first ``most`` requests of a token trace that have an answer, after ``skip`` of them, from time 0 on."""
    trace = loading.load(catalog.resolve(name, data))
    assert trace.generated_tokens is not None and trace.context_tokens is not None
    kept = np.flatnonzero((trace.generated_tokens > 0) & (trace.context_tokens > 0))[skip:][:most]
    arrivals_s = trace.arrival_s[kept] - trace.arrival_s[kept[0]]
    return make_trace(
        arrivals_s,
        duration_s=float(arrivals_s[-1]),
        source=trace.source,
        context_tokens=trace.context_tokens[kept],
        generated_tokens=trace.generated_tokens[kept],
    )

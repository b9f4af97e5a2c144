"""``smoe chat``: a conversation with a deployed decoder in the terminal, token by token."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gateway.client.client import GatewayClient, lines_of
from gateway.client.errors import GatewayRefusedError
from smoe.commands.options import gateway_option, state_option


@click.command()
@click.argument("name", metavar="PIPELINE")
@click.option("--system", default=None, metavar="TEXT", help="What the model is asked to be, before all else.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="Of each answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0: the likeliest.")
@click.option("--seed", type=int, default=None, help="The same seed gives the same answers.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=120.0, show_default=True,
    help="Seconds for one answer.",
)  # fmt: skip
@state_option
@gateway_option
def chat(
    name: str,
    system: str | None,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    timeout_s: float,
    state: Path,
    gateway_url: str | None,
) -> None:
    """Talk to PIPELINE: a line is a message, the answer is printed as it is written; end with Ctrl-D."""
    client = GatewayClient(gateway_url) if gateway_url else GatewayClient.from_state(state)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    options = {"max_tokens": max_tokens, "temperature": temperature, "stream": True}
    if seed is not None:
        options["seed"] = seed
    asks = sys.stdin.isatty()
    while True:
        if asks:
            click.echo("> ", nl=False)
        line = sys.stdin.readline()
        if not line:
            return
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.strip()})
        answer = ""
        for text in _answer(client, name, {"messages": messages, **options}, timeout_s):
            answer += text
            click.echo(text, nl=False)
            sys.stdout.flush()
        click.echo()
        messages.append({"role": "assistant", "content": answer})


def _answer(client: GatewayClient, name: str, request: dict[str, Any], timeout_s: float) -> Iterator[str]:
    """Pieces of the answer as they come. Raises GatewayRefusedError."""
    body = json.dumps(request).encode()
    reply = client.invoke(f"{name}/v1/chat/completions", body, "application/json", timeout_s, stream=True)
    with reply:
        if reply.status_code >= 400:
            raise GatewayRefusedError(f"{name}: {_sentence(reply.content)}", reply.status_code)
        for line in lines_of(reply):
            data = line.removeprefix(b"data: ")
            if not data or data == b"[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise GatewayRefusedError(f"{name}: {event['error']['message']}", 502)
            yield event["choices"][0]["delta"].get("content") or ""


def _sentence(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode("utf-8", "replace")

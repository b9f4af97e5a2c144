"""``smoe invoke | logs``: a function's answers, and what it wrote meanwhile."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from gateway.client.client import GatewayClient, lines_of
from gateway.client.errors import GatewayRefusedError
from gateway.client.state import running_pid
from smoe.commands.lines import after_down, print_next
from smoe.commands.options import (
    connect,
    gateway_option,
    json_option,
    of_gateway,
    of_state,
    password_option,
    state_option,
)
from smoe.errors import SmoeError

NEW_TOKENS = 32
"""Tokens that ``invoke`` has a decoder write at most by default."""

SHOWN = 6
"""Numbers of an embedding, or logits, that ``invoke`` prints."""

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
"""How functions may be called; most texts are not."""


@click.command()
@click.argument("words", metavar="[PIPELINE] [TEXT]...", nargs=-1)
@click.option("--pipeline", "--name", "named", help="The same as PIPELINE, or any function; all words are TEXT then.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=0),
    help=f"Decoders: most tokens to write; 0: the next token's logits alone. [default: {NEW_TOKENS}]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 100),
    help="Decoders: 0 writes the likeliest token each time, more the less likely ones, too. [default: 0]",
)
@click.option(
    "--top-k", type=click.IntRange(min=0), help="Decoders: chooses among so many likeliest; 0: all. [default: 0]"
)
@click.option("--seed", type=click.IntRange(min=0), help="Decoders: the same one writes the same text. [default: 0]")
@click.option("--logits", is_flag=True, help="Decoders: show the likeliest first tokens too, with --json all logits.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.1), default=60.0, help="Seconds until the call is given up."
)
@state_option
@gateway_option
@json_option
def invoke(
    words: tuple[str, ...],
    named: str | None,
    max_new_tokens: int | None,
    logits: bool,
    timeout_s: float,
    state: Path,
    gateway_url: str | None,
    as_json: bool,
    **sampling: float | None,
) -> None:
    """Send TEXT to PIPELINE (by default minilm) and print the answer; several texts are one batch.

    Without TEXT the lines of standard input are sent. The first word is PIPELINE where one of that name is deployed,
    else text, too."""
    client = GatewayClient(gateway_url) if gateway_url else GatewayClient.from_state(state)
    name, texts, task = _called(client, words, named, timeout_s)
    request: dict[str, Any] = {"inputs": texts[0] if len(texts) == 1 else texts}
    with Console(stderr=True).status(f"waiting for {name}"):
        if max_new_tokens is None and (task or _task(client, name, timeout_s)) in ("causal-lm", "seq2seq-lm"):
            max_new_tokens = NEW_TOKENS
        if max_new_tokens:
            request["max_new_tokens"] = max_new_tokens
        request |= {option: value for option, value in sampling.items() if value is not None}
        request |= {"logits": True} if logits else {}
        response = client.invoke(name, json.dumps(request).encode(), "application/json", timeout_s)
    if response.status_code >= 400:
        hint = (
            "; smoe status lists what is there, smoe invoke PIPELINE TEXT calls it"
            if response.status_code == 404
            else ""
        )
        raise GatewayRefusedError(
            f"{name} answered {response.status_code}: {response.text[:500].strip()}{hint}", response.status_code
        )
    if as_json:
        click.echo(response.text)
        return
    try:
        document = response.json()
    except ValueError:  # a function that is no pipeline's
        click.echo(response.text)
        return
    _print_answer(document, texts)
    print_next(after_invoke(name, of_gateway(state, gateway_url)))


def after_invoke(name: str, where: str) -> str:
    """What to do after pipeline ``name`` has answered; ``where``: the option that leads to its gateway."""
    return f"next: `smoe status{where}` shows what each function did, `smoe top {name}{where}` watches them"


def _called(
    client: GatewayClient, words: Sequence[str], named: str | None, timeout_s: float
) -> tuple[str, list[str], str | None]:
    """The function that ``words`` are for, the texts among them, or on standard input, and the function's task where it
    was asked for. Raises click.UsageError."""
    texts, task = list(words), None
    if named is None and texts and _NAME.fullmatch(texts[0]):
        task = _task(client, texts[0], timeout_s)
        if task is not None:
            named = texts.pop(0)
    if not texts:
        if sys.stdin.isatty():
            click.echo("a text a line; Ctrl-D ends", err=True)
        texts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not texts:
        raise click.UsageError("no text: give it as argument or on standard input")
    return named or "minilm", texts, task


def _task(client: GatewayClient, name: str, timeout_s: float) -> str | None:
    """What a pipeline of that name does; None: there is none."""
    return client.describe(name, timeout_s).get("task")


@click.command()
@click.argument("name")
@click.option("--tail", type=click.IntRange(min=0), default=50, help="Lines from the end; 0 = all.")
@click.option("--follow", "-f", is_flag=True, help="Keep printing.")
@state_option
@gateway_option
@password_option
def logs(name: str, tail: int, follow: bool, state: Path, gateway_url: str | None, password_file: Path | None) -> None:
    """Show the log of function NAME."""
    if gateway_url is None and running_pid(state) is None:
        _stored_log(state, name, tail)
        print_next(after_down(of_state(state)))
        return
    client = connect(state, gateway_url, password_file)
    shown = 0
    for line in lines_of(client.logs(name, tail, follow)):
        if line:
            entry = json.loads(line)
            click.echo(f"{entry['timestamp']} {entry['instance']} {entry['text']}")
            shown += 1
    if not shown:
        click.echo(f"{name} has logged nothing yet", err=True)
    print_next(after_logs(name, of_gateway(state, gateway_url)))


def after_logs(name: str, where: str) -> str:
    """What to do after the log of function ``name``; ``where``: the option that leads to its gateway."""
    return f"next: `smoe logs {name} --follow{where}` keeps printing, `smoe status{where}` shows its calls and limits"


def _stored_log(state: Path, name: str, tail: int) -> None:
    """What replicas of a gateway that has ended logged. Raises SmoeError where there is nothing."""
    folders = [path for path in (state / "logs").glob(f"{name}.*") if path.name.rpartition(".")[0] == name]
    files = [file for folder in folders for file in folder.glob("*.log")]
    lines = sorted(
        f"{stamp} {file.stem} {text}"
        for file in files
        for stamp, _, text in (line.partition(" ") for line in file.read_text(errors="replace").splitlines())
    )
    if not lines:
        raise SmoeError(f"no gateway runs on {state}, and {name} has left no log there")
    click.echo(f"no gateway runs on {state}; from the files of the last one:", err=True)
    for line in lines[-tail:] if tail > 0 else lines:
        click.echo(line)


def _print_answer(answer: dict[str, Any], texts: list[str]) -> None:
    if "embeddings" in answer:
        for text, embedding in zip(texts, answer["embeddings"], strict=True):
            head = ", ".join(f"{value:+.4f}" for value in embedding[:SHOWN])
            click.echo(f"[{head}, …] ({len(embedding)} numbers)  {text[:60]}")
        return
    if "outputs" in answer:
        for output in answer["outputs"]:
            click.echo(output["text"])
    for values in answer.get("logits", ()):
        likeliest = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:SHOWN]
        head = ", ".join(f"{token}: {values[token]:+.4f}" for token in likeliest)
        click.echo(f"logits of the likeliest tokens: {head}, … ({len(values)} numbers)")
    if "outputs" in answer or "logits" in answer:
        return
    click.echo(json.dumps(answer, indent=2, ensure_ascii=False))

"""The command ``replay``: options in, an open-loop replay, two files and a summary out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import requests
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from platform_words.durations import duration
from traces import catalog, loading, prompts, scale
from traces import replay as client
from traces.arrival_process import Placement
from traces.completions import Completions
from traces.errors import ReplayError
from traces.model import Trace
from traces.options import clip_options, data_option, json_option, placement_option, seed_option
from traces.results import CsvSink
from traces.token_options import COMPLETIONS, TokenOptions, completions_of, token_options
from traces.token_results import token_rows

GATEWAY = "http://127.0.0.1:8080"
DEFAULT_STATE = Path(".smoe")


@click.command()
@click.argument("function", metavar="PIPELINE")
@click.option("--gateway", "gateway_url", help=f"Address of the gateway. [default: the state folder's, else {GATEWAY}]")
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=DEFAULT_STATE,
    help="State folder: where the gateway listens.",
)
@click.option("--trace", "trace_name", help="Data set or file. [default: the bursty hour of the main job]")
@clip_options
@data_option
@placement_option
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Time compression; keeps the CV."
)
@click.option(
    "--max-rps", type=click.FloatRange(min=0, min_open=True), help="Thin the trace to this mean rate (changes the CV)."
)
@click.option(
    "--texts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of prompt sets. [default: DATA/text, else synthetic sentences]",
)
@click.option("--max-words", type=click.IntRange(1, 100_000), default=64, help="Longest text in words.")
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="KEY=JSON",
    help="Further field of the request body, e.g. max_new_tokens=8.",
)
@click.option(
    "--lengths",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="ServeGen: table that requests get their token counts from (lengths_by_client_window.csv.gz).",
)
@token_options
@click.option(
    "--slo-ms", type=click.FloatRange(min=0, min_open=True), help="Latency target; reports the share within it."
)
@click.option("--connections", type=click.IntRange(1, 10_000), default=256, help="Most connections at once.")
@click.option("--timeout-s", type=click.FloatRange(min=0, min_open=True), default=30.0, help="Per request.")
@click.option("--retries", type=click.IntRange(0, 10), default=0, help="After a 429 or a refused connection.")
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    help="Folder of requests.csv and replay.json.",
)
@json_option
def replay(
    function: str,
    gateway_url: str | None,
    state: Path,
    trace_name: str | None,
    row: str | None,
    start_s: float | None,
    duration_s: float | None,
    data: Path | None,
    placement: Any,
    speed: float,
    max_rps: float | None,
    texts: Path | None,
    max_words: int,
    fields: tuple[str, ...],
    lengths: Path | None,
    slo_ms: float | None,
    connections: int,
    timeout_s: float,
    retries: int,
    seed: int,
    out: Path,
    as_json: bool,
    **tokens: Any,
) -> None:
    """Send texts, or completions of a trace's token counts, to PIPELINE (or any function, by its name) at the trace's
    arrival times, open loop.

    Writes OUT/requests.csv (every request) and OUT/replay.json (the summary). Ctrl-C stops sending and closes with
    what is there. Exit status 1 when a request failed, 130 when it was stopped.
    """
    # Longer than other functions, as each option is an argument on a line of its own.
    folder = catalog.data_folder(data)
    part = Part(trace_name, row, start_s, duration_s, placement, seed, lengths)
    trace = load_part(part, folder)
    if max_rps is not None:
        trace = scale.at_most(trace, max_rps / speed, seed)
    chosen = prompts.load_prompts(texts or catalog.text_folder(folder), max_words)
    url = f"{(gateway_url or _address(state)).rstrip('/')}/function/{function}"
    settings = client.ReplaySettings(
        url=url,
        speed=speed,
        connections=connections,
        timeout_s=timeout_s,
        retries=retries,
        slo_s=slo_ms / 1000 if slo_ms is not None else None,
        seed=seed,
        fields=dict(_field(text) for text in fields),
    )
    client.check(settings)
    expected = state / "pipelines" / function
    completions = completions_of(trace, chosen, url, expected, TokenOptions(**tokens), settings.fields, seed, timeout_s)
    if completions is None:
        _preflight(settings, chosen.choose(1, seed)[0])
    else:
        settings = replace(settings, url=f"{url}{COMPLETIONS}", fields={})
    summary = _replay(trace, chosen, completions, settings, out, without_progress=as_json)
    of_state = "" if state == DEFAULT_STATE else f" --state {state}"
    _close(summary, out, as_json, next_step(function, of_state) if expected.is_dir() else "")


def next_step(pipeline: str, of_state: str) -> str:
    """What to do after a replay; ``of_state``: the option that names the state folder."""
    return (
        f"next: `smoe autoscale {pipeline}{of_state} --slo-ms MS` in another terminal scales the pipeline while you "
        f"replay again, `smoe top {pipeline}{of_state}` watches it"
    )


def _close(summary: dict[str, Any], out: Path, as_json: bool, then: str) -> None:
    """Show the summary and what to do next, and end with the status that the command's help names."""
    if as_json:
        click.echo(json.dumps(summary))
    else:
        print_summary(summary, out)
        if then:
            click.echo(then, err=True)
    if not summary["complete"]:
        raise SystemExit(130)
    if summary["failed"]:
        raise SystemExit(1)


def _address(state: Path) -> str:
    """Address of the gateway that runs on a state folder, else the usual one."""
    try:
        return str(json.loads((state / "gateway.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        return GATEWAY


def _preflight(settings: client.ReplaySettings, text: str) -> None:
    """One request before all others. Raises ReplayError for what every other request would meet, too: an answer that
    refuses it, or nobody who listens there."""
    try:
        with requests.Session() as session:
            session.trust_env = False
            body = {"inputs": text, **settings.fields}
            reply = session.post(settings.url, json=body, timeout=settings.timeout_s)
    except requests.ConnectionError as error:
        if isinstance(error, requests.Timeout):
            return
        raise ReplayError(
            f"nothing answers at {settings.url}: start a gateway with `smoe up`, or name one with --gateway or --state"
        ) from error
    except requests.RequestException:  # the replay records what happens to each request
        return
    if client.judge(reply.status_code) == "client_error":
        raise ReplayError(f"{settings.url} answered {reply.status_code}: {reply.text.strip()[:300]}")


@dataclass(frozen=True)
class Part:
    """Which arrivals are meant; ``name`` None is the bursty hour of the main job."""

    name: str | None
    row: str | None
    start_s: float | None
    duration_s: float | None
    placement: Placement
    seed: int
    lengths: Path | None = None


def load_part(part: Part, folder: Path | None) -> Trace:
    if part.name is not None:
        return loading.load(
            catalog.resolve(part.name, folder),
            row=part.row,
            start_s=part.start_s,
            duration_s=part.duration_s,
            placement=part.placement,
            seed=part.seed,
            lengths=part.lengths,
        )
    if part.row is not None:
        raise ReplayError("--row chooses a row of a trace: name the trace with --trace")
    if part.lengths is not None:
        raise ReplayError("--lengths belongs to a ServeGen trace: name it with --trace")
    trace = catalog.bursty_hour(folder, part.placement, part.seed)
    if part.start_s is None and part.duration_s is None:
        return trace
    begin = part.start_s or 0.0
    return trace.clip(begin, begin + (part.duration_s or trace.duration_s))


def _replay(
    trace: Trace,
    texts: prompts.PromptSet,
    completions: Completions | None,
    settings: client.ReplaySettings,
    out: Path,
    *,
    without_progress: bool,
) -> dict[str, Any]:
    """Run it and store both files; the summary."""
    with CsvSink(out / "requests.csv") as sink:
        sent = completions or texts.choose(max(1, trace.requests), settings.seed)
        result = _run(_with_progress(trace, sent, settings, sink, without_progress=without_progress))
    summary = {**result.summary, "texts": texts.source}
    (out / "replay.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _field(text: str) -> tuple[str, Any]:
    key, mark, value = text.partition("=")
    try:
        if not mark or not key:
            raise ValueError("no '='")
        return key, json.loads(value)
    except ValueError as error:
        raise ReplayError(f"--field {text!r}: KEY=JSON is needed, e.g. max_new_tokens=8 ({error})") from error


def _run(work: Any) -> client.ReplayResult:
    """On uvloop where it is installed: it halves the client's share of the machine that is being measured."""
    try:
        import uvloop

        factory = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        result: client.ReplayResult = runner.run(work)
        return result


async def _with_progress(
    trace: Trace,
    texts: list[str] | Completions,
    settings: client.ReplaySettings,
    sink: CsvSink,
    *,
    without_progress: bool,
) -> client.ReplayResult:
    stop = asyncio.Event()
    started: list[client.Progress] = []
    async with _stop_on_interrupt(stop):
        work = asyncio.create_task(
            client.replay(trace, texts, settings, on_record=sink.add, on_start=started.append, stop=stop)
        )
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[extra]}"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, disable=without_progress, console=Console(stderr=True)) as bar:
            task = bar.add_task("replay", total=trace.requests, extra="")
            while not work.done():
                await asyncio.wait((work,), timeout=0.25)
                if started:
                    bar.update(task, completed=started[0].done, extra=_extra(started[0]))
        return await work


def _extra(progress: client.Progress) -> str:
    recent = progress.recent_latency_s(10.0)
    latency = f"P95 of 10 s {duration(recent['p95'])}" if recent else "no answers in 10 s"
    return f"{progress.in_flight} in flight, {progress.failed} failed, {latency}"


@contextlib.asynccontextmanager
async def _stop_on_interrupt(stop: asyncio.Event) -> AsyncIterator[None]:
    """The first Ctrl-C or SIGTERM sets ``stop``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def print_summary(summary: dict[str, Any], out: Path) -> None:
    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    state = "complete" if summary["complete"] else "stopped early"
    table.add_row("requests", f"{summary['requests']} of {summary['planned']} ({state}), {summary['failed']} failed")
    others = {kind: count for kind, count in summary["outcomes"].items() if kind != "ok"}
    if others:
        table.add_row("not ok", ", ".join(f"{count} {kind}" for kind, count in others.items()))
    if others.get("rejected"):
        table.add_row("rejected", "429: more calls at once than the function takes (smoe up --ingress-concurrency)")
    if others.get("timeout"):
        load = f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores"
        table.add_row("timeout", f"no answer in --timeout-s: send less (--max-rps), or free this machine ({load})")
    for name, key in (("latency", "latency_s"), ("since due", "from_schedule_s"), ("client late", "lateness_s")):
        numbers = summary[key]
        if numbers:
            table.add_row(
                name, ", ".join(f"{part.upper()} {duration(numbers[part])}" for part in ("p50", "p95", "p99"))
            )
    for name, text in token_rows(summary["generation"]) if "generation" in summary else ():
        table.add_row(name, text)
    if summary["slo_attainment"] is not None:
        table.add_row("within SLO", f"{summary['slo_attainment']:.1%} of requests in {duration(summary['slo_s'])}")
    if summary["answered_rps"]:
        table.add_row("rate", f"{summary['answered_rps']:.1f} answers/s, client CPU {summary['client_cpu_s']:.1f} s")
    table.add_row("trace", f"{summary['trace']['source']} (sha256 {summary['trace']['sha256'][:12]})")
    table.add_row("written", f"{out / 'requests.csv'}, {out / 'replay.json'}")
    console.print(table)

"""The commands ``replay`` and ``traces``; the ``smoe`` command line mounts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from traces import arrivals, catalog, loading, patterns, plots, prompts, scale
from traces import replay as client
from traces.errors import ReplayError, TraceError
from traces.results import CsvSink, describe
from traces.trace import PATTERNS, Trace

SPLITS = ("train", "validation", "test")

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"Folder of the public traces. [default: ${catalog.DATA_VARIABLE}, else {catalog.USUAL_PLACE} if there]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
seed_option = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of all random choices."
)
placement_option = click.option(
    "--placement",
    type=click.Choice(("uniform", "even")),
    default="uniform",
    show_default=True,
    help="Where per-minute counts lie inside their minute.",
)


def clip_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which part of a file is meant."""
    for option in reversed(
        [
            click.option("--row", default=None, help="Function, RowId or client (a leading part is enough)."),
            click.option("--start-s", type=click.FloatRange(min=0), default=None, help="Begin of the clip in seconds."),
            click.option("--duration-s", type=click.FloatRange(min=0, min_open=True), default=None, help="Its length."),
        ]
    ):
        command = option(command)
    return command


@click.group()
def traces() -> None:
    """List, pick and describe request traces.

    A TRACE is a data set's name (`smoe traces list`) or a file: Azure Functions per-minute counts, Azure LLM
    requests, ServeGen window statistics, or arrivals as `smoe traces pick --out` writes them. Plain or gzip.
    """


@traces.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """Show which data sets are there."""
    found = catalog.datasets(catalog.data_folder(data))
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"name": d.name, "path": str(d.path), "format": d.format, "measured": d.measured, "about": d.about}
                    for d in found
                ]
            )
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "format", "", "what"):
        table.add_column(column, no_wrap=column != "what")
    for dataset in found:
        table.add_row(dataset.name, dataset.format, "measured" if dataset.measured else "made", dataset.about)
    Console().print(table)


@traces.command("describe")
@click.argument("trace")
@clip_options
@data_option
@placement_option
@seed_option
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), default=None, help="PNG of requests per second."
)
@json_option
def describe_(
    trace: str,
    row: str | None,
    start_s: float | None,
    duration_s: float | None,
    data: Path | None,
    placement: Any,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Count, rate, CV of inter-arrival times and pattern of a TRACE or a part of it."""
    path = catalog.resolve(trace, catalog.data_folder(data))
    loaded = loading.load(path, row=row, start_s=start_s, duration_s=duration_s, placement=placement, seed=seed)
    _plot(loaded, plot)
    _show([describe(loaded)], as_json)


@traces.command("pick")
@click.argument("trace")
@click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="bursty",
    show_default=True,
    help="slow CV<1, normal 1-3, bursty >=3.",
)
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many hours.")
@click.option(
    "--requests",
    nargs=2,
    type=click.IntRange(min=3),
    default=(300, 20_000),
    show_default=True,
    help="Fewest and most requests.",
)
@click.option(
    "--split", type=click.Choice(SPLITS), default=None, help="Only rows of this split; a row is in exactly one."
)
@data_option
@placement_option
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the (first) hour as arrivals, .csv or .csv.gz.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), default=None, help="PNG of requests per second."
)
@json_option
def pick_(
    trace: str,
    pattern: str,
    count: int,
    requests: tuple[int, int],
    split: Any,
    data: Path | None,
    placement: Any,
    seed: int,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Pick one-hour clips of a pattern out of a TRACE at random (seeded)."""
    chosen = patterns.pick(
        catalog.resolve(trace, catalog.data_folder(data)),
        catalog.allowed(pattern),
        count=count,
        min_requests=requests[0],
        max_requests=requests[1],
        seed=seed,
        split=split,
        placement=placement,
    )
    if out is not None:
        arrivals.write_arrivals(chosen[0][1], out)
    _plot(chosen[0][1], plot)
    _show(
        [
            {"row": clip.row, "start_s": clip.start_s, "split": patterns.split_of(clip.row), **describe(hour)}
            for clip, hour in chosen
        ],
        as_json,
    )


def _plot(trace: Trace, path: Path | None) -> None:
    if path is not None:
        cv = trace.iat_cv
        about = f"CV {cv:.2f}, {trace.pattern}" if cv is not None else "too few requests for a CV"
        plots.plot_arrivals(trace, path, f"{trace.source}: {trace.requests} requests, {about}")


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found[0] if len(found) == 1 else found))
        return
    console = Console()
    for entry in found:
        table = Table(box=None, show_header=False, pad_edge=False)
        for key, value in entry.items():
            if value is not None:
                table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
        console.print(table)


@click.command()
@click.argument("function")
@click.option(
    "--gateway", "gateway_url", default="http://127.0.0.1:8080", show_default=True, help="Address of the gateway."
)
@click.option(
    "--trace", "trace_name", default=None, help="Data set or file. [default: the bursty hour of the main job]"
)
@clip_options
@data_option
@placement_option
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Time compression; keeps the CV.",
)
@click.option(
    "--max-rps",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Thin the trace to this mean rate (changes the CV).",
)
@click.option(
    "--texts",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of prompt sets. [default: DATA/text, else made sentences]",
)
@click.option(
    "--max-words", type=click.IntRange(1, 100_000), default=64, show_default=True, help="Longest text in words."
)
@click.option(
    "--field",
    "fields",
    multiple=True,
    metavar="KEY=JSON",
    help="Further field of the request body, e.g. max_new_tokens=8.",
)
@click.option(
    "--slo-ms",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Latency target; reports the share within it.",
)
@click.option(
    "--connections", type=click.IntRange(1, 10_000), default=256, show_default=True, help="Most connections at once."
)
@click.option(
    "--timeout-s", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True, help="Per request."
)
@click.option(
    "--retries", type=click.IntRange(0, 10), default=0, show_default=True, help="After a 429 or a refused connection."
)
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Folder of requests.csv and replay.json.",
)
@json_option
def replay(
    function: str,
    gateway_url: str,
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
    slo_ms: float | None,
    connections: int,
    timeout_s: float,
    retries: int,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Send texts to FUNCTION at a trace's arrival times, open loop.

    Writes OUT/requests.csv (every request) and OUT/replay.json (the summary). Ctrl-C stops sending and closes with
    what is there. Exit status 1 when a request failed.
    """
    folder = catalog.data_folder(data)
    if trace_name is None:
        trace = catalog.bursty_hour(folder, placement, seed)
        if start_s is not None or duration_s is not None:
            begin = start_s or 0.0
            trace = trace.clip(begin, begin + (duration_s or trace.duration_s))
    else:
        trace = loading.load(
            catalog.resolve(trace_name, folder),
            row=row, start_s=start_s, duration_s=duration_s, placement=placement, seed=seed,
        )  # fmt: skip
    if max_rps is not None:
        trace = scale.thin(trace, min(1.0, max_rps / (trace.mean_rps * speed)), seed) if trace.requests else trace
    chosen = prompts.load_prompts(texts or _text_folder(folder), max_words)
    settings = client.ReplaySettings(
        url=f"{gateway_url.rstrip('/')}/function/{function}",
        speed=speed,
        connections=connections,
        timeout_s=timeout_s,
        retries=retries,
        slo_s=slo_ms / 1000 if slo_ms is not None else None,
        seed=seed,
        fields=dict(_field(text) for text in fields),
    )
    client.check(settings)
    with CsvSink(out / "requests.csv") as sink:
        result = _run(_with_progress(trace, chosen.choose(max(1, trace.requests), seed), settings, sink, quiet=as_json))
    summary = {**result.summary, "texts": chosen.source, "max_words": max_words}
    (out / "replay.json").write_text(json.dumps(summary, indent=1) + "\n")
    click.echo(json.dumps(summary)) if as_json else _print_summary(summary, out)
    if summary["failed"]:
        raise SystemExit(1)


def _text_folder(data: Path | None) -> Path | None:
    folder = data / "text" if data is not None else None
    return folder if folder is not None and folder.is_dir() else None


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
    trace: Trace, texts: list[str], settings: client.ReplaySettings, sink: CsvSink, *, quiet: bool
) -> client.ReplayResult:
    stop = asyncio.Event()
    seen: list[client.Progress] = []
    async with _stop_on_interrupt(stop):
        work = asyncio.create_task(
            client.replay(trace, texts, settings, on_record=sink.add, on_start=seen.append, stop=stop)
        )
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[extra]}"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, disable=quiet, console=Console(stderr=True)) as bar:
            task = bar.add_task("replay", total=trace.requests, extra="")
            while not work.done():
                await asyncio.wait((work,), timeout=0.25)
                if seen:
                    bar.update(task, completed=seen[0].done, extra=_extra(seen[0]))
        return await work


def _extra(progress: client.Progress) -> str:
    recent = progress.recent_latency_s(10.0)
    latency = f"P95 of 10 s {recent['p95'] * 1000:.0f} ms" if recent else "no answers in 10 s"
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


def _print_summary(summary: dict[str, Any], out: Path) -> None:
    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    state = "complete" if summary["complete"] else "stopped early"
    table.add_row("requests", f"{summary['requests']} of {summary['planned']} ({state}), {summary['failed']} failed")
    others = {kind: count for kind, count in summary["outcomes"].items() if kind != "ok"}
    if others:
        table.add_row("not ok", ", ".join(f"{count} {kind}" for kind, count in others.items()))
    for name, key in (("latency", "latency_s"), ("since due", "from_schedule_s"), ("client late", "lateness_s")):
        numbers = summary[key]
        if numbers:
            table.add_row(
                name, ", ".join(f"{part.upper()} {numbers[part] * 1000:.1f} ms" for part in ("p50", "p95", "p99"))
            )
    if summary["slo_attainment"] is not None:
        table.add_row("within SLO", f"{summary['slo_attainment']:.1%} of requests in {summary['slo_s'] * 1000:g} ms")
    if summary["answered_rps"]:
        table.add_row("rate", f"{summary['answered_rps']:.1f} answers/s, client CPU {summary['client_cpu_s']:.1f} s")
    table.add_row("trace", f"{summary['trace']['source']} (sha256 {summary['trace']['sha256'][:12]})")
    table.add_row("written", f"{out / 'requests.csv'}, {out / 'replay.json'}")
    console.print(table)


__all__ = ["TraceError", "replay", "traces"]

"""``smoe status``: functions, replicas and limits, and what their calls were. Experts and segments are called by the
ingress and not through the gateway, so their calls, tokens and latencies are read from the ingresses' metrics."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.box import SIMPLE
from rich.table import Table

from autoscaler.monitor.growth import Samples
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.state.quantiles import histogram_quantile
from functions.serving import metric_names as ingress
from gateway.client.client import GatewayClient
from moe.names import INGRESS
from platform_words.labels import PIPELINE_LABEL
from smoe.commands.lines import print_next, print_table
from smoe.commands.options import connect, gateway_option, json_option, of_gateway, password_option, state_option
from smoe.errors import SmoeError
from smoe.view.instances import generation_of, instances_table, rows_of, words_of

Functions = Sequence[Mapping[str, Any]]


@dataclass
class Work:
    """What a function's nodes did since their ingresses started."""

    calls: float = 0.0
    tokens: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)
    """Upper bound in seconds → calls up to it."""

    @property
    def p95_s(self) -> float | None:
        return histogram_quantile(0.95, tuple(sorted(self.buckets.items())))


@click.command()
@click.argument("name", metavar="[PIPELINE]", required=False)
@state_option
@gateway_option
@password_option
@click.option("--verbose", "-v", is_flag=True, help="Also print what this gateway notes about itself.")
@json_option
def status(
    name: str | None, state: Path, gateway_url: str | None, password_file: Path | None, verbose: bool, as_json: bool
) -> None:
    """Show functions, replicas, limits, calls, load and latency; of PIPELINE alone, or of all. Exit status 1 when one
    of them has no ready replica.

    Calls, share (of the tokens of an expert's layer) and P95 count from the ingress's start.
    """
    client = connect(state, gateway_url, password_file)
    functions = sorted(client.functions(), key=lambda function: (_pipeline(function), *_place(function)))
    if name is not None:
        functions = _of_pipeline(functions, name, client.url)
    waiting = [function["name"] for function in functions if not function.get("availableReplicas")]
    samples = _samples(client)
    work, unread = work_of(functions, *samples), unread_pipelines(functions, *samples)
    if as_json:
        done = {name: {"calls": one.calls, "tokens": one.tokens, "p95_s": one.p95_s} for name, one in work.items()}
        click.echo(
            json.dumps({"gateway": client.url, "info": client.info(), "functions": functions, "work": done}, indent=2)
        )
    else:
        print_table(functions_table(client.url, functions, work, unread))
        _print_instances(client, functions)
        for note in client.info().get("notes", []) if verbose else ():
            click.echo(f"note: {note}")
    if unread:
        names = ", ".join(sorted(unread))
        click.echo(f"the ingress of {names} did not answer with its metrics: calls beyond it are unknown (–)", err=True)
    if waiting:
        click.echo(f"{len(waiting)} functions have no ready replica: {', '.join(waiting[:8])}", err=True)
    if not as_json:
        pipelines = [name for function in functions if (name := _pipeline(function))]
        print_next(after_status(waiting, pipelines, of_gateway(state, gateway_url)))
    if waiting:
        sys.exit(1)


def _of_pipeline(functions: Sequence[dict[str, Any]], name: str, url: str) -> list[dict[str, Any]]:
    """Raises SmoeError where there are none."""
    of_it = [function for function in functions if name and _pipeline(function) == name]
    if of_it:
        return of_it
    there = sorted({pipeline for function in functions if (pipeline := _pipeline(function))})
    raise SmoeError(
        f"no function of a pipeline called {name!r} is deployed at {url}; there: {', '.join(there) or 'no pipeline'}"
    )


def after_status(waiting: Sequence[str], pipelines: Sequence[str], where: str) -> str:
    """What to do next, by the functions without a ready replica and the pipelines that are deployed; ``where``: the
    option that leads to the gateway."""
    if waiting:
        return f"next: `smoe logs {waiting[0]}{where}` has what the first of them wrote"
    if not pipelines:
        return f"next: `smoe pipeline deploy{where}` deploys the default pipeline"
    return f"next: `smoe top {pipelines[0]}{where}` watches it, `smoe autoscale {pipelines[0]}{where}` scales it"


def _print_instances(client: GatewayClient, functions: Functions) -> None:
    """A table for each pipeline whose texts are scheduled over instances."""
    for function in functions:
        if (function.get("envVars") or {}).get("smoe_schedule"):
            document = generation_of(client, function["name"])
            if document is not None:
                click.echo(words_of(document))
                print_table(instances_table(rows_of(document)))


def _samples(client: GatewayClient) -> list[Samples]:
    """Samples of every target; none where the gateway names none, as OpenFaaS's own does not."""
    return ScrapeSource(client.url, client.auth).latest(time.time())


def work_of(functions: Functions, *samples: Samples) -> dict[str, Work]:
    """By function; functions whose ingress has counted nothing, or is not scraped, are left out."""
    by_node: dict[tuple[str, str], Work] = defaultdict(Work)
    for (name, pairs), value in (item for one in samples for item in one.items()):
        labels = dict(pairs)
        work = by_node[labels.get("pipeline", ""), labels.get("node", INGRESS)]
        if name in (ingress.NODE_CALLS, ingress.REQUESTS):
            work.calls += value
        elif name in (ingress.NODE_TOKENS, ingress.REQUEST_TOKENS):
            work.tokens += value
        elif name in (f"{ingress.NODE_CALL_SECONDS}_bucket", f"{ingress.REQUEST_SECONDS}_bucket"):
            bound = float(labels["le"])
            work.buckets[bound] = work.buckets.get(bound, 0.0) + value
    work_by_name = {}
    for function in functions:
        keys = [(_pipeline(function), node) for node in _nodes(function)]
        parts = [by_node[key] for key in keys if key in by_node]
        if parts:
            work_by_name[function["name"]] = _sum(parts)
    return work_by_name


def unread_pipelines(functions: Functions, *samples: Samples) -> set[str]:
    """Pipelines that were called through the gateway and of whose ingresses nothing could be read."""
    called = {_pipeline(function) for function in functions if function.get("invocationCount")}
    return called - {dict(pairs).get("pipeline", "") for one in samples for _, pairs in one} - {""}


def _sum(parts: Iterable[Work]) -> Work:
    total = Work()
    for part in parts:
        total.calls += part.calls
        total.tokens += part.tokens
        for bound, count in part.buckets.items():
            total.buckets[bound] = total.buckets.get(bound, 0.0) + count
    return total


def _pipeline(function: Mapping[str, Any]) -> str:
    return str((function.get("labels") or {}).get(PIPELINE_LABEL, ""))


def _nodes(function: Mapping[str, Any]) -> list[str]:
    named = str((function.get("envVars") or {}).get("smoe_nodes", ""))
    return [node.strip() for node in named.split(",") if node.strip()] or [INGRESS]


def _place(function: Mapping[str, Any]) -> tuple[int, int, str]:
    """The ingress first, then layer by layer, the segment before its experts."""
    numbers = [int(part) for part in _nodes(function)[0].split("-")[1:] if part.isdigit()]  # segment-I, expert-L-J
    layer, expert = [*numbers, -1, -1][:2] if len(numbers) != 1 else (numbers[0], -1)
    return layer, expert, str(function["name"])


def _calls(function: Mapping[str, Any], done: Work | None, unread: Collection[str]) -> str:
    """Calls that an ingress counted, else those through the gateway; a dash where neither is known."""
    if done is not None:
        return f"{done.calls:.0f}"
    if _pipeline(function) in unread and INGRESS not in _nodes(function):
        return "–"
    return f"{function.get('invocationCount', 0):.0f}"


def functions_table(url: str, functions: Functions, work: Mapping[str, Work], unread: Collection[str] = ()) -> Table:
    table = Table(
        title=f"{len(functions)} functions at {url}",
        title_justify="left",
        box=SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("function", no_wrap=True)
    for column in ("ready", "calls", "share", "P95 ms", "memory", "cpu", "slots"):
        table.add_column(column, justify="right", no_wrap=True)
    layers: dict[tuple[str, int], float] = defaultdict(float)
    for function in functions:
        if _is_expert(function) and function["name"] in work:
            layers[_pipeline(function), _place(function)[0]] += work[function["name"]].tokens
    before = None
    for function in functions:
        layer = _pipeline(function), _place(function)[0]
        if before not in (None, layer):
            table.add_section()
        before = layer
        limits, done = function.get("limits") or {}, work.get(function["name"])
        ready = function.get("availableReplicas", 0)
        tokens = layers[layer] if _is_expert(function) else 0.0
        table.add_row(
            function["name"],
            f"{ready}/{function.get('replicas', 0)}",
            _calls(function, done, unread),
            f"{done.tokens / tokens:.0%}" if done is not None and tokens else "",
            f"{done.p95_s * 1000:.0f}" if done is not None and done.p95_s is not None else "",
            limits.get("memory", ""),
            limits.get("cpu", ""),
            (function.get("envVars") or {}).get("max_inflight", ""),
            style=None if ready else "red",
        )
    return table


def _is_expert(function: Mapping[str, Any]) -> bool:
    return all(node.startswith("expert-") for node in _nodes(function))

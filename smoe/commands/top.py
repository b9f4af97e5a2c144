"""``smoe top``: the live view of a pipeline that runs somewhere; it only looks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import click

from autoscaler.build import build_controller
from autoscaler.changes import describe_change
from autoscaler.contract import Configuration, TickReport
from autoscaler.loop import run
from autoscaler.settings import ControllerSettings
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError, GatewayRefusedError, GatewayUnreachableError, StateError
from placement.errors import PlacementError
from placement.moves.managers import Managers, read_feed_token
from smoe.commands.lines import print_next
from smoe.commands.options import connect, gateway_option, of_gateway, password_option, state_option
from smoe.view.build import ViewBuilder
from smoe.view.instances import generation_of, rows_of, words_of
from smoe.view.live import View
from smoe.view.model import DecisionLine, NodeRow, ViewState

LATE_S, LATE_WINDOWS = 30.0, 3.0
"""A controller whose last window ended longer ago, in seconds and in windows, has ended."""
PATIENCE_S = 0.0
"""Seconds to retry a manager that does not answer: none, as the next look comes soon."""


class NodeWatch:
    """Rows of all nodes, look by look. Of ``functions`` replicas are counted; managers None: weights are not known."""

    def __init__(self, feed: GatewayClient, managers: Managers | None, functions: Collection[str]) -> None:
        self._feed = feed
        self._managers = managers
        self._functions = frozenset(functions)
        self._unfinished: dict[str, dict[str, int]] = {}
        self._offered = True

    def look(self) -> tuple[NodeRow, ...]:
        """Rows by node name; none where replicas have no nodes, or the gateway offers no feed or does not answer."""
        if not self._offered:
            return ()
        try:
            feed = self._feed.replicas()
        except GatewayRefusedError as error:
            self._offered = error.status != 404
            return ()
        except GatewayUnreachableError:
            return ()
        names = sorted({str(one["node"]) for replicas in feed.values() for one in replicas if "node" in one})
        replicas_of_pipeline = [one for name, replicas in feed.items() if name in self._functions for one in replicas]
        return tuple(self._row(node, replicas_of_pipeline) for node in names)

    def _row(self, node: str, replicas: Sequence[Mapping[str, Any]]) -> NodeRow:
        states = Counter(str(one["state"]) for one in replicas if one.get("node") == node)
        row = NodeRow(node, states["ready"], states["starting"], states["draining"])
        if self._managers is None:
            return row
        try:
            memory = self._managers.held(node)
        except (GatewayClientError, PlacementError):
            return row
        now, before = dict(memory["unfinished"]), self._unfinished.get(node, {})
        self._unfinished[node] = now
        moving = [name for name, nbytes in now.items() if before.get(name) != nbytes]
        return NodeRow(
            node,
            row.ready,
            row.starting,
            row.draining,
            weights_bytes=sum(memory["held"].values()),
            limit_bytes=memory["memory_bytes"],
            arriving=len(moving),
            arriving_bytes=sum(now[name] for name in moving),
            broken_off=len(now) - len(moving),
        )


@click.command()
@click.argument("pipeline", default="minilm")
@state_option
@gateway_option
@password_option
@click.option("--manifest", type=click.Path(path_type=Path), help="Pipeline folder. [default: the state's]")
@click.option("--interval", "interval_s", type=click.FloatRange(0.5), default=2.0, help="Seconds between windows.")
@click.option("--slo-ms", type=click.FloatRange(min=0.1), help="Latency target in milliseconds to show P95 against.")
@click.option("--prometheus", help="Read a Prometheus server in place of the targets.")
@click.option("--ticks", type=click.IntRange(min=1), help="End after this many windows.")
def top(
    pipeline: str,
    state: Path,
    gateway_url: str | None,
    password_file: Path | None,
    manifest: Path | None,
    interval_s: float,
    slo_ms: float | None,
    prometheus: str | None,
    ticks: int | None,
) -> None:
    """Show PIPELINE live: layers x experts by load, replicas, P95 against the SLO, cost per hour, nodes. Ctrl-C ends
    it.
    """
    client = connect(state, gateway_url, password_file)
    client.functions()
    password = password_file or state / "secrets" / "basic-auth-password"
    settings = ControllerSettings(
        gateway_url=client.url,
        manifest_dir=manifest or state / "pipelines" / pipeline,
        password=password.read_text().strip(),
        policy="static",
        interval_s=interval_s,
        slo_s=slo_ms / 1000 if slo_ms else None,
        prometheus_url=prometheus,
        dry_run=True,
    )
    controller, window_s = build_controller(settings)
    started_s = time.time()
    builder = ViewBuilder(pipeline, "watching", started_s, settings.slo_s, controller.prices.currency)
    watch = NodeWatch(client, _managers(client, state), controller.topology.functions())
    stop, numbers = threading.Event(), count(1)
    with View() as view:

        def on_tick(report: TickReport) -> None:
            shown = with_controller(builder.tick(report, watch.look()), seen_by_controller(client, pipeline), started_s)
            view.show(with_instances(shown, generation_of(client, pipeline)))
            if next(numbers) == ticks:
                stop.set()

        with suppress(KeyboardInterrupt):
            run(controller, interval_s, lambda wait_s: stop.wait(wait_s), on_tick, window_s=window_s)
    controlled = seen_by_controller(client, pipeline) is not None
    print_next(after_top(pipeline, controlled, of_gateway(state, gateway_url)))


def after_top(pipeline: str, controlled: bool, where: str) -> str:
    """What to do after the live view; ``controlled``: whether a controller runs, ``where``: the option that leads to
    the gateway."""
    if controlled:
        return f"next: `smoe replay {pipeline}{where}` sends a bursty hour, `smoe status{where}` has every function"
    return f"next: `smoe autoscale {pipeline}{where}` scales it, `smoe replay {pipeline}{where}` sends a bursty hour"


def seen_by_controller(client: GatewayClient, pipeline: str) -> Mapping[str, Any] | None:
    """What a controller that runs wrote last about the pipeline; None without one, or where nothing answers."""
    try:
        documents = client.views()
    except (GatewayRefusedError, GatewayUnreachableError):
        return None
    for document in documents:
        young_s = max(LATE_S, LATE_WINDOWS * float(document.get("window_s") or 0.0))
        if document.get("pipeline") == pipeline and time.time() - float(document.get("end_s") or 0.0) <= young_s:
            return document
    return None


def with_instances(state: ViewState, document: Mapping[str, Any] | None) -> ViewState:
    """The view with a decoder's instances, where there are any."""
    if document is None:
        return state
    return replace(state, instances=rows_of(document), instances_words=words_of(document))


def with_controller(state: ViewState, document: Mapping[str, Any] | None, started_s: float) -> ViewState:
    """The view with a controller's policy, SLO and decisions. ``started_s``: Unix time from which the view counts."""
    if document is None:
        return replace(state, notes=("no controller runs: smoe autoscale scales this pipeline",))
    lines = tuple(
        DecisionLine(
            one["time_s"] - started_s,
            one["function"],
            describe_change(Configuration(**one["present"]), Configuration(**one["target"])) + f" ({one['result']})",
            one["reason"],
        )
        for one in document["decisions"]
        if one["result"] != "held"
    )
    slo_s = state.slo_s if state.slo_s is not None else document.get("slo_s")
    return replace(state, policy=str(document["policy"]), slo_s=slo_s, decisions=lines)


def _managers(client: GatewayClient, state: Path) -> Managers | None:
    """None without the token that managers take: then weights are not shown."""
    try:
        return Managers(client, read_feed_token(state), PATIENCE_S)
    except StateError:
        return None

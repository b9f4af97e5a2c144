"""``smoe top``: the live view of a pipeline that runs somewhere; it only looks."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import click

from autoscaler.build import build_controller
from autoscaler.contract import TickReport
from autoscaler.loop import run
from autoscaler.settings import ControllerSettings
from gateway.client.client import GatewayClient
from gateway.client.errors import StateError
from placement.moves.managers import Managers, read_feed_token
from smoe.commands.options import connect, gateway_option, password_option, state_option
from smoe.machines import PATIENCE_S, NodeWatch
from smoe.view.build import ViewBuilder
from smoe.view.live import View


@click.command()
@click.argument("pipeline", default="minilm")
@state_option
@gateway_option
@password_option
@click.option(
    "--manifest", type=click.Path(path_type=Path), default=None, help="Pipeline folder. [default: the state's]"
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.5),
    default=2.0,
    show_default=True,
    help="Seconds between windows.",
)
@click.option(
    "--slo-ms", type=click.FloatRange(min=0.1), default=None, help="Latency target in milliseconds to show P95 against."
)
@click.option("--prometheus", default=None, help="Read a Prometheus server in place of the targets.")
@click.option("--ticks", type=click.IntRange(min=1), default=None, help="End after this many windows.")
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
    builder = ViewBuilder(pipeline, "watching", time.time(), settings.slo_s, controller.prices.currency)
    watch = NodeWatch(client, _managers(client, state), controller.topology.functions())
    stop = threading.Event()
    ticks_shown = 0
    with View() as view:

        def on_tick(report: TickReport) -> None:
            nonlocal ticks_shown
            ticks_shown += 1
            view.show(builder.tick(report, watch.look()))
            if ticks is not None and ticks_shown >= ticks:
                stop.set()

        try:
            run(controller, interval_s, lambda wait_s: stop.wait(wait_s), on_tick, window_s=window_s)
        except KeyboardInterrupt:
            return


def _managers(client: GatewayClient, state: Path) -> Managers | None:
    """None without the token that managers take: then weights are not shown."""
    try:
        return Managers(client, read_feed_token(state), PATIENCE_S)
    except StateError:
        return None

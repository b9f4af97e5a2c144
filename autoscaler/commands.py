"""``smoe autoscale``: the controller as a process."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from autoscaler.build import build_controller
from autoscaler.contract import TickReport
from autoscaler.loop import run
from autoscaler.settings import ControllerSettings


@click.command()
@click.option("--gateway", "gateway_url", default=None, help="Address of the gateway. [default: the state folder's]")
@click.option("--state", type=click.Path(path_type=Path), default=Path(".smoe"), show_default=True)
@click.option("--password-file", type=click.Path(path_type=Path, exists=True), default=None, help="Gateway password.")
@click.option("--pipeline", default="minilm", show_default=True, help="Pipeline to scale.")
@click.option("--manifest", type=click.Path(path_type=Path), default=None, help="Its folder. [default: the state's]")
@click.option("--policy", type=click.Choice(["hpa", "static"]), default="hpa", show_default=True)
@click.option("--interval", default="5s", show_default=True, metavar="SECONDS", help="Time between decisions (5, 5s).")
@click.option(
    "--window", "window_s", type=click.FloatRange(min=0.5), default=None, help="Seconds an observation covers."
)
@click.option("--slo-ms", type=click.FloatRange(min=0.1), default=None, help="Latency target, P95 in milliseconds.")
@click.option("--prometheus", "prometheus_url", default=None, help="Prometheus server; without it targets are scraped.")
@click.option("--prices", type=click.Path(path_type=Path, exists=True), default=None, help="Price sheet (TOML).")
@click.option("--max-replicas", type=click.IntRange(1, 1000), default=8, show_default=True)
@click.option("--down-window", "down_stabilisation_s", type=click.FloatRange(min=0), default=300.0, show_default=True)
@click.option("--budget", "budget_per_hour", type=click.FloatRange(min=0), default=None, help="Most cost per hour.")
@click.option("--log-dir", type=click.Path(path_type=Path), default=None, help="Parquet log. [default: STATE/log]")
@click.option("--ticks", type=click.IntRange(min=1), default=None, help="Stop after this many decisions.")
@click.option("--dry-run", is_flag=True, help="Decide and record, change nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a tick on standard output.")
def autoscale(
    gateway_url: str | None,
    state: Path,
    password_file: Path | None,
    pipeline: str,
    manifest: Path | None,
    interval: str,
    slo_ms: float | None,
    log_dir: Path | None,
    ticks: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Watch a pipeline and scale every function of it until interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    settings = ControllerSettings(
        gateway_url=gateway_url or _address(state),
        manifest_dir=manifest or state / "pipelines" / pipeline,
        password=_password(state, password_file),
        interval_s=_seconds(interval),
        slo_s=None if slo_ms is None else slo_ms / 1000,
        log_dir=log_dir or state / "log",
        **options,
    )
    controller, window_s = build_controller(settings)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    done = 0

    def on_tick(report: TickReport) -> None:
        nonlocal done
        done += 1
        click.echo(json.dumps(summary(report)) if as_json else line(report))
        if ticks is not None and done >= ticks:
            stop.set()

    run(controller, settings.interval_s, lambda wait_s: stop.wait(wait_s), on_tick, window_s=window_s)


def summary(report: TickReport) -> dict[str, Any]:
    """A tick as plain values."""
    seen = report.observation
    return {
        "end_s": seen.end_s,
        "requests_per_s": seen.requests_per_s,
        "p50_s": seen.latency_p50_s,
        "p95_s": seen.latency_p95_s,
        "failed": seen.failed,
        "stale": seen.stale,
        "problems": list(seen.problems),
        "cost_busy": report.cost.busy,
        "cost_provisioned": report.cost.provisioned,
        "dry_run": report.dry_run,
        "changes": [
            {
                "function": decision.function,
                "replicas": [decision.present.replicas, decision.target.replicas],
                "reason": decision.reason,
                "limits_hit": list(decision.limits_hit),
                "applied": decision.function in report.applied,
            }
            for decision in report.decisions
            if decision.changes
        ],
        "failures": dict(report.failures),
    }


def line(report: TickReport) -> str:
    """A tick in one line for people."""
    seen = report.observation
    p95 = "–" if seen.latency_p95_s is None else f"{seen.latency_p95_s * 1000:.1f} ms"
    rps = "–" if seen.requests_per_s is None else f"{seen.requests_per_s:.1f}/s"
    changes = [
        f"{decision.function} {decision.present.replicas}→{decision.target.replicas}"
        for decision in report.decisions
        if decision.changes
    ]
    held = "holding (stale data); " if seen.stale else ""
    return f"{held}requests {rps}, P95 {p95}, {len(changes)} changes" + (": " + ", ".join(changes) if changes else "")


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise click.BadParameter(f"{text!r} is not a number of seconds such as 5 or 5s", param_hint="--interval")
    return value


def _address(state: Path) -> str:
    try:
        return str(json.loads((state / "gateway.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        raise click.UsageError(f"no gateway runs on {state}; say --gateway URL or start one with `smoe up`") from None


def _password(state: Path, given: Path | None) -> str | None:
    path = given or state / "secrets" / "basic-auth-password"
    return path.read_text().strip() if path.exists() else None

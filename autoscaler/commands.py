"""``smoe autoscale``: the controller as a process."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from autoscaler.contract import TickReport
from autoscaler.describe import line, summary
from autoscaler.platforms.shadow import ShadowBill
from autoscaler.process import ControllerProcess
from autoscaler.settings import PLATFORMS, SHORT_NAMES, ControllerSettings, is_policy, validate
from autoscaler.topology import load_topology


@click.command()
@click.option("--gateway", "gateway_url", default=None, help="Address of the gateway. [default: the state folder's]")
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=Path(".smoe"),
    show_default=True,
    help="State folder: address, passwords, pipelines, logs.",
)
@click.option("--user", default="admin", show_default=True, help="User of the gateway.")
@click.option(
    "--password-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="File with the gateway's password. [default: the state folder's]",
)
@click.option("--pipeline", default="minilm", show_default=True, help="Pipeline to scale.")
@click.option("--manifest", type=click.Path(path_type=Path), default=None, help="Its folder. [default: the state's]")
@click.option(
    "--max-functions",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="As given to `smoe up` or `smoe pipeline deploy`; 0 = one node a function.",
)
@click.option(
    "--policy",
    default="hpa",
    show_default=True,
    metavar="NAME",
    callback=lambda _context, _option, name: _policy(name),
    help=f"{', '.join(SHORT_NAMES)}, or MODULE:MAKER (docs/policies.md).",
)
@click.option(
    "--policy-settings",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="TOML file with the policy's own settings, and HPA's next to it in [hpa]; static and serverlessmoe have none.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="serverlessmoe, tuned-hpa, static: stored configurations (JSON).",
)
@click.option(
    "--policy-seed", type=int, default=0, show_default=True, help="openfaas: seed of its drawn configurations."
)
@click.option("--interval", default="5s", show_default=True, metavar="SECONDS", help="Time between decisions (5, 5s).")
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(min=0.5),
    default=None,
    help="Seconds an observation covers. [default: one interval; 30 with --prometheus]",
)
@click.option("--slo-ms", type=click.FloatRange(min=0.1), default=None, help="Latency target, P95 in milliseconds.")
@click.option("--prometheus", "prometheus_url", default=None, help="Prometheus server; without it targets are scraped.")
@click.option(
    "--prices",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="Price sheet (TOML). [default: autoscaler/prices.toml]",
)
@click.option(
    "--min-replicas", type=click.IntRange(1, 1000), default=1, show_default=True, help="Fewest replicas of a function."
)
@click.option(
    "--max-replicas", type=click.IntRange(1, 1000), default=8, show_default=True, help="Most replicas of a function."
)
@click.option(
    "--cpu-target",
    type=click.FloatRange(0, 1),
    default=None,
    help="Deprecated: cpu_target of hpa, which belongs into --policy-settings.",
)
@click.option(
    "--concurrency-target",
    type=click.FloatRange(0, 1),
    default=None,
    help="Deprecated: concurrency_target of hpa, which belongs into --policy-settings.",
)
@click.option(
    "--down-window",
    "down_stabilisation_s",
    type=click.FloatRange(min=0),
    default=None,
    help="Deprecated: down_stabilisation_s of hpa, which belongs into --policy-settings.",
)
@click.option("--scale-ingress", is_flag=True, help="Manage the ingress too.")
@click.option("--experts-only", is_flag=True, help="Leave segments alone.")
@click.option(
    "--cooldown",
    "cooldown_s",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Least seconds between two changes of a function.",
)
@click.option(
    "--budget",
    "budget_per_hour",
    type=click.FloatRange(min=0),
    default=None,
    help="Most that all functions may cost an hour, in the price sheet's currency.",
)
@click.option("--log-dir", type=click.Path(path_type=Path), default=None, help="Parquet log. [default: STATE/log]")
@click.option("--ticks", type=click.IntRange(min=1), default=None, help="Stop after this many decisions.")
@click.option("--dry-run", is_flag=True, help="Decide and record, change nothing.")
@click.option(
    "--shadow",
    is_flag=True,
    help="Change nothing, go on as if, and report what it would have cost, in each tick and in all.",
)
@click.option(
    "--namespace",
    default=ControllerSettings.namespace,
    show_default=True,
    help="What the gateway calls the functions' namespace; its home is always openfaas-fn.",
)
@click.option(
    "--platform",
    type=click.Choice(PLATFORMS),
    default="openfaas",
    show_default=True,
    help="Who gets the orders: a gateway's REST API, or the Kubernetes API server.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="kubernetes: cluster and user. [default: the pod's service account, else kubectl's]",
)
@click.option(
    "--kubernetes-namespace",
    default=None,
    help="kubernetes: namespace of functions and lease, where home has another name in the cluster. "
    "[default: that of --namespace]",
)
@click.option(
    "--gpu-memory-mb",
    type=click.IntRange(min=1),
    default=None,
    help="kubernetes: MiB of a GPU's memory, of which a share may pin its part.",
)
@click.option("--gpu-host-ipc", is_flag=True, help="kubernetes: the node's IPC namespace for GPUs (GKE's MPS).")
@click.option(
    "--unschedulable-wait",
    "unschedulable_s",
    type=click.FloatRange(min=0),
    default=ControllerSettings.unschedulable_s,
    show_default=True,
    help="kubernetes: seconds that a replica waits for a node with room before the plan goes without it.",
)
@click.option(
    "--lease", default=None, metavar="NAME", help="kubernetes: Lease that the one acting controller of several holds."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of /metrics, /view and /healthz, on all addresses; 0 = none.",
)
@click.option(
    "--fallback",
    "fallback_windows",
    type=click.IntRange(min=0),
    default=None,
    help="Windows in a row of missed SLO and a desire for less after which hpa takes over; 0 = never. "
    "[default: 3 for a learnt policy with --slo-ms, else 0]",
)
@click.option(
    "--log-level",
    type=click.Choice(("info", "debug")),
    default="info",
    show_default=True,
    help="debug: a line for each decision, also for those that change nothing.",
)
@click.option(
    "--max-step-replicas",
    type=click.IntRange(min=0),
    default=ControllerSettings.max_step_replicas,
    show_default=True,
    help="Most replicas that one decision adds or removes; 0 = no limit.",
)
@click.option(
    "--stalled",
    "stalled_s",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    help="Seconds a tick may stand still before this controller counts as hung. [default: 3 intervals, at least 30]",
)
@click.option(
    "--max-step-factor",
    type=click.FloatRange(min=0),
    default=ControllerSettings.max_step_factor,
    show_default=True,
    help="Most times that memory, cores or GPU share grow or shrink in one decision (such as 2); 0 = no limit.",
)
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
    experts_only: bool,
    log_level: str,
    **options: Any,
) -> None:
    """Watch a pipeline and scale every function of it until interrupted.

    Decisions go to standard error as one line each, ticks to standard output, and both as parquet files to the log
    folder. Missing or old data holds the present scale.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("smoe.autoscaler").setLevel(log_level.upper())
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # who does not answer is logged once
    settings = ControllerSettings(
        gateway_url=gateway_url or _address(state),
        manifest_dir=manifest or state / "pipelines" / pipeline,
        password=_password(state, password_file),
        interval_s=_seconds(interval),
        slo_s=None if slo_ms is None else slo_ms / 1000,
        log_dir=log_dir or state / "log",
        view_dir=None if gateway_url else state / "view",
        scale_segments=not experts_only,
        **options,
    )
    validate(settings)
    topology = load_topology(settings.manifest_dir, settings.max_functions)
    if topology.pipeline != pipeline:
        raise click.UsageError(
            f"{settings.manifest_dir} holds the pipeline {topology.pipeline!r}, not {pipeline!r}; "
            f"say --pipeline {topology.pipeline}"
        )

    def report_tick(report: TickReport, bill: ShadowBill | None, conditions: Sequence[object]) -> None:
        click.echo(json.dumps(summary(report, bill, conditions)) if as_json else line(report, bill, conditions))

    process = ControllerProcess(settings, pipeline, report_tick, ticks)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: process.stop())
    process.run()


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0 < value < 86400:
        raise click.BadParameter(f"{text!r} is not a number of seconds such as 5 or 5s", param_hint="--interval")
    return value


def _policy(name: str) -> str:
    if not is_policy(name):
        raise click.BadParameter(f"{name!r} is none of {', '.join(SHORT_NAMES)}, and not of the form MODULE:MAKER")
    return name


def _address(state: Path) -> str:
    try:
        return str(json.loads((state / "gateway.json").read_text())["url"])
    except (OSError, ValueError, KeyError):
        raise click.UsageError(f"no gateway runs on {state}; say --gateway URL or start one with `smoe up`") from None


def _password(state: Path, given: Path | None) -> str | None:
    path = given or state / "secrets" / "basic-auth-password"
    return path.read_text().strip() if path.exists() else None

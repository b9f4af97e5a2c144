"""``smoe autoscale``: the controller as a process."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from prometheus_client import CollectorRegistry

from autoscaler.build import build_controller, build_platform
from autoscaler.cluster import ClusterSide
from autoscaler.contract import TickReport
from autoscaler.exposition import ControllerMetrics, Exposition
from autoscaler.loop import Controller, run, short
from autoscaler.platform.shadow import ShadowBill, ShadowPlatform
from autoscaler.progress import Progress, stalled_after
from autoscaler.settings import PLATFORMS, SHORT_NAMES, ControllerSettings, is_policy, validate
from autoscaler.topology import load_topology

log = logging.getLogger("smoe.autoscaler")

YOUNG_OBJECTS = 300_000
"""New objects after which the collector looks at them."""
SHOWN = 8
"""Changes named in one line for people."""


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
    help="As given to `smoe up` or `smoe deploy`; 0 = one node a function.",
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
    help="TOML file with the policy's own settings; static, serverlessmoe and the HPAs have none.",
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
    default=0.8,
    show_default=True,
    help="hpa: wanted CPU utilisation; 0 = not by CPU.",
)
@click.option(
    "--concurrency-target",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    help="hpa: wanted share of call slots in use; 0 = not by calls.",
)
@click.option(
    "--down-window",
    "down_stabilisation_s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="hpa: seconds a lower load must last before replicas go.",
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
    help="Change nothing, go on as if, and tell what it would have cost, in each tick and in all.",
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
    help="Windows in a row of missed SLO and a wish for less after which hpa takes over; 0 = never. "
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
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # what stays away is told by name, once
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
    progress = Progress(stalled_after(settings.stalled_s, settings.interval_s))
    cluster = ClusterSide(settings, pipeline, progress=progress) if settings.platform == "kubernetes" else None
    platform = build_platform(settings, pipeline, progress.sign) if cluster is None else cluster.platform
    shadow = ShadowPlatform(platform) if settings.shadow else None
    controller, window_s = build_controller(settings, shadow or platform)
    bill = None if shadow is None else ShadowBill(shadow, controller.prices, controller.policy.name)
    metrics = ControllerMetrics(pipeline, settings.slo_s, bill)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    done = 0

    def on_tick(report: TickReport) -> None:
        nonlocal done
        done += 1
        if done == 1:
            settle()
        metrics.add(report)
        if bill is not None:
            bill.add(report.observation)
        conditions = () if cluster is None else cluster.conditions()
        click.echo(json.dumps(summary(report, bill, conditions)) if as_json else line(report, bill, conditions))
        if ticks is not None and done >= ticks:
            stop.set()
        if cluster is not None:
            cluster.keep()

    def wait(wait_s: float) -> bool:
        if cluster is not None:
            return cluster.wait(stop, wait_s)
        progress.turn()
        ended = stop.wait(wait_s)
        progress.turn()
        return ended

    def trouble() -> str:
        return progress.trouble() or ("" if cluster is None else cluster.trouble())

    exposition = None
    if settings.metrics_port:
        exposition = _expose(settings.metrics_port, metrics, cluster, controller, trouble)
    if cluster is not None:
        cluster.start(stop)
    try:
        with spared_collections() as settle:
            run(controller, settings.interval_s, wait, on_tick, window_s=window_s)
    finally:
        stop.set()
        if bill is not None:
            log.info("%s", bill.verdict())
        if cluster is not None:
            cluster.close()
        if exposition is not None:
            exposition.close()


@contextmanager
def spared_collections() -> Iterator[Callable[[], None]]:
    """Gives what is to be called once, when a tick has made what stays: the collector shall not walk through that again
    in every tick. At the end everything is as it was.

    A tick of thousands of functions makes a few hundred thousand short-lived objects and no cycles of them, so there is
    little for the collector to find, and it may look for it later.
    """
    before = gc.get_threshold()

    def settle() -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, 20, 20)

    try:
        yield settle
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _expose(
    port: int,
    metrics: ControllerMetrics,
    cluster: ClusterSide | None,
    controller: Controller,
    trouble: Callable[[], str],
) -> Exposition:
    registry = CollectorRegistry()
    registry.register(metrics)
    if cluster is not None:
        cluster.register(registry)

    def view() -> bytes:
        if controller.view is None:
            return b"{}"
        if cluster is None:
            return controller.view.document()
        return controller.view.document(leads=cluster.leads(), conditions=cluster.conditions())

    return Exposition(port, registry, view, trouble)


def summary(report: TickReport, bill: ShadowBill | None = None, conditions: Sequence[object] = ()) -> dict[str, Any]:
    """A tick as plain values. ``bill``: of a shadow; ``conditions``: what stands in the way on the platform."""
    seen = report.observation
    extra: dict[str, Any] = {} if bill is None else {"shadow": bill.summary()}
    if conditions:
        extra["conditions"] = [str(one) for one in conditions]
    return extra | {
        "end_s": seen.end_s,
        "window_s": seen.window_s,
        "policy": report.policy,
        "requests_per_s": seen.requests_per_s,
        "p50_s": seen.latency_p50_s,
        "p95_s": seen.latency_p95_s,
        "failed": seen.failed,
        "stale": seen.stale,
        "problems": list(seen.problems),
        "cost_busy": report.cost.busy,
        "cost_provisioned": report.cost.provisioned,
        "decision_s": report.decision_s,
        "dry_run": report.dry_run,
        "decisions": len(report.decisions),
        "held": sum(not decision.valid for decision in report.decisions),
        "changes": [
            {
                "function": decision.function,
                "present": short(decision.present),
                "wish": short(decision.wish),
                "target": short(decision.target),
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


def line(report: TickReport, bill: ShadowBill | None = None, conditions: Sequence[object] = ()) -> str:
    """A tick in one line for people."""
    seen = report.observation
    p95 = "–" if seen.latency_p95_s is None else f"{seen.latency_p95_s * 1000:.1f} ms"
    rps = "–" if seen.requests_per_s is None else f"{seen.requests_per_s:.1f}/s"
    changes = [
        f"{decision.function} {short(decision.present)} → {short(decision.target)}"
        for decision in report.decisions
        if decision.changes
    ]
    held = f"holding ({seen.problems[0] if seen.problems else 'no data'}); " if seen.stale else ""
    dry = " (dry run)" if report.dry_run and changes else ""
    failed = f"; {len(report.failures)} failed" if report.failures else ""
    named = ": " + ", ".join(changes[:SHOWN]) + (" …" if len(changes) > SHOWN else "") if changes else ""
    shadow = "" if bill is None else f"; {bill.line()}"
    obstacles = "".join(f"; {one}" for one in conditions[:SHOWN])
    return f"{held}requests {rps}, P95 {p95}, {len(changes)} changes{dry}{failed}{named}{shadow}{obstacles}"


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

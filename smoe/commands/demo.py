"""``smoe run``: the main job. Default pipeline up, real prompts at the arrival times of a bursty trace, the controller
scaling every function, a live view, a closing report."""

from __future__ import annotations

import asyncio
import json
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click
from rich.console import Console

from autoscaler.build import build_controller
from autoscaler.contract import ConfigurationSpace, TickReport
from autoscaler.loop import run as run_controller
from autoscaler.policy.hpa import hpa_of_windows
from autoscaler.settings import ControllerSettings, with_hpa
from gateway.client.client import GatewayClient
from gateway.client.state import read_password
from moe.manifest import Manifest
from smoe import __version__, lifecycle
from smoe.commands.options import state_option
from smoe.deployment import DeploymentSettings
from smoe.errors import SmoeError
from smoe.parity import Parity, compare_with_whole_model
from smoe.pipelines import ensure_pipeline
from smoe.report import ReportPaths, build, closing
from smoe.view.build import ViewBuilder
from smoe.view.live import View
from traces import catalog, loading, prompts, scale
from traces.model import Trace
from traces.options import data_option
from traces.replay import Progress, ReplayResult, ReplaySettings, replay
from traces.results import CsvSink, describe

SLO_FACTOR = 5.0
"""On an idle machine of two cores this replay's P95 is 13.7 times a warm single prompt's median where nothing is scaled
and 3.5 times where experts and segments are (2.8 simulated): 5 binds, and leaves something for a machine that is not
idle."""
INGRESS_CONCURRENCY = 512
"""An hour in two minutes makes bursts of hundreds of requests; they wait rather than being refused."""


@dataclass(frozen=True)
class RunSettings:
    """Everything a run is made from; carried into the report."""

    pipeline: str
    state: Path
    out: Path
    policy: Literal["smoe", "hpa", "static"]
    seconds: float
    mean_rps: float
    cpu_scale: float
    interval_s: float
    slo_ms: float | None
    slo_factor: float
    max_replicas: int
    trace: str | None
    data: Path | None
    max_words: int
    seed: int


@click.command()
@click.argument("pipeline", default="minilm")
@state_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out"),
    show_default=True,
    help="Folder of the report, its numbers and logs.",
)
@click.option(
    "--policy",
    type=click.Choice(["smoe", "hpa", "static"]),
    default="smoe",
    show_default=True,
    help="smoe: the learnt policy sizes experts, HPA segments.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(10, 86400),
    default=120.0,
    show_default=True,
    help="Length of the replay in seconds.",
)
@click.option(
    "--mean-rps",
    type=click.FloatRange(0.1, 1000),
    default=3.0,
    show_default=True,
    help="Requests per second on average.",
)
@click.option(
    "--cpu-scale",
    type=click.FloatRange(0.001, 10),
    default=0.03,
    show_default=True,
    help="Real cores per configured core: how a cluster's configurations are emulated on this machine.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.5),
    default=2.0,
    show_default=True,
    help="Seconds between decisions.",
)
@click.option(
    "--slo-ms",
    type=click.FloatRange(min=0.1),
    default=None,
    help="P95 target in milliseconds. [default: by --slo-factor]",
)
@click.option(
    "--slo-factor",
    type=click.FloatRange(min=1.0),
    default=SLO_FACTOR,
    show_default=True,
    help="SLO over the median of warm single prompts.",
)
@click.option(
    "--max-replicas", type=click.IntRange(1, 64), default=8, show_default=True, help="Most replicas of a function."
)
@click.option("--trace", default=None, help="Trace file or data set. [default: a bursty hour of the public traces]")
@data_option
@click.option(
    "--max-words", type=click.IntRange(1, 200), default=24, show_default=True, help="Longest prompt in words."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of all random choices.")
def run(**options: Any) -> None:
    """Bring PIPELINE up, replay a bursty trace through it, scale it meanwhile, and write a report to OUT."""
    settings = RunSettings(**options)
    console = Console()
    trace, texts, source = _workload(settings)
    gateway = lifecycle.GatewaySettings(settings.state, port=0, metrics_port=0, cpu_scale=settings.cpu_scale)
    directory, manifest = ensure_pipeline(settings.pipeline, gateway.pipelines)
    signal.signal(signal.SIGTERM, _interrupt)
    begun_s = time.monotonic()
    process = lifecycle.start_gateway(gateway, detach=False)
    try:
        client = GatewayClient.from_state(settings.state)
        _deploy(client, manifest, settings, console)
        console.print(
            f"[bold]{manifest.name}[/]: {len(manifest.nodes) + 1} functions ready at {client.url} "
            f"after {time.monotonic() - begun_s:.1f} s"
        )
        parity = compare_with_whole_model(client, manifest.name, directory, texts[:8])
        console.print(_parity_line(parity))
        slo_s = settings.slo_ms / 1000 if settings.slo_ms else settings.slo_factor * parity.unloaded_p50_s
        console.print(_plan_line(settings, trace, source, slo_s, parity))
        since_s = time.time()
        result = _replay_with_view(client, directory, manifest, settings, trace, texts, slo_s, console)
    finally:
        lifecycle.stop_process(process)
    paths = _report(settings, manifest, trace, source, result, slo_s, since_s, parity)
    _closing(console, paths, slo_s)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _workload(settings: RunSettings) -> tuple[Trace, list[str], str]:
    """The trace in the length and rate of the run, a text for each request, and where the texts come from."""
    folder = catalog.data_folder(settings.data)
    if settings.trace is None:
        trace = catalog.bursty_hour(folder, "uniform", settings.seed)
    else:
        trace = loading.load(catalog.resolve(settings.trace, folder), seed=settings.seed)
    trace = scale.fit(trace, settings.seconds, settings.mean_rps, settings.seed)
    if not trace.requests:
        raise SmoeError("the trace has no request in this length and rate")
    chosen = prompts.load_prompts(catalog.text_folder(folder), settings.max_words)
    return trace, list(chosen.choose(trace.requests, settings.seed)), chosen.source


def _deploy(client: GatewayClient, manifest: Manifest, settings: RunSettings, console: Console) -> None:
    deployment = DeploymentSettings(
        ingress_cpu_cores=max(1, math.ceil(1 / settings.cpu_scale)),
        ingress_concurrency=INGRESS_CONCURRENCY,
        max_replicas=settings.max_replicas,
    )
    with console.status("deploying") as status:
        total = len(manifest.nodes) + 1
        lifecycle.deploy_pipeline(
            client, manifest, deployment, lambda ready: status.update(f"{ready} of {total} functions ready")
        )


def _replay_with_view(
    client: GatewayClient,
    directory: Path,
    manifest: Manifest,
    settings: RunSettings,
    trace: Trace,
    texts: list[str],
    slo_s: float,
    console: Console,
) -> ReplayResult:
    """Replay in this thread, the controller in another; both feed the view. Ctrl-C ends the replay, not the report."""
    controller, window_s = build_controller(
        ControllerSettings(
            gateway_url=client.url,
            manifest_dir=directory,
            password=read_password(settings.state),
            policy=settings.policy,
            policy_settings=with_hpa(settings.policy, policy_table(settings), hpa_of_windows(settings.interval_s)),
            space=ConfigurationSpace(gpu_shares=()),
            interval_s=settings.interval_s,
            slo_s=slo_s,
            log_dir=settings.out / "log",
            view_dir=settings.state / "view",
            max_replicas=settings.max_replicas,
        )
    )
    builder = ViewBuilder(manifest.name, settings.policy, time.time(), slo_s, controller.prices.currency)
    stop = threading.Event()
    url = f"{client.url}/function/{manifest.name}"
    replay_settings = ReplaySettings(url=url, slo_s=slo_s, timeout_s=30.0, seed=settings.seed)
    with View(console) as view:

        def on_tick(report: TickReport) -> None:
            view.show(builder.tick(report))

        work = threading.Thread(
            target=run_controller,
            args=(controller, settings.interval_s, stop.wait, on_tick),
            kwargs={"window_s": window_s},
            daemon=True,
        )
        work.start()
        try:
            with CsvSink(settings.out / "requests.csv") as sink:
                return asyncio.run(
                    _replay(
                        trace,
                        texts,
                        replay_settings,
                        sink,
                        lambda progress: view.show(builder.progress(progress, time.time())),
                    )
                )
        finally:
            stop.set()
            work.join(30)


def policy_table(settings: RunSettings) -> dict[str, float]:
    """The learnt policy has to know what a configured core is here; others need nothing."""
    return {"cpu_scale": settings.cpu_scale} if settings.policy == "smoe" else {}


async def _replay(
    trace: Trace, texts: list[str], settings: ReplaySettings, sink: CsvSink, show: Callable[[Progress], None]
) -> ReplayResult:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    started: list[Progress] = []

    async def refresh() -> None:
        while True:
            await asyncio.sleep(0.5)
            if started:
                show(started[0])

    refreshing = asyncio.create_task(refresh())
    try:
        return await replay(trace, texts, settings, on_record=sink.add, on_start=started.append, stop=stop)
    finally:
        refreshing.cancel()


def _report(
    settings: RunSettings,
    manifest: Manifest,
    trace: Trace,
    source: str,
    result: ReplayResult,
    slo_s: float,
    since_s: float,
    parity: Parity,
) -> ReportPaths:
    shown = {key: str(value) if isinstance(value, Path) else value for key, value in vars(settings).items()}
    meta = {
        "pipeline": manifest.name,
        "policy": settings.policy,
        "planned": trace.requests,
        "trace": describe(trace),
        "texts": source,
        "seeds": [settings.seed],
        "settings": shown,
        "machine": {"cpus": os.cpu_count(), "system": platform.system(), "machine": platform.machine()},
        "version": __version__,
        "since_s": since_s,
        "parity": parity.to_json(),
    }
    (settings.out / "replay.json").write_text(json.dumps(result.summary, indent=1) + "\n")
    return build(settings.out, settings.out / "log", settings.out / "requests.csv", slo_s, meta)


def _parity_line(parity: Parity) -> str:
    warm = "" if parity.warm else ", still getting faster"
    return (
        f"answers of {parity.texts} real prompts equal the whole model's within {parity.max_rel_err:.1e}; one prompt "
        f"takes {parity.unloaded_p50_s * 1000:.0f} ms through the functions (after {parity.warm_up_passes} to warm up, "
        f"which began at {parity.cold_p50_s * 1000:.0f} ms{warm}), {parity.whole_p50_s * 1000:.0f} ms whole"
    )


def _plan_line(settings: RunSettings, trace: Trace, source: str, slo_s: float, parity: Parity) -> str:
    of_prompt, of_whole = slo_s / parity.unloaded_p50_s, slo_s / parity.whole_p50_s
    return (
        f"replaying {trace.requests} prompts ({source}) at the arrivals of {trace.source}, "
        f"CV {trace.iat_cv:.1f}, in {settings.seconds:.0f} s; SLO: P95 within {slo_s * 1000:.0f} ms, "
        f"{of_prompt:.3g} times a warm prompt through the functions, {of_whole:.3g} times the whole model's; policy "
        f"{settings.policy}, a decision every {settings.interval_s:g} s"
    )


def _closing(console: Console, paths: ReportPaths, slo_s: float) -> None:
    for line in closing(paths.numbers, slo_s):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(f"report      {paths.html} (numbers: {paths.json})", soft_wrap=True, markup=False, highlight=False)

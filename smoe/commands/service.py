"""``smoe up | down | pipeline deploy | pipeline remove | pipeline stack``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from autoscaler.settings import is_url
from evaluation.progress import LongWork
from functions.scheduling.settings import CHUNK_TOKENS
from gateway.backends.kubernetes.options import kubernetes_options, take_kubernetes_options
from gateway.client.client import GatewayClient
from gateway.contract import DEFAULT_NAMESPACE
from gateway.options import listening_options
from moe.manifest import Manifest
from placement.moves.managers import NodeSettings, start_nodes
from platform_words.memory import PROCESS, container_memory, runtime_memory
from simulation.profiles.model.errors import ProfileError
from smoe import lifecycle
from smoe.commands.lines import after_down
from smoe.commands.options import (
    connect,
    cpu_period_option,
    deployment_options,
    gateway_option,
    of_gateway,
    of_state,
    password_option,
    state_option,
)
from smoe.deployment import DeploymentSettings, render_stack
from smoe.errors import SmoeError
from smoe.pipelines import ensure_pipeline
from smoe.slo import token_targets_ms

LONE_TEXT_S = 60.0
"""Time in which a decoder that has just come up has to write a text."""

_PIPELINE = click.argument("pipeline", default="minilm")


@click.command()
@_PIPELINE
@state_option
@listening_options
@click.option(
    "--cpu-scale", type=click.FloatRange(min=0.001, max=10), default=1.0, help="Real cores per configured core."
)
@cpu_period_option
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME",
    help="A machine to emulate on this one, with a weights manager of its own; repeatable.",
)
@click.option(
    "--standbys",
    type=click.IntRange(0, 1000),
    default=2,
    help="Prepared workers kept ready, and as many for the ingress.",
)
@click.option("--foreground", is_flag=True, help="Stay, and stop everything on Ctrl-C.")
@deployment_options
def up(
    pipeline: str,
    state: Path,
    host: str,
    port: int,
    metrics_port: int,
    cpu_scale: float,
    cpu_period_ms: float,
    nodes: tuple[str, ...],
    standbys: int,
    foreground: bool,
    **options: Any,
) -> None:
    """Start the embedded gateway and deploy PIPELINE on it (a preset such as minilm, or a pipeline folder)."""
    settings = lifecycle.GatewaySettings(
        state, host, port, metrics_port, cpu_scale, nodes, standbys, cpu_period_ms=cpu_period_ms
    )
    console = Console(stderr=True)
    with console.status(f"looking at {pipeline}"):
        directory, manifest = ensure_pipeline(pipeline, settings.pipelines)
    _check_takes_texts(manifest, directory)
    check_schedule(manifest, options)
    with console.status("starting the gateway"):
        process = lifecycle.start_gateway(settings, detach=not foreground)
    try:
        client = GatewayClient.from_state(state)
        if nodes:
            settings_of_nodes = NodeSettings(lends_on_gpus=bool(options["gpu_tenths"]))
            start_nodes(client, state, manifest, dict.fromkeys(nodes, settings_of_nodes))
        profiles = str((state / "profiles").resolve())
        _deploy_with_progress(client, manifest, DeploymentSettings(**options, profiles=profiles), console)
    except BaseException:
        lifecycle.stop_process(process)
        raise
    click.echo(f"pipeline   {manifest.name} ({directory})")
    _introduce(client, manifest, state, of_state(state), console)
    if not foreground:
        click.echo(f"stop       smoe down{of_state(state)}")
        return
    _stay(process, state, console)


def _stay(process: subprocess.Popen[bytes], state: Path, console: Console) -> None:
    """Until the gateway ends, which Ctrl-C makes it do. Raises click.Abort then, SmoeError where it failed by
    itself."""
    try:
        status = process.wait()
    except KeyboardInterrupt:
        with console.status("draining"):
            lifecycle.stop_process(process)
        raise click.Abort from None
    if status:
        raise SmoeError(f"the gateway ended with status {status}; {state / 'gateway.log'} has the reason")


def _introduce(client: GatewayClient, manifest: Manifest, state: Path, of_state: str, console: Console) -> None:
    """Where the pipeline is, and what can be done with it. ``of_state``: the option that names the state folder."""
    click.echo(f"gateway    {client.url}   user admin, password in {state / 'secrets' / 'basic-auth-password'}")
    click.echo(f"page       {client.url}/ui/   with that user and password")
    if others := lifecycle.other_pipelines(client, manifest.name):
        names = ", ".join(others)
        click.echo(f"also here  {names}, of this state folder; smoe pipeline remove {others[0]}{of_state} ends it")
    with console.status("measuring a lone text"):
        targets = _token_targets(manifest, client.url)
    for line in _next_steps(manifest, client.url, of_state, targets):
        click.echo(line)


@click.command()
@state_option
def down(state: Path) -> None:
    """Drain and stop the gateway and every function."""
    with Console(stderr=True).status("draining"):
        pid, drained = lifecycle.stop_gateway(state)
    if not drained:
        raise click.ClickException(f"the gateway (process {pid}) of {state} did not end in time and was killed")
    click.echo(f"stopped the gateway (process {pid}) of {state}")
    click.echo(after_down(of_state(state)), err=True)


@click.command()
@_PIPELINE
@state_option
@gateway_option
@password_option
@deployment_options
def deploy(pipeline: str, state: Path, gateway_url: str | None, password_file: Path | None, **options: Any) -> None:
    """Deploy PIPELINE (preset or folder) on a running gateway, or update it there."""
    client = connect(state, gateway_url, password_file)
    directory, manifest = ensure_pipeline(pipeline, state / "pipelines")
    _check_takes_texts(manifest, directory)
    check_schedule(manifest, options)
    orchestration = client.info()["provider"]["orchestration"]
    where: dict[str, Any] = {
        "runtime": runtime_memory(orchestration, manifest.dtype),
        "watchdog": orchestration != PROCESS,
    }
    _deploy_with_progress(client, manifest, DeploymentSettings(**options, **where), Console(stderr=True))
    click.echo(f"{manifest.name} ({directory}) is ready at {client.url}/function/{manifest.name}")
    click.echo(after_deploy(manifest.name, of_gateway(state, gateway_url)), err=True)


def after_deploy(name: str, where: str) -> str:
    """What to do with pipeline ``name`` that is ready; ``where``: the option that leads to its gateway."""
    return (
        f"next: `smoe invoke {name}{where} 'some text'` calls it, `smoe top {name}{where}` watches it, "
        f"`smoe autoscale {name}{where}` scales it"
    )


@click.command()
@click.argument("name", metavar="PIPELINE")
@state_option
@gateway_option
@password_option
def remove(name: str, state: Path, gateway_url: str | None, password_file: Path | None) -> None:
    """Remove PIPELINE: every function whose label smoe.pipeline is its name."""
    client = connect(state, gateway_url, password_file)
    count = lifecycle.remove_pipeline(client, name)
    if not count:
        raise SmoeError(f"no function of a pipeline called {name!r} is deployed at {client.url}")
    click.echo(f"removed {count} functions of {name}")
    click.echo(after_remove(name, of_gateway(state, gateway_url)), err=True)


def after_remove(name: str, where: str) -> str:
    """What to do after pipeline ``name`` was removed; ``where``: the option that leads to its gateway."""
    stop = "" if "--gateway" in where else f", `smoe down{where}` stops the gateway"
    return f"next: `smoe pipeline deploy {name}{where}` deploys it again{stop}"


@click.command()
@_PIPELINE
@state_option
@click.option(
    "--target",
    type=click.Choice(("openfaas", "kubernetes")),
    default="openfaas",
    help="A stack file for faas-cli, or manifests for kubectl.",
)
@click.option("--gateway", "gateway_url", default="http://127.0.0.1:8080", help="openfaas: address of the gateway.")
@click.option(
    "--namespace",
    default=DEFAULT_NAMESPACE,
    help="kubernetes: namespace of the functions, by the gateway's name for it; its home is always openfaas-fn.",
)
@click.option(
    "--kubernetes-namespace",
    help="kubernetes: that of a gateway's home which has another name in the cluster. [default: that of --namespace]",
)
@kubernetes_options("feed_url", "feed_secret", "caller_secret", "pipelines_claim", "weights_cache", "run_as_user")
@deployment_options
def stack(
    pipeline: str,
    state: Path,
    target: str,
    gateway_url: str,
    namespace: str,
    kubernetes_namespace: str | None,
    **options: Any,
) -> None:
    """Print PIPELINE (preset or folder) as a stack file for `faas-cli deploy -f`, or as manifests for `kubectl`."""
    if not is_url(gateway_url):
        raise click.BadParameter(f"{gateway_url!r} is no http or https address", param_hint="--gateway")
    _, manifest = ensure_pipeline(pipeline, state / "pipelines")
    place = kubernetes_namespace or namespace
    cluster = take_kubernetes_options(options, namespace=place)
    where: dict[str, Any] = {"runtime": container_memory(manifest.dtype), "watchdog": True}
    if target == "openfaas":
        click.echo(render_stack(manifest, DeploymentSettings(**options, **where), gateway_url), nl=False)
        return
    from smoe.cluster_stack import render_manifests

    if place != namespace != DEFAULT_NAMESPACE:
        raise click.UsageError(
            f"--kubernetes-namespace {place} is of a gateway's home, which gateways call {DEFAULT_NAMESPACE}; "
            f"leave --namespace {namespace} out"
        )
    address = f"http://{{function}}.{place}:8080"
    settings = DeploymentSettings(**options, **where, address_template=address)
    click.echo(render_manifests(manifest, settings, cluster, namespace), nl=False)


def _token_targets(manifest: Manifest, url: str) -> str:
    """Options of a decoder's targets, from what a lone text takes now; empty where none can be written."""
    if manifest.task != "causal-lm":
        return ""
    from simulation.profiles.generation.measure import Decoder, Settings, measure

    decoder = Decoder.of(manifest, f"{url}/function/{manifest.name}")
    try:
        samples = measure(decoder, Settings((64,), ((1, 64),), tokens=8, repeats=1, timeout_s=LONE_TEXT_S))
    except ProfileError:
        return ""
    firsts, intervals = ([one.seconds for one in samples if (one.texts > 0) == decodes] for decodes in (False, True))
    if not firsts or not intervals:
        return ""
    ttft_ms, tpot_ms = token_targets_ms(median(firsts), median(intervals))
    return f"--ttft-ms {ttft_ms:g} --tpot-ms {tpot_ms:g}"


def _next_steps(manifest: Manifest, url: str, of_state: str, targets: str = "") -> list[str]:
    """What to do with a pipeline that is up; ``targets``: options of a decoder's."""
    policy = f" --policy slo-aware {targets}" if targets else "" if manifest.task == "causal-lm" else " --slo-ms 1000"
    if manifest.task == "embedding":
        first = f"try        smoe invoke {manifest.name}{of_state} 'a sentence'\n"
        first += f'           curl -s {url}/function/{manifest.name} -d \'{{"inputs": "a sentence"}}\''
    else:
        first = f"try        smoe invoke {manifest.name}{of_state} 'a text to go on with'"
        if manifest.tokenizer is not None and manifest.tokenizer.chat_template:
            first += f"    or talk: smoe chat {manifest.name}{of_state}"
    return [
        first,
        f"           OpenAI's API at {url}/v1, model {manifest.name}",
        f"watch      smoe status{of_state}    or live: smoe top {manifest.name}{of_state}",
        f"scale      smoe autoscale {manifest.name}{of_state}{policy}",
    ]


def _check_takes_texts(manifest: Manifest, directory: Path) -> None:
    """Raises SmoeError: no ingress could start."""
    if manifest.tokenizer is None:
        raise SmoeError(
            f"{directory}: pipeline {manifest.name} has no tokenizer, so its ingress cannot take texts; put "
            "tokenizer.json next to the checkpoint's config.json and split it again"
        )


def check_schedule(manifest: Manifest, options: Mapping[str, Any]) -> None:
    """Raises click.UsageError where instances cannot be scheduled as asked for."""
    instances, prefill = options["instances"], options["prefill_instances"]
    asked = instances > 1 or options["schedule"] != "colocated" or options["chunk_tokens"] != CHUNK_TOKENS
    if manifest.task != "causal-lm" and asked:
        raise click.UsageError(f"--instances, --schedule and --chunk-tokens are for decoders; {manifest.name} is none")
    if options["schedule"] in ("colocated", "deadline"):
        if prefill is not None:
            raise click.UsageError("--prefill-instances goes with --schedule arrow, minimal-load or round-robin")
    elif instances < 2 or (prefill is not None and prefill >= instances):
        raise click.UsageError(
            f"--schedule {options['schedule']} needs an instance for each phase: --instances 2 or more, of which "
            "--prefill-instances leaves one"
        )


def _deploy_with_progress(
    client: GatewayClient, manifest: Manifest, settings: DeploymentSettings, console: Console
) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with LongWork(console, *columns) as progress:
        total = len(manifest.nodes) + 1 if not settings.max_functions else settings.max_functions
        task = progress.add_task(f"deploying {manifest.name}", total=total)
        lifecycle.deploy_pipeline(client, manifest, settings, lambda ready: progress.update(task, completed=ready))

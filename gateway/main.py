"""``python -m gateway``: reads flags and environment, builds the gateway, serves until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gateway.app import Gateway
from gateway.backends.kubernetes.options import kubernetes_options, take_kubernetes_options
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.networks import parse_networks
from gateway.backends.process.settings import ProcessSettings
from gateway.callbacks import CallbackTargets
from gateway.contract import Backend, BackendError, FunctionSpec
from gateway.durations import parse_duration
from gateway.memory import held_bytes_of, memory_bytes, untaken_bytes_of
from gateway.options import listening_options
from gateway.serving import build_server, listen
from gateway.settings import GatewaySettings, ensure_credentials

log = logging.getLogger("gateway")


class _Duration(click.ParamType[float]):
    """OpenFaaS's form of durations, in seconds."""

    name = "duration"

    def __init__(self, may_be_zero: bool = False) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not seconds and not self._may_be_zero:
            self.fail("a duration must be above 0", param, ctx)
        return seconds


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="State folder: passwords, functions, logs.",
)
@listening_options
@click.option(
    "--backend",
    type=click.Choice(("process", "kubernetes")),
    default="process",
    help="Where functions run: here, or in a cluster.",
)
@kubernetes_options()
@click.option(
    "--cpu-scale", type=click.FloatRange(0.001, 10), default=1.0, help="process: real cores per configured core."
)
@click.option(
    "--cpu-period-ms", type=click.FloatRange(1, 1000), default=10.0, help="process: CFS period of CPU limits."
)
@click.option(
    "--image", "images", multiple=True, metavar="NAME=MODULE:FUNCTION", help="process: what an image runs; repeatable."
)
@click.option(
    "--command-users/--no-command-users",
    default=True,
    help="process: commands (fprocess) run as an unprivileged user each, where root allows it.",
)
@click.option(
    "--caller-keys/--no-caller-keys",
    default=True,
    help="process: workers take calls of this gateway and its ingresses only.",
)
@click.option(
    "--preload", multiple=True, metavar="MODULE", help="process: a module that replicas find imported; repeatable."
)
@click.option("--pipelines-dir", type=click.Path(path_type=Path), help="process: folder of pipelines by name.")
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME",
    help="process: a machine to emulate on this one; repeatable, the first is home.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    metavar="MACHINE=ADDRESS@FILE",
    help="process: network namespace that a machine lives in (root); repeatable.",
)
@click.option(
    "--standbys", type=click.IntRange(0, 1000), default=2, help="process: prepared workers kept for each pipeline."
)
@click.option(
    "--startup-cpu-boost",
    type=click.FloatRange(0, 1024),
    default=1.0,
    envvar="startup_cpu_boost",
    help="process: real cores of a replica until it is ready, where its limit is less.",
)
@click.option(
    "--start-gap",
    "start_gap_s",
    type=_Duration(may_be_zero=True),
    default="10ms",
    envvar="start_gap",
    help="process: pause between two replicas that start, and between two that end.",
)
@click.option(
    "--basic-auth/--no-basic-auth", default=True, envvar="basic_auth", help="Ask for the password under /system."
)
@click.option(
    "--open-control", is_flag=True, help="With --no-basic-auth beyond loopback: everybody there may deploy commands."
)
@click.option(
    "--api-key", is_flag=True, help="Ask for the key in secrets/api-key under /v1 on loopback too; beyond it always is."
)
@click.option(
    "--scale-from-zero/--no-scale-from-zero",
    default=True,
    envvar="scale_from_zero",
    help="Start a function at zero when it is called.",
)
@click.option(
    "--upstream-timeout",
    type=_Duration(),
    default="60s",
    envvar="upstream_timeout",
    help="Until a replica's reply begins.",
)
@click.option(
    "--upstream-silence",
    "upstream_silence_s",
    type=_Duration(may_be_zero=True),
    default="3s",
    envvar="upstream_silence",
    help="Until a call goes on elsewhere as a replica's machine acknowledges nothing; 0s: never.",
)
@click.option(
    "--read-timeout",
    type=_Duration(),
    default="60s",
    envvar="read_timeout",
    help="Until a request's body is whole; at 16 KiB/s or more it may go on.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(0),
    default=4096,
    help="Connections open at once; beyond them idle and slow ones end. 0: a third of the open files, as at most.",
)
@click.option(
    "--memory-mib",
    type=click.IntRange(16),
    help="Memory of this gateway; half of it, at most 512 MiB, holds bodies. [default: its cgroup's limit or all]",
)
@click.option("--max-body-mb", type=click.IntRange(1, 65536), default=256, help="MiB a call may send.")
@click.option(
    "--controller",
    "controllers",
    multiple=True,
    metavar="URL",
    callback=lambda _context, _option, urls: tuple(map(_address, urls)),
    help="Controllers whose view /ui/ shows (http://HOST:METRICS-PORT); on one machine the state folder has it.",
)
@click.option(
    "--nats",
    metavar="URL",
    envvar="NATS_URL",
    callback=lambda _context, _option, url: None if url is None else _nats(url),
    help="NATS server (JetStream) that keeps asynchronous calls, for all copies of the gateway. [default: memory]",
)
@click.option(
    "--callback-target",
    "callback_targets",
    multiple=True,
    metavar="HOST[:PORT]",
    callback=lambda _context, _option, targets: _targets(targets),
    help="Receiver that X-Callback-Url may name, *.DOMAIN for all below one; repeatable. [default: any]",
)
@click.option("--async-queue", type=click.IntRange(1), default=1000, help="Asynchronous calls held.")
def main(
    backend: str,
    images: tuple[str, ...],
    upstream_timeout: float,
    read_timeout: float,
    max_body_mb: int,
    memory_mib: int | None,
    open_control: bool,
    **options: Any,
) -> None:
    """OpenFaaS's gateway API on this machine, or in a cluster (--backend kubernetes).

    Basic auth and timeouts may come from OpenFaaS's variables.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    cluster = take_kubernetes_options(options)
    memory = memory_mib << 20 if memory_mib else memory_bytes()
    held_bytes = held_bytes_of(memory)
    settings = GatewaySettings(
        keeps_functions=backend == "process",
        images=_image_table(images),
        upstream_timeout_s=upstream_timeout,
        read_timeout_s=read_timeout,
        max_body_bytes=max_body_mb << 20,
        held_bytes=held_bytes,
        async_held_bytes=held_bytes // 2,
        untaken_bytes=untaken_bytes_of(memory),
        **options,
    )
    if not settings.loopback and not settings.basic_auth and not open_control:
        raise click.UsageError(
            f"--host {settings.host} without a password lets everybody there deploy commands; "
            "leave --no-basic-auth out, or say --open-control too"
        )
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(PermissionError):  # a mounted volume is not ours to change
        settings.state.chmod(0o700)
    with _locked(settings.state):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(serve(settings, cluster if backend == "kubernetes" else None))
            except BackendError as error:
                raise click.ClickException(str(error)) from error


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
        raise click.BadParameter(f"{url!r} is not of the form http://HOST:PORT", param_hint="--controller")
    return url


def _targets(patterns: tuple[str, ...]) -> tuple[str, ...]:
    try:
        CallbackTargets(patterns)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--callback-target") from error
    return patterns


def _nats(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls") or not parts.hostname:
        raise click.BadParameter("it takes nats://HOST:PORT or tls://HOST:PORT", param_hint="--nats")
    return url


def _image_table(images: tuple[str, ...]) -> dict[str, str]:
    table = {}
    for entry in images:
        name, equals, target = entry.partition("=")
        if not equals or ":" not in target:
            raise click.BadParameter(f"{entry!r} is not NAME=MODULE:FUNCTION", param_hint="--image")
        table[name] = target
    return table


@contextlib.contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Hold the state folder; a second gateway on it ends with an error."""
    try:  # a link would lead to a file that is not ours
        descriptor = os.open(state / "gateway.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise click.ClickException(f"{state / 'gateway.lock'} cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another gateway already runs on the state folder {state}") from None
        yield


async def serve(settings: GatewaySettings, cluster: KubernetesSettings | None = None) -> None:
    """Run until SIGTERM or SIGINT, then drain. ``cluster``: functions are there and not on this machine."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    credentials = ensure_credentials(settings)
    with (
        _listen(settings.host, settings.port, "--port") as api,
        _listen(settings.host, settings.metrics_port, "--metrics-port") as metrics,
    ):
        url = f"http://{settings.host}:{api.getsockname()[1]}"
        gateway = Gateway(settings, _backend(settings, cluster, url), credentials)
        gateway.system.metrics_address = f"{settings.host}:{metrics.getsockname()[1]}"
        servers = [build_server(app, settings) for app in (gateway.api, gateway.metrics_app)]
        running: list[asyncio.Task[None]] = []
        try:
            await gateway.start()  # before the servers: a call in the first moment waits, it finds all functions then
            running = [
                asyncio.create_task(server.serve(sockets=[listener]))
                for server, listener in zip(servers, (api, metrics), strict=True)
            ]
            _announce(settings, url, f"http://{gateway.system.metrics_address}/metrics")
            log.info("serving on %s", url)
            await _first(stop.wait(), *running)
            log.info("draining")
        finally:
            gateway.stop_streams()
            for server in servers:
                server.should_exit = True
            if running:
                await asyncio.wait(running, timeout=settings.drain_s + 5)
            await gateway.close()
            (settings.state / "gateway.json").unlink(missing_ok=True)


def _backend(settings: GatewaySettings, cluster: KubernetesSettings | None, url: str) -> Backend:
    """Imported here: one machine needs no Kubernetes client, and a cluster's image has no psutil."""
    if cluster is None:
        from gateway.backends.process.backend import ProcessBackend

        return ProcessBackend(_process_settings(settings, url))
    from gateway.backends.kubernetes.backend import KubernetesBackend

    return KubernetesBackend(cluster)


def _process_settings(settings: GatewaySettings, url: str) -> ProcessSettings:
    def environment(spec: FunctionSpec) -> dict[str, str]:
        feed = {
            "smoe_feed_url": f"{url}/system/replicas",
            "smoe_feed_token_file": str(settings.feed_token_file.resolve()),
        }
        if settings.pipelines_dir is not None:
            feed["smoe_pipelines_dir"] = str(settings.pipelines_dir.resolve())
        return feed

    return ProcessSettings(
        state=settings.state,
        images=settings.images,
        command_users=settings.command_users,
        caller_keys=settings.caller_keys,
        preload=settings.preload,
        inject_env=environment,
        cpu_scale=settings.cpu_scale,
        cpu_period_s=settings.cpu_period_ms / 1000,
        host=settings.host,
        machines=settings.machines,
        networks=parse_networks(settings.networks, settings.machines),
        standbys=settings.standbys,
        startup_cpu_boost=settings.startup_cpu_boost,
        start_gap_s=settings.start_gap_s,
    )


def _listen(host: str, port: int, option: str) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another {option}"
        ) from error


async def _first(*awaitables: Any) -> None:
    """Wait until one of them ends; raises its error, if it ended by one."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[0].cancel()
    for task in done:
        task.result()


def _announce(settings: GatewaySettings, url: str, metrics_url: str) -> None:
    part = settings.state / "gateway.json.part"
    document = {"url": url, "metrics_url": metrics_url, "pid": os.getpid(), "cpu_scale": settings.cpu_scale}
    part.write_text(json.dumps(document))
    part.replace(settings.state / "gateway.json")

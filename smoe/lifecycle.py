"""Starting and stopping the embedded gateway, and deploying a pipeline on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil

from gateway.backends.process import kernel
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayUnreachableError, NotReadyError, StateError
from gateway.client.state import private_folder, running_pid
from moe.manifest import Manifest
from platform_words.labels import PIPELINE_LABEL
from smoe.deployment import DeploymentSettings, function_deployments

START_TIMEOUT_S = 60.0


STOPS_WITHIN_S = 60.0
"""Heads that have partly come have ten seconds, the queue and replicas twenty each."""


@dataclass(frozen=True)
class GatewaySettings:
    """How ``smoe`` starts the embedded gateway."""

    state: Path
    host: str = "127.0.0.1"
    port: int = 8080
    metrics_port: int = 8082
    cpu_scale: float = 1.0
    """Real cores per configured core, so that a cluster's configurations can be emulated on a small machine."""
    nodes: tuple[str, ...] = ()
    """Machines emulated on this one, each with a weights manager; the first is where functions start."""
    standbys: int = 2
    """Prepared workers kept for each pipeline."""
    start_gap_s: float | None = None
    """Pause between two replicas that start, and between two that end; None: the gateway's default."""
    images: tuple[str, ...] = ()
    """Images besides the ones of this package, ``NAME=MODULE:FUNCTION``."""
    pipelines_dir: Path | None = None
    """Where functions find pipelines by name; default ``STATE/pipelines``."""
    caller_keys: bool = True
    """Workers take calls of the gateway and its ingresses only; not where they are measured by themselves."""
    networks: tuple[str, ...] = ()
    """Network namespaces that nodes live in, ``NODE=ADDRESS@FILE``."""
    cpu_period_ms: float = 10.0
    """CFS period of CPU limits, longer where a limit's quota would be less than the kernel's least."""

    @property
    def pipelines(self) -> Path:
        return self.pipelines_dir or self.state / "pipelines"


def gateway_command(settings: GatewaySettings) -> list[str]:
    """Command line of the gateway process."""
    return [
        sys.executable,
        "-m",
        "gateway",
        *("--state", str(settings.state.resolve())),
        *("--host", settings.host),
        *("--port", str(settings.port)),
        *("--metrics-port", str(settings.metrics_port)),
        *("--cpu-scale", str(settings.cpu_scale)),
        *("--cpu-period-ms", str(settings.cpu_period_ms)),
        *("--image", "smoe/function=functions.worker:main"),
        *("--preload", "functions.worker"),
        *(("--preload", "functions.ingress.prefetch") if len(settings.nodes) > 1 else ()),
        *("--image", "smoe/memory=functions.memory.manager:main"),
        *("--pipelines-dir", str(settings.pipelines.resolve())),
        *("--standbys", str(settings.standbys)),
        *(() if settings.start_gap_s is None else ("--start-gap", str(settings.start_gap_s))),
        *(() if settings.caller_keys else ("--no-caller-keys",)),
        *(part for image in settings.images for part in ("--image", image)),
        *(part for node in settings.nodes for part in ("--machine", node)),
        *(part for network in settings.networks for part in ("--network", network)),
    ]


def start_gateway(settings: GatewaySettings, *, detach: bool) -> subprocess.Popen[bytes]:
    """Start the gateway and wait until it answers.

    ``detach`` lets it live on after this process (``smoe up``); otherwise it dies with this process, however that dies.
    Raises StateError when one runs already on this state folder, NotReadyError with the end of its log otherwise.
    """
    pid = running_pid(settings.state)
    if pid is not None:
        raise StateError(
            f"a gateway (process {pid}) already runs on {settings.state}; "
            "`smoe pipeline deploy` deploys a pipeline on it, `smoe down` stops it"
        )
    private_folder(settings.state)
    settings.state.chmod(0o700)
    private_folder(settings.pipelines)
    (settings.state / "gateway.json").unlink(missing_ok=True)
    log_path = settings.state / "gateway.log"
    with log_path.open("ab") as log:
        begin = log.tell()  # what earlier gateways logged is not about this one
        process = _spawn(gateway_command(settings), log, detach=detach)
    try:
        _wait_started(process, settings.state, log_path, begin)
    except BaseException:
        stop_process(process)
        raise
    return process


def _spawn(command: list[str], log: IO[bytes], *, detach: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=None if detach else partial(kernel.die_with_parent, os.getpid(), signal.SIGTERM),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def _wait_started(process: subprocess.Popen[bytes], state: Path, log_path: Path, begin: int) -> None:
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        if process.poll() is not None:
            end = log_end(log_path, begin)
            raise NotReadyError(f"the gateway ended with status {process.returncode}; the end of {log_path}:\n{end}")
        if (state / "gateway.json").exists():
            with suppress(GatewayUnreachableError):
                GatewayClient.from_state(state).info()
                return
        time.sleep(0.05)
    raise NotReadyError(
        f"the gateway did not answer within {START_TIMEOUT_S:.0f} s; the end of its log:\n{log_end(log_path, begin)}"
    )


def log_end(path: Path, begin: int) -> str:
    """Last 15 lines of a log file from byte ``begin`` on, or a note that there is none."""
    try:
        return "\n".join(path.read_bytes()[begin:].decode(errors="replace").splitlines()[-15:])
    except OSError:
        return "(no log)"


def stop_process(process: subprocess.Popen[bytes], timeout_s: float = STOPS_WITHIN_S) -> None:
    """SIGTERM, wait for the drain, SIGKILL after ``timeout_s``."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def stop_gateway(state: Path, timeout_s: float = STOPS_WITHIN_S) -> tuple[int, bool]:
    """Stop the gateway of a state folder; returns its process id, and whether it drained and ended by itself: it is
    killed after ``timeout_s``. Raises StateError when none runs."""
    pid = running_pid(state)
    if pid is None:
        raise StateError(f"no gateway runs on the state folder {state}")
    os.kill(pid, signal.SIGTERM)
    end_s = time.monotonic() + timeout_s
    drained = True
    while running_pid(state) is not None or not _gone(pid):  # its ports are free only then
        if time.monotonic() > end_s:
            drained = False
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(0.05)
    (state / "gateway.json").unlink(missing_ok=True)
    return pid, drained


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def deploy_pipeline(
    client: GatewayClient,
    manifest: Manifest,
    settings: DeploymentSettings,
    on_progress: Callable[[int], None] = lambda ready: None,
    timeout_s: float = 120.0,
) -> list[dict[str, Any]]:
    """Deploy every function, the ingress last so that it finds its pipeline, and wait until all are ready."""
    deployments = function_deployments(manifest, settings)
    for deployment in reversed(deployments):
        client.deploy(deployment)
    client.wait_ready([deployment["service"] for deployment in deployments], timeout_s, on_progress)
    return deployments


def other_pipelines(client: GatewayClient, name: str) -> list[str]:
    """Names of the pipelines besides ``name`` that are deployed: those of an earlier gateway of a state folder come
    back with it, and take memory and time to start."""
    labels = ((function.get("labels") or {}).get(PIPELINE_LABEL) for function in client.functions())
    return sorted({label for label in labels if label and label != name})


def remove_pipeline(client: GatewayClient, name: str) -> int:
    """Remove the functions whose label smoe.pipeline is ``name``, the ingress first, as it calls the others; returns
    how many there were."""
    names = [f["name"] for f in client.functions() if f.get("labels", {}).get(PIPELINE_LABEL) == name]
    for function in sorted(names, key=lambda function: function != name):
        client.remove(function)
    return len(names)

"""An attack on a pipeline's containers, as processes of this machine, in the place of the watchdogs before them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness.running import RunningPipeline
from gateway.backends.process import kernel
from moe.manifest import load
from smoe.deployment import DeploymentSettings, function_deployments
from smoe.lifecycle import stop_process
from tests.attacks.pipeline import answer

START_S = 120.0


def calls_after_sigterm_behind_a_watchdog(pipeline: RunningPipeline, thorough: bool) -> tuple[bool, str]:
    """A watchdog passes SIGTERM on at once, and goes on sending calls for half a minute; no call is under way then."""
    pauses_s = [1.5, *[1.0] * (15 if thorough else 3)]
    with _containers(pipeline.directory) as (processes, ingress):
        for process in processes:
            process.send_signal(signal.SIGTERM)
        statuses = []
        for pause_s in pauses_s:
            time.sleep(pause_s)
            statuses.append(answer(ingress)[0])
        begun_s = time.monotonic()
        ended = [process.wait(START_S) for process in processes]
    words = (
        f"{statuses.count(200)} of {len(statuses)} calls answered, both ended {time.monotonic() - begun_s:.1f} s later"
    )
    return set(statuses) == {200} and ended == [0, 0], words


@contextmanager
def _containers(directory: Path) -> Iterator[tuple[list[subprocess.Popen[bytes]], str]]:
    """Ingress and stages, once a text was answered; and the ingress's address. They die with this process."""
    ports = _free_ports(2)
    settings = DeploymentSettings(max_functions=2, address_template=f"http://127.0.0.1:{ports[1]}")
    with ExitStack() as running:
        shared = {"smoe_pipeline": str(directory.resolve()), "OMP_NUM_THREADS": "1"}
        processes = []
        for deployment, port in zip(function_deployments(load(directory, verify=False), settings), ports, strict=True):
            processes.append(_started({**deployment["envVars"], **shared, "smoe_upstream_port": str(port)}))
            running.callback(stop_process, processes[-1])
        ingress, end_s = f"127.0.0.1:{ports[0]}", time.monotonic() + START_S
        while answer(ingress)[0] != 200:
            if time.monotonic() > end_s:
                raise RuntimeError("the containers' processes did not start")
            time.sleep(0.2)
        yield processes, ingress


def _started(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "functions.app"],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(kernel.die_with_parent, os.getpid()),
    )


def _free_ports(count: int) -> list[int]:
    with ExitStack() as listeners:
        made = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in made]

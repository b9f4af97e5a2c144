"""A Prometheus of a run's own next to its gateway, so that the controller reads what it reads in a cluster."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import requests
import yaml

from gateway.backends.process.kernel import die_with_parent
from smoe.errors import SmoeError
from smoe.lifecycle import stop_process

SCRAPES_A_WINDOW = 4
READY_S = 20.0
BINARY = "prometheus"


@contextmanager
def prometheus(gateway_url: str, state: Path, window_s: float) -> Iterator[str]:
    """The address of a server that scrapes the gateway's targets ``SCRAPES_A_WINDOW`` times a window; it and its data
    go with the context. Raises SmoeError where there is none on PATH, or it does not start within
    ``READY_S``."""
    if shutil.which(BINARY) is None:
        raise SmoeError("no Prometheus is on PATH")
    with tempfile.TemporaryDirectory(prefix="smoe-prometheus-") as name:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(gateway_url, state, window_s)))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [
            BINARY, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}", "--log.level=warn",
        ]  # fmt: skip
        dying = partial(die_with_parent, os.getpid())
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=dying)
        try:
            _wait_ready(process, address, folder / "log")
            yield f"http://{address}"
        finally:
            stop_process(process, 10.0)


def configuration(gateway_url: str, state: Path, window_s: float) -> dict[str, object]:
    """Gateway and ingress as the gateway lists them, read with the token that opens no more than that."""
    every = f"{round(1000 * window_s / SCRAPES_A_WINDOW)}ms"
    # Debian's 2.42 sends no type to a discovery that does not state it.
    token = {"type": "Bearer", "credentials_file": str((state / "secrets" / "feed-token").resolve())}
    targets = {"url": f"{gateway_url}/system/targets", "refresh_interval": "1s", "authorization": token}
    return {
        "global": {"scrape_interval": every, "scrape_timeout": every},
        "scrape_configs": [{"job_name": "smoe", "http_sd_configs": [targets]}],
    }


def _wait_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Until it serves and has scraped every target once."""
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and process.poll() is None:
        try:
            reply = requests.get(f"http://{address}/api/v1/query", params={"query": "count(up == 1)"}, timeout=2)
            if reply.ok and reply.json()["data"]["result"] and int(reply.json()["data"]["result"][0]["value"][1]) > 1:
                return
        except (requests.RequestException, ValueError):
            pass
        time.sleep(0.1)
    raise SmoeError(
        f"Prometheus did not start within {READY_S:.0f} s: {log.read_text(errors='replace')[-300:].strip()}"
    )

"""What the front door costs: ``python -m benchmarks.gateway``.

A running gateway (its own process, process backend) serves a trivial function; one client calls it through the gateway
and straight at its replica in turns, so both see the same noise. ``added_ms_p50`` is the difference of the two medians,
``p99_ms`` the 99th percentile through the gateway, ``rps`` the calls a second of several clients through the gateway.
The client is a blocking socket with keep-alive, as cheap as Python allows. The last line is one JSON object.
"""

from __future__ import annotations

import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import requests
from rich.console import Console
from rich.progress import track
from rich.table import Table

FUNCTION = "trivial"
START_TIMEOUT_S = 60.0
WARM_UP_CALLS = 200


class RawClient:
    """One keep-alive connection; :meth:`call` returns seconds from the first byte out to the last byte in."""

    def __init__(self, address: str, path: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = (
            f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nping"
        ).encode()

    def call(self) -> float:
        """Raises RuntimeError for anything but 200 with the function's body."""
        begun_s = time.perf_counter()
        self._socket.sendall(self._request)
        reply = b""
        while not reply.endswith(b"Hello, world!"):
            data = self._socket.recv(65536)
            if not data:
                raise RuntimeError(f"the connection was closed after {reply[:200]!r}")
            reply += data
            if b"\r\n" in reply and not reply.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the reply was {reply[:200]!r}")
        return time.perf_counter() - begun_s

    def close(self) -> None:
        self._socket.close()


@contextmanager
def running_gateway(state: Path) -> Iterator[tuple[str, str]]:
    """A gateway with the trivial function ready: (gateway address, replica address)."""
    command = [sys.executable, "-m", "gateway", "--state", str(state), "--port", "0", "--metrics-port", "0"]
    image = ["--image", "bench/trivial=benchmarks.harness.trivial_function:main"]
    with (state.parent / "gateway.log").open("wb") as log:
        process = subprocess.Popen([*command, *image], stdout=log, stderr=log)
    try:
        found = json.loads(_await_file(state / "gateway.json", process))
        auth = ("admin", (state / "secrets" / "basic-auth-password").read_text())
        deployment = {"service": FUNCTION, "image": "bench/trivial:1"}
        _ask("POST", f"{found['url']}/system/functions", auth, json=deployment)
        yield found["url"].removeprefix("http://"), _await_replica(found["url"], auth)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_file(path: Path, process: subprocess.Popen[bytes]) -> str:
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s and process.poll() is None:
        if path.exists():
            return path.read_text()
        time.sleep(0.02)
    raise RuntimeError(f"the gateway did not start: see {path.parent.parent / 'gateway.log'}")


def _await_replica(url: str, auth: tuple[str, str]) -> str:
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        functions = _ask("GET", f"{url}/system/replicas", auth).json()["functions"]
        for replica in functions.get(f"{FUNCTION}.openfaas-fn", {}).get("replicas", []):
            if replica["state"] == "ready":
                return str(replica["address"])
        time.sleep(0.02)
    raise RuntimeError("the trivial function did not become ready")


def _ask(method: str, url: str, auth: tuple[str, str], **options: Any) -> requests.Response:
    reply = requests.request(method, url, auth=auth, timeout=10, **options)
    reply.raise_for_status()
    return reply


def in_turns(gateway: str, replica: str, calls: int, console: Console) -> tuple[list[float], list[float]]:
    """Seconds of ``calls`` calls through the gateway and as many straight, one of each at a time."""
    through, straight = RawClient(gateway, f"/function/{FUNCTION}"), RawClient(replica, "/")
    with closing(through), closing(straight):
        for _ in range(WARM_UP_CALLS):
            through.call()
            straight.call()
        pairs = [
            (through.call(), straight.call())
            for _ in track(range(calls), "calls in turns", console=console, transient=True)
        ]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def at_once(gateway: str, clients: int, calls: int) -> tuple[float, list[float]]:
    """Calls a second, and their seconds, of ``clients`` closed loops of ``calls`` calls."""
    times: list[list[float]] = [[] for _ in range(clients)]
    failures: list[Exception] = []

    def loop(own: list[float]) -> None:
        try:
            with closing(RawClient(gateway, f"/function/{FUNCTION}")) as client:
                own.extend(client.call() for _ in range(calls))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(own,)) for own in times]
    begun_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun_s
    if failures:
        raise failures[0]
    return clients * calls / seconds, [one for own in times for one in own]


def percentile_ms(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


@click.command()
@click.option("--calls", default=4000, show_default=True, type=click.IntRange(100), help="Calls each way, in turns.")
@click.option("--clients", default=8, show_default=True, type=click.IntRange(1), help="Clients at once for rps.")
def main(calls: int, clients: int) -> None:
    """Added latency and calls a second of the gateway."""
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, running_gateway(Path(folder) / "state") as (gateway, replica):
        through, straight = in_turns(gateway, replica, calls, console)
        rps, loaded = at_once(gateway, clients, calls // clients)
    result = {
        "rps": round(rps),
        "p99_ms": round(percentile_ms(through, 99), 3),
        "added_ms_p50": round(percentile_ms(through, 50) - percentile_ms(straight, 50), 3),
        "p50_ms": round(percentile_ms(through, 50), 3),
        "straight_p50_ms": round(percentile_ms(straight, 50), 3),
        "straight_p99_ms": round(percentile_ms(straight, 99), 3),
        "loaded_p50_ms": round(percentile_ms(loaded, 50), 3),
        "loaded_p99_ms": round(percentile_ms(loaded, 99), 3),
        "clients": clients,
    }
    table = Table("", "p50 ms", "p99 ms")
    table.add_row("straight to the replica", f"{result['straight_p50_ms']}", f"{result['straight_p99_ms']}")
    table.add_row("through the gateway", f"{result['p50_ms']}", f"{result['p99_ms']}")
    table.add_row(f"{clients} clients at once", f"{result['loaded_p50_ms']}", f"{result['loaded_p99_ms']}")
    Console().print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

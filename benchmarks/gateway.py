"""What the front door costs: ``python -m benchmarks.gateway``.

A running gateway (its own process, process backend) serves a trivial function; one client calls it through the gateway
and straight at its replica in turns, so both see the same noise. ``added_ms_p50`` is the difference of the two medians,
``p99_ms`` the 99th percentile through the gateway, ``rps`` the calls a second of several clients through the gateway.
The client is a blocking socket with keep-alive, as cheap as Python allows. The last line is one JSON object.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.harness.options import AT_LEAST_1, benchmark
from benchmarks.harness.report import print_figures, print_result
from benchmarks.harness.running import local_gateway, running_gateway

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
def trivial_function(state: Path) -> Iterator[tuple[str, str]]:
    """A gateway with the trivial function ready: (gateway address, replica address)."""
    image = "bench/trivial=benchmarks.harness.trivial_function:main"
    with running_gateway(replace(local_gateway(state), images=(image,))) as gateway:
        client = gateway.connect()
        client.deploy({"service": FUNCTION, "image": "bench/trivial:1"})
        client.wait_ready([FUNCTION], START_TIMEOUT_S)
        replica = client.replicas()[FUNCTION][0]
        yield client.url.removeprefix("http://"), str(replica["address"])


def in_turns(gateway: str, replica: str, calls: int) -> tuple[list[float], list[float]]:
    """Seconds of ``calls`` calls through the gateway and as many straight, one of each at a time."""
    through, straight = RawClient(gateway, f"/function/{FUNCTION}"), RawClient(replica, "/")
    with closing(through), closing(straight):
        for _ in range(WARM_UP_CALLS):
            through.call()
            straight.call()
        pairs = [(through.call(), straight.call()) for _ in range(calls)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def at_once(gateway: str, clients: int, calls: int) -> tuple[float, list[float]]:
    """Calls a second, and their seconds, of ``clients`` closed loops of ``calls`` calls."""

    def loop(_: int) -> list[float]:
        with closing(RawClient(gateway, f"/function/{FUNCTION}")) as client:
            return [client.call() for _ in range(calls)]

    begun_s = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        taken_s = [one for times in pool.map(loop, range(clients)) for one in times]
    return clients * calls / (time.perf_counter() - begun_s), taken_s


def percentile_ms(seconds: list[float], percent: int) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


@benchmark
@click.option("--calls", default=4000, type=click.IntRange(100), help="Calls each way, in turns.")
@click.option("--clients", default=8, type=AT_LEAST_1, help="Clients at once for rps.")
def main(calls: int, clients: int) -> None:
    with tempfile.TemporaryDirectory() as folder, trivial_function(Path(folder) / "state") as (gateway, replica):
        through, straight = in_turns(gateway, replica, calls)
        rps, loaded = at_once(gateway, clients, calls // clients)
    result: dict[str, float] = {"rps": round(rps), "clients": clients}
    for name, seconds in (("", through), ("straight_", straight), ("loaded_", loaded)):
        for percent in (50, 99):
            result[f"{name}p{percent}_ms"] = round(percentile_ms(seconds, percent), 3)
    result["added_ms_p50"] = round(percentile_ms(through, 50) - percentile_ms(straight, 50), 3)
    print_figures(None, result)
    print_result(result)


if __name__ == "__main__":
    main()

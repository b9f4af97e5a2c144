"""The gateway that is attacked, and receivers of callbacks that behave well or badly."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from gateway.backends.process import kernel
from gateway.client.client import GatewayClient
from gateway.client.state import read_gateway
from smoe.lifecycle import log_end, stop_process

START_S = 120.0
ASYNC_QUEUE = 50
IMAGE = "attacks/trivial"


def ask(
    address: str, method: str, path: str, body: bytes, timeout_s: float, headers: Mapping[str, str]
) -> tuple[int, bytes, dict[str, str]]:
    """One request on its own connection: status, body, headers. Raises OSError."""
    host, _, port = address.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        return reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()}
    finally:
        connection.close()


class Target:
    """A gateway of its own state folder and free ports."""

    def __init__(self, state: Path, process: subprocess.Popen[bytes], receivers: dict[str, Receiver]) -> None:
        self.state, self.process, self.receivers = state, process, receivers
        address = read_gateway(state)
        self.address = str(address["url"]).removeprefix("http://")
        self.client = GatewayClient.from_state(state)
        self.password = (state / "secrets" / "basic-auth-password").read_text()

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"admin:{self.password}".encode()).decode()

    def ask(
        self, method: str, path: str, body: bytes = b"", timeout_s: float = 30.0, **headers: str
    ) -> tuple[int, bytes, dict[str, str]]:
        """One request of this gateway; see :func:`ask`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return ask(self.address, method, path, body, timeout_s, named)

    def system(self, method: str, path: str, document: Any = None, **headers: str) -> int:
        """Status of a request with the password."""
        body = b"" if document is None else json.dumps(document).encode()
        return self.ask(method, path, body, 30.0, authorization=self.basic, **headers)[0]

    def command(self, name: str, process: str, *secrets: str, **labels: str) -> None:
        """Deploy a command and wait until it answers probes."""
        document = {"service": name, "image": "any", "envProcess": process, "secrets": list(secrets), "labels": labels}
        self.client.deploy(document)
        self.client.wait_ready([name], START_S)

    def connect(self) -> socket.socket:
        host, _, port = self.address.partition(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def raw(self, data: bytes, wait_s: float = 5.0) -> bytes:
        """What comes back for these bytes until the gateway closes or is silent for ``wait_s``."""
        answer = b""
        with self.connect() as line, suppress(OSError):
            line.settimeout(wait_s)
            line.sendall(data)
            while piece := line.recv(65536):
                answer += piece
        return answer

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)


class Receiver:
    """Takes callbacks on loopback; ``trickles``: sends a byte now and then and never ends."""

    def __init__(self, *, trickles: bool) -> None:
        self._trickles = trickles
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.got = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._closed.set()
        self._listener.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(line,), daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            line.recv(65536)
            self.got.set()
            if not self._trickles:
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                return
            line.sendall(b"HTTP/1.1 200 OK\r\nx-slow: ")
            while not self._closed.wait(1.0):
                line.sendall(b"a")


@contextmanager
def running_target(*flags: str) -> Iterator[Target]:
    """The gateway runs, with more ``flags``, while the block does, and ends with this process however that ends."""
    receivers = {"trickling": Receiver(trickles=True), "good": Receiver(trickles=False)}
    receivers |= {f"trickling {number}": Receiver(trickles=True) for number in range(2, 41)}
    with tempfile.TemporaryDirectory(prefix="smoe-attacks-") as folder:
        state = Path(folder) / "state"
        command = [sys.executable, "-m", "gateway", "--state", str(state), "--port", "0", "--metrics-port", "0"]
        command += ["--image", f"{IMAGE}=benchmarks.harness.trivial_function:main", "--async-queue", str(ASYNC_QUEUE)]
        command += flags
        listed = [one.address for one in receivers.values()]
        listed += [receivers["good"].address.replace("127.0.0.1", "localhost"), "*.smoe.invalid"]
        command += [part for one in listed for part in ("--callback-target", one)]
        with (Path(folder) / "gateway.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(kernel.die_with_parent, os.getpid(), signal.SIGTERM),
            )
        try:
            end_s = time.monotonic() + START_S
            while not (state / "gateway.json").exists():
                if process.poll() is not None or time.monotonic() > end_s:
                    raise RuntimeError(f"the gateway did not start: {log_end(Path(folder) / 'gateway.log', 0)}")
                time.sleep(0.05)
            yield Target(state, process, receivers)
        finally:
            stop_process(process)
            for receiver in receivers.values():
                receiver.close()

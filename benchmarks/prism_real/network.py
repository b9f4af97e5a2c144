"""Nodes as network namespaces on one machine, joined by a switch, each with a limited way out.

Namespaces have no name and no process of their own: this process holds them open, and its own network becomes the
switch's (:func:`become_switch`). So nothing of it is to be seen outside, and everything (devices, limits, namespaces)
is gone when this process and those it started are, however they end. Needs root, ``ip`` and ``tc`` (iproute2) and
``nsenter`` (util-linux); a delay needs the kernel's netem.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import click

from gateway.backends.process.kernel import enter_network

SWITCH = "10.77.0.254"
UPLINK = "uplink"
BURST_KB, QUEUE_MS = 256, 100
TRIED_BYTES = 16 << 20
_CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


class NotPermittedError(click.ClickException):
    """This machine makes no such network; the message names what is missing."""


def become_switch() -> None:
    """Give the calling thread, and all it starts from now on, a network of its own: the switch's. NotPermittedError."""
    missing = [program for program in ("ip", "tc", "nsenter") if shutil.which(program) is None]
    if missing:
        raise NotPermittedError(f"{', '.join(missing)} not found; iproute2 and util-linux have them")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise NotPermittedError(f"no network namespace can be made: {os.strerror(ctypes.get_errno())} (root only)")


@dataclass(frozen=True)
class Node:
    """A node's namespace: the file to enter it by, good while this process lives, and its address."""

    name: str
    namespace: str
    address: str

    def run(self, work: Callable[[], Result]) -> Result:
        """``work()`` on a thread inside the node."""

        def inside() -> Result:
            enter_network(self.namespace)
            return work()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(inside).result()


def connect(names: Sequence[str], mbit: float, delay_ms: float = 0.0) -> tuple[Node, ...]:
    """Nodes on a switch in the calling thread's network; each sends at most ``mbit``, ``delay_ms`` later.

    Raises NotPermittedError with what the machine reported.
    """
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", "switch", "type", "bridge")
    _do("ip", "address", "add", f"{SWITCH}/24", "dev", "switch")
    _do("ip", "link", "set", "switch", "up")
    nodes = []
    for number, name in enumerate(names):
        namespace = f"/proc/{os.getpid()}/fd/{_new_namespace()}"
        node = Node(name, namespace, f"10.77.0.{number + 1}")
        port, inside = f"port{number}", ("nsenter", f"--net={namespace}")
        _do("ip", "link", "add", port, "type", "veth", "peer", "name", UPLINK, "netns", namespace)
        _do("ip", "link", "set", port, "master", "switch", "up")
        _do(*inside, "ip", "address", "add", f"{node.address}/24", "dev", UPLINK)
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do(*inside, "ip", "link", "set", UPLINK, "up")
        limit = ("rate", f"{mbit:g}mbit", "burst", f"{BURST_KB}kb", "latency", f"{QUEUE_MS}ms")
        _do(*inside, "tc", "qdisc", "add", "dev", UPLINK, "root", "handle", "1:", "tbf", *limit)
        if delay_ms:
            _do(*inside, "tc", "qdisc", "add", "dev", UPLINK, "parent", "1:", "netem", "delay", f"{delay_ms:g}ms")
        nodes.append(node)
    return tuple(nodes)


def _new_namespace() -> int:
    """A descriptor of a namespace made on a thread that ends: nothing but the descriptor keeps it."""

    def make() -> int:
        become_switch()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode:
        raise NotPermittedError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")


@dataclass(frozen=True)
class Way:
    """What the way from one node to another carries, measured."""

    mbit: float
    round_trip_ms: float


def measure(one: Node, other: Node, nbytes: int = TRIED_BYTES) -> Way:
    """Send ``nbytes`` from one node to another, and single bytes there and back."""
    server = other.run(lambda: socket.create_server((other.address, 0)))
    port = server.getsockname()[1]

    def answer() -> None:
        with server, server.accept()[0] as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(20):
                line.sendall(line.recv(1))
            left = nbytes
            while left:
                left -= len(line.recv(1 << 20))
            line.sendall(b"!")

    def ask() -> Way:
        with socket.create_connection((other.address, port), timeout=10) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(20):
                began_s = time.perf_counter()
                line.sendall(b"?")
                line.recv(1)
                trips.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
            line.sendall(bytes(nbytes))
            line.recv(1)
            spent_s = time.perf_counter() - began_s
        return Way(nbytes * 8 / spent_s / 1e6, sorted(trips)[len(trips) // 2] * 1000)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    way = one.run(ask)
    thread.join(10)
    return way

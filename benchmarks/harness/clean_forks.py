"""Workers forked from a process without threads: the gateway's warm parent, one for each process that asks.

A process that is forked while another thread computes may never come to its first product: MKL's allocator keeps the
lock that the other thread held (seen in 16 of 150 forks). Benchmarks and tests have such threads; the parent has none.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from itertools import count

from gateway.backends.process.workers import channel
from gateway.backends.process.workers.parent_client import Exit

PRELOAD = "functions.worker"
STDERR = 2


class CleanForks:
    """The parent's other end. Safe to use from several threads; everything ends with the process that made it."""

    def __init__(self) -> None:
        """Start the parent. Raises RuntimeError where it cannot import what workers need."""
        self._control, theirs = channel.pair()
        self._numbers = count()
        self._lock = threading.Lock()
        self._ends: dict[str, Exit] = {}
        command = [sys.executable, "-m", "gateway.backends.process.workers.parent", f"--preload={PRELOAD}"]
        with theirs:
            self._process = subprocess.Popen(
                [*command, f"--gateway-pid={os.getpid()}", f"--control={theirs.fileno()}"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        hello = self._next()
        if hello["event"] != "hello":
            raise RuntimeError(hello["reason"])

    def fork(self, name: str, environ: Mapping[str, str], listener: socket.socket) -> tuple[str, int]:
        """A worker that serves on ``listener``, once it is ready: what :meth:`wait` takes, and its process number.
        Raises RuntimeError when it ends before."""
        slot = f"{name}-{next(self._numbers)}"
        line, theirs = channel.pair()
        with line, self._lock:
            with theirs:
                order = {"op": "fork", "slot": slot, "join": [], "ending": ""}
                channel.send(self._control, order, (theirs.fileno(),))
            while (message := self._next())["event"] != "forked":
                self._keep(message)
            become = {"entry": f"{PRELOAD}:main", "name": name, "environ": {**os.environ, **environ}}
            rest = {"secrets": "", "network": "", "user": None}
            channel.send(line, {**become, **rest}, (listener.fileno(), STDERR))
            try:
                channel.receive(line)  # that it is ready
            except channel.ChannelClosedError:
                raise RuntimeError(f"the worker of {name} ended before it was ready; its error is above") from None
        return slot, int(message["pid"])

    def wait(self, slot: str) -> Exit:
        """How the worker ended, once it has."""
        with self._lock:
            while slot not in self._ends:
                self._keep(self._next())
            return self._ends[slot]

    def _next(self) -> channel.Message:
        try:
            return channel.receive(self._control)[0]
        except channel.ChannelClosedError:
            raise RuntimeError(f"the parent of workers ended with code {self._process.wait()}") from None

    def _keep(self, message: channel.Message) -> None:
        self._ends[message["slot"]] = Exit(message["code"], message["signal"])


@cache
def clean_forks() -> CleanForks:
    """The one of this process. First to be called in a thread that stays: the parent ends with it."""
    return CleanForks()

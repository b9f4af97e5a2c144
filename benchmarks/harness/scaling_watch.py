"""What happens to replicas and memory while a pipeline is scaled: the gateway's feed followed, processes weighed.

Memory is what the machine would get back: anonymous and file pages of every process of the gateway in proportion to
who shares them (``Pss`` of ``/proc/PID/smaps_rollup``), and what the nodes' memory folders hold, counted once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import requests

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError

FEED_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Picture:
    """Replicas at one moment, by function: ids of those ready, and how many there are in any state."""

    at_s: float
    ready: dict[str, frozenset[str]]
    alive: dict[str, int]


@dataclass
class FeedWatch:
    """Follows the gateway's replica feed in a thread while the ``with`` block lasts."""

    connect: Callable[[], GatewayClient]
    pictures: list[Picture] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> FeedWatch:
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(FEED_TIMEOUT_S + 5)

    def until(self, desired: Callable[[Picture], bool], timeout_s: float) -> float:
        """Monotonic time of the first picture from now on that is ``desired``. Raises TimeoutError."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            while True:
                if self.pictures and desired(self.pictures[-1]):
                    return self.pictures[-1].at_s
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"not reached within {timeout_s:.0f} s")
                self._changed.wait(min(1.0, left_s))

    def without_ready_s(self, names: Iterable[str], from_s: float, until_s: float) -> float:
        """Seconds in which one of these functions or more had no ready replica."""
        wanted = list(names)
        spent_s = 0.0
        with self._changed:
            pictures = list(self.pictures)
        for number, picture in enumerate(pictures):
            end_s = pictures[number + 1].at_s if number + 1 < len(pictures) else until_s
            overlap_s = min(end_s, until_s) - max(picture.at_s, from_s)
            if overlap_s > 0 and any(not picture.ready.get(name) for name in wanted):
                spent_s += overlap_s
        return spent_s

    def _follow(self) -> None:
        client = self.connect()
        while not self._stop.is_set():
            with suppress(GatewayClientError, requests.RequestException):
                for functions in client.follow_replicas():
                    if self._stop.is_set():
                        return
                    self._add(functions)
            time.sleep(0.1)

    def _add(self, functions: dict[str, list[dict[str, Any]]]) -> None:
        ready = {
            name: frozenset(replica["id"] for replica in replicas if replica["state"] == "ready")
            for name, replicas in functions.items()
        }
        alive = {name: len(replicas) for name, replicas in functions.items()}
        with self._changed:
            self.pictures.append(Picture(time.monotonic(), ready, alive))
            self._changed.notify_all()


@dataclass(frozen=True)
class Weight:
    """Bytes in use at one moment."""

    at_s: float
    processes: int
    """Anonymous and file pages of all processes, in proportion."""
    memory_folders: int
    """What the nodes' memory folders hold."""

    @property
    def total(self) -> int:
        return self.processes + self.memory_folders


def weigh(gateway_pids: Iterable[int], folders: Iterable[Path] = ()) -> Weight:
    """Weigh gateways and everything below them, now."""
    at_s, total = time.monotonic(), 0
    for gateway_pid in gateway_pids:
        with suppress(psutil.Error):
            gateway = psutil.Process(gateway_pid)
            for process in (gateway, *gateway.children(recursive=True)):
                with suppress(OSError):
                    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
                    fields = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
                    total += (int(fields["Pss_Anon"]) + int(fields["Pss_File"])) * 1024
    return Weight(at_s, total, sum(_held(folder) for folder in folders))


def _held(folder: Path) -> int:
    held = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            held += path.stat().st_blocks * 512
    return held


class Scales:
    """Weighs again and again in a thread while the ``with`` block lasts; slows the machine, so not during timings."""

    def __init__(self, gateway_pids: Iterable[int], folders: Iterable[Path] = (), *, pause_s: float = 0.05) -> None:
        self._pids, self._folders = list(gateway_pids), list(folders)
        self._pause_s = pause_s
        self.weights: list[Weight] = []
        self._stop = threading.Event()

    def __enter__(self) -> Scales:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.weights.append(weigh(self._pids, self._folders))
            self._stop.wait(self._pause_s)

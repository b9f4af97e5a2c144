"""What tests of the watch caches share: a scripted source, and what is asked of the API double meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from autoscaler.platforms.kubernetes.client import Event
from gateway.backends.kubernetes import objects
from gateway.backends.kubernetes.settings import KubernetesSettings
from tests.doubles.kubernetes.functions import spec
from tests.doubles.kubernetes.running import Running

F, G = "m-expert-0-0", "m-expert-0-1"


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something that another thread does."""
    end_s, pause = time.monotonic() + limit_s, threading.Event()
    while not condition():
        assert time.monotonic() < end_s, "not in time"
        pause.wait(0.01)


def asked_by(double: Running, act: Callable[[], object]) -> list[tuple[str, str]]:
    """Verb and resource of the calls that come while ``act`` runs."""
    before = double.do(lambda: len(double.api.calls))
    act()
    return double.do(lambda: [(one.verb, one.resource) for one in double.api.calls[before:]])


def reads(double: Running) -> list[str]:
    return double.do(lambda: [one.verb for one in double.api.calls if one.verb in ("get", "list", "watch")])


def put_many(double: Running, count: int, begin: int = 0) -> None:
    """Deployments ``m-more-BEGIN`` and following ones; to be called on the double's loop."""
    for i in range(begin, begin + count):
        document = objects.deployment(spec(f"m-more-{i}"), KubernetesSettings(), frozenset())
        double.store.create("deployments", document, "smoe-gateway")


class Script:
    """A scripted source: one watch after the other."""

    def __init__(self, watches: list[list[Event] | Exception]) -> None:
        self.watches = watches
        self.lists = 0
        self.asked: list[str] = []
        self.done = threading.Event()

    def list(self) -> tuple[Iterator[dict[str, Any]], Callable[[], str]]:
        self.lists += 1
        return iter([thing("a", "1")]), lambda: "5"

    def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
        self.asked.append(version)
        opened(lambda: None)
        if not self.watches:
            self.done.set()
            threading.Event().wait(0.05)
            return
        step = self.watches.pop(0)
        if isinstance(step, Exception):
            raise step
        yield from step


def thing(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version, "uid": name}, **more}


class Held(Script):
    """Its lists wait until they may end; with ``error`` they end by it."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__([])
        self.error, self.may_end = error, threading.Event()

    def list(self) -> tuple[Iterator[dict[str, Any]], Callable[[], str]]:
        assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        return super().list()

"""The controller as a process: its parts put together, ticks until it is stopped, what it shows while it runs."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry

from autoscaler.build import build_controller, build_platform
from autoscaler.cluster import ClusterSide
from autoscaler.contract import TickReport
from autoscaler.errors import AccessError, PlatformError, UndecidedError
from autoscaler.exposition import ControllerMetrics, Exposition
from autoscaler.loop import run
from autoscaler.platforms.shadow import ShadowBill, ShadowPlatform
from autoscaler.progress import Progress, stalled_after
from autoscaler.settings import ControllerSettings

log = logging.getLogger("smoe.autoscaler")

YOUNG_OBJECTS = 300_000
"""New objects after which the collector looks at them."""
OnReport = Callable[[TickReport, ShadowBill | None, Sequence[object]], object]
"""What is done with a tick: gets its report, the bill of a shadow, and what stands in the way on the platform."""


class ControllerProcess:
    """One pipeline's controller from start to end. Raises what its parts raise when they are put together."""

    def __init__(
        self, settings: ControllerSettings, pipeline: str, on_report: OnReport, ticks: int | None = None
    ) -> None:
        """``ticks``: stops after so many; None: when :meth:`stop` is called."""
        self._settings, self._on_report, self._ticks, self._left = settings, on_report, ticks, ticks
        self._undecided = ""
        """Why the last tick could not decide; empty once one could."""
        self._stopped = threading.Event()
        self._progress = Progress(stalled_after(settings.stalled_s, settings.interval_s))
        on_cluster = settings.platform == "kubernetes"
        self._cluster = (
            ClusterSide(settings, pipeline, progress=self._progress, counted=ticks is not None) if on_cluster else None
        )
        platform = (
            build_platform(settings, pipeline, self._progress.sign) if self._cluster is None else self._cluster.platform
        )
        self._platform = platform
        shadow = ShadowPlatform(platform) if settings.shadow else None
        self._controller, self._window_s = build_controller(settings, shadow or platform)
        self._bill = (
            None if shadow is None else ShadowBill(shadow, self._controller.prices, self._controller.policy.name)
        )
        self._metrics = ControllerMetrics(pipeline, settings.targets, self._bill)

    @property
    def currency(self) -> str:
        """The price sheet's."""
        return self._controller.prices.currency

    def stop(self) -> None:
        """End after the tick that is under way; from a signal's handler, too."""
        self._stopped.set()

    def run(self) -> None:
        """Tick until stopped; then everything that was started has ended. Raises UndecidedError where ticks were
        counted and none of them could decide, or the lease could not be had: without a count it goes on trying."""
        exposition = self._expose(self._settings.metrics_port) if self._settings.metrics_port else None
        if self._cluster is not None:
            self._cluster.start(self._stopped)
        else:
            self._check_access()
        try:
            with spared_collections() as settle:
                run(
                    self._controller,
                    self._settings.interval_s,
                    self._wait,
                    self._on_tick(settle),
                    window_s=self._window_s,
                )
        finally:
            self.stop()
            if self._bill is not None:
                log.info("%s", self._bill.verdict())
            if self._cluster is not None:
                self._cluster.close()
            if exposition is not None:
                exposition.close()
        if self._left is not None and self._left <= 0 and self._undecided:
            ticks = "1 tick" if self._ticks == 1 else f"{self._ticks} ticks"
            raise UndecidedError(f"{ticks}, and nothing could be decided: {self._undecided}")

    def _check_access(self) -> None:
        """Raises AccessError: a wrong password does not become right by waiting. All other trouble may pass."""
        try:
            self._platform.configurations()
        except AccessError:
            raise
        except PlatformError as error:
            log.warning("%s", error)

    def _on_tick(self, settle: Callable[[], None]) -> Callable[[TickReport], None]:
        """``settle`` is called once, after the first tick."""
        first = True

        def on_tick(report: TickReport) -> None:
            nonlocal first
            if first:
                settle()
            if first or self._undecided:
                self._undecided = undecided(report)
            first = False
            if self._left is not None:
                self._left -= 1
            self._metrics.add(report)
            if self._bill is not None:
                self._bill.add(report.observation)
            self._on_report(report, self._bill, () if self._cluster is None else self._cluster.conditions())
            if self._left is not None and self._left <= 0:
                self.stop()
            if self._cluster is not None:
                self._cluster.keep()

        return on_tick

    def _wait(self, wait_s: float) -> bool:
        if self._cluster is not None:
            return self._cluster.wait(self._stopped, wait_s)
        self._progress.turn()
        ended = self._stopped.wait(wait_s)
        self._progress.turn()
        return ended

    def _trouble(self) -> str:
        return self._progress.trouble() or ("" if self._cluster is None else self._cluster.trouble())

    def _expose(self, port: int) -> Exposition:
        registry = CollectorRegistry()
        registry.register(self._metrics)
        if self._cluster is not None:
            self._cluster.register(registry)
        return Exposition(port, registry, self._view, self._trouble)

    def _view(self) -> bytes:
        view = self._controller.view
        if view is None:
            return b"{}"
        if self._cluster is None:
            return view.document()
        return view.document(leads=self._cluster.leads(), conditions=self._cluster.conditions())


def undecided(report: TickReport) -> str:
    """Why a tick decided nothing; empty where it had data, and functions to decide for."""
    if not report.observation.stale and report.decisions:
        return ""
    return "; ".join(report.observation.problems) or "no function of the pipeline is deployed there"


@contextmanager
def spared_collections() -> Iterator[Callable[[], None]]:
    """Gives what is to be called once, when a tick has made what stays: the collector shall not walk through that again
    in every tick. At the end it does again, unless the caller had put objects out of its way as well: Python cannot
    give back one's without the other's.

    A tick of thousands of functions makes a few hundred thousand short-lived objects and no cycles of them, so there is
    little for the collector to find, and it may look for it later. The first lists make millions: of their CPU time
    three fifths were the collector's.
    """
    before, callers = gc.get_threshold(), gc.get_freeze_count()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)

    def settle() -> None:
        gc.collect()
        gc.freeze()

    try:
        yield settle
    finally:
        if not callers:
            gc.unfreeze()
        gc.set_threshold(*before)

"""A trace replayed through a running pipeline while the controller scales it, shown live."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from autoscaler.build import build_controller
from autoscaler.contract import ConfigurationSpace, TickReport
from autoscaler.loop import run as run_controller
from autoscaler.policy.hpa import hpa_of_windows
from autoscaler.settings import ControllerSettings, with_hpa
from gateway.client.client import GatewayClient
from gateway.client.state import read_password
from platform_words.memory import PROCESS
from smoe.view.build import ViewBuilder
from smoe.view.live import View
from traces.model import Trace
from traces.replay import Progress, ReplayResult, ReplaySettings, replay
from traces.results import CsvSink

STOPPING = (signal.SIGINT, signal.SIGTERM)
BEFORE_S = 10.0
"""A controller is there before its load: what it orders without any has this long to come about."""


def policy_part(
    directory: Path,
    *,
    policy: str,
    policy_settings: Mapping[str, Any],
    plan: Path | None,
    interval_s: float,
    slo_s: float,
    max_replicas: int,
    cpu_scale: float | None = None,
    gateway_url: str = "http://127.0.0.1:8080",
) -> ControllerSettings:
    """The controller's settings as far as a policy hangs on them: with another gateway they are the same policy's."""
    return ControllerSettings(
        gateway_url=gateway_url,
        orchestration=PROCESS,
        manifest_dir=directory,
        policy=policy,
        plan=plan,
        policy_settings=with_hpa(policy, policy_settings, hpa_of_windows(interval_s)),
        space=ConfigurationSpace(gpu_shares=()),
        interval_s=interval_s,
        window_s=interval_s,
        slo_s=slo_s,
        max_replicas=max_replicas,
        cpu_scale=cpu_scale,
    )


@dataclass(frozen=True)
class ScaledReplay:
    """What is replayed, how it is scaled, and where it is written."""

    pipeline: str
    directory: Path
    """The pipeline's folder (manifest and weights)."""
    state: Path
    out: Path
    """Gets ``log/`` (the controller's) and ``requests.csv``."""
    trace: Trace
    texts: list[str] = field(repr=False)
    slo_s: float
    policy: str
    policy_settings: dict[str, Any]
    interval_s: float
    max_replicas: int
    seed: int
    plan: Path | None = None
    """Stored configurations that a policy without reaction holds."""
    prometheus_url: str | None = None
    """The controller reads this server, which scrapes several times an interval; else the targets themselves."""

    def run(self, client: GatewayClient, console: Console) -> ReplayResult:
        """Replay in this thread, the controller in another; both feed the view. Ctrl-C ends the replay, not the
        report."""
        controller, window_s = build_controller(
            replace(
                policy_part(
                    self.directory, policy=self.policy, policy_settings=self.policy_settings, plan=self.plan,
                    interval_s=self.interval_s, slo_s=self.slo_s, max_replicas=self.max_replicas,
                    gateway_url=client.url,
                ),
                password=read_password(self.state),
                prometheus_url=self.prometheus_url,
                log_dir=self.out / "log",
                view_dir=self.state / "view",
            )
        )  # fmt: skip
        builder = ViewBuilder(self.pipeline, self.policy, time.time(), self.slo_s, controller.prices.currency)
        stop = threading.Event()
        url = f"{client.url}/function/{self.pipeline}"
        replay_settings = ReplaySettings(url=url, slo_s=self.slo_s, timeout_s=30.0, seed=self.seed)
        with View(console) as view:

            def on_tick(report: TickReport) -> None:
                view.show(builder.tick(report))

            def on_progress(progress: Progress) -> None:
                view.show(builder.progress(progress, time.time()))

            # A thread of its own: the controller waits for HTTP replies, the replay's event loop must send on time.
            work = threading.Thread(
                target=run_controller,
                args=(controller, self.interval_s, stop.wait, on_tick),
                kwargs={"window_s": window_s},
                daemon=True,
            )
            work.start()
            before = {number: signal.getsignal(number) for number in STOPPING}
            try:
                stop.wait(BEFORE_S)
                with CsvSink(self.out / "requests.csv") as sink:
                    return asyncio.run(self._replay(replay_settings, sink, on_progress))
            finally:
                for number, handler in before.items():  # a loop that closes leaves the system's
                    signal.signal(number, handler)
                stop.set()
                work.join(30)

    async def _replay(self, settings: ReplaySettings, sink: CsvSink, show: Callable[[Progress], None]) -> ReplayResult:
        stop = asyncio.Event()
        for number in STOPPING:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        started: list[Progress] = []

        async def refresh() -> None:
            while True:
                await asyncio.sleep(0.5)
                if started:
                    show(started[0])

        refreshing = asyncio.create_task(refresh())
        try:
            return await replay(
                self.trace, self.texts, settings, on_record=sink.add, on_start=started.append, stop=stop
            )
        finally:
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing

"""The controller's own loop on a simulated clock: what runs in production, without a pipeline and without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.contract import Policy, TickReport
from autoscaler.decision.limits import LimitSettings
from autoscaler.logger import FunctionLogger
from autoscaler.loop import Controller, run
from simulation.engine.metrics import SimulatedMetrics
from simulation.engine.simulated import Simulated
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import Window


class SimulatedClock:
    """Time of a simulation: whoever waits, simulates. ``windows`` are those that went by."""

    def __init__(self, simulation: Simulated, metrics: SimulatedMetrics, until_s: float, epoch_s: float = 0.0) -> None:
        self.windows: list[Window] = []
        self._simulation = simulation
        self._metrics = metrics
        self._until_s = until_s
        self._epoch_s = epoch_s

    def now_s(self) -> float:
        """Unix time."""
        return self._epoch_s + self._simulation.now_s

    def wait(self, wait_s: float) -> bool:
        """Simulate ``wait_s`` seconds; True when that would go beyond the end of the episode."""
        if self._simulation.now_s + wait_s > self._until_s + 1e-9:
            return True
        if wait_s > 0:
            window = self._simulation.advance(self._simulation.now_s + wait_s)
            self.windows.append(window)
            self._metrics.add(window)
        return False


@dataclass(frozen=True)
class Step:
    """One window and what the controller made of it."""

    window: Window
    report: TickReport


def simulate_policy(
    simulation: Simulated,
    policy: Policy,
    limits: LimitSettings,
    *,
    window_s: float,
    until_s: float,
    epoch_s: float = 0.0,
    logger: FunctionLogger | None = None,
    metrics_of: Callable[[Simulated, float], SimulatedMetrics] = SimulatedMetrics,
) -> list[Step]:
    """Run the real loop over the simulation, a tick every ``window_s`` until ``until_s``; returns all steps.

    The decision of a window's end is in force from the next window's beginning, with the workload's delays.
    """
    metrics, steps = metrics_of(simulation, epoch_s), list[Step]()
    clock = SimulatedClock(simulation, metrics, until_s, epoch_s)
    controller = Controller(
        simulation.workload.topology,
        metrics,
        policy,
        SimulatedPlatform(simulation),
        limits,
        simulation.workload.prices,
        logger=logger,
        window_s=window_s,
        wait=lambda pause_s: None,
    )

    def on_tick(report: TickReport) -> None:
        steps.append(Step(clock.windows[-1], report))

    run(controller, window_s, clock.wait, on_tick, clock.now_s)
    return steps


def failures_of(steps: Sequence[Step]) -> dict[str, Any]:
    """In how many windows the policy ended with an exception, so that what was deployed was held or its guard
    decided, and the first one."""
    failures = [step.report.failure for step in steps if step.report.failure]
    return {"failed_windows": len(failures), **({"failure": failures[0]} if failures else {})}

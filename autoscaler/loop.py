"""The controller's loop: observe, wish, decide, apply, log. Each tick stands alone; a bad one is survived."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from autoscaler.actuator.actuator import Result, apply
from autoscaler.contract import Decision, MetricsSource, Platform, Policy, TickReport, Topology
from autoscaler.decision.limits import LimitSettings, LimitState, decide
from autoscaler.errors import AutoscalerError
from autoscaler.logger import FunctionLogger
from autoscaler.prices import PriceSheet, total_cost

log = logging.getLogger("smoe.autoscaler")


class Controller:
    """One pipeline under one policy."""

    def __init__(
        self,
        topology: Topology,
        source: MetricsSource,
        policy: Policy,
        platform: Platform,
        limits: LimitSettings,
        prices: PriceSheet,
        *,
        logger: FunctionLogger | None = None,
        dry_run: bool = False,
    ) -> None:
        self.topology = topology
        self.policy = policy
        self.prices = prices
        self._source = source
        self._platform = platform
        self._limits = limits
        self._logger = logger
        self._dry_run = dry_run
        self._memory: object = None
        self._limit_state = LimitState()

    def tick(self, now_s: float, window_s: float) -> TickReport:
        """One window that ends at ``now_s`` (Unix time). Raises PlatformError when the functions cannot be listed."""
        observation = self._source.observe(now_s, window_s)
        present = self._platform.configurations()
        begun_s = time.perf_counter()
        proposal = self.policy.propose(observation, now_s, self._memory)
        if not observation.stale:
            self._memory = proposal.memory
        decisions, state = decide(
            self.topology, observation, proposal, present, now_s, self._limit_state, self._limits, self.prices
        )
        decision_s = time.perf_counter() - begun_s
        result = Result()
        if not self._dry_run:
            result = apply(self._platform, decisions)
            self._limit_state = state
        cost, by_node = total_cost(observation, self.prices)
        report = TickReport(
            observation,
            decisions,
            tuple(result.applied),
            result.failures,
            cost,
            by_node,
            decision_s,
            self._dry_run,
        )
        self._record(report)
        return report

    def close(self) -> None:
        """Write what the function logger still keeps."""
        if self._logger is not None:
            self._logger.flush()

    def _record(self, report: TickReport) -> None:
        for problem in report.observation.problems:
            log.warning("%s", problem)
        for decision in report.decisions:
            if decision.changes or decision.limits_hit:
                log.info("%s", describe(decision, report))
        if self._logger is not None:
            self._logger.add(report)


def describe(decision: Decision, report: TickReport) -> str:
    """One structured line: inputs, wish, limits hit, result."""
    seen = report.observation.node(decision.node)
    inputs = ""
    if seen is not None:
        numbers = {
            "cpu": seen.cpu_utilisation,
            "concurrency": seen.concurrency_utilisation,
            "p95_s": seen.latency_p95_s,
            "rps": seen.requests_per_s,
        }
        inputs = " ".join(f"{name}={value:.3g}" for name, value in numbers.items() if value is not None)
    outcome = "dry-run" if report.dry_run else "applied" if decision.function in report.applied else "kept"
    if decision.function in report.failures:
        outcome = f"failed ({report.failures[decision.function]})"
    limits = ",".join(decision.limits_hit) or "none"
    return (
        f"function={decision.function} {inputs} present={_short(decision.present)} wish={_short(decision.wish)} "
        f"target={_short(decision.target)} limits={limits!r} reason={decision.reason!r} result={outcome}"
    )


def _short(configuration: object) -> str:
    fields = getattr(configuration, "__slots__", ())
    return "/".join(f"{getattr(configuration, name):g}" for name in fields)


def run(
    controller: Controller,
    interval_s: float,
    stop: Callable[[float], bool],
    on_tick: Callable[[TickReport], None] = lambda report: None,
    clock: Callable[[], float] = time.time,
    window_s: float | None = None,
) -> None:
    """Tick every ``interval_s`` until ``stop(wait_s)``, which waits at most that long, says so.

    Each tick looks at ``window_s``, by default one interval.
    """
    next_s = clock() + interval_s
    try:
        while not stop(max(0.0, next_s - clock())):
            now_s = clock()
            try:
                on_tick(controller.tick(now_s, window_s or interval_s))
            except AutoscalerError as error:
                log.error("this tick failed, the functions stay as they are: %s", error)
            next_s = max(next_s + interval_s, clock())
    finally:
        controller.close()

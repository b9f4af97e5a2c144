"""The controller's loop: observe, propose, decide, apply, log. Each tick stands alone; a bad one is survived."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from autoscaler.actuator.actuator import Result, apply
from autoscaler.changes import describe_change, shortened
from autoscaler.contract import (
    Bound,
    BoundedPlatform,
    Configuration,
    Decision,
    Memory,
    MeteredPlatform,
    MetricsSource,
    Observation,
    PlacedPlatform,
    Platform,
    Policy,
    Proposal,
    RememberingPlatform,
    TickReport,
    Topology,
)
from autoscaler.decision.limits import LimitSettings, LimitState, decide
from autoscaler.errors import LogError, PlatformError, in_words
from autoscaler.logger import FunctionLogger
from autoscaler.own_sizes import OwnSizes
from autoscaler.prices import PriceSheet, total_cost
from autoscaler.state.features import complete
from autoscaler.view import View

log = logging.getLogger("smoe.autoscaler")

WHOLE = 0.9
"""Part of a window from which on it is new as a whole: ticks come a little early or late."""


class Controller:
    """One pipeline under one policy.

    ``window_s`` is how far back a tick looks, ``orders_at_once`` how many orders the platform takes at the same time,
    ``choice`` why this policy was chosen, for reports; empty where it was named.
    """

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
        view: View | None = None,
        dry_run: bool = False,
        window_s: float = 5.0,
        orders_at_once: int = 1,
        wait: Callable[[float], object] = time.sleep,
        choice: str = "",
    ) -> None:
        self.topology = topology
        self.policy = policy
        self.prices = prices
        self.window_s = window_s
        self._source = source
        self._platform = platform
        self._bounds: Callable[[], Mapping[str, Bound]] = (
            platform.bounds if isinstance(platform, BoundedPlatform) else dict
        )
        self._floors: Callable[[], Mapping[str, int]] = (
            platform.floors if isinstance(platform, PlacedPlatform) else dict
        )
        self._in_force: Callable[[], Mapping[str, Configuration]] = (
            platform.in_force if isinstance(platform, MeteredPlatform) else dict
        )
        self._taken_back: Callable[[], Mapping[str, int]] = (
            platform.taken_back if isinstance(platform, RememberingPlatform) else dict
        )
        self._limits = limits
        self._logger = logger
        self.view = view
        self._dry_run = dry_run
        self._choice = choice
        self._wait = wait
        self._orders_at_once = orders_at_once
        self._memory: Memory = None
        self._limit_state = LimitState()
        self._sizes = OwnSizes()
        self._shown_s = -math.inf
        """Unix time of the end of the last window that was not stale."""
        self._logged_problems: tuple[str, ...] = ()
        self._logged_failure = ""

    def prime(self, now_s: float, window_s: float | None = None) -> None:
        """Read the metrics once, so that the first tick has something to compare with."""
        self._source.observe(now_s, window_s or self.window_s)

    def tick(self, now_s: float, window_s: float | None = None) -> TickReport:
        """One window that ends at ``now_s`` (Unix time).

        Whatever cannot be read or done is named in the report (``observation.problems``, ``failures``), not raised.
        """
        observation = self._source.observe(now_s, window_s or self.window_s)
        observation, present = self._with_present(observation)
        paid = _with_configurations(observation, self._in_force())
        begun_s = time.perf_counter()
        proposal = self._propose(observation, now_s)
        bounds = self._bounds()
        decisions = self._decide(observation, proposal, present, now_s, bounds)
        decision_s = time.perf_counter() - begun_s
        result = Result()
        if not self._dry_run:
            result = self._apply(decisions)
            if result.failures:
                decisions, result = self._decide_again(observation, proposal, decisions, result, now_s, bounds)
            self._limit_state = self._limit_state.after(result.applied, now_s)
            self._sizes.ordered(decisions)
        cost, by_node = total_cost(paid, self.prices)
        report = TickReport(
            observation,
            decisions,
            tuple(result.applied),
            result.failures,
            cost,
            by_node,
            decision_s,
            self._dry_run,
            proposal.by or self.policy.name,
            self._choice,
            proposal.failure,
        )
        self._record(report)
        return report

    def close(self) -> None:
        """Write what the function logger still keeps."""
        if self._logger is not None:
            try:
                self._logger.flush()
            except LogError as error:
                log.error("%s", error)

    def _with_present(self, observation: Observation) -> tuple[Observation, Mapping[str, Configuration]]:
        try:
            present = self._platform.configurations()
        except PlatformError as error:
            problems = (*observation.problems, f"the functions could not be listed, nothing is decided: {error}")
            return replace(observation, problems=problems), {}
        redeployed = frozenset[str]() if observation.stale else self._sizes.redeployed(present)
        news = self._news(observation)
        return (
            replace(complete(observation, present), taken_back=self._taken_back(), redeployed=redeployed, news=news),
            present,
        )

    def _news(self, observation: Observation) -> float:
        before_s = self._shown_s
        if not observation.stale:
            self._shown_s = observation.end_s
        new_s = observation.end_s - before_s
        # After a clock that was set back all is new.
        return new_s / observation.window_s if 0 < new_s < WHOLE * observation.window_s else 1.0

    def _propose(self, observation: Observation, now_s: float) -> Proposal:
        try:
            proposal = self.policy.propose(observation, now_s, self._memory)
        except Exception as error:
            failure = in_words(error)
            if failure != self._logged_failure:  # the next ticks may meet the same
                log.exception("policy %s failed; the present scale is held", self.policy.name)
            self._logged_failure = failure
            why = f"policy {self.policy.name} failed ({type(error).__name__})"
            return Proposal({}, dict.fromkeys(self.topology.functions(), why), failure=failure)
        if proposal.failure not in ("", self._logged_failure):
            log.error("policy %s failed under its guard: %s", self.policy.name, proposal.failure)
        self._logged_failure = proposal.failure
        if not observation.stale:
            self._memory = proposal.memory
        return proposal

    def _decide(
        self,
        observation: Observation,
        proposal: Proposal,
        present: Mapping[str, Configuration],
        now_s: float,
        bounds: Mapping[str, Bound],
    ) -> tuple[Decision, ...]:
        state, limits = self._limit_state, self._limits
        floors = self._floors()
        return decide(self.topology, observation, proposal, present, now_s, state, limits, self.prices, bounds, floors)

    def _apply(self, decisions: tuple[Decision, ...]) -> Result:
        return apply(self._platform, decisions, self._wait, self._orders_at_once)

    def _decide_again(
        self,
        observation: Observation,
        proposal: Proposal,
        decisions: tuple[Decision, ...],
        result: Result,
        now_s: float,
        bounds: Mapping[str, Bound],
    ) -> tuple[tuple[Decision, ...], Result]:
        """Where orders were refused for what the platform cannot give, decide once more on the rest: what was refused
        costs nothing, so others may have its part of the budget."""
        bounds_after = self._bounds()
        if bounds_after == bounds:
            return decisions, result
        try:
            present = self._platform.configurations()
        except PlatformError:
            return decisions, result
        done = {function: present[function] for function in result.applied if function in present}
        rest = replace(proposal, desired={**proposal.desired, **done})
        changed = {
            one.function: one for one in self._decide(observation, rest, present, now_s, bounds_after) if one.changes
        }
        second = self._apply(tuple(changed.values()))
        failures = {function: why for function, why in result.failures.items() if function not in second.applied}
        merged = tuple(changed.get(decision.function, decision) for decision in decisions)
        return merged, Result([*result.applied, *second.applied], failures | second.failures)

    def _record(self, report: TickReport) -> None:
        problems = report.observation.problems
        for problem in problems:
            if problem not in self._logged_problems:
                log.warning("%s", problem)
        self._logged_problems = problems
        every = log.isEnabledFor(logging.DEBUG)
        for decision in report.decisions:
            loud = decision.changes or (decision.limits_hit and decision.valid)
            if every:
                log.log(logging.INFO if loud else logging.DEBUG, "%s", describe(decision, report))
            elif loud and log.isEnabledFor(logging.INFO):
                log.info("%s", brief(decision, report))
        for keeper in (self._logger, self.view):
            if keeper is not None:
                try:
                    keeper.add(report)
                except LogError as error:
                    log.error("%s", error)


def brief(decision: Decision, report: TickReport) -> str:
    """A decision in one line for people: what becomes of the function, why, and what limited it."""
    outcome = _outcome(decision, report)
    change = describe_change(decision.present, decision.target)
    if not decision.changes:
        change = f"stays {short(decision.present)}, {short(decision.desired)} desired"
    parts = (shortened(decision.reason), *decision.limits_hit, outcome if outcome not in ("applied", "kept") else "")
    return f"{decision.function} {change}: {'; '.join(filter(None, parts))}"


def _outcome(decision: Decision, report: TickReport) -> str:
    if decision.function in report.failures:
        return f"failed: {report.failures[decision.function]}"
    return "dry-run" if report.dry_run else "applied" if decision.function in report.applied else "kept"


def describe(decision: Decision, report: TickReport) -> str:
    """One structured line: inputs, desired configuration, limits hit, result."""
    row = report.observation.node(decision.node)
    inputs = (
        {}
        if row is None
        else {
            "cpu": row.cpu_utilisation,
            "concurrency": row.concurrency_utilisation,
            "p95_s": row.latency_p95_s,
            "rps": row.requests_per_s,
            "tps": row.tokens_per_s,
            "ready": row.ready_replicas,
        }
    )
    parts = [f"{name}={'none' if value is None else f'{value:.4g}'}" for name, value in inputs.items()]
    return " ".join(
        (
            f"policy={report.policy} function={decision.function}",
            *parts,
            f"present={short(decision.present)} desired={short(decision.desired)} target={short(decision.target)}",
            f"limits={'; '.join(decision.limits_hit) or 'none'!r} reason={decision.reason!r}",
            f"result={_outcome(decision, report)!r}",
        )
    )


def short(configuration: Configuration) -> str:
    """``512MiB/1cpu/2x4``: memory, CPU or GPU of a replica, replicas x calls at once; ``2+7x4`` with 7 standbys."""
    compute = f"{configuration.gpu_share:g}gpu" if configuration.gpu_share else f"{configuration.cpu_cores:g}cpu"
    standbys = f"+{configuration.standbys}" if configuration.standbys else ""
    return f"{configuration.memory_mb}MiB/{compute}/{configuration.replicas}{standbys}x{configuration.concurrency}"


def _with_configurations(observation: Observation, in_force: Mapping[str, Configuration]) -> Observation:
    """The window with what ran in place of what should have."""
    if not in_force:
        return observation
    nodes = (node._replace(configuration=in_force.get(node.function, node.configuration)) for node in observation.nodes)
    return replace(observation, nodes=tuple(nodes))


def run(
    controller: Controller,
    interval_s: float,
    stop: Callable[[float], bool],
    on_tick: Callable[[TickReport], None] = lambda report: None,
    clock: Callable[[], float] = time.time,
    window_s: float | None = None,
) -> None:
    """Tick every ``interval_s`` until ``stop(wait_s)``, which waits at most that long, returns true.

    Each tick looks at ``window_s``, by default the controller's own. A tick that fails, or whose ``on_tick`` does, is
    logged once and the next one is tried; ticks that were missed are not made up for.
    """
    with suppress(Exception):  # the first tick meets it again, and reports it
        controller.prime(clock(), window_s)
    next_s = clock() + interval_s
    last_error = ""
    try:
        while not stop(max(0.0, next_s - clock())):
            now_s = clock()
            try:
                on_tick(controller.tick(now_s, window_s))
                last_error = ""
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                if text != last_error:
                    trace = not isinstance(error, PlatformError)  # one that is away is no fault of this program
                    log.error("this tick failed, the functions stay as they are: %s", error, exc_info=trace)
                last_error = text
            done_s = clock()
            next_s = min(max(next_s + interval_s, done_s), done_s + interval_s)  # the latter: it was set back
    finally:
        controller.close()

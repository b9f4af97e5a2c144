"""ElasticMoE's SLO-aware load estimator (arXiv 2510.02613, section 4.3) as a policy.

The system scales its one instance by a step when the share of requests within the SLO, the *attainment*, stays below a
mark (90 %), and back during sustained slack. Here a step is one replica of the functions that hold requests back: those
whose calls wait for a slot, or fill their slots, when going up; those that neither wait nor fill a smaller number of
replicas when going down. How the change is made without downtime is the platform's business.

Attainment is read off the window's quantiles: exact at the 50th, 95th and 99th percentile, linear in latency between.
Departures: the paper names no number of violating windows and no rule for scale-down; ``up_windows``, ``down_windows``
and ``slack`` are this policy's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.configuration import Configuration
from autoscaler.contract import Memory, NodeKind, NodeObservation, Observation, Proposal, reached
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.rows import by_function
from autoscaler.state.targets import Tail, Targets


@dataclass(frozen=True)
class AttainmentSettings(Targets):
    """When the estimator calls for a step."""

    target: float = 0.9
    """Share of requests within the SLO below which a window violates it."""
    up_windows: int = 2
    """Violating windows in a row before a step up."""
    down_windows: int = 12
    """Windows of slack in a row before a step down."""
    slack: float = 0.5
    """A window has slack when its 95th percentile is within this share of the SLO."""
    full: float = 0.7
    """Calls in flight over slots above which a function holds requests back."""
    min_replicas: int = 1
    max_replicas: int = 8
    kinds: frozenset[NodeKind] = frozenset({"expert"})


@dataclass(frozen=True)
class Streak:
    """Windows in a row that violated the SLO, and that had slack."""

    violating: float = 0.0
    slack: float = 0.0


def attainment(tail: Tail) -> float | None:
    """Share of requests (or tokens) within the target, 0 to 1; None where the window has no latencies.

    Worked example: P50 0.1 s, P95 0.3 s and a target of 0.2 s give 0.725.
    """
    quantiles, slo_s = ((0.5, tail.p50_s), (0.95, tail.p95_s), (0.99, tail.p99_s)), tail.target_s
    points = [(0.0, 0.0), *((share, latency) for share, latency in quantiles if latency is not None)]
    if len(points) == 1:
        return None
    for (low, below_s), (high, above_s) in itertools.pairwise(points):
        if slo_s < above_s:
            return low + (high - low) * max(0.0, slo_s - below_s) / (above_s - below_s)
    return 1.0


class AttainmentPolicy:
    """One replica up where requests are held back while the SLO is violated, one down in sustained slack."""

    name = "attainment"

    def __init__(self, settings: AttainmentSettings) -> None:
        self.settings = settings

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        streak = memory if isinstance(memory, Streak) else Streak()
        rows = by_function(observation, self.settings.kinds)
        s = self.settings
        shares = [(share, tail) for tail in s.tails(observation) if (share := attainment(tail)) is not None]
        if not shares:
            reason = "no request ended in this window, so attainment is not known"
            return Proposal({}, dict.fromkeys(rows, reason), streak)
        share, tail = min(shares, key=lambda pair: pair[0])
        excess = s.excess(observation)
        slack = excess is not None and excess <= s.slack
        news = observation.news
        streak = Streak(streak.violating + news if share < s.target else 0.0, streak.slack + news if slack else 0.0)
        what = "requests" if tail.name == "P95" else tail.name
        measured = f"{share:.0%} of {what} within {tail.target_s:g} s"
        if reached(streak.violating, s.up_windows):
            desired, reasons = self._up(rows, measured)
            return Proposal(desired, reasons, Streak())
        if reached(streak.slack, s.down_windows):
            desired, reasons = self._down(rows, measured)
            return Proposal(desired, reasons, Streak())
        return Proposal({}, dict.fromkeys(rows, measured), streak)

    def _up(
        self, rows: Mapping[str, Sequence[NodeObservation]], measured: str
    ) -> tuple[dict[str, Configuration], dict[str, str]]:
        """Functions that hold requests back; where none does, the one whose calls take longest."""
        pressed = {name for name, nodes in rows.items() if self._pressed(nodes, 0)}
        if not pressed:
            timed = {name: latest for name, nodes in rows.items() if (latest := _latency_s(nodes)) is not None}
            pressed = {max(timed, key=lambda name: timed[name])} if timed else set()
        return self._stepped(rows, pressed, 1, f"{measured}; it holds requests back")

    def _down(
        self, rows: Mapping[str, Sequence[NodeObservation]], measured: str
    ) -> tuple[dict[str, Configuration], dict[str, str]]:
        """Functions that would not hold requests back with a replica less."""
        idle = {name for name, nodes in rows.items() if not self._pressed(nodes, -1)}
        return self._stepped(rows, idle, -1, f"{measured} for long; a replica less would do")

    def _stepped(
        self, rows: Mapping[str, Sequence[NodeObservation]], chosen: set[str], step: int, reason: str
    ) -> tuple[dict[str, Configuration], dict[str, str]]:
        desired, reasons = {}, {}
        for name, nodes in rows.items():
            present = nodes[0].configuration
            reasons[name] = reason if name in chosen else "not the one to change"
            if name in chosen and present is not None:
                wanted = min(max(present.replicas + step, self.settings.min_replicas), self.settings.max_replicas)
                desired[name] = replace(present, replicas=wanted)
        return desired, reasons

    def _pressed(self, nodes: Sequence[NodeObservation], step: int) -> bool:
        """Whether calls wait for slots or fill them, with ``step`` replicas more."""
        present = nodes[0].configuration
        if present is None:
            return False
        slots = max(1, (present.replicas + step) * present.concurrency)
        waiting = sum(node.waiting or 0.0 for node in nodes)
        in_flight = sum(node.in_flight or 0.0 for node in nodes)
        return waiting >= 1.0 or in_flight / slots > self.settings.full


def _latency_s(nodes: Sequence[NodeObservation]) -> float | None:
    latencies = [node.latency_p95_s for node in nodes if node.latency_p95_s is not None]
    return max(latencies) if latencies else None


def make(making: Making) -> AttainmentPolicy:
    """``--policy autoscaler.policy.attainment:make``. Raises SettingsError without a target."""
    if not making.settings.targets.any:
        raise SettingsError("slo_s is None; the policy attainment needs a target (--slo-ms, --ttft-ms, --tpot-ms)")
    given = {**making.targets, "kinds": making.kinds, **making.bounds}
    return AttainmentPolicy(making.settings_as(AttainmentSettings, **given))

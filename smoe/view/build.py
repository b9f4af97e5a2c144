"""From the controller's tick reports (and a replay's progress) to a :class:`ViewState`."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from autoscaler.changes import describe_change
from autoscaler.contract import Decision, NodeObservation, TickReport
from smoe.view.model import DecisionLine, ExpertCell, NodeRow, ViewState
from traces.replay import Progress

HISTORY = 240
DECISIONS = 50


class ViewBuilder:
    """Remembers what the screen needs beyond one window: the history of P95 and the last decisions.

    ``started_s`` is the Unix time from which the view counts.
    """

    def __init__(self, pipeline: str, policy: str, started_s: float, slo_s: float | None, currency: str = "$") -> None:
        self._started_s = started_s
        self._history: deque[float | None] = deque(maxlen=HISTORY)
        self._decisions: deque[DecisionLine] = deque(maxlen=DECISIONS)
        self.state = ViewState(pipeline, policy, elapsed_s=0.0, window_s=0.0, slo_s=slo_s, currency=currency)

    def tick(self, report: TickReport, nodes: tuple[NodeRow, ...] = ()) -> ViewState:
        """Take in one window and the machines at its end; returns the new state (also kept in ``state``)."""
        observation = report.observation
        moment_s = observation.end_s - self._started_s
        self._history.append(observation.latency_p95_s)
        self._decisions.extend(
            DecisionLine(moment_s, decision.function, self._change(decision, report), decision.reason)
            for decision in report.decisions
            if decision.changes
        )
        held = [
            f"{decision.function}: {decision.reason}"
            for decision in report.decisions
            if not decision.valid and not any(problem in decision.reason for problem in observation.problems)
        ]
        failed = [f"{function}: change failed, {why}" for function, why in report.failures.items()]
        self.state = replace(
            self.state,
            elapsed_s=moment_s,
            window_s=observation.window_s,
            p50_s=observation.latency_p50_s,
            p95_s=observation.latency_p95_s,
            requests_per_s=observation.requests_per_s,
            tokens_per_s=observation.tokens_per_s,
            in_flight=observation.in_flight,
            provisioned_per_hour=per_hour(report.cost.provisioned, observation.window_s),
            busy_per_hour=per_hour(report.cost.busy, observation.window_s),
            experts=tuple(_cell(node) for node in observation.nodes if node.kind == "expert"),
            segments=tuple((node.node, _replicas(node)) for node in observation.nodes if node.kind != "expert"),
            nodes=nodes,
            p95_history_s=tuple(self._history),
            decisions=tuple(self._decisions),
            problems=(*observation.problems, *failed, *held[:2]),
        )
        return self.state

    def progress(self, progress: Progress, now_s: float) -> ViewState:
        """Take in the replay's counters between windows; ``now_s`` is Unix time."""
        self.state = replace(
            self.state,
            elapsed_s=max(self.state.elapsed_s, now_s - self._started_s),
            requests=progress.outcomes["ok"],
            planned=progress.planned,
            failed=progress.failed,
        )
        return self.state

    @staticmethod
    def _change(decision: Decision, report: TickReport) -> str:
        change = describe_change(decision.present, decision.target)
        if report.dry_run:
            return f"{change} (dry run)"
        return change if decision.function in report.applied else f"{change} (not applied)"


def per_hour(cost: float | None, window_s: float) -> float | None:
    """A window's cost as a rate per hour."""
    return cost / window_s * 3600 if cost is not None and window_s > 0 else None


def _replicas(node: NodeObservation) -> int | None:
    return node.configuration.replicas if node.configuration is not None else node.ready_replicas


def _cell(node: NodeObservation) -> ExpertCell:
    return ExpertCell(
        layer=node.layer if node.layer is not None else -1,
        expert=node.expert if node.expert is not None else -1,
        tokens_per_s=node.tokens_per_s,
        replicas=_replicas(node),
        ready_replicas=node.ready_replicas,
        concurrency_utilisation=node.concurrency_utilisation,
    )


__all__ = ["ViewBuilder", "per_hour"]

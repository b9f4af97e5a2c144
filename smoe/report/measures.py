"""The numbers of the report, JSON-ready. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoe.report.explained import explained
from smoe.report.model import NodeWindow, PipelineWindow, Run
from traces.results import RequestRecord, summarise

DEFAULT_WINDOW_S = 5.0
STEADY_FROM_S = 60.0
"""Cost from here on is given by itself: before, it is that of the deployment a run begins with."""


@dataclass(frozen=True)
class ClientWindow:
    """Answers that came within [start_s, end_s), seconds since the run began; P95 of the ok ones, None without any.
    ``waiting``: requests that were sent and had no answer at its end."""

    start_s: float
    end_s: float
    answers: int
    failed: int
    waiting: int
    p95_s: float | None

    def over(self, slo_s: float) -> bool | None:
        """Whether P95 is above ``slo_s``, or requests failed or wait and none was answered; None without either."""
        if self.p95_s is not None:
            return self.p95_s > slo_s
        return True if self.failed or self.waiting else None


def client_windows(run: Run) -> list[ClientWindow]:
    """The controller's windows filled from the client's own measurements; even windows where there is no log.

    A request counts in the window in which its answer (or failure) came, as a server's latency histogram does.
    """
    start = run.start_s
    done = [
        (r.sent_unix_s + r.latency_s - start, r)
        for r in run.requests
        if r.sent_unix_s is not None and r.latency_s is not None
    ]
    edges = _edges(run, start, max((moment for moment, _ in done), default=0.0))
    moments = np.array([moment for moment, _ in done])
    order = np.argsort(moments, kind="stable")
    ranked = moments[order]
    sent = np.sort([r.sent_unix_s - start for _, r in done if r.sent_unix_s is not None])
    windows = []
    for begin, end in edges:
        low, high = np.searchsorted(ranked, (begin, end), side="left")
        members = [done[index][1] for index in order[low:high].tolist()]
        latencies = [r.latency_s for r in members if r.outcome == "ok" and r.latency_s is not None]
        p95 = float(np.quantile(latencies, 0.95)) if latencies else None
        failed = sum(1 for r in members if r.outcome not in ("ok", "cancelled"))
        waiting = int(np.searchsorted(sent, end, side="left")) - int(high)
        windows.append(ClientWindow(begin, end, len(latencies), failed, waiting, p95))
    return windows


def _edges(run: Run, start: float, last: float) -> list[tuple[float, float]]:
    """Windows that cover the run: the log's, with even ones before and after where answers fall outside of them."""
    logged = [(window.end_s - window.window_s - start, window.end_s - start) for window in run.windows]
    width = run.windows[0].window_s if run.windows else DEFAULT_WINDOW_S
    if not logged:
        return [(k * width, (k + 1) * width) for k in range(int(last // width) + 1)]
    before: list[tuple[float, float]] = []
    after: list[tuple[float, float]] = []
    while (before[0][0] if before else logged[0][0]) > 1e-9:
        edge = before[0][0] if before else logged[0][0]
        before.insert(0, (max(0.0, edge - width), edge))
    while (after[-1][1] if after else logged[-1][1]) <= last:
        edge = after[-1][1] if after else logged[-1][1]
        after.append((edge, edge + width))
    return [edges for edges in before + logged + after if edges[1] > 0]


def compute(run: Run, slo_s: float, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Everything in ``report.json``. ``meta`` is carried over under its own key."""
    planned = int(meta.get("planned", len(run.requests)))
    windows = client_windows(run)
    over = [(window, late) for window in windows if (late := window.over(slo_s)) is not None]
    violated = [window for window, late in over if late]
    return {
        "requests": summarise(run.requests, planned, slo_s),
        "windows": {
            "count": len(windows),
            "judged": len(over),
            "violated": len(violated),
            "violated_without_answers": sum(window.p95_s is None for window in violated),
            "violated_share": len(violated) / len(over) if over else None,
            "worst_p95_s": max((window.p95_s for window in windows if window.p95_s is not None), default=None),
            "violated_as_controller_saw": sum(1 for w in run.windows if w.p95_s is not None and w.p95_s > slo_s),
            "violations": [
                {"start_s": round(w.start_s, 3), "end_s": round(w.end_s, 3), "p95_s": w.p95_s, "answers": w.answers}
                for w in violated
            ],
        },
        "cost": _cost(run.windows, run.requests),
        "steady_cost": _cost(*_from(run, STEADY_FROM_S)),
        "replicas": _replicas(run.nodes),
        "experts": expert_shares(run.nodes),
        "actions": _actions(run),
        "explained": explained(run.actions, run.start_s, run.currency),
        "currency": run.currency,
        "meta": dict(meta),
    }


def _from(run: Run, since_s: float) -> tuple[list[PipelineWindow], list[RequestRecord]]:
    """Windows that begin, and requests that were sent, at least ``since_s`` seconds after the run's start."""
    begin_s = run.start_s + since_s
    windows = [window for window in run.windows if window.end_s - window.window_s >= begin_s]
    return windows, [r for r in run.requests if r.sent_unix_s is not None and r.sent_unix_s >= begin_s]


def _cost(windows: Sequence[PipelineWindow], requests: Sequence[RequestRecord]) -> dict[str, Any]:
    """Totals, and the mean per hour over the windows in which the meter has a value."""
    costs: dict[str, Any] = {}
    ok = sum(1 for record in requests if record.outcome == "ok")
    for name in ("provisioned", "busy"):
        spent = [(getattr(w, f"{name}_cost"), w.window_s) for w in windows if getattr(w, f"{name}_cost") is not None]
        total = sum(cost for cost, _ in spent) if spent else None
        seconds = sum(span for _, span in spent)
        costs[f"{name}_total"] = total
        costs[f"{name}_per_hour"] = total / seconds * 3600 if total is not None and seconds else None
        costs[f"{name}_per_1000_answers"] = 1000 * total / ok if total is not None and ok else None
    costs["windows_without_cost"] = sum(1 for window in windows if window.provisioned_cost is None)
    return costs


def _replicas(nodes: Sequence[NodeWindow]) -> dict[str, Any]:
    """``experts_scaled``: experts whose replicas changed; ``different_at_once``: most different numbers of
    replicas that experts had in one window."""
    totals = replica_totals(nodes)
    sums = [sum(counts.values()) for _, counts in totals]
    experts: dict[float, set[int]] = defaultdict(set)
    for node in nodes:
        if node.kind == "expert" and node.replicas is not None:
            experts[node.end_s].add(node.replicas)
    counts_of: dict[str, set[int]] = defaultdict(set)
    for node in nodes:
        if node.kind == "expert" and node.replicas is not None:
            counts_of[node.node].add(node.replicas)
    return {
        "experts_scaled": sum(len(counts) > 1 for counts in counts_of.values()),
        "different_at_once": max((len(counts) for counts in experts.values()), default=0),
        "mean": float(np.mean(sums)) if sums else None,
        "least": min(sums, default=None),
        "most": max(sums, default=None),
    }


def replica_totals(nodes: Sequence[NodeWindow]) -> list[tuple[float, dict[str, int]]]:
    """(window end, replicas by kind of node) in order of time, from the nodes whose count is known."""
    totals: dict[float, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for node in nodes:
        if node.replicas is not None:
            totals[node.end_s][node.kind] += node.replicas
    return [(end, dict(totals[end])) for end in sorted(totals)]


def expert_shares(nodes: Sequence[NodeWindow]) -> dict[str, Any]:
    """Each expert's share of its layer's tokens over the run, and each layer's busiest over mean.

    Windows weigh by their tokens; all windows of a log have one length, so tokens per second stand for tokens.
    """
    tokens: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for node in nodes:
        if node.layer is not None and node.expert is not None and node.tokens_per_s is not None:
            tokens[node.layer][node.expert] += node.tokens_per_s
    shares: dict[str, dict[str, float]] = {}
    skew: dict[str, float] = {}
    for layer in sorted(tokens):
        total = sum(tokens[layer].values())
        mean = total / len(tokens[layer])
        if mean > 0:  # a total of denormal size has a mean of 0
            shares[str(layer)] = {str(e): tokens[layer][e] / total for e in sorted(tokens[layer])}
            skew[str(layer)] = max(tokens[layer].values()) / mean
    return {"shares": shares, "busiest_over_mean": skew}


def _actions(run: Run) -> dict[str, Any]:
    return {
        "count": len(run.actions),
        "applied": sum(1 for action in run.actions if action.applied),
        "by_kind": dict(sorted(Counter(action.kind for action in run.actions).items())),
        "by_function": dict(Counter(action.function for action in run.actions).most_common()),
        "by_reason": dict(Counter(action.reason for action in run.actions).most_common(20)),
    }

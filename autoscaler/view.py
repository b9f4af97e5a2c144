"""What a controller saw and did last, as one JSON document: the gateway's page shows it, programs may read it.

On one machine the document is a file of the state folder (``STATE/view/PIPELINE.json``), in a cluster it is served
next to the controller's metrics (``autoscaler.exposition``). Its keys are listed in ``docs/kubernetes.md``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from autoscaler.contract import NAMESPACE, Decision, NodeObservation, TickReport, Topology
from autoscaler.errors import LogError

HISTORY = 240
"""Windows kept."""
DECISIONS = 60
"""Changes kept, and decisions that were held back by a limit."""
HOUR_S = 3600.0
WINDOW = (
    "latency_p50_s", "latency_p95_s", "latency_p99_s", "requests_per_s", "tokens_per_s", "in_flight", "failed",
)  # fmt: skip
"""Attributes of a window's observation that are shown."""
NODE = (
    "node", "function", "kind", "layer", "expert", "configuration", "ready_replicas", "tokens_per_s", "token_share",
    "requests_per_s", "latency_p95_s", "cpu_utilisation", "concurrency_utilisation", "in_flight", "waiting",
)  # fmt: skip
"""Attributes of a node's observation that are shown."""


class View:
    """The last window, the windows before it in short, and the last decisions with their reasons."""

    def __init__(
        self,
        topology: Topology,
        slo_s: float | None,
        currency: str,
        folder: Path | None = None,
        namespace: str = NAMESPACE,
    ) -> None:
        """``folder`` None keeps the document in memory only; ``namespace``: what the gateway calls the functions'."""
        self._topology = topology
        self._slo_s = slo_s
        self._currency = currency
        self._namespace = namespace
        self._path = None if folder is None else folder / f"{topology.pipeline}.json"
        self._history: deque[dict[str, float | None]] = deque(maxlen=HISTORY)
        self._decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS)
        self._document: dict[str, Any] | None = None

    def add(self, report: TickReport) -> None:
        """Take in one tick. Raises LogError where the file cannot be written."""
        observation = report.observation
        cost = {
            "busy_per_hour": _per_hour(report.cost.busy, observation.window_s),
            "provisioned_per_hour": _per_hour(report.cost.provisioned, observation.window_s),
        }
        self._history.append(
            {
                "end_s": observation.end_s,
                "p95_s": observation.latency_p95_s,
                "requests_per_s": observation.requests_per_s,
                "in_flight": observation.in_flight,
                "provisioned_per_hour": cost["provisioned_per_hour"],
            }
        )
        self._decisions.extend(_decision(one, report) for one in report.decisions if worth_reporting(one))
        self._document = {
            "version": 1,
            "pipeline": self._topology.pipeline,
            "layers": self._topology.layers,
            "policy": report.policy,
            "choice": report.choice,
            "dry_run": report.dry_run,
            "end_s": observation.end_s,
            "window_s": observation.window_s,
            "slo_s": self._slo_s,
            "generation": observation.generation,
            "currency": self._currency,
            **{name: getattr(observation, name) for name in WINDOW},
            "cost": cost,
            "stale": observation.stale,
            "problems": [
                *observation.problems,
                *(f"{name}: change failed, {why}" for name, why in report.failures.items()),
            ],
            "nodes": observation.nodes,
            "history": list(self._history),
            "decisions": list(self._decisions),
        }
        if self._path is not None:
            self._write(self._path)

    def document(self, *, leads: bool = True, conditions: Iterable[object] = ()) -> bytes:
        """The document as JSON. ``leads``: whether this controller acts; ``conditions``: what stands in its way."""
        document = {} if self._document is None else self._document
        more: dict[str, Any] = {"leads": leads, "conditions": [str(one) for one in conditions]}
        if self._document is not None:  # thousands of nodes are written out only where somebody looks
            more["nodes"] = [_node(node) for node in self._document["nodes"]]
        return orjson.dumps({"pipeline": self._topology.pipeline, "namespace": self._namespace, **document, **more})

    def _write(self, path: Path) -> None:
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            path.parent.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.parent.mkdir(exist_ok=True, mode=0o700)
            part.write_bytes(self.document())
            part.replace(path)
        except OSError as error:
            raise LogError(f"the view {path} was not written: {error}") from error


def worth_reporting(decision: Decision) -> bool:
    """Whether it changes something or was kept from it by a limit."""
    return decision.changes or (decision.valid and bool(decision.limits_hit))


def result_of(decision: Decision, report: TickReport) -> str:
    """What became of a decision: applied, failed, held, dry run, or kept where nothing was to do."""
    if not decision.valid:
        return "held"
    if decision.function in report.failures:
        return "failed"
    if not decision.changes:
        return "kept"
    if report.dry_run:
        return "dry run"
    return "applied" if decision.function in report.applied else "failed"


def _decision(decision: Decision, report: TickReport) -> dict[str, Any]:
    return {
        "time_s": report.observation.end_s,
        "function": decision.function,
        "node": decision.node,
        "present": decision.present,
        "wish": decision.desired,
        "target": decision.target,
        "reason": decision.reason,
        "limits_hit": list(decision.limits_hit),
        "result": result_of(decision, report),
    }


def _node(node: NodeObservation) -> dict[str, Any]:
    return {name: getattr(node, name) for name in NODE}


def _per_hour(cost: float | None, window_s: float) -> float | None:
    return None if cost is None or window_s <= 0 else cost * HOUR_S / window_s

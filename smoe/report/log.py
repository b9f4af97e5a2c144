"""From the controller to a run's rows: out of tick reports in memory, or out of the function logger's parquet files.

The files are those of ``docs/metrics.md``; columns are the fields of ``autoscaler.contract``, a
configuration's fields prefixed with ``present_`` or ``target_`` in decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from autoscaler.contract import Configuration, TickReport
from autoscaler.logger import CONFIGURATION_FIELDS, read
from smoe.errors import SmoeError
from smoe.report.model import Action, ActionKind, NodeWindow, PipelineWindow
from smoe.view.build import describe_change

Rows = tuple[tuple[PipelineWindow, ...], tuple[NodeWindow, ...], tuple[Action, ...]]


class LogError(SmoeError):
    """A file of the log cannot be read or lacks a column."""


def from_ticks(reports: Iterable[TickReport]) -> Rows:
    """The rows of a run from its tick reports."""
    windows: list[PipelineWindow] = []
    nodes: list[NodeWindow] = []
    actions: list[Action] = []
    for report in reports:
        observation = report.observation
        windows.append(
            PipelineWindow(
                end_s=observation.end_s,
                window_s=observation.window_s,
                requests_per_s=observation.requests_per_s,
                p95_s=observation.latency_p95_s,
                provisioned_cost=report.cost.provisioned,
                busy_cost=report.cost.busy,
            )
        )
        for node in observation.nodes:
            replicas = node.configuration.replicas if node.configuration is not None else node.ready_replicas
            nodes.append(
                NodeWindow(
                    observation.end_s, node.node, node.kind, node.layer, node.expert, node.tokens_per_s, replicas
                )
            )
        actions.extend(
            make_action(
                observation.end_s, d.function, d.present, d.target, d.reason,
                applied=d.function in report.applied and not report.dry_run,
            )
            for d in report.decisions
            if d.changes
        )  # fmt: skip
    return tuple(windows), tuple(nodes), tuple(actions)


def make_action(
    time_s: float, function: str, present: Configuration, target: Configuration, reason: str, *, applied: bool
) -> Action:
    return Action(time_s, function, kind_of(present, target), describe_change(present, target), reason, applied)


def kind_of(present: Configuration, target: Configuration) -> ActionKind:
    """Replicas first: a change of both replicas and limits counts as the former."""
    if target.replicas != present.replicas:
        return "up" if target.replicas > present.replicas else "down"
    return "limits"


def read_log(log_dir: Path, since_s: float = 0.0) -> Rows:
    """The rows whose window ended after ``since_s`` (Unix time). An empty or missing folder gives no rows. Raises
    LogError.
    """
    windows = tuple(
        PipelineWindow(
            end_s=row["end_s"],
            window_s=row["end_s"] - row["start_s"],
            requests_per_s=row["requests_per_s"],
            p95_s=row["latency_p95_s"],
            provisioned_cost=row["cost_provisioned"],
            busy_cost=row["cost_busy"],
        )
        for row in _rows(log_dir, "pipeline", since_s)
    )
    nodes = tuple(
        NodeWindow(
            end_s=row["end_s"],
            node=row["node"],
            kind=row["kind"],
            layer=row["layer"],
            expert=row["expert"],
            tokens_per_s=row["tokens_per_s"],
            replicas=row["replicas"] if row["replicas"] is not None else row["ready_replicas"],
        )
        for row in _rows(log_dir, "windows", since_s)
    )
    actions = tuple(
        make_action(
            row["end_s"],
            row["function"],
            _configuration(row, "present"),
            _configuration(row, "target"),
            row["reason"],
            applied=row["applied"] and not row["dry_run"],
        )
        for row in _rows(log_dir, "decisions", since_s)
        if row["changes"]
    )
    return windows, nodes, actions


def _configuration(row: dict[str, Any], side: str) -> Configuration:
    return Configuration(**{name: row[f"{side}_{name}"] for name in CONFIGURATION_FIELDS})


def _rows(log_dir: Path, kind: str, since_s: float) -> list[dict[str, Any]]:
    """Rows of one kind by time, as the function logger reads them back."""
    try:
        rows: list[dict[str, Any]] = read(log_dir, kind).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{log_dir}/{kind}-*.parquet: the controller's log cannot be read ({error})") from error
    return [row for row in rows if row["end_s"] > since_s]

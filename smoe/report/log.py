"""From the controller to a run's rows: out of tick reports in memory, or out of the function logger's parquet files.

The files are those of docs/architecture.md section 8; columns are the fields of ``autoscaler.contract``, a
configuration's fields prefixed with ``present_`` or ``target_`` in decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autoscaler.contract import Configuration, TickReport
from smoe.errors import SmoeError
from smoe.report.model import Action, ActionKind, NodeWindow, PipelineWindow
from smoe.view.build import describe_change

Rows = tuple[tuple[PipelineWindow, ...], tuple[NodeWindow, ...], tuple[Action, ...]]

CONFIGURATION_FIELDS = ("memory_mb", "cpu_cores", "gpu_share", "replicas", "concurrency")


class LogError(SmoeError):
    """A file of the log cannot be read or lacks a column."""


def from_ticks(reports: Iterable[TickReport]) -> Rows:
    """The rows of a run from its tick reports."""
    windows: list[PipelineWindow] = []
    nodes: list[NodeWindow] = []
    actions: list[Action] = []
    for report in reports:
        seen = report.observation
        windows.append(
            PipelineWindow(
                end_s=seen.end_s,
                window_s=seen.window_s,
                requests_per_s=seen.requests_per_s,
                p95_s=seen.latency_p95_s,
                provisioned_cost=report.cost.provisioned,
                busy_cost=report.cost.busy,
            )
        )
        for node in seen.nodes:
            replicas = node.configuration.replicas if node.configuration is not None else node.ready_replicas
            nodes.append(
                NodeWindow(seen.end_s, node.node, node.kind, node.layer, node.expert, node.tokens_per_s, replicas)
            )
        actions.extend(
            make_action(
                seen.end_s, d.function, d.present, d.target, d.reason,
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
    windows = [
        PipelineWindow(
            end_s=row["end_s"],
            window_s=row["end_s"] - row["start_s"],
            requests_per_s=row["requests_per_s"],
            p95_s=row["latency_p95_s"],
            provisioned_cost=row["cost_provisioned"],
            busy_cost=row["cost_busy"],
        )
        for row in _rows(
            log_dir, "pipeline-*.parquet", since_s,
            ("start_s", "end_s", "requests_per_s", "latency_p95_s", "cost_provisioned", "cost_busy"),
        )
    ]  # fmt: skip
    nodes = [
        NodeWindow(
            row["end_s"], row["node"], row["kind"], row["layer"], row["expert"], row["tokens_per_s"], row["replicas"]
        )
        for row in _rows(
            log_dir, "windows-*.parquet", since_s,
            ("end_s", "node", "kind", "layer", "expert", "tokens_per_s", "replicas"),
        )
    ]  # fmt: skip
    settings = tuple(f"{side}_{name}" for side in ("present", "target") for name in CONFIGURATION_FIELDS)
    actions = []
    for row in _rows(log_dir, "decisions-*.parquet", since_s, ("end_s", "function", "reason", "applied", *settings)):
        present, target = _configuration(row, "present"), _configuration(row, "target")
        if present != target:
            actions.append(
                make_action(row["end_s"], row["function"], present, target, row["reason"], applied=bool(row["applied"]))
            )
    return tuple(windows), tuple(nodes), tuple(actions)


def _configuration(row: dict[str, Any], side: str) -> Configuration:
    return Configuration(**{name: row[f"{side}_{name}"] for name in CONFIGURATION_FIELDS})


def _rows(log_dir: Path, pattern: str, since_s: float, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of all matching files, by time."""
    found: list[dict[str, Any]] = []
    for path in sorted(log_dir.glob(pattern)):
        try:
            schema = pq.read_schema(path)
            missing = [name for name in columns if name not in schema.names]
            if missing:
                raise LogError(f"{path}: the log has no column {', '.join(missing)}; it has {', '.join(schema.names)}")
            found.extend(pq.read_table(path, columns=list(columns)).to_pylist())
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"{path}: not a readable parquet file ({error})") from error
    return sorted((row for row in found if row["end_s"] > since_s), key=lambda row: row["end_s"])

"""A run's rows out of the function logger's parquet files.

The files are those of ``docs/metrics.md``; columns are the fields of ``autoscaler.contract``, a
configuration's fields prefixed with ``present_`` or ``target_`` in decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from autoscaler.changes import describe_change
from autoscaler.checked import from_table
from autoscaler.contract import Configuration
from autoscaler.errors import LogError as UnreadableLogError
from autoscaler.errors import SettingsError
from autoscaler.logger import configuration_of, read, read_contexts
from autoscaler.prices import PriceSheet, load_prices
from smoe.errors import SmoeError
from smoe.report.model import Action, ActionKind, NodeWindow, PipelineWindow

Rows = tuple[tuple[PipelineWindow, ...], tuple[NodeWindow, ...], tuple[Action, ...]]


class LogError(SmoeError):
    """A file of the log cannot be read or lacks a column."""


def kind_of(present: Configuration, target: Configuration) -> ActionKind:
    """Replicas first: a change of both replicas and limits counts as the former."""
    if target.replicas != present.replicas:
        return "up" if target.replicas > present.replicas else "down"
    return "limits"


def at_work(row: Mapping[str, Any]) -> int | None:
    """Replicas that always run, and standbys by the part of the window in which they took calls."""
    ordered: int | None = row["replicas"] if row["replicas"] is not None else row["ready_replicas"]
    activated_s: float | None = row["activated_s"]
    if ordered is None or activated_s is None:
        return ordered
    configuration = configuration_of(row)
    running = ordered if configuration is None else configuration.running
    return running + round(activated_s / float(row["end_s"] - row["start_s"]))


def restates(present: Configuration, target: Configuration) -> bool:
    """Whether nothing but the stated cost of a token differs."""
    if present.burst is None or target.burst is None:
        return False
    return replace(present, burst=replace(present.burst, token_s=target.burst.token_s)) == target


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
            replicas=at_work(row),
        )
        for row in _rows(log_dir, "windows", since_s)
    )
    prices = prices_of(log_dir)
    actions = tuple(
        _action(row, present, target, prices)
        for row in _rows(log_dir, "decisions", since_s)
        if row["changes"]
        and (present := configuration_of(row, "present_"))
        and (target := configuration_of(row, "target_"))
        and not restates(present, target)
    )
    return windows, nodes, actions


def prices_of(log_dir: Path) -> PriceSheet:
    """Those of the log's last run, else the default ones. Raises LogError."""
    try:
        sheets = [context["prices"] for context in read_contexts(log_dir) if context.get("prices")]
        return from_table(PriceSheet, sheets[-1]) if sheets else load_prices()
    except (UnreadableLogError, SettingsError) as error:
        raise LogError(f"{log_dir}: the prices of its run cannot be read ({error})") from error


def _action(row: dict[str, Any], present: Configuration, target: Configuration, prices: PriceSheet) -> Action:
    change, applied = describe_change(present, target), row["applied"] and not row["dry_run"]
    before, after = (prices.provisioned(one, 3600.0) for one in (present, target))
    kind = kind_of(present, target)
    return Action(row["end_s"], row["function"], kind, change, row["reason"], applied, after - before, row["node"])


def _rows(log_dir: Path, kind: str, since_s: float) -> list[dict[str, Any]]:
    """Rows of one kind by time, as the function logger reads them back."""
    try:
        rows: list[dict[str, Any]] = read(log_dir, kind).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{log_dir}/{kind}-*.parquet: the controller's log cannot be read ({error})") from error
    return [row for row in rows if row["end_s"] > since_s]

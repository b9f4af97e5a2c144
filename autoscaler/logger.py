"""The function logger (paper, section 3, ①): every window, decision and cost as parquet, to be read back as a trace, a
figure or training data.

Three kinds of files in one folder: ``windows-*.parquet`` (a row per window and function), ``pipeline-*.parquet`` (a row
per window), ``decisions-*.parquet`` (a row per decision). A file holds ``rows_per_file`` windows; files appear whole
(written aside, then renamed). What is not yet written is lost in a crash, at most ``windows_per_file`` windows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autoscaler.contract import Configuration, Cost, LayerObservation, NodeObservation, Observation, TickReport

SCHEMA_VERSION = 1
CONFIGURATION_FIELDS = tuple(entry.name for entry in fields(Configuration))

_F, _I, _S, _B = pa.float64(), pa.int64(), pa.string(), pa.bool_()
_CONFIGURATION = {"memory_mb": _I, "cpu_cores": _F, "gpu_share": _F, "replicas": _I, "concurrency": _I}
_TEXTS = {"node", "function", "kind", "pipeline"}
_WHOLE = {"layer", "expert", "ready_replicas"}


def _numbers(kind: type, leave_out: tuple[str, ...]) -> dict[str, pa.DataType]:
    names = [entry.name for entry in fields(kind) if entry.name not in leave_out]
    return {name: _S if name in _TEXTS else _I if name in _WHOLE else _F for name in names}


_NODE_FIELDS = _numbers(NodeObservation, ("configuration",))
_LAYER_FIELDS = _numbers(LayerObservation, ("layer",))
_PIPELINE_FIELDS = _numbers(Observation, ("nodes", "layers", "problems", "stale", "start_s", "end_s"))
_COSTS = {"cost_busy": _F, "cost_provisioned": _F}
_TIMES = {"start_s": _F, "end_s": _F}

WINDOWS = pa.schema(
    {
        **_TIMES,
        **_NODE_FIELDS,
        **_CONFIGURATION,
        **{f"layer_{name}": kind for name, kind in _LAYER_FIELDS.items()},
        **_COSTS,
    }
)
PIPELINE = pa.schema(
    {**_TIMES, **_PIPELINE_FIELDS, "stale": _B, "problems": pa.list_(_S), "slo_s": _F, "decision_s": _F, **_COSTS}
)
DECISIONS = pa.schema(
    {
        "end_s": _F,
        "function": _S,
        "node": _S,
        "reason": _S,
        "limits_hit": pa.list_(_S),
        "valid": _B,
        "changes": _B,
        "applied": _B,
        "failure": _S,
        "dry_run": _B,
        **{f"{side}_{name}": kind for side in ("present", "wish", "target") for name, kind in _CONFIGURATION.items()},
    }
)
_SCHEMAS = {"windows": WINDOWS, "pipeline": PIPELINE, "decisions": DECISIONS}


class FunctionLogger:
    """Appends tick reports to a folder. ``context`` (settings, prices, manifest hash) goes into every file's
    metadata."""

    def __init__(
        self, folder: Path, context: Mapping[str, Any], slo_s: float | None, windows_per_file: int = 12
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._slo_s = slo_s
        self._windows_per_file = windows_per_file
        self._context = {"schema_version": SCHEMA_VERSION, **context}
        self._rows: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _SCHEMAS}
        self._windows = 0

    def add(self, report: TickReport) -> None:
        """Keep one tick; writes when a file is full."""
        self._rows["windows"] += window_rows(report)
        self._rows["pipeline"].append(pipeline_row(report, self._slo_s))
        self._rows["decisions"] += decision_rows(report)
        self._windows += 1
        if self._windows >= self._windows_per_file:
            self.flush()

    def flush(self) -> None:
        """Write what is kept. Files are named by the end of their last window, so they sort by time."""
        if not self._windows:
            return
        stamp = f"{int(self._rows['pipeline'][-1]['end_s'] * 1000):015d}"
        metadata = {b"smoe": json.dumps(self._context, default=str).encode()}
        for kind, schema in _SCHEMAS.items():
            rows = self._rows[kind]
            if not rows:
                continue
            table = pa.Table.from_pylist(rows, schema=schema.with_metadata(metadata))
            path = self._folder / f"{kind}-{stamp}.parquet"
            part = path.with_suffix(".part")
            pq.write_table(table, part, compression="zstd")
            part.replace(path)
            rows.clear()
        self._windows = 0


def window_rows(report: TickReport) -> list[dict[str, Any]]:
    """One row a function: its observation, its configuration, its layer's features (experts), its costs."""
    seen = report.observation
    layers = {layer.layer: layer for layer in seen.layers}
    rows = []
    for node in seen.nodes:
        layer = layers.get(node.layer) if node.kind == "expert" and node.layer is not None else None
        cost = report.cost_by_node.get(node.node, Cost(None, None))
        row = {name: getattr(node, name) for name in _NODE_FIELDS}
        row |= {name: getattr(node.configuration, name, None) for name in CONFIGURATION_FIELDS}
        row |= {f"layer_{name}": getattr(layer, name, None) for name in _LAYER_FIELDS}
        row |= {"start_s": seen.start_s, "end_s": seen.end_s}
        rows.append(row | {"cost_busy": cost.busy, "cost_provisioned": cost.provisioned})
    return rows


def pipeline_row(report: TickReport, slo_s: float | None) -> dict[str, Any]:
    """The window as a whole."""
    seen = report.observation
    row = {name: getattr(seen, name) for name in (*_TIMES, *_PIPELINE_FIELDS, "stale")}
    row |= {"problems": list(seen.problems), "slo_s": slo_s, "decision_s": report.decision_s}
    return row | {"cost_busy": report.cost.busy, "cost_provisioned": report.cost.provisioned}


def decision_rows(report: TickReport) -> list[dict[str, Any]]:
    """One row a decision, those that change nothing too."""
    rows = []
    for decision in report.decisions:
        row: dict[str, Any] = {
            "end_s": report.observation.end_s,
            "function": decision.function,
            "node": decision.node,
            "reason": decision.reason,
            "limits_hit": list(decision.limits_hit),
            "valid": decision.valid,
            "changes": decision.changes,
            "applied": decision.function in report.applied,
            "failure": report.failures.get(decision.function),
            "dry_run": report.dry_run,
        }
        for side in ("present", "wish", "target"):
            row |= {f"{side}_{name}": value for name, value in asdict(getattr(decision, side)).items()}
        rows.append(row)
    return rows


def read(folder: Path, kind: str) -> pa.Table:
    """All rows of ``windows``, ``pipeline`` or ``decisions``, oldest first; an empty table where there are none."""
    tables = [pq.read_table(path) for path in sorted(folder.glob(f"{kind}-*.parquet"))]
    schema = _SCHEMAS[kind]
    if not tables:
        return schema.empty_table()
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables]).sort_by("end_s")

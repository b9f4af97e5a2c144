"""The function logger (paper, section 3, ①): every window, decision and cost as parquet, to be read back as a trace, a
figure or training data.

Three kinds of files in one folder: ``windows-*.parquet`` (a row per window and node), ``pipeline-*.parquet`` (a row per
window), ``decisions-*.parquet`` (a row per decision); their columns are described in ``docs/metrics.md``. A file holds
``windows_per_file`` windows and appears whole (written aside, then renamed), so readers never meet half a file and any
number of runs may share a folder. What is not yet written is lost in a crash: at most ``windows_per_file`` windows.
Beyond a bound the oldest files go (:mod:`autoscaler.log_bound`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from autoscaler.contract import (
    Arrivals,
    Burst,
    Configuration,
    Cost,
    GenerationObservation,
    LayerObservation,
    NodeObservation,
    Observation,
    TickReport,
)
from autoscaler.errors import LogError
from autoscaler.log_bound import LogBound
from functions.serving.metric_names import LOOK_BACKS_S

SCHEMA_VERSION = 1
METADATA_KEY = b"smoe"
CONFIGURATION_FIELDS = tuple(entry.name for entry in fields(Configuration) if entry.name != "burst")

_F, _I, _S, _B = pa.float64(), pa.int64(), pa.string(), pa.bool_()
_BURST = pa.struct({entry.name: _I if entry.name == "standbys" else _F for entry in fields(Burst)})
_CONFIGURATION = {
    "memory_mb": _I, "cpu_cores": _F, "gpu_share": _F, "replicas": _I, "concurrency": _I, "burst": _BURST,
}  # fmt: skip
_TEXTS = {"node", "function", "kind", "pipeline"}
_WHOLE = {"layer", "expert", "ready_replicas", "measured_replicas"}


def _numbers(names: Iterable[str], leave_out: tuple[str, ...]) -> dict[str, pa.DataType]:
    kept = [name for name in names if name not in leave_out]
    return {name: _S if name in _TEXTS else _I if name in _WHOLE else _F for name in kept}


def _names(kind: type) -> list[str]:
    return [entry.name for entry in fields(kind)]


_NODE_FIELDS = _numbers(NodeObservation._fields, ("configuration",))
_LAYER_FIELDS = _numbers(_names(LayerObservation), ("layer",))
_PIPELINE_FIELDS = _numbers(
    _names(Observation),
    (
        "nodes",
        "layers",
        "problems",
        "stale",
        "start_s",
        "end_s",
        "generation",
        "arrivals",
        "taken_back",
        "redeployed",
        "decided_by",
        "news",
    ),
)
_GENERATION_FIELDS = _numbers(_names(GenerationObservation), ())
ARRIVALS = {
    f"arrivals_{1000 * look_back_s:g}ms_{name}": (look_back_s, name)
    for look_back_s in LOOK_BACKS_S
    for name in Arrivals._fields[1:]
}
"""Column → look-back and quantile of :class:`autoscaler.observation.Arrivals`."""
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
    {
        **_TIMES,
        **_PIPELINE_FIELDS,
        **{f"generation_{name}": kind for name, kind in _GENERATION_FIELDS.items()},
        **dict.fromkeys(ARRIVALS, _F),
        "stale": _B,
        "problems": pa.list_(_S),
        "policy": _S,
        "slo_s": _F,
        "decision_s": _F,
        **_COSTS,
    }
)
_SIDES = {"present": "present", "wish": "desired", "target": "target"}
"""Prefix of a decision's columns → attribute; ``wish`` is what stored logs call the desired configuration."""

DECISIONS = pa.schema(
    {
        "end_s": _F,
        "policy": _S,
        "function": _S,
        "node": _S,
        "reason": _S,
        "limits_hit": pa.list_(_S),
        "valid": _B,
        "changes": _B,
        "applied": _B,
        "failure": _S,
        "dry_run": _B,
        **{f"{side}_{name}": kind for side in _SIDES for name, kind in _CONFIGURATION.items()},
    }
)
_SCHEMAS = {"windows": WINDOWS, "pipeline": PIPELINE, "decisions": DECISIONS}


class FunctionLogger:
    """Appends tick reports to a folder. ``context`` (settings, prices, manifest hash) goes into every file's metadata;
    ``most_mb``: MiB that the folder may take, 0: any.

    Also a context manager that writes the rest at its end.
    """

    def __init__(
        self,
        folder: Path,
        context: Mapping[str, Any],
        slo_s: float | None,
        windows_per_file: int = 12,
        most_mb: int = 0,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._slo_s = slo_s
        self._windows_per_file = windows_per_file
        self._context = {"schema_version": SCHEMA_VERSION, **context}
        self._tables: dict[str, list[pa.Table]] = {kind: [] for kind in _SCHEMAS}
        self._last_end_s = 0.0
        self._bound = LogBound(folder, _SCHEMAS, most_mb)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log")
        self._writing: Future[None] | None = None

    def __enter__(self) -> FunctionLogger:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, report: TickReport) -> None:
        """Keep one tick; a file that is full begins to be written. Raises LogError, also for the file before it."""
        made = {
            "windows": window_columns(report),
            "pipeline": pipeline_columns(report, self._slo_s),
            "decisions": decision_columns(report),
        }
        try:
            tables = {kind: pa.table(columns, schema=_SCHEMAS[kind]) for kind, columns in made.items()}
        except pa.ArrowException as error:
            raise LogError(f"the function logger could not keep a window: {error}") from error
        for kind, table in tables.items():
            self._tables[kind].append(table)
        self._last_end_s = report.observation.end_s
        if len(self._tables["pipeline"]) >= self._windows_per_file:
            self._begin()

    def flush(self) -> None:
        """Return when all that is kept is written. Files are named by the end of their last window, so they sort by
        time.

        Raises LogError; what could not be written is given up, so that a full disk never fills the memory too.
        """
        try:
            self._begin()
        finally:
            self._ended()

    def _begin(self) -> None:
        """Hand over what is kept to be written, once what was handed over before is. Raises LogError for that."""
        kept, self._tables = self._tables, {kind: [] for kind in _SCHEMAS}
        try:
            self._ended()
        finally:
            if kept["pipeline"]:
                self._writing = self._writer.submit(self._write, kept, f"{int(self._last_end_s * 1000):015d}")

    def _ended(self) -> None:
        """Wait for the file that is being written. Raises LogError where it could not be."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(self, kept: Mapping[str, Sequence[pa.Table]], stamp: str) -> None:
        metadata = {METADATA_KEY: json.dumps(self._context, default=str).encode()}
        written = []
        try:
            for kind, tables in kept.items():
                table = pa.concat_tables(tables)
                if table.num_rows:
                    written.append(self._free_name(kind, stamp))
                    _write(table.replace_schema_metadata(metadata), written[-1])
            self._bound.wrote(written)
        except (OSError, pa.ArrowException) as error:
            raise LogError(f"the function logger could not write to {self._folder}: {error}") from error

    def _free_name(self, kind: str, stamp: str) -> Path:
        path = self._folder / f"{kind}-{stamp}.parquet"
        number = 0
        while path.exists():
            number += 1
            path = self._folder / f"{kind}-{stamp}-{number}.parquet"
        return path


def _write(table: pa.Table, path: Path) -> None:
    """Numbers are hardly ever the same twice: looking for those that are takes five times as long as writing them."""
    part = path.with_suffix(".part")
    texts = [column.name for column in table.schema if column.type == _S]
    pq.write_table(table, part, compression="zstd", use_dictionary=texts)
    part.replace(path)


Columns = dict[str, list[Any]]
"""Column → its values, one a row."""


def window_columns(report: TickReport) -> Columns:
    """One row a node: its observation, its configuration, its layer's features (experts), its costs."""
    observation = report.observation
    layers = {layer.layer: layer for layer in observation.layers}
    layer_of_node = [
        layers.get(node.layer) if node.kind == "expert" and node.layer is not None else None
        for node in observation.nodes
    ]
    costs = [report.cost_by_node.get(node.node, _NO_COST) for node in observation.nodes]
    columns = _attributes(observation.nodes, _NODE_FIELDS)
    columns |= _configurations([node.configuration for node in observation.nodes])
    columns |= {f"layer_{name}": values for name, values in _attributes(layer_of_node, _LAYER_FIELDS).items()}
    columns |= {name: [getattr(observation, name)] * len(observation.nodes) for name in _TIMES}
    return columns | {"cost_busy": [one.busy for one in costs], "cost_provisioned": [one.provisioned for one in costs]}


def pipeline_columns(report: TickReport, slo_s: float | None) -> Columns:
    """One row: the window as a whole."""
    observation = report.observation
    row = {name: getattr(observation, name) for name in (*_TIMES, *_PIPELINE_FIELDS, "stale")}
    row |= {f"generation_{name}": getattr(observation.generation, name, None) for name in _GENERATION_FIELDS}
    measured = {one.look_back_s: one for one in observation.arrivals}
    row |= {column: getattr(measured.get(look_back_s), name, None) for column, (look_back_s, name) in ARRIVALS.items()}
    row |= {
        "problems": list(observation.problems),
        "policy": report.policy,
        "slo_s": slo_s,
        "decision_s": report.decision_s,
    }
    row |= {"cost_busy": report.cost.busy, "cost_provisioned": report.cost.provisioned}
    return {name: [value] for name, value in row.items()}


def decision_columns(report: TickReport) -> Columns:
    """One row a decision, those that change nothing too."""
    decisions, applied = report.decisions, set(report.applied)
    columns = _attributes(decisions, ("function", "node", "reason", "limits_hit", "valid", "changes"))
    for side, attribute in _SIDES.items():
        configurations = _configurations([getattr(decision, attribute) for decision in decisions])
        columns |= {f"{side}_{name}": values for name, values in configurations.items()}
    for name, value in (
        ("end_s", report.observation.end_s),
        ("policy", report.policy),
        ("dry_run", report.dry_run),
    ):
        columns[name] = [value] * len(decisions)
    columns["applied"] = [decision.function in applied for decision in decisions]
    columns["failure"] = [report.failures.get(decision.function) for decision in decisions]
    return columns


_NO_COST = Cost(None, None)


def _configurations(rows: Sequence[Configuration | None]) -> Columns:
    bursts = [None if row is None or row.burst is None else asdict(row.burst) for row in rows]
    return _attributes(rows, CONFIGURATION_FIELDS) | {"burst": bursts}


def configuration_of(row: Mapping[str, Any], side: str = "") -> Configuration | None:
    """A configuration back from the columns of a row; ``side``: their prefix (``present_``, ``wish_``, ``target_``).
    None where one of them is null; files from before there were standbys have none."""
    numbers = {name: row[side + name] for name in CONFIGURATION_FIELDS}
    if any(value is None for value in numbers.values()):
        return None
    burst = row.get(f"{side}burst")
    return Configuration(**numbers, burst=None if burst is None else Burst(**burst))


def _attributes(rows: Sequence[object], names: Iterable[str]) -> Columns:
    """A column for each attribute; null where a row is None."""
    if any(row is None for row in rows):
        return {name: [getattr(row, name, None) for row in rows] for name in names}
    return {name: list(map(attrgetter(name), rows)) for name in names}


def read(folder: Path, kind: str) -> pa.Table:
    """All rows of ``windows``, ``pipeline`` or ``decisions``, oldest first; an empty table where there are none.

    Columns that an older file lacks are null. Raises LogError for a file that is no parquet file.
    """
    return _joined(_files(folder, kind), folder, kind)


def read_parts(folder: Path) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of ``pipeline`` and ``windows``, of one file of each after the other, by their first window: a long log is
    more than memory holds. Files that a controller deletes meanwhile are left out. Raises LogError."""
    begins: list[tuple[float, Path]] = []
    for path in _files(folder, "pipeline"):
        part = _joined([path], folder, "pipeline", ["end_s"])
        begins += [(part["end_s"][0].as_py(), path)] if part.num_rows else []
    for _, path in sorted(begins):
        nodes = path.with_name(path.name.replace("pipeline-", "windows-", 1))
        wholes, rows = _joined([path], folder, "pipeline"), _joined([nodes], folder, "windows")
        if wholes.num_rows and rows.num_rows:
            yield wholes, rows


def _joined(paths: Iterable[Path], folder: Path, kind: str, columns: list[str] | None = None) -> pa.Table:
    schema = _SCHEMAS[kind] if columns is None else pa.schema([_SCHEMAS[kind].field(name) for name in columns])
    try:
        tables = [table for path in paths if (table := _read_file(path, columns)) is not None]
        return pa.concat_tables([schema.empty_table(), *tables], promote_options="default").sort_by("end_s")
    except pa.ArrowException as error:
        raise LogError(f"{folder}/{kind}-*.parquet do not fit together: {error}") from error


def read_windows(folder: Path) -> pa.Table:
    """One row per window and node: observation, configuration, its layer's features, costs."""
    return read(folder, "windows")


def read_pipeline(folder: Path) -> pa.Table:
    """One row per window."""
    return read(folder, "pipeline")


def read_decisions(folder: Path) -> pa.Table:
    """One row per decision, those that change nothing too."""
    return read(folder, "decisions")


def read_contexts(folder: Path) -> list[dict[str, Any]]:
    """What the runs in this folder were made with (settings, prices, manifest hash, schema version), oldest first, each
    once."""
    contexts: list[dict[str, Any]] = []
    for path in _files(folder, "pipeline"):
        try:
            metadata = pq.read_schema(path).metadata or {}
            context = json.loads(metadata.get(METADATA_KEY, b"{}"))
        except FileNotFoundError:  # a controller that runs deletes its oldest ones
            continue
        except (OSError, ValueError, pa.ArrowException) as error:
            raise LogError(f"{path} cannot be read: {error}") from error
        if context not in contexts:
            contexts.append(context)
    return contexts


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}-*.parquet"))


def _read_file(path: Path, columns: list[str] | None = None) -> pa.Table | None:
    """None where it has gone: a controller that runs deletes its oldest ones."""
    try:
        return pq.read_table(path, columns=columns).replace_schema_metadata(None)
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{path} cannot be read: {error}") from error

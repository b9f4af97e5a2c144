"""Results on disk: one JSON summary and one parquet file of windows a run, each written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Group, file_name

FOLDER = "runs"
WINDOWS = pa.schema(
    [
        *((name, pa.string()) for name in ("workload", "pattern")),
        *((name, pa.int32()) for name in ("tokens", "seed")),
        ("policy", pa.string()),
        *((name, pa.float64()) for name in ("slo_s", "end_s", "p95_s")),
        ("violated", pa.bool_()),
        ("replicas", pa.int32()),
        *((name, pa.float32()) for name in ("busy_experts", "provisioned_experts", "decision_s")),
    ]
)
"""Schema of :func:`write_windows`."""


def path_of(out: Path, group: Group, policy: str) -> Path:
    return out / FOLDER / f"{group.key}.{file_name(policy)}.json"


def load_run(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """A stored summary that was made from the same things; None when there is none or it is another's."""
    try:
        summary = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read as JSON ({error}); delete it to run it again") from error
    same = isinstance(summary, dict) and summary.get("fingerprint") == fingerprint
    return summary if same else None


MADE_BY = {"code_sha256": "by other code", "prices_sha256": "with other prices"}
"""The keys of :meth:`evaluation.comparison.grid.Grid.made_by`, in words."""


def otherwise(path: Path, made_by: Mapping[str, str]) -> str:
    """How a stored run was made otherwise than by what no option names; empty where it was not, and without a run."""
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        return ""
    summary = stored if isinstance(stored, dict) else {}
    return " and ".join(words for key, words in MADE_BY.items() if summary.get(key) != made_by[key])


def save_run(path: Path, summary: dict[str, Any], windows: pa.Table | None) -> None:
    """The summary last, so that it only stands next to complete windows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if windows is not None:
        part = path.with_suffix(f".{os.getpid()}.part")
        pq.write_table(windows, part, compression="zstd")
        part.replace(path.with_suffix(".parquet"))
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(summary, indent=1, sort_keys=True))
    part.replace(path)


def load_windows(out: Path, group: Group, policy: str) -> pa.Table:
    """The windows of a run that is there."""
    return pq.read_table(path_of(out, group, policy).with_suffix(".parquet"))


COLUMNS = ("workload", "pattern", "tokens", "seed", "policy")
"""What a run goes by."""


def write_windows(path: Path, summaries: Sequence[Mapping[str, Any]], out: Path) -> None:
    """One row a counted window of every run that is there: what the run goes by, then ``end_s``, ``p95_s`` (null
    without an answer), ``slo_s``, ``violated``, ``replicas``, both costs of the experts, ``decision_s``."""
    pq.write_table(windows_of(summaries, out), path, compression="zstd")


def windows_of(summaries: Sequence[Mapping[str, Any]], out: Path) -> pa.Table:
    """What :func:`write_windows` writes."""
    parts = []
    for summary in summaries:
        group = Group(summary["workload"], summary["pattern"], summary["tokens"], summary["seed"])
        if not path_of(out, group, summary["policy"]).with_suffix(".parquet").is_file():
            continue  # the bound has none
        windows = load_windows(out, group, summary["policy"])
        fixed = {name: [summary[name]] * windows.num_rows for name in (*COLUMNS, "slo_s")}
        names = [name for name in WINDOWS.names if name not in fixed]
        table = pa.table({**fixed, **{name: windows.column(name) for name in names}})
        parts.append(table.select(WINDOWS.names).cast(WINDOWS))
    return pa.concat_tables(parts) if parts else WINDOWS.empty_table()

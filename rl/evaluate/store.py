"""Results on disk: one JSON summary and one parquet file of windows a run, each written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl.evaluate.errors import EvaluationError
from rl.evaluate.grid import Group, file_name

FOLDER = "runs"


def path_of(out: Path, group: Group, policy: str) -> Path:
    return out / FOLDER / f"{group.key}.{file_name(policy)}.json"


def load_run(path: Path, fingerprint: str) -> dict[str, Any] | None:
    """A stored summary that was made from the same things; None when there is none or it is another's."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read as JSON ({error}); delete it to run it again") from error
    same = isinstance(found, dict) and found.get("fingerprint") == fingerprint
    return found if same else None


def save_run(path: Path, summary: dict[str, Any], windows: pa.Table | None) -> None:
    """The summary last, so that it only stands beside complete windows."""
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

"""A table on disk with a document in its metadata: how profiles of both kinds are stored."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simulation.profiles.model.errors import ProfileError


def write(path: Path, table: pa.Table, key: bytes, document: bytes) -> None:
    """``document`` under ``key`` of the table's metadata; an existing file is replaced whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    pq.write_table(table.replace_schema_metadata({key: document}), part, compression="zstd")
    part.replace(path)


def read(path: Path, key: bytes, *, measured: str, missing: str) -> tuple[pa.Table, bytes]:
    """The table and its document. ``measured``: what `smoe lab profile` measures to make such a file; ``missing``: what
    the file is without the document. Raises ProfileError with a sentence."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise ProfileError(f"{path} does not exist; `smoe lab profile {measured} --out {path}` makes it") from None
    except (OSError, pa.ArrowException) as error:
        raise ProfileError(f"{path} is not a parquet file: {error}") from error
    document = (table.schema.metadata or {}).get(key)
    if document is None:
        raise ProfileError(f"{path} {missing}")
    return table, document

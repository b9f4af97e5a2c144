"""Readers of the published routing logs, see :mod:`traces.routing` and ``traces/README.md``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.columns import foreign
from traces.errors import NoMatchError, TraceError, broken
from traces.model import IntArray
from traces.provenance import file_sha256
from traces.routing import MAX_CELLS, RequestRouting, Routing, make_routing
from traces.rows import read_header, whole_number
from traces.sources import one

CHOICE_COLUMNS = ("prompt", "layer", "pos")
COUNT_COLUMNS = ("model", "domain", "layer", "expert", "assignments")
TOP_K = {"mistral": 2, "olmoe": 8, "olmoe-sft": 8, "olmoe-dpo": 8}
"""Models in the counts file; ``mistral`` is Mixtral-8x7B there."""
BATCH_ROWS = 1 << 18
MAX_EXPERTS = 4096
MAX_ASSIGNMENTS = 10**15


def read_choices(path: Path, *, windows: int = 24) -> Routing:
    """Per-token choices: parquet with integer columns ``prompt, layer, pos, e0 … e(k-1)``, one row per token and
    layer.

    Prompts are taken in the order of their number and cut into ``windows`` runs whose sizes differ by at most one
    prompt: the order of the file is the only time there is. Read in batches of 2^18 rows. Raises TraceError that
    names the row (from 0) and the rule: whole numbers, the experts of a row distinct, the same number of tokens in
    every layer of a prompt.
    """
    columns = _choice_columns(path)
    prompts, layers, experts = _extent(path, columns)
    if not 1 <= windows <= prompts.size:
        raise TraceError(f"{path}: {prompts.size} prompts cannot be cut into {windows} windows")
    size = prompts.size * layers.size * experts
    if size > MAX_CELLS:
        raise TraceError(f"{path}: {prompts.size} prompts x {layers.size} layers x {experts} experts are too many")
    counts = np.zeros(size, dtype=np.int64)
    for at, batch in _batches(path, columns):
        chosen = np.stack(batch[3:], axis=1)
        ordered = np.sort(chosen, axis=1)
        twice = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
        if twice.size:
            raise _broken_row(path, at + int(twice[0]), f"an expert is chosen twice: {chosen[twice[0]].tolist()}")
        cell = np.searchsorted(prompts, batch[0]) * layers.size + np.searchsorted(layers, batch[1])
        counts += np.bincount((cell[:, None] * experts + chosen).ravel(), minlength=size)
    assignments = counts.reshape(prompts.size, layers.size, experts)
    tokens = _tokens_of_prompts(path, assignments, prompts, layers, len(columns) - 3)
    window = np.repeat(np.arange(windows), [part.size for part in np.array_split(prompts, windows)])
    starts = np.searchsorted(window, np.arange(windows))
    ends = np.append(starts[1:], prompts.size) - 1
    return make_routing(
        np.add.reduceat(assignments, starts, axis=0),
        np.add.reduceat(tokens, starts),
        top_k=len(columns) - 3,
        window_names=[f"prompts {prompts[a]}-{prompts[b]}" for a, b in zip(starts, ends, strict=True)],
        layer_names=[str(layer) for layer in layers],
        model="DeepSeek-V2-Lite-Chat",
        source=f"{path.name}, {prompts.size} prompts in {windows} windows",
        sha256=file_sha256(path),
        requests=RequestRouting(assignments.astype(np.int32), tokens, window.astype(np.int64)),
    )


def read_counts(path: Path, model: str, *, top_k: int | None = None) -> Routing:
    """Counts per text domain: CSV ``model,domain,layer,expert,assignments``; every domain of ``model`` is a window.

    Windows and layers stand in the order in which the file first names them, except that layers which are all
    numbers are sorted. ``top_k`` is known for the published models. Raises TraceError (line and rule), NoMatchError.
    """
    cells, models = _count_cells(path, model)
    if model not in models:
        raise NoMatchError(f"{path}: there is no model {model!r}; there are: {', '.join(sorted(models)) or 'none'}")
    k = top_k if top_k is not None else TOP_K.get(model)
    if k is None or k < 1:
        raise TraceError(f"{path}: top_k of {model!r} is not known, give it (at least 1)")
    domains = list(dict.fromkeys(domain for domain, _, _ in cells))
    layers = list(dict.fromkeys(layer for _, layer, _ in cells))
    if all(layer.isascii() and layer.isdigit() for layer in layers):
        layers.sort(key=int)
    experts = max(expert for _, _, expert in cells) + 1
    assignments = np.zeros((len(domains), len(layers), experts), dtype=np.int64)
    for (domain, layer, expert), count in cells.items():
        assignments[domains.index(domain), layers.index(layer), expert] = count
    return make_routing(
        assignments,
        assignments[:, 0].sum(axis=1) // k,
        top_k=k,
        window_names=domains,
        layer_names=layers,
        model=model,
        source=f"{path.name} {model}, one window per text domain",
        sha256=file_sha256(path),
    )


def _count_cells(path: Path, model: str) -> tuple[dict[tuple[str, str, int], int], set[str]]:
    """Assignments of ``model`` by (domain, layer, expert), and all models there are."""
    cells: dict[tuple[str, str, int], int] = {}
    models: set[str] = set()
    with one(path) as source:
        table = read_header(source.label, source.stream)
        if tuple(table.header.cells) != COUNT_COLUMNS:
            raise foreign(source, table.header, ",".join(COUNT_COLUMNS))
        for row in table.rows:
            name, domain, layer = row.cells[:3]
            expert = whole_number(path, row.line, COUNT_COLUMNS[3], row.cells[3], MAX_EXPERTS - 1)
            count = whole_number(path, row.line, COUNT_COLUMNS[4], row.cells[4], MAX_ASSIGNMENTS)
            if not (name and domain and layer):
                raise broken(path, row.line, "model, domain and layer may not be empty")
            models.add(name)
            if name == model:
                if (domain, layer, expert) in cells:
                    raise broken(path, row.line, f"expert {expert} of {model} {domain} layer {layer} stands twice")
                cells[domain, layer, expert] = count
    return cells, models


def _choice_columns(path: Path) -> list[str]:
    try:
        names = list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as parquet ({_short(error)})") from error
    chosen = [name for name in names if name not in CHOICE_COLUMNS]
    wanted = [*CHOICE_COLUMNS, *(f"e{index}" for index in range(len(chosen)))]
    if not chosen or names != wanted:
        raise TraceError(f"{path}: foreign columns {','.join(names)[:80]!r}; wanted are prompt,layer,pos,e0,e1,…")
    return names


def _batches(path: Path, columns: list[str]) -> Iterator[tuple[int, list[IntArray]]]:
    """(first row, one int64 array per column) at a time. Raises TraceError."""
    at = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns):
                yield at, [_whole(path, at, name, batch.column(name)) for name in columns]
                at += batch.num_rows
    except (OSError, pa.ArrowException, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as parquet near row {at} ({_short(error)})") from error


def _whole(path: Path, at: int, name: str, column: Any) -> IntArray:
    if not pa.types.is_integer(column.type):
        raise TraceError(f"{path}: column {name} has type {column.type}, whole numbers are needed")
    if column.null_count:
        missing = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise _broken_row(path, at + missing, f"column {name} is empty (a gap)")
    values: IntArray = column.to_numpy(zero_copy_only=False).astype(np.int64)
    high = MAX_EXPERTS if name.startswith("e") else 2**40
    wrong = np.flatnonzero((values < 0) | (values >= high))
    if wrong.size:
        value = int(values[wrong[0]])
        raise _broken_row(path, at + int(wrong[0]), f"column {name}: {value} is outside 0 to {high - 1}")
    return values


def _extent(path: Path, columns: list[str]) -> tuple[IntArray, IntArray, int]:
    """Numbers of the prompts and layers [n] sorted, and how many experts there are."""
    prompts = layers = np.zeros(0, dtype=np.int64)
    experts = 0
    for _, batch in _batches(path, columns):
        prompts, layers = np.union1d(prompts, batch[0]), np.union1d(layers, batch[1])
        experts = max(experts, *(int(column.max(initial=-1)) + 1 for column in batch[3:]))
    if not prompts.size:
        raise TraceError(f"{path}: the file holds no rows")
    return prompts, layers, experts


def _tokens_of_prompts(path: Path, counts: IntArray, prompts: IntArray, layers: IntArray, k: int) -> IntArray:
    """[requests] int64; every layer of a prompt must have seen the same tokens."""
    per_layer = counts.sum(axis=2) // k
    uneven = np.argwhere(per_layer != per_layer[:, :1])
    if uneven.size:
        prompt, layer = (int(index) for index in uneven[0])
        raise TraceError(
            f"{path}: prompt {prompts[prompt]} has {per_layer[prompt, 0]} tokens in layer {layers[0]} and "
            f"{per_layer[prompt, layer]} in layer {layers[layer]}; every layer needs the same"
        )
    tokens: IntArray = per_layer[:, 0].copy()
    return tokens


def _broken_row(path: Path, row: int, rule: str) -> TraceError:
    return TraceError(f"{path}: row {row}: {rule}")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]

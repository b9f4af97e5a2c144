"""Lengths of ServeGen's requests: ``category,model,client,window_start_s,field,mean,p10,p50,p90,p99,max``, one row a
client, window of six hours and field, as tokens.

The table is made of the publisher's histograms and holds no requests, so lengths are drawn: the inverse of a
distribution function through the five quantiles, straight in the logarithm of the length between them, and p10 below
the first. Over all rows of the table in use its means add up to 0.997 (input) and 1.010 (output) of the published
ones; straight in the length they would to 1.085 and 1.088. How input and output of one request belong together is not
published: they are drawn apart.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traces.columns import Column, foreign, read_blocks
from traces.errors import NoMatchError, TraceError
from traces.formats.azure_llm import MAX_TOKENS
from traces.model import FloatArray, IntArray
from traces.rows import read_header
from traces.sources import one

COLUMNS = ("category", "model", "client", "window_start_s", "field", "mean", "p10", "p50", "p90", "p99", "max")
QUANTILES = ("p10", "p50", "p90", "p99", "max")
SHARES = (0.1, 0.5, 0.9, 0.99, 1.0)
KINDS = (
    Column("category", "text"),
    Column("model", "text"),
    Column("client", "whole", high=10**9),
    Column("window_start_s", "whole", high=10**9),
    Column("field", "text"),
    *(Column(name, "real", high=MAX_TOKENS) for name in COLUMNS[5:]),
)
INPUTS, OUTPUT = ("input_tokens", "text_tokens"), "output_tokens"
"""Fields that are read: prompts (of models of text and images only their text), and answers."""
TABLE_OF_CLIENTS = re.compile(r"([^_]+)_(.+)_clients_.*\.csv(\.gz)?", re.ASCII)
"""Name of a table of a model's clients."""


@dataclass(frozen=True)
class Lengths:
    """One client's quantiles: window start in seconds → [5], ascending in time."""

    inputs: Mapping[int, FloatArray]
    outputs: Mapping[int, FloatArray]

    def draw(self, window_start_s: int, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Tokens of ``count`` prompts and answers, [count] each, at least 1, by the last row that is not after the
        window, or the first."""
        prompts, answers = (_drawn(_at(rows, window_start_s), count, rng) for rows in (self.inputs, self.outputs))
        return prompts, answers


def model_of(path: Path, client: str) -> tuple[str, str, int] | None:
    """(category, model, number) of a client: by its name in a published tree, else by the name of its table."""
    parts = client.split("/")
    if len(parts) == 3 and parts[2].isdecimal():
        return parts[0], parts[1], int(parts[2])
    match = TABLE_OF_CLIENTS.fullmatch(path.name)
    return (match[1], match[2], int(client)) if match and client.isdecimal() else None


def read(path: Path, category: str, model: str, client: int) -> Lengths:
    """Raises TraceError (names line and rule), and NoMatchError where the client has no lengths of both kinds."""
    rows: dict[str, dict[int, FloatArray]] = {"inputs": {}, "outputs": {}}
    with one(path, None) as source:
        header = read_header(source.label, source.stream).header
        if tuple(header.cells) != COLUMNS:
            raise foreign(source, header, ",".join(COLUMNS))
        for block in read_blocks(source, KINDS, header):
            quantiles = np.stack([block.real(name) for name in QUANTILES], 1)  # [rows, 5]
            falls = np.flatnonzero((np.diff(quantiles) < 0).any(1))
            if falls.size:
                raise block.refuse(int(falls[0]), "quantiles p10, p50, p90, p99, max fall")
            which = [block.text(name) for name in ("category", "model", "field")]
            chosen = block.whole("client") == client
            for (index, names), wanted in zip(which, (category, model), strict=False):
                chosen &= index == (names.index(wanted) if wanted in names else -1)
            index, names = which[2]
            for at in np.flatnonzero(chosen).tolist():
                field = names[index[at]]
                kind = "inputs" if field in INPUTS else "outputs" if field == OUTPUT else None
                if kind is not None:
                    rows[kind][int(block.whole("window_start_s")[at])] = quantiles[at]
    if not rows["inputs"] or not rows["outputs"]:
        raise NoMatchError(f"{path}: there are no lengths of client {client} of {category} {model}")
    return Lengths(*(dict(sorted(rows[kind].items())) for kind in ("inputs", "outputs")))


def lengths_of(table: Path, path: Path, client: str) -> Lengths:
    """Lengths of a client of the trace ``path``. Raises TraceError."""
    model = model_of(path, client)
    if model is None:
        raise TraceError(
            f"{path}: the client's model is not known; lengths need a published tree, or a file named "
            "CATEGORY_MODEL_clients_….csv"
        )
    return read(table, *model)


def _at(rows: Mapping[int, FloatArray], window_start_s: int) -> FloatArray:
    starts = list(rows)
    return rows[starts[max(0, bisect_right(starts, window_start_s) - 1)]]


def _drawn(quantiles: FloatArray, count: int, rng: np.random.Generator) -> IntArray:
    logarithms = np.log(np.maximum(quantiles, 1.0))
    drawn: IntArray = np.rint(np.exp(np.interp(rng.random(count), SHARES, logarithms))).astype(np.int64)
    return drawn

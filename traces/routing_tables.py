"""Routing statistics beside popularity: which experts of two layers go together, and which a token id goes to.

OLMoE's and Mixtral's published counts, see ``traces/README.md``: cross-layer pairs (``model,domain,layer_a,layer_b,
expert_a,expert_b,count``; the origin pairs the two top-k lists slot by slot, not all combinations) and OLMoE's
counts per token id (``domain, layer, token_id, expert, count`` as parquet), by which tokenised text is routed as the
real model would on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from traces.columns import Column, foreign, read_blocks
from traces.errors import NoMatchError, TraceError
from traces.model import FloatArray, IntArray
from traces.rows import read_header
from traces.sources import one

PAIR_COLUMNS = ("model", "domain", "layer_a", "layer_b", "expert_a", "expert_b", "count")
PAIR_KINDS = (
    *(Column(name, "text") for name in PAIR_COLUMNS[:4]),
    *(Column(name, "whole", high=4095) for name in PAIR_COLUMNS[4:6]),
    Column("count", "whole", high=1e15),
)
TOKEN_COLUMNS = ("domain", "layer", "token_id", "expert", "count")


@dataclass(frozen=True, eq=False)
class PairCounts:
    """How often two layers' experts were chosen for one token, of one model and domain."""

    layers: tuple[str, str]
    counts: IntArray
    """[experts of the first layer, experts of the second] int64."""

    @property
    def conditional(self) -> FloatArray:
        """[experts, experts] float64: P(second layer's expert | first layer's); rows never chosen are even."""
        total = self.counts.sum(axis=1, keepdims=True)
        even = np.full_like(self.counts, 1.0 / self.counts.shape[1], dtype=np.float64)
        result: FloatArray = np.where(total > 0, self.counts / np.maximum(total, 1), even)
        return result


def read_pairs(path: Path, model: str, domain: str) -> list[PairCounts]:
    """Every pair of layers of ``model`` in ``domain``, in the file's order. Raises TraceError, NoMatchError."""
    cells: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
    there: set[str] = set()
    with one(path) as source:
        header = read_header(source.label, source.stream).header
        if tuple(header.cells) != PAIR_COLUMNS:
            raise foreign(source, header, ",".join(PAIR_COLUMNS))
        for block in read_blocks(source, PAIR_KINDS, header):
            texts = [[names[i] for i in index.tolist()] for index, names in map(block.text, PAIR_COLUMNS[:4])]
            whole = [block.whole(name).tolist() for name in PAIR_COLUMNS[4:]]
            for at, (its, of, a, b, i, j, count) in enumerate(zip(*texts, *whole, strict=True)):
                there.add(f"{its} {of}")
                if (its, of) != (model, domain):
                    continue
                found = cells.setdefault((a, b), {})
                if (i, j) in found:
                    raise block.refuse(at, f"experts {i} and {j} of {model} {domain} {a}, {b} stand twice")
                found[i, j] = count
    if not cells:
        raise NoMatchError(f"{path}: there is no {model} {domain}; there are: {', '.join(sorted(there)) or 'none'}")
    experts = 1 + max(max(pair) for found in cells.values() for pair in found)
    result = []
    for layers, found in cells.items():
        counts = np.zeros((experts, experts), dtype=np.int64)
        for pair, count in found.items():
            counts[pair] = count
        result.append(PairCounts(layers, counts))
    return result


@dataclass(frozen=True, eq=False)
class TokenRouting:
    """Experts of token ids in one domain."""

    layers: tuple[int, ...]
    experts: int
    token_ids: IntArray
    """[n] int64, rising: the ids that were seen."""
    counts: IntArray
    """[n, layers, experts] int64."""

    def shares(self, token_ids: IntArray) -> FloatArray:
        """[m, layers, experts] float64 for ``token_ids`` [m]: share of each expert in the id's choices; an id that
        was never seen gets the domain's shares.
        """
        at = np.minimum(np.searchsorted(self.token_ids, token_ids), self.token_ids.size - 1)
        known = self.token_ids[at] == token_ids
        chosen = np.where(known[:, None, None], self.counts[at], self.counts.sum(axis=0))
        total = chosen.sum(axis=2, keepdims=True)
        result: FloatArray = np.where(total > 0, chosen / np.maximum(total, 1), 1.0 / self.experts)
        return result


def read_tokens(path: Path, domain: str) -> TokenRouting:
    """Raises TraceError, NoMatchError."""
    try:
        if list(pq.read_schema(path).names) != list(TOKEN_COLUMNS):
            raise TraceError(f"{path}: foreign columns; wanted are {','.join(TOKEN_COLUMNS)}")
        table = pq.read_table(path, columns=list(TOKEN_COLUMNS[1:]), filters=[("domain", "==", domain)])
        columns = []
        for name in TOKEN_COLUMNS[1:]:
            column = table.column(name)
            if not pa.types.is_integer(column.type) or column.null_count:
                raise TraceError(f"{path}: column {name} has type {column.type} or gaps, whole numbers are needed")
            columns.append(column.to_numpy().astype(np.int64))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as parquet ({' '.join(str(error).split())[:200]})") from error
    layer, token, expert, count = columns
    if not layer.size:
        raise NoMatchError(f"{path}: no row is of domain {domain!r}")
    if min(column.min() for column in columns) < 0 or expert.max() >= 4096:
        raise TraceError(f"{path}: numbers start at 0 and experts end at 4095")
    layers, layer_at = np.unique(layer, return_inverse=True)
    tokens, token_at = np.unique(token, return_inverse=True)
    experts = int(expert.max()) + 1
    counts = np.zeros((tokens.size, layers.size, experts), dtype=np.int64)
    np.add.at(counts, (token_at, layer_at, expert), count)
    return TokenRouting(tuple(int(number) for number in layers), experts, tokens, counts)

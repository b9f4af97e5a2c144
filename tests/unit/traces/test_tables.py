"""Tables beside the traces: execution times, memory, lengths, pairs of experts, token ids."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import NoMatchError, TraceError
from traces.formats.tables import MEMORY_PERCENTILES, PERCENTILES, TableKind, read_table
from traces.routing_tables import read_pairs, read_tokens

DURATIONS = ("HashOwner", "HashApp", "HashFunction", "Average", "Count", "Minimum", "Maximum", *PERCENTILES)
MEMORY = ("HashOwner", "HashApp", "SampleCount", "AverageAllocatedMb", *MEMORY_PERCENTILES)
LENGTHS = "category,model,client,window_start_s,field,mean,p10,p50,p90,p99,max\n"


def durations(folder: Path, day: int, *functions: str) -> Path:
    path = folder / f"function_durations_percentiles.anon.d{day:02}.csv"
    rows = [f"o,a,{name},{day}.5,3,0.0,9," + ",".join(str(i) for i in range(7)) for name in functions]
    path.write_text("\n".join([",".join(DURATIONS), *rows]) + "\n")
    return path


def test_days_of_execution_times_stand_one_behind_the_other(tmp_path: Path) -> None:
    durations(tmp_path, 1, "f", "g")
    durations(tmp_path, 2, "f")
    memory = "\n".join([",".join(MEMORY), "o,a,7," + ",".join(["100.5"] * 9)]) + "\n"
    (tmp_path / "app_memory_percentiles.anon.d01.csv").write_text(memory)
    table = read_table(tmp_path, "durations")
    assert table.size == 3 and table.texts["HashFunction"] == ["f", "g", "f"] and table.day.tolist() == [1, 1, 2]
    assert table.numbers["Average"].tolist() == [1.5, 1.5, 2.5] and table.numbers[PERCENTILES[6]].tolist() == [6.0] * 3
    of_memory = read_table(tmp_path, "memory")
    assert of_memory.size == 1 and of_memory.numbers["AverageAllocatedMb_pct100"].tolist() == [100.5]


@pytest.mark.parametrize(
    ("text", "kind", "rule"),
    [
        (LENGTHS + "language,m,1,0,input_tokens,nan,1,1,1,1,1\n", "lengths", ":2: column mean: 'nan' is not a finite"),
        (LENGTHS + "language,m,-1,0,input_tokens,1,1,1,1,1,1\n", "lengths", ":2: column client: '-1' is negative"),
        (LENGTHS + "language,,1,0,input_tokens,1,1,1,1,1,1\n", "lengths", ":2: column model is empty"),
        (LENGTHS, "lengths", "no rows of a lengths table"),
        (LENGTHS, "durations", ":1: foreign columns"),
        ("", "memory", ":1: the file is empty"),
    ],
)
def test_damaged_tables_are_told(tmp_path: Path, text: str, kind: TableKind, rule: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=rule):
        read_table(path, kind)


def test_lengths_are_read_with_their_fields(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(LENGTHS + "language,m-large,3,600,input_tokens,5.5,1,2,3,4,5\n")
    table = read_table(path, "lengths")
    assert table.texts["field"] == ["input_tokens"] and table.numbers["window_start_s"].tolist() == [600.0]


PAIRS = "model,domain,layer_a,layer_b,expert_a,expert_b,count\n"


def test_pairs_of_experts_become_conditional_shares(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(PAIRS + "m,arxiv,0,7,0,1,3\nm,arxiv,0,7,0,0,1\nm,c4,0,7,1,1,5\nm,arxiv,7,15,2,0,4\n")
    first, second = read_pairs(path, "m", "arxiv")
    assert first.layers == ("0", "7") and second.layers == ("7", "15")
    assert first.counts.tolist() == [[1, 3, 0], [0, 0, 0], [0, 0, 0]]
    third = 1 / 3
    assert first.conditional.tolist() == [[0.25, 0.75, 0.0], [third] * 3, [third] * 3]
    with pytest.raises(NoMatchError, match="there is no m book; there are: m arxiv, m c4"):
        read_pairs(path, "m", "book")
    path.write_text(PAIRS + "m,arxiv,0,7,0,1,3\nm,arxiv,0,7,0,1,3\n")
    with pytest.raises(TraceError, match=r":3: experts 0 and 1 .* stand twice"):
        read_pairs(path, "m", "arxiv")
    path.write_text("a,b\n")
    with pytest.raises(TraceError, match=":1: foreign columns"):
        read_pairs(path, "m", "arxiv")


def tokens(tmp_path: Path, **changed: object) -> Path:
    path = tmp_path / "tokens.parquet"
    columns = {"domain": ["a", "a", "b", "a"], "layer": [0, 1, 0, 0], "token_id": [7, 7, 7, 2], "expert": [1, 0, 2, 1],
               "count": [4, 2, 9, 4]}  # fmt: skip
    pq.write_table(pa.table({**columns, **changed}), path)
    return path


def test_token_ids_are_routed_as_they_were_and_unknown_ones_as_the_domain(tmp_path: Path) -> None:
    routing = read_tokens(tokens(tmp_path), "a")
    assert routing.layers == (0, 1) and routing.experts == 2 and routing.token_ids.tolist() == [2, 7]
    shares = routing.shares(np.array([7, 2, 99]))
    assert shares[:, 0].tolist() == [[0, 1], [0, 1], [0, 1]]
    assert shares[:, 1].tolist() == [[1, 0], [0.5, 0.5], [1, 0]]


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"expert": [-1, 0, 0, 0]}, "numbers start at 0"),
        ({"count": [1.5] * 4}, "whole numbers are needed"),
        ({"layer": [None, 0, 0, 0]}, "or gaps"),
        ({"extra": [1] * 4}, "foreign columns"),
    ],
)
def test_damaged_token_counts_are_told(tmp_path: Path, changed: dict[str, object], rule: str) -> None:
    with pytest.raises(TraceError, match=rule):
        read_tokens(tokens(tmp_path, **changed), "a")


def test_a_domain_that_is_not_there_and_a_file_that_is_no_parquet_are_told(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="no row is of domain 'z'"):
        read_tokens(tokens(tmp_path), "z")
    path = tmp_path / "no.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match="cannot be read as parquet"):
        read_tokens(path, "a")


@given(data=st.data())
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_garbage_only_ever_raises_trace_errors(tmp_path: Path, data: st.DataObject) -> None:
    durations(tmp_path, 1, "f", "g")
    tokens(tmp_path)
    (tmp_path / "lengths.csv").write_text(LENGTHS + "language,m-large,3,600,input_tokens,5.5,1,2,3,4,5\n" * 3)
    (tmp_path / "pairs.csv").write_text(PAIRS + "m,arxiv,0,7,0,1,3\nm,arxiv,0,7,0,0,1\n")
    readers: dict[str, Callable[[Path], object]] = {
        "lengths.csv": partial(read_table, kind="lengths"),
        "function_durations_percentiles.anon.d01.csv": partial(read_table, kind="durations"),
        "pairs.csv": partial(read_pairs, model="m", domain="arxiv"),
        "tokens.parquet": partial(read_tokens, domain="a"),
    }
    name = data.draw(st.sampled_from(sorted(readers)))
    raw = bytearray((tmp_path / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=5))
    path = tmp_path / "damaged"
    path.write_bytes(bytes(raw))
    try:
        readers[name](path)
    except TraceError as error:
        assert str(error).startswith(str(path))

"""Blocks of columns against reading row by row, which knows nothing of pyarrow."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parameters import examples
from traces import columns
from traces.columns import Column, check_cell, parse_stamp_ns, read_blocks
from traces.errors import TraceError
from traces.rows import read_header, real_number, whole_number
from traces.sources import Source, one

KINDS = (
    Column("n", "whole", high=1000),
    Column("x", "real", low=-5, high=5),
    Column("t", "stamp"),
    Column("w", "text", may_be_empty=True),
    Column("p", "text", allowed=("Gamma", "Weibull")),
)
HEAD = "n,x,t,w,p\n"
SOUND = st.tuples(
    st.integers(0, 1000).map(str),
    st.floats(-5, 5).map(repr),
    st.builds(
        "2024-05-{:02d} {:02d}:00:59{}+00:00".format,
        st.integers(1, 31), st.integers(0, 23), st.sampled_from(["", ".5", ".000001", ".123456789"]),
    ),
    st.text("ab\"'# ", max_size=4),
    st.sampled_from(["Gamma", "Weibull"]),
)  # fmt: skip
ODD_CELLS = [
    "",
    "-1",
    "1001",
    "+5",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e3",
    "0x10",
    "1_0",
    "x",
    "٣",
    "Pareto",
    "2024-05-10",
    "2024-05-10 00:00",
    "2024-13-10 00:00:00+00:00",
    "99999999999999999999",
    "6",
    "-5.1",
    "1715299200",
    "null",
    "NA",
]
ODD = st.sampled_from(ODD_CELLS)


def by_rows(path: Path) -> list[tuple[int, float, int, str, str]]:
    with one(path) as source:
        by_rows = []
        for row in read_header(source.label, source.stream).rows:
            for column, cell in zip(KINDS, row.cells, strict=True):
                check_cell(path, row.line, column, cell)
            n, x, t, w, p = row.cells
            whole = whole_number(path, row.line, "n", n, 1000)
            real = real_number(path, row.line, "x", x, low=-5, high=5)
            by_rows.append((whole, real, parse_stamp_ns(path, row.line, t), w, p))
        return by_rows


def by_blocks(path: Path) -> list[tuple[int, float, int, str, str]]:
    with one(path) as source:
        header = read_header(source.label, source.stream).header
        found: list[tuple[int, float, int, str, str]] = []
        for block in read_blocks(source, KINDS, header):
            assert block.first_line == len(found) + 2
            texts = [[names[i] for i in index] for index, names in map(block.text, "wp")]
            numbers = [block.arrays[name].tolist() for name in "nxt"]
            found.extend(zip(*numbers, *texts, strict=True))
        return found


@given(rows=st.lists(SOUND, max_size=30), end=st.sampled_from(["\n", "", "\n\n", "\r\n"]))
@settings(deadline=None)
def test_sound_files_are_read_the_same_way(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "sound.csv"
    path.write_text(HEAD + "\n".join(",".join(row) for row in rows) + end, newline="")
    assert by_blocks(path) == by_rows(path)


@pytest.mark.parametrize("column", range(5), ids="nxtwp")
def test_every_odd_cell_in_every_column_is_judged_the_same_way(tmp_path: Path, column: int) -> None:
    path = tmp_path / "odd.csv"
    for odd in ODD_CELLS:
        cells = ["1", "0.5", "2024-05-10 00:00:00+00:00", "a", "Gamma"]
        cells[column] = odd
        path.write_text(HEAD + "1,1,2024-05-10 00:00:00+00:00,,Weibull\n" + ",".join(cells) + "\n")
        sentences = []
        for read in (by_rows, by_blocks):
            try:
                sentences.append(str(read(path)))
            except TraceError as error:
                sentences.append(str(error))
        assert sentences[0] == sentences[1], odd


@pytest.mark.slow
@given(rows=st.lists(SOUND, min_size=1, max_size=8), data=st.data())
@settings(deadline=None, max_examples=examples(200))
def test_what_rows_refuse_blocks_refuse_with_the_same_sentence(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]], data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "odd.csv"
    row, column = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(0, 4))
    odd = data.draw(ODD)
    lines = [list(cells) for cells in rows]
    lines[row][column] = odd
    path.write_text(HEAD + "\n".join(",".join(cells) for cells in lines) + "\n")
    try:
        wanted = by_rows(path)
    except TraceError as error:
        with pytest.raises(TraceError) as found:
            by_blocks(path)
        assert str(found.value) == str(error)
        return
    assert by_blocks(path) == wanted


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        pytest.param("1,1,2024-05-10 00:00:00+00:00,a\n", r":2: 4 fields, the header on line 1 has 5", id="short"),
        pytest.param("\n1,1,2024-05-10 00:00:00+00:00,a,Gamma\n", r":2: an empty line stands", id="hole"),
        pytest.param("1,1,2024-05-10 00:00:00+00:00,\xff,Gamma\n", r":2: the line is not UTF-8", id="not utf-8"),
        pytest.param(
            "1,1,2024-05-10 00:00:00+00:00," + "a" * (13 << 20) + ",Gamma\n", r":2: the line is longer", id="long"
        ),
    ],
)
def test_a_broken_table_is_reported_with_its_line(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes((HEAD + text).encode("latin-1"))
    with pytest.raises(TraceError, match=rule):
        by_blocks(path)


def test_stamps_with_and_without_zone_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "1,1,2024-05-10 00:00:00+00:00,a,Gamma\n1,1,2024-05-10 00:00:01,a,Gamma\n")
    with pytest.raises(TraceError, match=r"t\.csv:3: column t: .* has no zone"):
        by_blocks(path)


def test_a_gap_between_blocks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", 80)
    row = "1,1,2024-05-10 00:00:00+00:00,a,Gamma\n"
    path = tmp_path / "t.csv"
    path.write_text(HEAD + row * 40 + "\n" * 80 + row * 40)
    with pytest.raises(TraceError, match=r":42: an empty line stands between rows"):
        by_blocks(path)
    path.write_text(HEAD + row * 40 + "\n" * 80)
    assert len(by_blocks(path)) == 40


def test_a_table_without_header_counts_its_lines_from_one() -> None:
    source = Source(Path("x"), None, io.BytesIO(b"1,2\n3,4\n"))
    kinds = (Column("a", "whole"), Column("b", "ignored"))
    (block,) = read_blocks(source, kinds)
    assert block.first_line == 1 and block.whole("a").tolist() == [1, 3] and "b" not in block.arrays
    assert str(block.refuse(1, "rule")) == "x:2: rule"
    assert list(read_blocks(Source(Path("x"), None, io.BytesIO(b"")), kinds)) == []


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_real_cell_is_read_as_python_reads_it(value: float) -> None:
    source = Source(Path("x"), None, io.BytesIO(f"{value!r}\n".encode()))
    try:
        (block,) = read_blocks(source, (Column("a", "real", low=-1e300, high=1e300),))
    except TraceError:
        assert not (math.isfinite(value) and abs(value) <= 1e300)
    else:
        np.testing.assert_array_equal(block.real("a"), [value])


def test_a_zone_holds_for_the_whole_file_not_for_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK_BYTES", 100)
    path = tmp_path / "t.csv"
    path.write_text("t\n" + "2024-05-10 00:00:01\n" * 40 + "2024-05-10 00:00:02Z\n" * 40)
    with (
        one(path) as source,
        pytest.raises(TraceError, match=r"t\.csv:42: column t: '2024-05-10 00:00:02Z' has a zone"),
    ):
        list(read_blocks(source, (Column("t", "stamp"),), read_header(source.label, source.stream).header))

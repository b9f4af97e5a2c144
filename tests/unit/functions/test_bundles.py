"""Several groups in one message: what goes in comes out, and nothing broken is believed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.wire import arrays, bundles
from functions.wire.bundles import Part, assemble, gather_rows, parse, split_rows, targets
from functions.wire.format import WireError


@given(st.integers(1, 9), st.lists(st.sets(st.integers(0, 8), min_size=0), max_size=6), st.sampled_from("fuh"))
def test_every_group_gets_its_tokens_rows_back(tokens: int, chosen: list[set[int]], kind: str) -> None:
    dtype = {"f": np.float32, "u": np.uint16, "h": np.float16}[kind]
    x = np.arange(tokens * 3, dtype=dtype).reshape(tokens, 3)
    groups = [np.array(sorted(token % tokens for token in group), np.intp) for group in chosen]
    message = b"".join(arrays.encode(gather_rows(x, groups)))
    split = split_rows(arrays.decode(message), len(groups))
    assert len(split) == len(groups)
    for part, group in zip(split, groups, strict=True):
        assert np.array_equal(part, x[group])


def test_a_token_of_several_groups_travels_once() -> None:
    x = np.eye(4, dtype=np.float32)
    gathered = gather_rows(x, [np.array([0, 2]), np.array([2])])
    assert gathered["x"].tolist() == x[[0, 2]].tolist()
    assert (gathered["rows"].tolist(), gathered["edges"].tolist()) == ([0, 1, 1], [0, 2, 3])


def message(**change: Any) -> dict[str, np.ndarray]:
    good = gather_rows(np.ones((3, 2), np.float32), [np.array([0, 1]), np.array([2])])
    return {name: array for name, array in {**good, **change}.items() if array is not None}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"rows": None}, "x, rows and edges"),
        ({"y": np.ones(1, np.float32)}, "x, rows and edges"),
        ({"x": np.ones(3, np.float32)}, "floating"),
        ({"x": np.ones((3, 2), np.int32)}, "floating"),
        ({"rows": np.array([0, 1, 2])}, "int32"),
        ({"rows": np.array([0, 1, 3], np.int32)}, "0 to 2"),
        ({"rows": np.array([0, 1, -1], np.int32)}, "0 to 2"),
        ({"edges": np.array([0, 3], np.int32)}, r"\[3\] int32"),
        ({"edges": np.array([0, 4, 3], np.int32)}, "rise"),
        ({"edges": np.array([1, 2, 3], np.int32)}, "rise"),
        ({"edges": np.array([0, 2, 2], np.int32)}, "rise"),
    ],
)
def test_messages_that_do_not_fit_together_are_refused(change: dict[str, Any], word: str) -> None:
    with pytest.raises(WireError, match=word):
        split_rows(message(**change), 2)


def test_targets_are_own_paths_and_siblings() -> None:
    parsed = targets("/,127.0.0.1:80/stage/expert-0-1,[::1]:9/relay")
    assert parsed == [("", "/"), ("127.0.0.1:80", "/stage/expert-0-1"), ("[::1]:9", "/relay")]
    assert targets("") == []


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1:80", "host/", "host:0/", "host:65536/", ":80/", "/metrics", "a:1/_/health", "/,", "a:1/stagey"),
        "/,".join([""] * (bundles.MAX_GROUPS + 2)),
    ],
)
def test_other_targets_are_refused(text: str) -> None:
    with pytest.raises(WireError):
        targets(text)


@given(st.lists(st.tuples(st.integers(0, 599), st.lists(st.binary(max_size=20), max_size=3)), max_size=5))
def test_answers_come_back_byte_for_byte(parts: list[tuple[int, list[bytes]]]) -> None:
    body = b"".join(assemble([Part(status, chunks) for status, chunks in parts]))
    found = [(answer.status, bytes(answer.body)) for answer in parse(body, len(parts))]
    assert found == [(status, b"".join(chunks)) for status, chunks in parts]


@given(st.binary(max_size=80), st.integers(0, 4))
def test_other_bytes_are_no_answers(body: bytes, count: int) -> None:
    with suppress(WireError):
        assert len(parse(body, count)) == count


@given(st.data())
def test_a_damaged_answer_is_refused_or_stays_within_its_bytes(data: st.DataObject) -> None:
    body = bytearray(b"".join(assemble([Part(200, [b"abc"]), Part(0, []), Part(503, [b"12345678"])])))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = body[: data.draw(st.integers(0, len(body)))]
    for damaged in (body, cut):
        with suppress(WireError):
            assert sum(len(answer.body) for answer in parse(damaged, 3)) <= len(damaged)

"""The wire format: what goes in comes out, and nothing malformed gets through."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.wire import format as wire
from functions.wire import layout
from tests.parameters import examples

DTYPES = list(wire.CODE_OF_DTYPE)
NAMES = st.text(alphabet="abcxyz_", min_size=1, max_size=12)


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    result = {}
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        shape = draw(st.lists(st.integers(0, 5), max_size=4))
        dtype = draw(st.sampled_from(DTYPES))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
        result[name] = torch.randint(-100, 100, shape, generator=generator).to(dtype)
    return result


def header(*entries: tuple[bytes, int, tuple[int, ...], int], count: int | None = None, version: int = 1) -> bytes:
    """A message's head, written independently of the encoder."""
    head = b"SMOE" + struct.pack("<BBH", version, len(entries) if count is None else count, 0)
    for name, code, shape, size in entries:
        head += bytes((len(name),)) + name + bytes((code, len(shape)))
        head += b"".join(struct.pack("<I", n) for n in shape) + struct.pack("<Q", size)
    return head


@given(tensors())
def test_every_dtype_and_shape_comes_back_as_it_was(given_: dict[str, torch.Tensor]) -> None:
    decoded = wire.decode(wire.encode_bytes(given_))
    assert list(decoded) == list(given_)
    for name, tensor in given_.items():
        assert decoded[name].dtype == tensor.dtype
        assert decoded[name].shape == tensor.shape
        assert torch.equal(decoded[name], tensor)


def test_a_message_has_the_bytes_that_the_contract_says() -> None:
    message = wire.encode_bytes({"x": torch.tensor([[1.0, 2.0]]), "ids": torch.tensor([7])})
    head = header((b"x", 0, (1, 2), 8), (b"ids", 3, (1,), 8))
    padding = bytes(-len(head) % 8)
    assert message == head + padding + struct.pack("<2f", 1.0, 2.0) + struct.pack("<q", 7)


def test_payloads_of_odd_length_are_padded_to_eight_bytes() -> None:
    message = wire.encode_bytes({"a": torch.ones(3, dtype=torch.float16), "b": torch.tensor([5])})
    assert wire.decode(message)["b"].tolist() == [5]
    assert message[-8:] == struct.pack("<q", 5)
    assert len(message) % 8 == 0


def test_decoded_tensors_are_views_of_a_writable_buffer() -> None:
    buffer = bytearray(wire.encode_bytes({"x": torch.zeros(4)}))
    decoded = wire.decode(buffer)["x"]
    buffer[-4:] = struct.pack("<f", 3.0)
    assert decoded.tolist() == [0.0, 0.0, 0.0, 3.0]


def test_slices_and_transposes_are_sent_as_they_look() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(wire.decode(wire.encode_bytes({"x": base.T[1:]}))["x"], base.T[1:])


@given(tensors(), st.data())
def test_a_message_cut_anywhere_is_refused(given_: dict[str, torch.Tensor], data: st.DataObject) -> None:
    message = wire.encode_bytes(given_)
    cut = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(wire.WireError):
        wire.decode(message[:cut])


@given(tensors(), st.binary(min_size=1, max_size=20))
def test_bytes_after_the_last_tensor_are_refused(given_: dict[str, torch.Tensor], rest: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(wire.encode_bytes(given_) + rest)


@settings(max_examples=examples(300))
@given(st.binary(max_size=200))
def test_random_bytes_never_do_more_than_be_refused(data: bytes) -> None:
    for message in (data, b"SMOE\x01" + data):
        try:
            decoded = wire.decode(message)
        except wire.WireError:
            continue
        assert sum(tensor.nbytes for tensor in decoded.values()) <= len(message)


@settings(max_examples=examples(200))
@given(tensors(), st.data())
def test_a_message_with_changed_bytes_is_refused_or_no_larger_than_itself(
    given_: dict[str, torch.Tensor], data: st.DataObject
) -> None:
    message = bytearray(wire.encode_bytes(given_))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = wire.decode(message)
    except wire.WireError:
        return
    assert sum(tensor.nbytes for tensor in decoded.values()) <= len(message)


HUGE = 2**32 - 1


@pytest.mark.parametrize(
    ("message", "word"),
    [
        (b"", "header"),
        (b"HTTP" + bytes(4), "SMOE"),
        (header(version=2), "version 2"),
        (b"SMOE" + struct.pack("<BBH", 1, 0, 7), "reserved"),
        (header(count=200), "200 tensors"),
        (header((b"x", 9, (1,), 4)) + bytes(8), "dtype code 9"),
        (header((b"x", 0, (1,) * 9, 4)), "9 dimensions"),
        (header((b"X", 0, (1,), 4)) + bytes(8), "a-z"),
        (header((b"", 0, (1,), 4)) + bytes(8), "a-z"),
        (header((b"x", 0, (1,), 4), (b"x", 0, (1,), 4)) + bytes(16), "twice"),
        (header((b"x", 0, (HUGE, HUGE), 4)), "not 4 bytes"),
        (header((b"x", 0, (HUGE,), HUGE * 4)), "needs"),
        (header((b"x", 0, (HUGE,) * 8, 2**64 - 1)), "not"),
        (header((b"x", 0, (2,), 4)) + bytes(16), "not 4 bytes"),
        (header((b"x", 0, (0, HUGE), 1)) + bytes(16), "not 1 bytes"),
        (header((b"x", 0, (0, *(HUGE,) * 7), 0)) + bytes(4), "too large"),
        (header((b"x", 0, (1,), 4), count=3), "within the description"),
    ],
)
def test_lies_are_refused_with_a_sentence_and_without_large_allocations(message: bytes, word: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(wire.WireError, match=word):
            wire.decode(message)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_messages_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_BYTES", 100)
    message = wire.encode_bytes({"x": torch.zeros(100)})
    with pytest.raises(wire.WireError, match="at most 100"):
        wire.decode(message)


@pytest.mark.parametrize(
    "tensors_",
    [
        {"x": torch.zeros(1, dtype=torch.float64)},
        {"X": torch.zeros(1)},
        {"": torch.zeros(1)},
        {"x": torch.zeros([1] * 9)},
    ],
)
def test_what_the_wire_does_not_carry_is_refused_when_encoding(tensors_: dict[str, torch.Tensor]) -> None:
    with pytest.raises(wire.WireError):
        wire.encode(tensors_)


@given(st.lists(st.tuples(st.sampled_from(["x", "y", "hidden"]), st.integers(1, 4), st.integers(1, 4)), max_size=8))
def test_messages_of_a_known_length_are_distinguished_by_their_headers(shapes: list[tuple[str, int, int]]) -> None:
    for name, rows, width in shapes:
        tensor = torch.arange(rows * width, dtype=torch.float32).view(rows, width)
        for _ in range(2):
            (found,) = wire.decode(bytearray(wire.encode_bytes({name: tensor}))).items()
            assert found[0] == name
            assert torch.equal(found[1], tensor)


def test_a_damaged_message_of_a_known_length_is_refused_all_the_same() -> None:
    good = bytearray(wire.encode_bytes({"x": torch.ones(3, 5)}))
    wire.decode(good)
    for place in range(28):  # the header; payloads are anyone's
        bad = bytearray(good)
        bad[place] ^= 0xFF
        with pytest.raises(wire.WireError):
            wire.decode(bad)
    wire.decode(good)

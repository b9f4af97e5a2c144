"""Tensors as views of memory that holds a safetensors file: the library's own reading is the measure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from functions.wire.tensor_views import DTYPES, HeaderError, places, read_places, views
from moe import runtime

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
TENSORS = st.dictionaries(
    st.text("ab.", min_size=1, max_size=6), st.tuples(st.sampled_from(list(DTYPES.values())), SHAPES), max_size=5
)


def whole(path: Path) -> torch.Tensor:
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def header(**entry: Any) -> bytes:
    return json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()


def test_all_dtypes_of_pipelines_are_known() -> None:
    assert set(DTYPES.values()) == set(runtime.DTYPES.values())


@settings(deadline=None)
@given(TENSORS)
def test_views_are_what_the_library_reads(tmp_path_factory: pytest.TempPathFactory, made: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("views") / "some.safetensors"
    generator = torch.Generator().manual_seed(1)
    save_file({name: torch.randn(shape, generator=generator).to(dtype) for name, (dtype, shape) in made.items()}, path)
    tensors = views(whole(path), read_places(path)[0])
    expected = load_file(path)
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(tensors[name], tensor)


def test_only_tensors_with_the_prefix_are_taken_without_it(tmp_path: Path) -> None:
    save_file({"a.x": torch.ones(2), "b.x": torch.zeros(2)}, tmp_path / "two.safetensors")
    tensors = views(whole(tmp_path / "two.safetensors"), read_places(tmp_path / "two.safetensors")[0], "b.")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"x": [0.0, 0.0]}


@pytest.mark.parametrize("shift", range(5))
def test_a_tensor_that_is_not_aligned_is_copied_and_equal_and_others_are_not_copied(shift: int) -> None:
    text = header(data_offsets=[shift, shift + 8])
    text += b" " * (-(8 + len(text)) % 4)
    values = torch.tensor([1.5, -2.0])
    memory = torch.zeros(8 + len(text) + 16, dtype=torch.uint8)
    start = 8 + len(text) + shift
    memory[start : start + 8] = values.view(torch.uint8)
    tensor = views(memory, places(text, memory.numel()))["x"]
    assert torch.equal(tensor, values)
    assert (tensor.data_ptr() == memory.data_ptr() + start) == (shift % 4 == 0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(header(data_offsets=[0, 400]), id="beyond the end"),
        pytest.param(header(data_offsets=[-4, 4]), id="before the beginning"),
        pytest.param(header(data_offsets=[8, 0]), id="backwards"),
        pytest.param(header(data_offsets=[0, 4]), id="fewer bytes than the shape"),
        pytest.param(header(data_offsets=[0]), id="one offset"),
        pytest.param(header(data_offsets=[0, 8.0]), id="no whole number"),
        pytest.param(header(shape=[-2]), id="negative"),
        pytest.param(header(shape=[True, 2]), id="no number"),
        pytest.param(header(shape=[2**63, 0], data_offsets=[0, 0]), id="overflow"),
        pytest.param(header(shape="2"), id="no list"),
        pytest.param(header(dtype="F8"), id="dtype"),
        pytest.param(b'{"x": 1}', id="no entry"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe", id="no text"),
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(text: bytes) -> None:
    with pytest.raises(HeaderError):
        places(text, 8 + len(text) + 16)


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, (100).to_bytes(8, "little") + b"{}"])
def test_a_file_without_a_whole_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(HeaderError, match="header"):
        read_places(tmp_path / "f")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["shape", "dtype", "x"]), inner),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "BF16", "I8"]) | JSON},
    optional={
        "shape": st.lists(st.integers(-1, 5) | JSON, max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-2, 60), max_size=3) | JSON,
    },
)


@settings(deadline=None)
@given(
    st.binary(max_size=60)
    | st.dictionaries(st.text(max_size=3), ENTRIES | JSON).map(lambda one: json.dumps(one).encode())
)
def test_any_header_is_refused_or_gives_views_inside_the_memory(text: bytes) -> None:
    memory = torch.zeros(8 + len(text) + 40, dtype=torch.uint8)
    try:
        placed = places(text, memory.numel())
    except HeaderError:
        return
    for tensor in views(memory, placed).values():
        assert tensor.nbytes <= 40

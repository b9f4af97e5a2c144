"""Requests of a profile are what the node's own program takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functions.wire import format as wire
from moe.manifest import Manifest, load
from moe.preset import PRESETS, preset_source
from moe.runtime import load_node
from moe.split import split
from simulation.profiles.measure.bodies import TOKENS_PER_TEXT, request_of, tensors_of, texts_of


@given(tokens=st.integers(1, 5000), longest=st.integers(1, 600))
def test_texts_hold_all_tokens_and_none_is_too_long(tokens: int, longest: int) -> None:
    lengths = texts_of(tokens, longest)
    assert sum(lengths) == tokens
    assert 1 <= min(lengths) <= max(lengths) <= min(longest, TOKENS_PER_TEXT)


@pytest.mark.parametrize("node_id", ["segment-0", "segment-1", "segment-6", "expert-3-1"])
@pytest.mark.parametrize("tokens", [1, 33])
def test_every_kind_of_node_answers_its_request(
    minilm: Manifest, minilm_pipeline: Path, node_id: str, tokens: int
) -> None:
    program = load_node(minilm_pipeline, minilm, node_id)
    reply = program.run(tensors_of(minilm, minilm.node(node_id), tokens, seed=1))
    assert all(torch.isfinite(tensor.float()).all() for tensor in reply.values())


@pytest.mark.slow
def test_segments_of_a_decoder_get_a_memory_as_well(tmp_path: Path) -> None:
    preset = PRESETS["b2b-4"]
    split(preset_source(preset, None, 64, 0), tmp_path / "b2b", "b2b", preset.experts, preset.top_k)
    manifest = load(tmp_path / "b2b")
    crossing = next(node for node in manifest.nodes if "memory" in node.inputs)
    program = load_node(tmp_path / "b2b", manifest, crossing.id)
    assert program.run(tensors_of(manifest, crossing, 40, seed=1))


def test_the_body_is_a_message_of_the_same_tensors(minilm: Manifest) -> None:
    node = minilm.node("segment-0")
    head, body = request_of(minilm, node, 40, seed=3)
    assert f"content-length: {len(body)}".encode() in head
    decoded = wire.decode(bytearray(body))
    assert decoded.keys() == {"token_ids", "lengths"}
    assert torch.equal(decoded["token_ids"], tensors_of(minilm, node, 40, seed=3)["token_ids"])
    assert not torch.equal(decoded["token_ids"], tensors_of(minilm, node, 40, seed=4)["token_ids"])

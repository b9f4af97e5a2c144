"""The short pipeline of live runs: the default one's first layers, weight for weight."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.two_layers import LAYERS, main
from moe.manifest import Manifest, load

pytestmark = pytest.mark.slow


def digests(manifest: Manifest, node: str) -> str:
    return manifest.files[manifest.node(node).weights.file].sha256


def test_its_layers_are_the_default_pipelines_weight_for_weight(tmp_path: Path, minilm_pipeline: Path) -> None:
    made = CliRunner().invoke(main, [str(tmp_path / "two")], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    short, whole = load(tmp_path / "two"), load(minilm_pipeline, verify=False)
    assert (short.layers, len(short.segments)) == (LAYERS, LAYERS + 1)
    same = [node.id for node in short.nodes if node.kind == "expert"] + [one.id for one in short.segments[:LAYERS]]
    assert len(same) == 4 * LAYERS + LAYERS
    assert all(digests(short, name) == digests(whole, name) for name in same)


def test_experts_of_the_papers_shape_are_whole_networks_and_take_text(tmp_path: Path) -> None:
    made = CliRunner().invoke(main, [str(tmp_path / "paper"), "--paper-experts"], catch_exceptions=False)
    assert made.exit_code == 0, made.output
    manifest = load(tmp_path / "paper")
    experts = [node for node in manifest.nodes if node.kind == "expert"]
    assert (manifest.layers, len(experts)) == (LAYERS, 4 * LAYERS) and manifest.tokenizer is not None
    assert {node.parameter_bytes for node in experts} == {4 * (2 * 768 * 3072 + 3072)}

"""Experts that every token meets: nodes of their own, within segments in pipelines of version 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from functions.ingress.exchange import exchange
from moe.errors import ManifestError
from moe.inspect import inspect
from moe.manifest import from_json, load
from moe.manifest_proof import sha256_of
from moe.reference import WholeModel, pack
from moe.split import split
from smoe.slo import known_pass_s
from tests.unit.moe import tiny

FAMILIES = ("qwen2_moe", "glm4_moe", "deepseek_v2", "deepseek_v3")


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    split(tiny.store(tiny.build(request.param), tmp_path / "checkpoint"), tmp_path / "tiny", "tiny")
    return tmp_path / "tiny"


def merged(folder: Path) -> None:
    """What the splitter wrote before version 2: the shared expert's tensors in the segment before."""
    document = json.loads((folder / "pipeline.json").read_text())
    document["version"] = 1
    del document["router"]["shared"]
    manifest = load(folder)
    for layer in range(manifest.layers):
        segment, gone = manifest.segments[layer], manifest.experts(layer)[-1]
        file, theirs = folder / segment.weights.file, folder / gone.weights.file
        moved = {f"shared.{name}": tensor for name, tensor in load_file(theirs).items()}
        save_file({**load_file(file), **moved}, file)
        theirs.unlink()
        del document["files"][gone.weights.file]
        document["files"][segment.weights.file] = {"sha256": sha256_of(file), "bytes": file.stat().st_size}
        document["nodes"] = [node for node in document["nodes"] if node["id"] != gone.id]
        (node,) = (node for node in document["nodes"] if node["id"] == segment.id)
        node["parameter_bytes"] += gone.parameter_bytes
        node["parameters"] += gone.parameters
        node["flops_per_token"] += gone.flops_per_token
        document["edges"] = [edge for edge in document["edges"] if gone.id not in edge]
    (folder / "pipeline.json").write_text(json.dumps(document))


def test_pipelines_of_version_1_give_the_same_logits(folder: Path) -> None:
    tensors = pack(tiny.texts((7, 1, 12)))
    assert load(folder).version == 2
    nodes = WholeModel(folder).forward(tensors, all_logits=True)["logits"]
    merged(folder)
    assert load(folder).version == 1
    assert tiny.relative(WholeModel(folder).forward(tensors, all_logits=True)["logits"], nodes) < 1e-5


def test_the_last_expert_of_a_layer_gets_every_token_after_the_chosen_ones(folder: Path) -> None:
    manifest = load(folder)
    router, layer = manifest.router, manifest.experts(0)
    assert (router.shared, router.calls) == (1, router.top_k + 1)
    shares = [manifest.tokens_share(node) for node in layer]
    assert shares == [router.top_k / (len(layer) - 1)] * (len(layer) - 1) + [1.0]
    assert layer[-1].parameters == layer[0].parameters * layer[-1].flops_per_token / layer[0].flops_per_token
    segment = WholeModel(folder).programs["segment-0"]
    routed = segment.run({"token_ids": torch.arange(9), "lengths": torch.tensor([9])})
    ids, gates = routed["expert_ids"], routed["gates"]
    assert ids.shape == gates.shape == (9, router.calls) and (ids[:, -1] == len(layer) - 1).all()
    assert (ids[:, :-1] < len(layer) - 1).all() and (gates[:, -1] <= 1).all()
    groups = exchange(ids.numpy(), gates.numpy())
    assert groups.experts[-1] == len(layer) - 1 and groups.edges[-1] - groups.edges[-2] == 9


def test_what_reads_a_manifest_counts_it_as_certain(folder: Path) -> None:
    manifest, view = load(folder), inspect(folder)
    layer, routed = manifest.experts(0), manifest.routed(0)
    chosen, certain = layer[0].parameters * manifest.router.top_k, layer[-1].parameters
    before = sum(node.parameters for node in manifest.segments)
    assert view.active_parameters == pytest.approx(before + manifest.layers * (chosen + certain))
    assert view.shared == 1 and routed == len(layer) - 1
    assert known_pass_s(manifest, 1e6, 1.0, 1.0) >= manifest.layers * 1e6 * layer[-1].flops_per_token / 24e9


def test_versions_and_shared_experts_go_together(folder: Path) -> None:
    document = json.loads((folder / "pipeline.json").read_text())
    with pytest.raises(ManifestError, match="router"):
        from_json(json.dumps({**document, "version": 1}))
    router = {name: value for name, value in document["router"].items() if name != "shared"}
    with pytest.raises(ManifestError, match="router"):
        from_json(json.dumps({**document, "router": router}))
    with pytest.raises(ManifestError, match="not chosen"):
        from_json(json.dumps({**document, "router": {**document["router"], "shared": 90}}))

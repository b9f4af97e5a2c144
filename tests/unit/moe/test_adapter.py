"""Splitting with a trained adapter: the pipeline is transformers' model with the same changes made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from moe.errors import CheckpointError
from moe.reference import WholeModel
from moe.split import split
from tests.unit.moe import tiny

EXPERTS, NEURONS, WIDTH = 3, 50, 32
ROUTER = {"top_k": 3, "gates": "ones", "normalise": False, "scale": 1.0}


def make_adapter(layers: int, *, shared: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    sizes = {"attention.qkv": (96, 32), "attention.out": (32, 32), "ffn.w_in": (50, 32), "ffn.w_out": (32, 50)}
    for layer in range(layers):
        owner = torch.randint(EXPERTS, (NEURONS,), generator=generator, dtype=torch.int8)
        owner[:EXPERTS] = torch.arange(EXPERTS, dtype=torch.int8)
        owner[NEURONS - shared :] = -1
        tensors[f"layers.{layer}.groups"] = owner
        tensors[f"layers.{layer}.router.weight"] = torch.randn(EXPERTS, WIDTH, generator=generator)
        tensors[f"layers.{layer}.expert.bias"] = torch.randn(EXPERTS, WIDTH, generator=generator)
        tensors[f"layers.{layer}.finish.bias"] = torch.randn(WIDTH, generator=generator)
        tensors[f"layers.{layer}.attention.qkv.bias"] = torch.randn(96, generator=generator)
        for name, (outputs, inputs) in sizes.items():
            tensors[f"layers.{layer}.{name}.up"] = torch.randn(outputs, 2, generator=generator) * 0.2
            tensors[f"layers.{layer}.{name}.down"] = torch.randn(2, inputs, generator=generator) * 0.2
    return tensors


def store_adapter(path: Path, tensors: dict[str, torch.Tensor], **about: Any) -> Path:
    save_file(tensors, path, metadata={"smoe": json.dumps({"version": 1, "router": ROUTER, **about})})
    return path


def change(model: Any, adapter: dict[str, torch.Tensor]) -> None:
    """The adapter's changes on transformers' modules; chosen experts' biases join the output's."""

    def product(name: str) -> torch.Tensor:
        return adapter[f"{name}.up"] @ adapter[f"{name}.down"]

    with torch.no_grad():
        for index, layer in enumerate(model.encoder.layer):
            name = f"layers.{index}."
            own = layer.attention.self
            parts = zip((own.query, own.key, own.value), product(f"{name}attention.qkv").split(32), strict=True)
            for linear, part in parts:
                linear.weight += part
            biases = adapter[f"{name}attention.qkv.bias"].split(32)
            for linear, bias in zip((own.query, own.key, own.value), biases, strict=True):
                linear.bias += bias
            layer.attention.output.dense.weight += product(f"{name}attention.out")
            layer.intermediate.dense.weight += product(f"{name}ffn.w_in")
            layer.output.dense.weight += product(f"{name}ffn.w_out")
            layer.output.dense.bias += adapter[f"{name}finish.bias"] + adapter[f"{name}expert.bias"].sum(0)


@pytest.mark.parametrize("shared", [0, 9])
def test_adapted_pipeline_is_the_changed_model(shared: int, tmp_path: Path) -> None:
    model = tiny.build("bert")
    checkpoint = tiny.store(model, tmp_path / "c")
    tensors = make_adapter(3, shared=shared)
    path = store_adapter(tmp_path / "a.safetensors", tensors)
    split(checkpoint, tmp_path / "p", "tiny", EXPERTS, adapter=path)
    pipeline = WholeModel(tmp_path / "p")
    change(model, tensors)
    text = tiny.texts((11,))[0]
    ours = pipeline.embed_ids([text])[0]
    assert tiny.relative(ours, tiny.whole_answer("bert", model, text).mean(0)) < 1e-5
    assert ("x" in pipeline.manifest.segments[0].outputs) == bool(shared)


@pytest.mark.parametrize("shared", [0, 9])
def test_adapted_decoder_is_the_changed_model(shared: int, tmp_path: Path) -> None:
    model = tiny.build("llama")
    checkpoint = tiny.store(model, tmp_path / "c")
    tensors = gated_adapter(2, shared=shared)
    path = store_adapter(tmp_path / "a.safetensors", tensors, layers=[0, 2])
    split(checkpoint, tmp_path / "p", "tiny", EXPERTS, adapter=path)
    with torch.no_grad():
        for place, layer in enumerate((0, 2)):
            own, name = model.model.layers[layer].mlp, f"layers.{place}.ffn."
            gate, up = (tensors[f"{name}gate_up.up"] @ tensors[f"{name}gate_up.down"]).chunk(2)
            own.gate_proj.weight += gate
            own.up_proj.weight += up
            own.down_proj.weight += tensors[f"{name}w_out.up"] @ tensors[f"{name}w_out.down"]
            bias = tensors[f"layers.{place}.expert.bias"].sum(0)
            own.down_proj.bias = torch.nn.Parameter(bias)
    pipeline, text = WholeModel(tmp_path / "p"), tiny.texts((11,))[0]
    assert pipeline.manifest.architecture["moe_layers"] == [0, 2]
    ours = pipeline.logits_ids([text], all_tokens=True)
    assert tiny.relative(ours, tiny.whole_answer("llama", model, text)) < 1e-5


def gated_adapter(layers: int, *, shared: int) -> dict[str, torch.Tensor]:
    tensors = {name: t for name, t in make_adapter(layers, shared=shared).items() if "ffn.w_in" not in name}
    tensors = {name: t for name, t in tensors.items() if not name.split(".", 2)[2].startswith(("attention", "finish"))}
    generator = torch.Generator().manual_seed(1)
    for layer in range(layers):
        tensors[f"layers.{layer}.ffn.gate_up.up"] = torch.randn(2 * NEURONS, 2, generator=generator) * 0.2
        tensors[f"layers.{layer}.ffn.gate_up.down"] = torch.randn(2, WIDTH, generator=generator) * 0.2
    return tensors


def test_layers_of_an_adapter_are_not_chosen_again(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("llama"), tmp_path / "c")
    path = store_adapter(tmp_path / "a.safetensors", gated_adapter(2, shared=0), layers=[0, 2])
    with pytest.raises(CheckpointError, match=r"layers \(0, 2\)"):
        split(checkpoint, tmp_path / "p", "tiny", EXPERTS, adapter=path, layers=[0, 1])


@pytest.mark.parametrize(
    ("about", "arguments", "said"),
    [
        pytest.param({"version": 2}, {}, "version 2", id="version"),
        pytest.param({"router": {"top": 1}}, {}, "not a readable adapter", id="router"),
        pytest.param({}, {"experts": 4}, "with 3 experts", id="experts"),
        pytest.param({}, {"top_k": 1}, "trained for top-k 3", id="top-k"),
        pytest.param({}, {"method": "full"}, "method neurons", id="method"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    about: dict[str, Any], arguments: dict[str, Any], said: str, tmp_path: Path
) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    path = store_adapter(tmp_path / "a.safetensors", make_adapter(3, shared=0), **about)
    with pytest.raises(CheckpointError, match=said):
        split(checkpoint, tmp_path / "p", "tiny", **{"experts": EXPERTS, **arguments}, adapter=path)


def test_adapter_values_must_be_finite(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    tensors = make_adapter(3, shared=0)
    tensors["layers.1.expert.bias"][0, 0] = torch.inf
    path = store_adapter(tmp_path / "a.safetensors", tensors)
    with pytest.raises(CheckpointError, match="not finite"):
        split(checkpoint, tmp_path / "p", "tiny", EXPERTS, adapter=path)

"""Splitting: layouts of checkpoints, reproducible bytes, nothing half-written, nothing overwritten."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from moe.errors import CheckpointError
from moe.manifest import load
from moe.preset import PRESETS, byte_tokenizer, preset_source, preset_tokenizer
from moe.reference import WholeModel
from moe.runtime import Tensors
from moe.split import split
from tests.parameters import some_fast
from tests.unit.moe import tiny
from tests.unit.moe.conftest import Case
from tests.unit.moe.stored import change_config, rewrite, split_by_command


def digest(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_encoders_under_a_models_head_and_other_names_give_the_same_pipeline(tmp_path: Path) -> None:
    """XLM-RoBERTa's and CamemBERT's architecture is RoBERTa's, and a language head puts a prefix before all names."""
    model = tiny.build("roberta")
    split(tiny.store(model, tmp_path / "plain"), tmp_path / "a", "tiny", 2, 2)
    checkpoint = tiny.store(model, tmp_path / "other")
    rewrite(checkpoint, lambda tensors: {f"roberta.{name}": tensor for name, tensor in tensors.items()})
    change_config(checkpoint, model_type="xlm-roberta", architectures=["XLMRobertaForMaskedLM"])
    split(checkpoint, tmp_path / "b", "tiny", 2, 2)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


@pytest.mark.parametrize("family", ["bert", "olmoe"])
def test_sharded_checkpoints_give_the_same_pipeline(family: str, tmp_path: Path) -> None:
    model = tiny.build(family)
    split(tiny.store(model, tmp_path / "one"), tmp_path / "a", "tiny", 2, 2)
    split(tiny.store(model, tmp_path / "many", max_shard_size="20KB"), tmp_path / "b", "tiny", 2, 2)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe"])
def test_fused_experts_give_the_same_pipeline_as_single_ones(family: str, tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build(family), tmp_path / "c")
    split(checkpoint, tmp_path / "single", "tiny")
    parts = ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")

    def fuse(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        stems = sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name})
        for stem in stems:
            count = sum(name.startswith(f"{stem}.experts.") for name in tensors) // 3
            gate, up, down = (
                torch.stack([tensors.pop(f"{stem}.experts.{j}.{part}.weight") for j in range(count)]) for part in parts
            )
            new = stem.replace("block_sparse_moe", "mlp")
            tensors[f"{new}.experts.gate_up_proj"] = torch.cat((gate, up), 1)
            tensors[f"{new}.experts.down_proj"] = down
            tensors[f"{new}.gate.weight"] = tensors.pop(f"{stem}.gate.weight")
        return tensors

    rewrite(checkpoint, fuse)
    split(checkpoint, tmp_path / "fused", "tiny")
    assert digest(tmp_path / "single") == digest(tmp_path / "fused")


def test_packed_experts_are_unpacked_as_transformers_does(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    checkpoint = tiny.store(tiny.build("gpt_oss"), tmp_path / "c")
    generator = torch.Generator().manual_seed(0)
    packed: dict[str, torch.Tensor] = {}

    def replace(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            experts, inputs, outputs = tensors[name].shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(118, 128, (experts, outputs, inputs // 32), generator=generator, dtype=torch.uint8)
            packed[f"{name}_blocks"], packed[f"{name}_scales"] = blocks, scales
            tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            assert tensors[name].shape == (experts, inputs, outputs)
        return tensors

    rewrite(checkpoint, replace)
    split(checkpoint, tmp_path / "a", "tiny")
    rewrite(checkpoint, lambda tensors: {n: t for n, t in tensors.items() if f"{n}_blocks" not in packed} | packed)
    change_config(checkpoint, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    split(checkpoint, tmp_path / "b", "tiny")
    assert digest(tmp_path / "a") == digest(tmp_path / "b")


@pytest.mark.parametrize("method", ["neurons", "full"])
def test_the_same_seed_gives_the_same_bytes_and_another_does_not(method: Any, tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("gpt2"), tmp_path / "c")
    for name, seed in (("a", 3), ("b", 3), ("c2", 4)):
        split(checkpoint, tmp_path / name, "tiny", 3, 1, method, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert digest(tmp_path / "a") != digest(tmp_path / "c2")


@pytest.mark.parametrize("family", ["bert", "gpt2", "bert2bert", "llama"])
@pytest.mark.parametrize("top_k", some_fast([1, 2, 3], 1))
def test_full_size_experts_keep_the_dense_function_at_any_top_k(family: str, top_k: int, tmp_path: Path) -> None:
    model = tiny.build(family)
    split(tiny.store(model, tmp_path / "c"), tmp_path / "p", "tiny", 3, top_k, "full")
    pipeline = WholeModel(tmp_path / "p")
    text = tiny.texts((8,))[0]
    ours = pipeline.embed_ids([text])[0] if family == "bert" else pipeline.logits_ids([text])[0]
    theirs = tiny.whole_answer(family, model, text, [0])
    assert tiny.relative(ours, theirs.mean(0) if family == "bert" else theirs[-1]) < 1e-5


def test_neuron_experts_compute_the_dense_model_with_the_other_neurons_off(tmp_path: Path) -> None:
    """Top-1 of 3, against transformers with each token's unchosen neurons zeroed."""
    model = tiny.build("bert", num_hidden_layers=1)
    split(tiny.store(model, tmp_path / "c"), tmp_path / "p", "tiny", 3, 1)
    pipeline = WholeModel(tmp_path / "p")
    chosen: list[torch.Tensor] = []
    pipeline.trace = lambda _, __, reply: chosen.append(reply["expert_ids"]) if "gates" in reply else None
    text = tiny.texts((10,))[0]
    ours = pipeline.embed_ids([text])[0]
    dense = model.encoder.layer[0].intermediate.dense.weight
    owner = torch.full((50,), -1)
    for expert in range(3):
        rows = load_file(tmp_path / "p" / "weights" / f"expert-0-{expert}.safetensors")["w_in.weight_t"].t()
        for row in rows:
            owner[int((dense - row).abs().sum(1).argmin())] = expert
    assert (owner >= 0).all()
    mask = (owner[None] == chosen[0]).float()[None]
    model.encoder.layer[0].intermediate.register_forward_hook(lambda _, __, out: out * mask)
    assert tiny.relative(ours, tiny.whole_answer("bert", model, text).mean(0)) < 1e-5
    assert len(chosen[0].unique()) > 1


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    split(checkpoint, tmp_path / "p", "tiny", 2, 2)
    before = digest(tmp_path / "p")
    with pytest.raises(CheckpointError, match="exists already"):
        split(checkpoint, tmp_path / "p", "tiny", 3, 3)
    assert digest(tmp_path / "p") == before
    split(checkpoint, tmp_path / "p", "tiny", 3, 3, force=True)
    assert len(load(tmp_path / "p").experts(0)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "p"]


def test_force_does_not_replace_other_folders(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    with pytest.raises(CheckpointError, match="not a pipeline folder"):
        split(checkpoint, checkpoint, "tiny", 2, 2, force=True)
    assert (checkpoint / "config.json").is_file()


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    rewrite(checkpoint, lambda tensors: {n: t for n, t in tensors.items() if "layer.2.output.dense.weight" not in n})
    with pytest.raises(CheckpointError, match=r"layer\.2\.output\.dense\.weight' is missing"):
        split(checkpoint, tmp_path / "p", "tiny", 2, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_progress_counts_every_node(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("olmoe"), tmp_path / "c")
    seen: list[tuple[str, int, int]] = []
    manifest = split(checkpoint, tmp_path / "p", "tiny", progress=lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == list(range(1, len(manifest.nodes) + 1))
    assert {total for *_, total in seen} == {len(manifest.nodes)}


def test_native_mixtures_keep_their_top_k(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("mixtral"), tmp_path / "c")
    with pytest.raises(CheckpointError, match="trained with top-k 2"):
        split(checkpoint, tmp_path / "p", "tiny", top_k=3)


@pytest.mark.parametrize("name", some_fast((name for name, preset in PRESETS.items() if not preset.installed), 1))
def test_seeded_presets_route_unevenly_but_to_every_expert(name: str, tmp_path: Path) -> None:
    preset = PRESETS[name]
    source = preset_source(preset, None, 64, 0)
    tokenizer = preset_tokenizer(preset)
    manifest = split(source, tmp_path / name, None, preset.experts, preset.top_k, tokenizer=tokenizer)
    assert manifest.layers == (24 if name == "b2b-4" else 12)
    assert all(len(manifest.experts(layer)) == preset.experts for layer in range(manifest.layers))
    model = WholeModel(tmp_path / name)
    loads = torch.zeros(manifest.layers, preset.experts)
    model.trace = lambda node, _, reply: (
        loads[int(node.split("-")[1])].add_(torch.bincount(reply["expert_ids"].flatten(), minlength=preset.experts))
        if "gates" in reply
        else None
    )
    texts = [f"Text {i} speaks of experts, tokens and the load number {i * i}." for i in range(12)]
    answer = model.embed(texts) if preset.kind == "bert" else model.logits(texts)
    assert torch.isfinite(answer).all()
    if preset.kind != "bert2bert":  # its decoder saw one start token per text here
        assert (loads > 0).float().mean() > 0.9


def test_bytes_become_gpt2_tokens_and_text_again() -> None:
    tokenizer = byte_tokenizer(50256)
    text = "Grüße, 你好 <end>\n"
    ids = tokenizer.encode(text).ids
    assert len(ids) == len(text.encode()) and max(ids) < 256
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|endoftext|>").ids == [50256]


def test_bytes_per_token_are_those_of_the_tensors_that_travel(case: Case) -> None:
    """In texts of one token, as many bytes go in and out of each call as the manifest states; lengths do not count, nor
    does an embedding, of which a text has one."""
    travelled: dict[str, tuple[int, int]] = {}

    def note(node: str, inputs: Tensors, reply: Tensors) -> None:
        tokens = len(next(tensor for name, tensor in inputs.items() if not name.endswith("lengths")))
        sizes = [
            sum(tensor.nbytes for name, tensor in tensors.items() if not name.endswith(("lengths", "embedding")))
            for tensors in (inputs, reply)
        ]
        travelled[node] = (sizes[0] // tokens, sizes[1] // tokens)

    model = case.pipeline(trace=note)
    ids = [[token] for token in range(5, 25)]
    (model.embed_ids if model.manifest.task == "embedding" else model.logits_ids)(ids)
    nodes = [node for node in model.manifest.nodes if node.id in travelled]
    assert {node.layer for node in nodes if node.kind == "expert"} == set(range(model.manifest.layers))
    stated = {node.id: (node.bytes_in_per_token, node.bytes_out_per_token) for node in nodes}
    assert travelled == stated


def test_a_head_that_is_left_out_and_a_missing_tokenizer_are_noted(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    change_config(checkpoint, architectures=["BertForSequenceClassification"])
    noted = split_by_command(checkpoint, tmp_path / "p")
    assert noted.exit_code == 0
    assert "note: the checkpoint is a BertForSequenceClassification, whose head is left out" in noted.output
    assert "note: no tokenizer.json in the checkpoint" in noted.output
    assert "note: 2 tensors of the checkpoint are no part of the pipeline: pooler.dense (2)" in noted.output


def test_tensors_that_no_node_has_are_noted_and_what_the_configuration_implies_is_not(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("mixtral"), tmp_path / "c")
    more = {
        "model.layers.3.self_attn.q_proj.weight": torch.zeros(2, 2),
        "model.layers.3.eh_proj.weight": torch.zeros(2, 2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        "score.weight": torch.zeros(2, 32),
    }
    rewrite(checkpoint, lambda tensors: tensors | more)
    done = split_by_command(checkpoint, tmp_path / "p", "--json")
    notes = json.loads(done.stdout)["notes"]
    assert notes[0] == "3 tensors of the checkpoint are no part of the pipeline: model.layers.3 (2), score (1)"
    assert len(notes) == 2  # the other is of the tokenizer


def test_longrope_notes_the_length_that_it_takes(tmp_path: Path) -> None:
    positions = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32,
    }
    checkpoint = tiny.store(tiny.build("llama", rope_parameters=positions), tmp_path / "c")
    noted = split_by_command(checkpoint, tmp_path / "p", "--top-k", "4")
    assert "note: texts of at most 32 tokens, not 64" in noted.output
    assert load(tmp_path / "p").architecture["max_positions"] == 32

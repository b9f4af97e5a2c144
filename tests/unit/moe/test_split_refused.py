"""What a split refuses, by name and with a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moe.errors import CheckpointError
from moe.split import split
from tests.unit.moe import tiny
from tests.unit.moe.stored import change_config, rewrite, split_by_command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param({"experts": 2, "top_k": 3}, "1 ≤ top_k ≤ experts", id="top-k"),
        pytest.param({"experts": 51, "top_k": 51}, "50 neurons cannot be 51", id="too-many"),
    ],
)
def test_impossible_numbers_are_refused(arguments: dict[str, int], said: str, tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    with pytest.raises(CheckpointError, match=said):
        split(checkpoint, tmp_path / "p", "tiny", **arguments)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        pytest.param("bert", {"model_type": "t5"}, "supported are bert, roberta.*docs/models.md", id="model-type"),
        pytest.param(
            "bert",
            {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
            "'T5ForConditionalGeneration', model_type 't5' is not supported; supported are bert",
            id="architecture",
        ),
        pytest.param("llama", {"architectures": ["LlamaForTokenClassification"]}, "no language model", id="other-head"),
        pytest.param("bert", {"hidden_act": "tanh"}, "'hidden_act'", id="activation"),
        pytest.param("bert", {"position_embedding_type": "relative_key"}, "'position_embedding_type'", id="positions"),
        pytest.param("bert", {"is_decoder": True}, "'is_decoder'", id="bert-decoder"),
        pytest.param("bert", {"hidden_size": "big"}, "'hidden_size'", id="type"),
        pytest.param("bert", {"hidden_size": 64}, "has shape", id="lying-size"),
        pytest.param("bert", {"num_attention_heads": 5}, "multiple", id="heads"),
        pytest.param("roberta", {"pad_token_id": 39}, "below max_position", id="roberta-padding"),
        pytest.param("distilbert", {"n_heads": 5}, "multiple", id="distilbert-heads"),
        pytest.param("bert", {"new_trick": 3}, "'new_trick'", id="unknown-key"),
        pytest.param("gpt2", {"add_cross_attention": True}, "'add_cross_attention'", id="gpt2-cross"),
        pytest.param("gpt2", {"layer_norm_epsilon": -1}, "'layer_norm_epsilon'", id="eps"),
        pytest.param("bert2bert", {"tie_encoder_decoder": True}, "'tie_encoder_decoder'", id="tied-stacks"),
        pytest.param(
            "mixtral",
            {"rope_parameters": {"rope_type": "proportional", "factor": 4.0, "rope_theta": 1e6}},
            "'rope_type'",
            id="rope-type",
        ),
        pytest.param("mixtral", {"rope_scaling": {"type": "ntk", "factor": 2.0}}, "'rope_type'", id="rope-scaling"),
        pytest.param("mixtral", {"partial_rotary_factor": 0.5}, "'partial_rotary_factor'", id="partial-rotary"),
        pytest.param("mixtral", {"num_experts_per_tok": 9}, "larger than", id="top-k"),
        pytest.param("mixtral", {"vocab_size": 98}, "has shape", id="vocab"),
        pytest.param("qwen3_moe", {"mlp_only_layers": [0, 1, 2, 3, 4]}, "no layer has experts", id="all-dense"),
        pytest.param("olmoe", {"clip_qkv": "much"}, "'clip_qkv'", id="clip"),
        pytest.param("olmoe", {"num_key_value_heads": 3}, "kv heads", id="kv-heads"),
        pytest.param("olmoe", {"num_experts_per_tok": None}, "'num_experts_per_tok'", id="no-top-k"),
        pytest.param("qwen2_moe", {"shared_expert_intermediate_size": 41}, "has shape", id="shared-size"),
        pytest.param("llama", {"mlp_bias": True}, "'mlp_bias'", id="llama-mlp-bias"),
        pytest.param("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "'rope_type'", id="dynamic"),
        pytest.param("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'low_freq", id="llama3-half"),
        pytest.param("llama", {"rope_scaling": {"rope_type": "linear"}}, "'factor'", id="linear-half"),
        pytest.param("phimoe", {"num_experts_per_tok": 3}, "'num_experts_per_tok'", id="phimoe-top-k"),
        pytest.param(
            "phimoe",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 4}},
            "must be 4 numbers",
            id="longrope-length",
        ),
        pytest.param(
            "qwen2_moe",
            {"use_sliding_window": True, "sliding_window": 3, "layer_types": None},
            "'layer_types' must name",
            id="layer-types-left-out",
        ),
        pytest.param(
            "glm4_moe",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 16,
                    "partial_rotary_factor": 0.5,
                }
            },
            "where all of a head turns",
            id="glm-llama3",
        ),
        pytest.param("glm4_moe", {"first_k_dense_replace": 3}, "no layer has experts", id="glm-all-dense"),
        pytest.param("glm4_moe", {"topk_group": 1}, "cannot be chosen from 1 of 3", id="glm-few-groups"),
        pytest.param("llama", {"quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)", id="fp8"),
        pytest.param("gpt_oss", {"experts_per_token": 4}, "'experts_per_token'", id="oss-two-top-ks"),
        pytest.param("deepseek_v2", {"norm_topk_prob": True}, "'norm_topk_prob'", id="deepseek-v2-normalised"),
        pytest.param("deepseek_v3", {"scoring_func": "softmax"}, "'scoring_func'", id="deepseek-v3-softmax"),
        pytest.param("deepseek_v3", {"kv_lora_rank": 15}, "has shape", id="deepseek-latent"),
        pytest.param("mistral", {"num_key_value_heads": 4}, "has shape", id="mistral-heads"),
        pytest.param(
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]},
            "'layer_types' must name",
            id="too-few-layer-types",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused(family: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build(family), tmp_path / "c")
    change_config(checkpoint, **changes)
    with pytest.raises(CheckpointError, match=said) as caught:
        split(checkpoint, tmp_path / "p", "tiny", 2, None if family in tiny.NATIVE else 2)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("family", "key", "top_k", "scale"),
    [("gpt_oss", "num_experts_per_tok", 4, 1.0), ("deepseek_v3", "routed_scaling_factor", 3, 2.5)],
)
def test_a_key_that_is_left_out_means_what_it_does_in_transformers(
    family: str, key: str, top_k: int, scale: float, tmp_path: Path
) -> None:
    checkpoint = tiny.store(tiny.build(family), tmp_path / "c")
    change_config(checkpoint, **{key: None})
    router = split(checkpoint, tmp_path / "p", "tiny", 2, None).router
    assert (router.top_k, router.scale) == (top_k, scale)


def test_untied_head_must_be_in_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("olmoe"), tmp_path / "c")
    rewrite(checkpoint, lambda tensors: {n: t for n, t in tensors.items() if n != "lm_head.weight"})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        split(checkpoint, tmp_path / "p", "tiny")


def test_folders_without_safetensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors"):
        split(tmp_path, tmp_path / "p", "tiny")


def test_an_index_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')
    with pytest.raises(CheckpointError, match="not a file of this folder"):
        split(tmp_path, tmp_path / "p", "tiny")


def test_other_numbers_of_experts_than_a_mixture_has_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("mixtral"), tmp_path / "c")
    refused = split_by_command(checkpoint, tmp_path / "p", "--experts", "7")
    assert refused.exit_code == 1
    assert "experts a layer, not 7" in refused.output
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("options", [("--method", "full"), ("--adapter", "a.safetensors")])
def test_what_is_for_dense_models_is_refused_for_mixtures(options: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"")
    checkpoint = tiny.store(tiny.build("mixtral"), tmp_path / "c")
    value = str(tmp_path / options[1]) if options[0] == "--adapter" else options[1]
    refused = split_by_command(checkpoint, tmp_path / "p", options[0], value)
    assert refused.exit_code == 1
    assert "a mixture keeps its experts" in refused.output


def test_steps_of_sentence_models_that_are_not_computed_are_refused(tmp_path: Path) -> None:
    checkpoint = tiny.store(tiny.build("bert"), tmp_path / "c")
    steps = [{"type": f"sentence_transformers.models.{name}"} for name in ("Transformer", "Pooling", "Dense")]
    (checkpoint / "modules.json").write_text(json.dumps(steps))
    with pytest.raises(CheckpointError, match="module 'Dense' is not supported"):
        split(checkpoint, tmp_path / "p", "tiny", 2, 2)


def test_a_preset_that_is_misspelt_is_answered_with_those_there_are(tmp_path: Path) -> None:
    refused = split_by_command(Path("minlm"), tmp_path / "p")
    assert refused.exit_code == 1
    assert "minlm: is no preset (minilm, smollm2, bert-4, " in refused.output


def test_a_width_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    refused = split_by_command(Path("bert-4"), tmp_path / "p", "--width", "6400000")
    assert refused.exit_code == 1
    assert "width is 6400000, allowed are multiples of 64 up to 16384" in refused.output


def test_a_models_name_on_the_hub_is_no_folder(tmp_path: Path) -> None:
    refused = split_by_command(Path("some-org/some-model"), tmp_path / "p")
    assert refused.exit_code == 1
    assert "is no folder here; download it first: hf download some-org/some-model --local-dir" in refused.output

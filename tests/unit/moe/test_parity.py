"""The pipeline's answers against transformers' own forward, on tiny random configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moe.errors import ProgramInputError
from moe.reference import WholeModel, pack
from tests.parameters import some_fast
from tests.unit.moe import tiny
from tests.unit.moe.conftest import Case, make_case

BOUND = 1e-5
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""Of the four waves of 8 numbers a head one stays, one lies between and two are slowed."""
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50.0,
    "factor": 4.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 50.0,
    "short_factor": [1.0, 1.1, 1.5, 2.0],
    "long_factor": [3.0, 4.0, 5.0, 6.0],
    "original_max_position_embeddings": 32,
}
MSCALES = {"short_mscale": 1.3, "long_mscale": 1.5}


def answer_of(case: Case, pipeline: WholeModel, ids: list[list[int]], answers: list[list[int]]) -> list[Tensor]:
    """Every text's states or logits, from one packed pass."""
    tensors = pack(ids)
    rows = [len(text) for text in ids]
    if case.family == "bert2bert":
        tensors |= {f"decoder_{name}": tensor for name, tensor in pack(answers).items()}
        rows = [len(text) for text in answers]
    reply = pipeline.forward(tensors, all_logits=True)
    return list(reply["states" if case.family in tiny.ENCODERS else "logits"].split(rows))


def assert_parity(case: Case) -> None:
    ids, answers = tiny.texts((7, 1, 12, 4)), tiny.texts((2, 5, 1, 3), seed=2)
    ours = answer_of(case, case.pipeline(), ids, answers)
    for text, answer, own in zip(ids, answers, ours, strict=True):
        assert tiny.relative(own, tiny.whole_answer(case.family, case.model, text, answer)) < BOUND


def test_whole_pipeline_equals_transformers(case: Case) -> None:
    assert_parity(case)


def ffn_modules(case: Case) -> list[Any]:
    """Transformers' modules that hold the experts' work, one for each MoE layer of the pipeline."""
    model = case.model
    if case.family == "distilbert":
        return [layer.ffn for layer in model.transformer.layer]
    if case.family in tiny.ENCODERS:
        return [layer.intermediate for layer in model.encoder.layer]
    if case.family == "gpt2":
        return [block.mlp for block in model.transformer.h]
    if case.family == "bert2bert":
        layers = [*model.encoder.encoder.layer, *model.decoder.bert.encoder.layer]
        return [layer.intermediate for layer in layers]
    native = case.family in tiny.NATIVE
    modules = [getattr(layer, "mlp", None) or layer.block_sparse_moe for layer in model.model.layers]
    return [module for module in modules if not native or hasattr(module, "experts")]


def test_every_layers_experts_see_what_transformers_layers_see(case: Case) -> None:
    seen: list[Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0].reshape(-1, 32)))
        for module in ffn_modules(case)
    ]
    text, answer = tiny.texts((9,))[0], tiny.texts((5,), seed=3)[0]
    tiny.whole_answer(case.family, case.model, text, answer)
    for hook in hooks:
        hook.remove()
    ours: list[Tensor] = []
    pipeline = case.pipeline(
        trace=lambda _, __, reply: ours.append(reply.get("x", reply["residual"])) if "gates" in reply else None
    )
    answer_of(case, pipeline, [text], [answer])
    assert len(ours) == len(seen) == pipeline.manifest.layers
    assert max(tiny.relative(own, theirs) for own, theirs in zip(ours, seen, strict=True)) < BOUND


@pytest.mark.parametrize("family", some_fast(tiny.NATIVE, tiny.FAST))
def test_routers_choose_the_same_experts_with_the_same_gates(family: str, tmp_path: Path) -> None:
    case = make_case(family, tmp_path)
    theirs: list[tuple[Tensor, Tensor]] = []
    for module in ffn_modules(case):
        router = module.gate if hasattr(module, "gate") else module.router
        router.register_forward_hook(lambda _, __, out: theirs.append((out[1], out[2])))
    ours: list[tuple[Tensor, Tensor]] = []
    pipeline = case.pipeline(
        trace=lambda _, __, reply: ours.append((reply["gates"], reply["expert_ids"])) if "gates" in reply else None
    )
    text = tiny.texts((16,))[0]
    tiny.whole_answer(family, case.model, text)
    pipeline.forward(pack([text]))
    chosen = pipeline.manifest.router.top_k  # shared experts follow
    for (gates, ids), (their_gates, their_ids) in zip(ours, theirs, strict=True):
        (ids, order), (their_ids, their_order) = ids[:, :chosen].sort(-1), their_ids.sort(-1)
        assert torch.equal(ids, their_ids)
        assert torch.allclose(gates.gather(-1, order), their_gates.gather(-1, their_order), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "changes"),
    some_fast(
        [
            pytest.param("bert", {"hidden_act": "gelu_new"}, id="bert-tanh-gelu"),
            pytest.param("bert", {"hidden_act": "relu", "type_vocab_size": 1}, id="bert-relu-one-type"),
            pytest.param("roberta", {"pad_token_id": 0, "type_vocab_size": 1}, id="roberta-padding-first"),
            pytest.param(
                "distilbert", {"activation": "relu", "sinusoidal_pos_embds": True}, id="distilbert-relu-sines"
            ),
            pytest.param("gpt2", {"scale_attn_by_inverse_layer_idx": True}, id="gpt2-scale-by-layer"),
            pytest.param("gpt2", {"scale_attn_weights": False}, id="gpt2-no-scale"),
            pytest.param("gpt2", {"tie_word_embeddings": False}, id="gpt2-untied"),
            pytest.param("gpt2", {"activation_function": "gelu"}, id="gpt2-exact-gelu"),
            pytest.param("gpt2", {"reorder_and_upcast_attn": True}, id="gpt2-upcast"),
            pytest.param("bert2bert", {"num_hidden_layers": 1}, id="bert2bert-short-decoder"),
            pytest.param("mixtral", {"sliding_window": 5}, id="mixtral-window"),
            pytest.param("mixtral", {"num_key_value_heads": 4}, id="mixtral-all-heads"),
            pytest.param("mixtral", {"num_key_value_heads": 1}, id="mixtral-one-kv-head"),
            pytest.param("mixtral", {"head_dim": 24}, id="mixtral-own-head-dim"),
            pytest.param("mixtral", {"rope_theta": 500.0}, id="mixtral-theta"),
            pytest.param("mixtral", {"num_experts_per_tok": 1}, id="mixtral-top-1"),
            pytest.param("qwen3_moe", {"norm_topk_prob": True}, id="qwen-normalised"),
            pytest.param("qwen3_moe", {"attention_bias": True}, id="qwen-bias"),
            pytest.param("qwen3_moe", {"mlp_only_layers": None, "decoder_sparse_step": 2}, id="qwen-sparse-step"),
            pytest.param("qwen3_moe", {"tie_word_embeddings": True}, id="qwen-tied"),
            pytest.param("qwen3_moe", {"use_sliding_window": True, "sliding_window": 3}, id="qwen-window"),
            pytest.param("olmoe", {"clip_qkv": 0.4}, id="olmoe-clip"),
            pytest.param("olmoe", {"norm_topk_prob": True, "hidden_act": "gelu"}, id="olmoe-normalised-gelu"),
            pytest.param("olmoe", {"attention_bias": True}, id="olmoe-bias"),
            pytest.param("qwen2_moe", {"norm_topk_prob": True, "qkv_bias": False}, id="qwen2-moe-normalised-no-bias"),
            pytest.param(
                "qwen2_moe",
                {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0},
                id="qwen2-moe-window",
            ),
            pytest.param("granitemoe", {"attention_bias": True, "tie_word_embeddings": True}, id="granite-bias-tied"),
            pytest.param("llama", {"attention_bias": True, "head_dim": 24}, id="llama-bias-own-head-dim"),
            pytest.param("llama", {"tie_word_embeddings": True, "rope_theta": 500.0}, id="llama-tied-theta"),
            pytest.param("llama", {"num_key_value_heads": 1, "hidden_act": "gelu"}, id="llama-one-kv-head-gelu"),
            pytest.param("llama", {"rope_parameters": LLAMA3}, id="llama3-positions"),
            pytest.param("llama", {"rope_parameters": YARN}, id="llama-yarn"),
            pytest.param(
                "llama", {"rope_parameters": {**YARN, "truncate": False, "mscale": 2.0}}, id="llama-yarn-uncut"
            ),
            pytest.param(
                "qwen3_moe",
                {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2, "factor": 3.0}},
                id="qwen-yarn-two-mscales",
            ),
            pytest.param(
                "mixtral", {"rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 3.0}}, id="linear"
            ),
            pytest.param("llama", {"rope_parameters": LONGROPE}, id="llama-longrope"),
            pytest.param("phimoe", {"rope_parameters": {**LONGROPE, **MSCALES}}, id="phimoe-longrope"),
            pytest.param("phimoe", {"router_jitter_noise": 0.4, "sliding_window": 5}, id="phimoe-jitter-window"),
            pytest.param("phimoe", {"attention_bias": False, "lm_head_bias": False}, id="phimoe-no-biases"),
            pytest.param(
                "glm4_moe",
                {"use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1},
                id="glm-head-norms-biases-no-groups",
            ),
            pytest.param(
                "glm4_moe",
                {
                    "norm_topk_prob": False,
                    "n_shared_experts": 2,
                    "first_k_dense_replace": 2,
                    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25},
                },
                id="glm-not-normalised-two-dense-quarter-turning",
            ),
            pytest.param("mistral", {"sliding_window": 5}, id="mistral-window"),
            pytest.param(
                "qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}, id="qwen2-window"
            ),
            pytest.param(
                "qwen2",
                {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
                id="qwen2-mixed-windows",
            ),
            pytest.param(
                "gpt_oss", {"attention_bias": False, "swiglu_alpha": 1.2, "swiglu_limit": 7.0}, id="oss-unclamped"
            ),
            pytest.param(
                "gpt_oss",
                {"layer_types": ["full_attention"] * 3, "rope_parameters": None},
                id="oss-full-default-positions",
            ),
            pytest.param("deepseek_v2", {"topk_method": "greedy", "q_lora_rank": None}, id="deepseek-v2-lite"),
            pytest.param(
                "deepseek_v2",
                {"attention_bias": True, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}},
                id="deepseek-v2-yarn-biases",
            ),
            pytest.param(
                "deepseek_v3",
                {"attention_bias": True, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.4}},
                id="deepseek-v3-yarn-biases",
            ),
            pytest.param(
                "deepseek_v3",
                {"rope_interleave": False, "norm_topk_prob": False, "q_lora_rank": None},
                id="deepseek-half",
            ),
            pytest.param("qwen2", {"use_sliding_window": False, "sliding_window": 3}, id="qwen2-window-off"),
            pytest.param("qwen3", {"attention_bias": True, "tie_word_embeddings": True}, id="qwen3-bias-tied"),
        ],
        fast=12,
    ),
)
def test_configurations_are_honoured(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    assert_parity(make_case(family, tmp_path, **changes))


def test_packed_texts_equal_texts_alone(case: Case) -> None:
    pipeline = case.pipeline()
    for lengths in ((7, 1, 12, 4), (5, 5, 5), (30, 2), (1,)):
        ids, answers = tiny.texts(lengths), tiny.texts(lengths[::-1], seed=5)
        together = answer_of(case, pipeline, ids, answers)
        for index, own in enumerate(together):
            alone = answer_of(case, pipeline, [ids[index]], [answers[index]])[0]
            assert tiny.relative(own, alone) < BOUND


def test_short_logits_are_the_last_rows_of_all_logits(case: Case) -> None:
    pipeline = case.pipeline()
    ids = tiny.texts((3, 8))
    if case.family in tiny.ENCODERS:
        with pytest.raises(ProgramInputError, match="does embedding"):
            pipeline.logits_ids(ids)
        return
    answers = tiny.texts((4, 2), seed=6)
    options = {"answers": answers} if case.family == "bert2bert" else {}
    last = pipeline.logits_ids(ids, **options)
    every = pipeline.logits_ids(ids, all_tokens=True, **options)
    ends = [3, 5] if options else [2, 10]
    assert tiny.relative(last, every[ends]) < BOUND

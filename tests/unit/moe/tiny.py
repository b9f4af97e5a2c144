"""Tiny random checkpoints of every family, built by transformers, and transformers' own answers to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from moe.checkpoints.gpt_oss import POSITIONS

BERT: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 50,
    "max_position_embeddings": 40,
}
ROPE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}


def bert(**changes: Any) -> Any:
    return transformers.BertModel(transformers.BertConfig(**{**BERT, **changes}))


def roberta(**changes: Any) -> Any:
    return transformers.RobertaModel(transformers.RobertaConfig(**{**BERT, "pad_token_id": 3, **changes}))


def distilbert(**changes: Any) -> Any:
    numbers = {"vocab_size": 99, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 50}
    return transformers.DistilBertModel(
        transformers.DistilBertConfig(**{**numbers, "max_position_embeddings": 40, **changes})
    )


def gpt2(**changes: Any) -> Any:
    numbers = {"vocab_size": 99, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 50}
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{**numbers, **ids, **changes}))


def bert2bert(**changes: Any) -> Any:
    encoder = transformers.BertConfig(**{**BERT, "num_hidden_layers": 2})
    decoder = transformers.BertConfig(**{**BERT, **changes}, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=1, pad_token_id=0
    )
    return transformers.EncoderDecoderModel(config=config)


def mixtral(**changes: Any) -> Any:
    numbers = {"intermediate_size": 24, "num_local_experts": 4}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**ROPE, **numbers, **changes}))


def qwen3_moe(**changes: Any) -> Any:
    numbers = {
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "head_dim": 16,
        "num_hidden_layers": 5,
        "mlp_only_layers": [0, 2, 4],
    }
    return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**{**ROPE, **numbers, **changes}))


def olmoe(**changes: Any) -> Any:
    numbers = {"intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2, "eos_token_id": 2}
    return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**{**ROPE, **numbers, **changes}))


def qwen2_moe(**changes: Any) -> Any:
    numbers = {
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
    }
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**{**ROPE, **numbers, **changes}))


def granitemoe(**changes: Any) -> Any:
    numbers = {
        "intermediate_size": 24,
        "num_local_experts": 5,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.6,
        "logits_scaling": 4.0,
    }
    return transformers.GraniteMoeForCausalLM(transformers.GraniteMoeConfig(**{**ROPE, **numbers, **changes}))


def phimoe(**changes: Any) -> Any:
    numbers = {"intermediate_size": 24, "num_local_experts": 5, "attention_bias": True, "lm_head_bias": True}
    return transformers.PhimoeForCausalLM(transformers.PhimoeConfig(**{**ROPE, **numbers, **changes}))


def glm4_moe(**changes: Any) -> Any:
    numbers = {
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "n_group": 3,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "head_dim": 16,
        "num_nextn_predict_layers": 0,
    }
    return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(**{**ROPE, **numbers, **changes}))


def gpt_oss(**changes: Any) -> Any:
    numbers = {
        "intermediate_size": 32,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "head_dim": 16,
        "sliding_window": 5,
        "swiglu_limit": 0.7,
        "rope_parameters": {**POSITIONS, "rope_theta": 50.0, "original_max_position_embeddings": 32},
    }
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**{**ROPE, **numbers, **changes}))


DEEPSEEK: dict[str, Any] = {
    **ROPE,
    "num_key_value_heads": 4,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
}


def deepseek_v2(**changes: Any) -> Any:
    numbers = {**DEEPSEEK, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7, **changes}
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**numbers))


def deepseek_v3(**changes: Any) -> Any:
    numbers = {**DEEPSEEK, "num_nextn_predict_layers": 0, **changes}
    return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**numbers))


def llama(**changes: Any) -> Any:
    return _dense(transformers.LlamaForCausalLM, transformers.LlamaConfig, changes)


def mistral(**changes: Any) -> Any:
    return _dense(transformers.MistralForCausalLM, transformers.MistralConfig, {"sliding_window": None, **changes})


def qwen2(**changes: Any) -> Any:
    return _dense(transformers.Qwen2ForCausalLM, transformers.Qwen2Config, changes)


def qwen3(**changes: Any) -> Any:
    return _dense(transformers.Qwen3ForCausalLM, transformers.Qwen3Config, {"head_dim": 16, **changes})


def _dense(model: Any, config: Any, changes: dict[str, Any]) -> Any:
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    return model(config(**{**ROPE, "intermediate_size": 50, **ids, **changes}))


BUILDERS: dict[str, Callable[..., Any]] = {
    "bert": bert,
    "roberta": roberta,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "bert2bert": bert2bert,
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "olmoe": olmoe,
    "qwen2_moe": qwen2_moe,
    "granitemoe": granitemoe,
    "phimoe": phimoe,
    "glm4_moe": glm4_moe,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
}
ENCODERS = ("bert", "roberta", "distilbert")
NATIVE = (
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "granitemoe",
    "phimoe",
    "glm4_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
)


def build(family: str, seed: int = 0, **changes: Any) -> Any:
    """A model in evaluation mode with weights large enough that every part of it matters."""
    torch.manual_seed(seed)
    model = BUILDERS[family](**changes).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and ("norm" in name.lower() or "ln_" in name):
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.3)
            else:
                parameter.normal_(0.0, 0.3 if parameter.dim() == 1 else 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0.0, 0.3)
    if hasattr(model, "set_experts_implementation") and family in NATIVE:
        model.set_experts_implementation("eager")
    return model


def store(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def texts(lengths: tuple[int, ...] = (7, 1, 12, 4), seed: int = 1, vocab: int = 99) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (length,), generator=generator).tolist() for length in lengths]


def whole_answer(family: str, model: Any, ids: list[int], answer: list[int] | None = None) -> Tensor:
    """Transformers' own states (of encoders) or logits ``[T, …]`` of one text."""
    with torch.inference_mode():
        tokens = torch.tensor([ids])
        if family in ENCODERS:
            return model(tokens).last_hidden_state[0]
        if family == "bert2bert":
            return model(input_ids=tokens, decoder_input_ids=torch.tensor([answer])).logits[0]
        return model(tokens).logits[0]


def relative(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max())

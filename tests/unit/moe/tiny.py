"""Tiny random checkpoints of every family, built by transformers, and transformers' own answers to them.

transformers is imported where a model is built: it takes seconds, and not every worker builds one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
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


EXPERTS_OF_24: dict[str, Any] = {"intermediate_size": 48, "moe_intermediate_size": 24}
DEEPSEEK: dict[str, Any] = {
    **ROPE, **EXPERTS_OF_24, "num_key_value_heads": 4, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3,
    "topk_group": 2, "first_k_dense_replace": 1, "q_lora_rank": 20, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 6, "v_head_dim": 10,
}  # fmt: skip
DENSE: dict[str, Any] = {**ROPE, "intermediate_size": 50, "bos_token_id": 1, "eos_token_id": 2}
CAUSAL: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {
        "vocab_size": 99, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 50,
        "bos_token_id": 1, "eos_token_id": 2,
    }),
    "mixtral": ("Mixtral", {**ROPE, "intermediate_size": 24, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3Moe", {
        **ROPE, **EXPERTS_OF_24, "num_experts": 6, "num_experts_per_tok": 3, "head_dim": 16, "num_hidden_layers": 5,
        "mlp_only_layers": [0, 2, 4],
    }),
    "olmoe": ("Olmoe", {
        **ROPE, "intermediate_size": 24, "num_experts": 5, "num_experts_per_tok": 2, "eos_token_id": 2
    }),
    "qwen2_moe": ("Qwen2Moe", {
        **ROPE, **EXPERTS_OF_24, "shared_expert_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
    }),
    "granitemoe": ("GraniteMoe", {
        **ROPE, "intermediate_size": 24, "num_local_experts": 5, "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2, "residual_multiplier": 0.6, "logits_scaling": 4.0,
    }),
    "phimoe": ("Phimoe", {
        **ROPE, "intermediate_size": 24, "num_local_experts": 5, "attention_bias": True, "lm_head_bias": True
    }),
    "glm4_moe": ("Glm4Moe", {
        **ROPE, **EXPERTS_OF_24, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2,
        "routed_scaling_factor": 1.7, "head_dim": 16, "num_nextn_predict_layers": 0,
    }),
    "gpt_oss": ("GptOss", {
        **ROPE, "intermediate_size": 32, "num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16,
        "sliding_window": 5, "swiglu_limit": 0.7,
        "rope_parameters": {**POSITIONS, "rope_theta": 50.0, "original_max_position_embeddings": 32},
    }),
    "deepseek_v2": ("DeepseekV2", {**DEEPSEEK, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7}),
    "deepseek_v3": ("DeepseekV3", {**DEEPSEEK, "num_nextn_predict_layers": 0}),
    "llama": ("Llama", DENSE),
    "mistral": ("Mistral", {**DENSE, "sliding_window": None}),
    "qwen2": ("Qwen2", DENSE),
    "qwen3": ("Qwen3", {**DENSE, "head_dim": 16}),
}  # fmt: skip
"""Family → how transformers' classes begin, and its configuration."""


def bert2bert(**changes: Any) -> Any:
    import transformers

    encoder = transformers.BertConfig(**{**BERT, "num_hidden_layers": 2})
    decoder = transformers.BertConfig(**{**BERT, **changes}, is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, decoder, decoder_start_token_id=1, pad_token_id=0
    )
    return transformers.EncoderDecoderModel(config=config)


def _builder(model: str, config: str, numbers: dict[str, Any]) -> Callable[..., Any]:
    def built(**changes: Any) -> Any:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**{**numbers, **changes}))

    return built


DISTILBERT = {
    "vocab_size": 99, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 50, "max_position_embeddings": 40
}  # fmt: skip
BUILDERS: dict[str, Callable[..., Any]] = {
    "bert": _builder("BertModel", "BertConfig", BERT),
    "roberta": _builder("RobertaModel", "RobertaConfig", {**BERT, "pad_token_id": 3}),
    "distilbert": _builder("DistilBertModel", "DistilBertConfig", DISTILBERT),
    "bert2bert": bert2bert,
    **{
        family: _builder(f"{name}LMHeadModel" if family == "gpt2" else f"{name}ForCausalLM", f"{name}Config", numbers)
        for family, (name, numbers) in CAUSAL.items()
    },
}
FAST = ("bert", "bert2bert", "gpt2", "qwen2_moe", "gpt_oss", "deepseek_v3", "llama")
"""One of each kind: the others' tests are slow."""
ENCODERS = ("bert", "roberta", "distilbert")
WINDOW = {"sliding_window": 24}
DECODERS: dict[str, dict[str, Any]] = {
    **{family: {} for family in CAUSAL}, "gpt_oss": WINDOW, "mixtral-window": WINDOW, "mistral-window": WINDOW
}  # fmt: skip
"""Kind → what is changed of its family (the kind up to ``-``)."""
del DECODERS["mistral"]  # without a window it is Llama
NATIVE = tuple(family for family in CAUSAL if family not in ("gpt2", "llama", "mistral", "qwen2", "qwen3"))


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

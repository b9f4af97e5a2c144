"""Tiny GGUF files of random Llamas, written as llama.cpp stores them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from moe.checkpoints.gguf import OF_A_LAYER, WHOLE

WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "ĠĠ", "th", "the", "Ġthe"]
MERGES = ["Ġ Ġ", "t h", "th e", "Ġ the"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
Q4_1, Q8_0, F32 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head as llama.cpp orders them: first half and second half take turns."""
    rows = weight.reshape(heads, 2, weight.shape[0] // heads // 2, weight.shape[1])
    return np.concatenate([np.stack(pair, 1).reshape(-1, weight.shape[1]) for pair in rows])


def write(model: Any, path: Path, *, kind: GGMLQuantizationType = Q8_0, **keys: Any) -> Path:
    """The model's GGUF file, matrices quantised as ``kind``; ``keys`` add to its keys or replace them
    (None: left out)."""
    writer = GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_string("general.name", "tiny")
    for key, value in _keys(model.config, keys).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * 3 + [1] * (len(WORDS) - 3))
    writer.add_token_merges(MERGES)
    for name, weight in _weights(model):
        used = F32 if weight.ndim == 1 else kind
        writer.add_tensor(name, weight if used is F32 else quantize(weight, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _keys(c: Any, keys: dict[str, Any]) -> dict[str, Any]:
    return {
        "llama.embedding_length": c.hidden_size,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.block_count": c.num_hidden_layers,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.context_length": c.max_position_embeddings,
        "llama.rope.dimension_count": c.head_dim,
        "llama.vocab_size": c.vocab_size,
        "llama.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "llama.rope.freq_base": c.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
        **{key.replace("__", "."): value for key, value in keys.items()},
    }


def _weights(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Under llama.cpp's names."""
    c = model.config
    names = {f"{theirs}.weight": f"{ours}.weight" for ours, theirs in WHOLE.items()}
    for layer in range(c.num_hidden_layers):
        names |= {
            f"model.layers.{layer}.{theirs}.weight": f"blk.{layer}.{ours}.weight" for ours, theirs in OF_A_LAYER.items()
        }
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        weight = tensor.numpy()
        for part, heads in (("q_proj", c.num_attention_heads), ("k_proj", c.num_key_value_heads)):
            weight = interleaved(weight, heads) if part in name else weight
        yield names[name], weight

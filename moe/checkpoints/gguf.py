"""GGUF files of the Llama architecture: weights dequantised tensor by tensor, tokenizer and chat template inside.

A GGUF file stores queries and keys with the two halves of each rotated pair side by side; here they come back in the
order of ``transformers``. What a file holds beyond what is read here is refused, never dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from torch import Tensor

from moe.checkpoints.source import Config
from moe.errors import CheckpointError

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of matrices and norms in GGUF (``blk.L.NAME.weight``) and in transformers (``model.layers.L.NAME.weight``)."""
COUNTS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
}
ENDS = ("eos", "eot", "eom")
"""Roles of the tokens that end a text: of the whole, of a turn, of a message."""
NUMBERS = {"attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta"}
PRE_TOKENIZERS: Mapping[str, list[PreTokenizer]] = {
    "smollm": [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)],
    "gpt-2": [ByteLevel(add_prefix_space=False)],
}
CONTROL, USER_DEFINED = 3, 4
"""Token types: written by templates and hidden in answers; and added to the vocabulary as a whole."""


class GgufSource:
    """A GGUF file as a checkpoint of ``model_type`` llama: see ``moe.checkpoints.source.Source``."""

    def __init__(self, path: str | Path) -> None:
        """Raises CheckpointError for a file that is not a Llama's GGUF, or holds what is not read here."""
        self.path = Path(path)
        self.where = str(path)
        try:
            self._reader = GGUFReader(str(self.path))
        except Exception as error:  # the library raises what its parsing meets
            raise CheckpointError(f"{self.where}: is not a readable GGUF file ({error}).") from error
        self._tensors = {self._name(tensor.name): tensor for tensor in self._reader.tensors}
        self.config = self._configuration()

    def _name(self, stored: str) -> str:
        """Name of a tensor in transformers."""
        parts = stored.split(".")
        if parts[-1] == "weight":
            if len(parts) == 2 and parts[0] in WHOLE:
                return f"{WHOLE[parts[0]]}.weight"
            if len(parts) == 4 and parts[0] == "blk" and parts[2] in OF_A_LAYER:
                return f"model.layers.{parts[1]}.{OF_A_LAYER[parts[2]]}.weight"
        raise CheckpointError(f"{self.where}: tensor {stored!r} is not known of the Llama architecture.")

    def _value(self, key: str, default: Any = None) -> Any:
        field = self._reader.fields.get(key)
        return default if field is None else field.contents()

    def _configuration(self) -> Config:
        family = self._value("general.architecture")
        if family != "llama":
            raise CheckpointError(f"{self.where}: architecture {family!r} is not read from GGUF; supported is llama.")
        config: Config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        read = {"rope.dimension_count", "attention.value_length", "rope.scaling.type"}
        for names in (COUNTS, NUMBERS):
            for theirs, ours in names.items():
                read.add(theirs)
                value = self._value(f"llama.{theirs}")
                if value is not None:
                    # A float32 of the file as its shortest decimal: 1e-05, not 9.999999747378752e-06.
                    config[ours] = float(str(np.float32(value))) if names is NUMBERS else int(value)
        unknown = sorted(
            k for k in self._reader.fields if k.startswith("llama.") and k.removeprefix("llama.") not in read
        )
        if unknown:
            raise CheckpointError(f"{self.where}: key {unknown[0]!r} is not known, so the model might be another one.")
        if self._value("llama.rope.scaling.type", "none") != "none":
            raise CheckpointError(f"{self.where}: scaled rotary positions are not read from GGUF.")
        config.setdefault("vocab_size", len(self._value("tokenizer.ggml.tokens", [])))
        self._check_heads(config)
        config["tie_word_embeddings"] = not self.has("lm_head.weight")
        config["bos_token_id"] = self._value("tokenizer.ggml.bos_token_id")
        ends = [self._value(f"tokenizer.ggml.{role}_token_id") for role in ENDS]
        config["eos_token_id"] = [token for token in ends if token is not None]
        return config

    def _check_heads(self, config: Config) -> None:
        missing = [
            ours for ours in COUNTS.values() if ours not in config and ours not in ("num_key_value_heads", "head_dim")
        ]
        if missing:
            raise CheckpointError(f"{self.where}: the file does not state {missing[0]}.")
        config.setdefault("num_key_value_heads", config["num_attention_heads"])
        config.setdefault("head_dim", config["hidden_size"] // max(1, config["num_attention_heads"]))
        for key in ("rope.dimension_count", "attention.value_length"):
            if self._value(f"llama.{key}", config["head_dim"]) != config["head_dim"]:
                raise CheckpointError(f"{self.where}: {key} differs from the heads' width {config['head_dim']}.")

    def has(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str, *shape: int, row: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor ``[*shape]``, or one row of it, in float32, dequantised. Raises CheckpointError."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise CheckpointError(f"{self.where}: tensor {name!r} is missing.")
        stored = tuple(int(size) for size in reversed(tensor.shape))
        if stored != shape:
            raise CheckpointError(f"{self.where}: tensor {name!r} has shape {list(stored)}, not {list(shape)}.")
        try:
            values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        except (NotImplementedError, ValueError) as error:
            raise CheckpointError(f"{self.where}: tensor {name!r} cannot be dequantised ({error}).") from error
        result = torch.from_numpy(np.array(values, dtype=np.float32))
        if name.endswith("self_attn.q_proj.weight"):
            return halves(result, self.config["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            return halves(result, self.config["num_key_value_heads"])
        return result if row is None else result[row]

    @property
    def chat_template(self) -> str | None:
        template = self._value("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @cached_property
    def tokenizer(self) -> FastTokenizer:
        """The byte-level tokenizer inside. Raises CheckpointError for other kinds."""
        kind, pre = self._value("tokenizer.ggml.model"), self._value("tokenizer.ggml.pre")
        if kind != "gpt2" or pre not in PRE_TOKENIZERS:
            raise CheckpointError(
                f"{self.where}: tokenizer {kind!r} with pre-tokenizer {pre!r} is not read from GGUF; supported is gpt2 "
                f"with {' or '.join(PRE_TOKENIZERS)}."
            )
        if self._value("tokenizer.ggml.add_bos_token", False) or self._value("tokenizer.ggml.add_eos_token", False):
            raise CheckpointError(f"{self.where}: a tokenizer that adds tokens to every text is not read from GGUF.")
        tokens = self._value("tokenizer.ggml.tokens", [])
        merges = [tuple(merge.split(" ", 1)) for merge in self._value("tokenizer.ggml.merges", [])]
        try:
            tokenizer = FastTokenizer(BPE({token: place for place, token in enumerate(tokens)}, merges))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{self.where}: the tokenizer's merges do not fit its tokens ({error}).") from error
        tokenizer.pre_tokenizer = Sequence(PRE_TOKENIZERS[pre])
        tokenizer.decoder = ByteLevelDecoder()
        for token, type_ in zip(tokens, self._value("tokenizer.ggml.token_type", []), strict=False):
            if type_ in (CONTROL, USER_DEFINED):
                tokenizer.add_tokens([AddedToken(token, special=type_ == CONTROL, normalized=False)])
        return tokenizer


def halves(matrix: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys ``[heads · D, d]`` from pairs side by side (``0, D/2, 1, D/2 + 1, …``) to both halves in
    order, as rotation by halves expects them."""
    return matrix.view(heads, -1, 2, matrix.shape[1]).transpose(1, 2).reshape(matrix.shape)  # [heads * D, d]

"""GPT-2 checkpoints (``model_type`` gpt2). Its matrices are stored ``[in, out]``."""

from __future__ import annotations

from typing import Any

from moe.checkpoints.reader import DenseFfn, NodeTensors, first_of
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError
from moe.manifest import Family, Task


class Gpt2Reader:
    """GPT-2 with its language head, tied to the word embeddings unless the file has one of its own."""

    family: Family = "gpt2"
    task: Task = "causal-lm"

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        fields.only("model_type", "gpt2")
        fields.only("add_cross_attention", False)
        fields.only("reorder_and_upcast_attn", False, True)  # only another rounding, and only for half precision
        fields.flag("tie_word_embeddings", True)
        d = fields.count("n_embd", 768)
        self.architecture: dict[str, Any] = {
            "vocab_size": fields.count("vocab_size", 50257),
            "hidden_size": d,
            "layers": fields.count("n_layer", 12),
            "heads": fields.count("n_head", 12),
            "ffn_size": fields.count("n_inner", 4 * d),
            "activation": fields.activation("activation_function", "gelu_new"),
            "eps": fields.number("layer_norm_epsilon", 1e-5),
            "max_positions": fields.count("n_positions", 1024),
            "scale_attention": fields.flag("scale_attn_weights", True),
            "scale_by_layer": fields.flag("scale_attn_by_inverse_layer_idx", False),
        }
        eos = fields.token("eos_token_id", self.architecture["vocab_size"])
        fields.finish()
        if d % self.architecture["heads"]:
            raise CheckpointError(f"{source.where}: n_embd must be a multiple of n_head.")
        self.source = source
        self.prefix = first_of(source, "wte.weight", "transformer.", "")
        self.layers: int = self.architecture["layers"]
        self.max_tokens: int = self.architecture["max_positions"]
        self.special = {} if eos is None else {"eos": eos}

    def segment(self, index: int) -> NodeTensors:
        n, get = self.architecture, self.source.get
        d, vocab = n["hidden_size"], n["vocab_size"]
        words = f"{self.prefix}wte.weight"
        tensors: NodeTensors = {}
        if index == 0:
            tensors["embed.words"] = get(words, vocab, d)
            tensors["embed.positions"] = get(f"{self.prefix}wpe.weight", n["max_positions"], d)
        if index == self.layers:
            weight = "lm_head.weight" if self.source.has("lm_head.weight") else words
            tensors |= self._norm("head.norm", f"{self.prefix}ln_f")
            return tensors | {"head.vocabulary.weight": get(weight, vocab, d)}
        name = f"{self.prefix}h.{index}."
        return {
            **tensors,
            **self._norm("attention.norm", f"{name}ln_1"),
            **self._linear("attention.qkv", f"{name}attn.c_attn", d, 3 * d),
            **self._linear("attention.out", f"{name}attn.c_proj", d, d),
            **self._norm("expert_norm", f"{name}ln_2"),
            "output_bias": get(f"{name}mlp.c_proj.bias", d),
        }

    def ffn(self, layer: int) -> DenseFfn:
        d, inner, name = (
            self.architecture["hidden_size"],
            self.architecture["ffn_size"],
            f"{self.prefix}h.{layer}.mlp.",
        )
        return DenseFfn(
            self.source.get(f"{name}c_fc.weight", d, inner).t(),
            self.source.get(f"{name}c_fc.bias", inner),
            self.source.get(f"{name}c_proj.weight", inner, d).t(),
        )

    def activation(self, layer: int) -> str:
        return str(self.architecture["activation"])

    def _linear(self, ours: str, theirs: str, inputs: int, outputs: int) -> NodeTensors:
        return {
            f"{ours}.weight": self.source.get(f"{theirs}.weight", inputs, outputs).t(),
            f"{ours}.bias": self.source.get(f"{theirs}.bias", outputs),
        }

    def _norm(self, ours: str, theirs: str) -> NodeTensors:
        d = self.architecture["hidden_size"]
        return {
            f"{ours}.weight": self.source.get(f"{theirs}.weight", d),
            f"{ours}.bias": self.source.get(f"{theirs}.bias", d),
        }

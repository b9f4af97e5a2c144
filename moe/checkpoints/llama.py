"""Llama, Mistral, Qwen2 and Qwen3: dense decoders with rotary positions and gated feed-forward networks."""

from __future__ import annotations

import torch

from moe.checkpoints.reader import DenseFfn
from moe.checkpoints.rope import RopeTensors, numbers_of
from moe.checkpoints.source import Fields, Source


class LlamaReader(RopeTensors):
    """One of the four; SmolLM, TinyLlama and others state ``model_type`` llama. Every layer gets experts."""

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "llama", "mistral", "qwen2", "qwen3")
        if family == "llama":
            fields.only("mlp_bias", False)
        super().__init__(source, fields, family, numbers)

    def ffn(self, layer: int) -> DenseFfn:
        n, get, name = self.architecture, self.source.get, f"model.layers.{layer}.mlp."
        d, inner = n["hidden_size"], n["ffn_size"]
        gate, up = (get(f"{name}{part}_proj.weight", inner, d) for part in ("gate", "up"))
        return DenseFfn(up, torch.zeros(inner), get(f"{name}down_proj.weight", d, inner), gate)

    def activation(self, layer: int) -> str:
        return str(self.architecture["activation"])

"""Llama, Mistral, Qwen2 and Qwen3: dense decoders with rotary positions and gated feed-forward networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moe.checkpoints.reader import DenseFfn
from moe.checkpoints.rope import RopeTensors, numbers_of
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError


class LlamaReader(RopeTensors):
    """One of the four; SmolLM, TinyLlama and others state ``model_type`` llama. Every layer gets experts,
    or those of ``put_experts``."""

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "llama", "mistral", "qwen2", "qwen3")
        if family == "llama":
            fields.only("mlp_bias", False)
        super().__init__(source, fields, family, numbers)

    def put_experts(self, layers: Sequence[int]) -> None:
        """Only these model layers get experts, the others stay whole in the segments. Raises CheckpointError."""
        count, chosen = self.architecture["layers"], sorted(layers)
        if not chosen or len(set(chosen)) < len(chosen) or not 0 <= chosen[0] <= chosen[-1] < count:
            raise CheckpointError(
                f"{self.source.where}: layers with experts are {chosen}; allowed are different ones, 0 to {count - 1}."
            )
        self.architecture["moe_layers"], self.layers = chosen, len(chosen)

    def ffn(self, layer: int) -> DenseFfn:
        n, get = self.architecture, self.source.get
        name = f"model.layers.{n['moe_layers'][layer]}.mlp."
        d, inner = n["hidden_size"], n["ffn_size"]
        gate, up = (get(f"{name}{part}_proj.weight", inner, d) for part in ("gate", "up"))
        return DenseFfn(up, torch.zeros(inner), get(f"{name}down_proj.weight", d, inner), gate)

    def activation(self, layer: int) -> str:
        return str(self.architecture["activation"])

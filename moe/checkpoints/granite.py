"""Granite-MoE checkpoints: experts fused in each layer, and multipliers that become part of the weights."""

from __future__ import annotations

import math

from moe.checkpoints.reader import NodeTensors
from moe.checkpoints.rope import RopeTensors, mixture_of, numbers_of
from moe.checkpoints.source import Fields, Source
from moe.manifest import Router


class GraniteReader(RopeTensors):
    """A mixture that multiplies embeddings, attention scores, what layers add, and logits by constants.

    Each constant stands next to a matrix, so the pipeline's matrices hold the products, taken in float32.
    """

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "granitemoe")
        router, self.experts = mixture_of(fields, family, numbers)
        self.router = Router(router.top_k, "topk-softmax")
        self.residual = fields.number("residual_multiplier", 1.0)
        self.queries = fields.number("attention_multiplier", 1.0) * math.sqrt(numbers["head_dim"])
        self.factors = {
            "embed.words": fields.number("embedding_multiplier", 1.0),
            "attention.out.weight": self.residual,
            "attention.out.bias": self.residual,
            "head.vocabulary.weight": 1.0 / fields.number("logits_scaling", 1.0),
        }
        super().__init__(source, fields, family, numbers)

    def segment(self, index: int) -> NodeTensors:
        tensors = super().segment(index)
        for name, factor in self.factors.items():
            if name in tensors:
                tensors[name] = tensors[name].float() * factor
        for name in ("attention.qkv.weight", "attention.qkv.bias"):
            if name in tensors:
                tensors[name] = tensors[name].float()
                tensors[name][: self.architecture["heads"] * self.architecture["head_dim"]] *= self.queries
        return tensors

    def _router(self, layer: int) -> NodeTensors:
        d = self.architecture["hidden_size"]
        return {"router.weight": self.source.get(f"{_moe(layer)}router.layer.weight", self.experts, d)}

    def expert(self, layer: int, expert: int) -> NodeTensors:
        n, name = self.architecture, _moe(self.architecture["moe_layers"][layer])
        d, inner = n["hidden_size"], n["ffn_size"]
        gate_up = self.source.get(f"{name}input_linear.weight", self.experts, 2 * inner, d, row=expert)
        down = self.source.get(f"{name}output_linear.weight", self.experts, d, inner, row=expert)
        return {"gate_up.weight": gate_up, "down.weight": down.float() * self.residual}


def _moe(layer: int) -> str:
    return f"model.layers.{layer}.block_sparse_moe."

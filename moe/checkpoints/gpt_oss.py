"""GPT-OSS checkpoints: sinks, alternating windows, and experts whose weights may be packed in four bits (MXFP4)."""

from __future__ import annotations

import torch
from torch import Tensor

from moe.checkpoints.reader import NodeTensors
from moe.checkpoints.rope import RopeTensors, mixture_of, numbers_of
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError
from moe.manifest import Router

POSITIONS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""What a configuration without rotary parameters means."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The eight sizes of a number of one sign, two and one bits (OCP Microscaling formats, version 1.0, table 5)."""
BLOCK = 32
"""Numbers that share a scale."""


class GptOssReader(RopeTensors):
    """Experts are fused, transposed, with gate and up interleaved; packed ones are unpacked one at a time."""

    def __init__(self, source: Source) -> None:
        config = source.config
        if not config.get("rope_parameters") and not config.get("rope_scaling"):
            config = {**config, "rope_parameters": POSITIONS}
        fields = Fields(config, source.where)
        family, numbers = numbers_of(fields, "gpt_oss")
        router, self.experts = mixture_of(fields, family, numbers)
        self.router = Router(router.top_k, "topk-softmax")
        fields.only("experts_per_token", None, router.top_k)
        fields.get("initial_context_length")
        numbers["swiglu_alpha"] = fields.number("swiglu_alpha", 1.702)
        numbers["swiglu_limit"] = fields.number("swiglu_limit", 7.0)
        self.packed = source.has("model.layers.0.mlp.experts.gate_up_proj_blocks")
        if self.packed and (numbers["hidden_size"] % BLOCK or numbers["ffn_size"] % BLOCK):
            raise CheckpointError(f"{source.where}: packed experts need sizes that are multiples of {BLOCK}.")
        super().__init__(source, fields, family, numbers)

    def _attention(self, ours: str, layer: int) -> NodeTensors:
        sinks = self.source.get(f"model.layers.{layer}.self_attn.sinks", self.architecture["heads"])
        return super()._attention(ours, layer) | {f"{ours}attention.sinks": sinks}

    def _router(self, layer: int) -> NodeTensors:
        name, d = f"model.layers.{layer}.mlp.router.", self.architecture["hidden_size"]
        weight, bias = self.source.get(f"{name}weight", self.experts, d), self.source.get(f"{name}bias", self.experts)
        return {"router.weight": weight, "router.bias": bias}

    def expert(self, layer: int, expert: int) -> NodeTensors:
        d, inner = self.architecture["hidden_size"], self.architecture["ffn_size"]
        name = f"model.layers.{layer}.mlp.experts."
        bias = self.source.get(f"{name}gate_up_proj_bias", self.experts, 2 * inner, row=expert)
        gate_up = self._matrix(f"{name}gate_up_proj", expert, d, 2 * inner)  # [2F, d]
        return {
            "gate_up.weight": torch.cat((gate_up[::2], gate_up[1::2])),
            "gate_up.bias": torch.cat((bias[::2], bias[1::2])),
            "down.weight": self._matrix(f"{name}down_proj", expert, inner, d),
            "down.bias": self.source.get(f"{name}down_proj_bias", self.experts, d, row=expert),
        }

    def _matrix(self, name: str, expert: int, inputs: int, outputs: int) -> Tensor:
        """One expert's matrix, ``[outputs, inputs]``."""
        if not self.packed:
            return self.source.get(name, self.experts, inputs, outputs, row=expert).t()
        shape = (self.experts, outputs, inputs // BLOCK)
        blocks = self.source.get(f"{name}_blocks", *shape, BLOCK // 2, row=expert, dtype=torch.uint8)
        return unpacked(blocks, self.source.get(f"{name}_scales", *shape, row=expert, dtype=torch.uint8))


def unpacked(blocks: Tensor, scales: Tensor) -> Tensor:
    """MXFP4 numbers, ``blocks [R, B, 16]`` and ``scales [R, B]`` uint8, as float32 ``[R, 32 B]``, exactly.

    A byte holds two numbers, the first in its low half; a scale is a power of two, 127 above its exponent (255: NaN).
    """
    sizes = torch.tensor((*FP4, *(-size for size in FP4)))
    pairs = torch.stack((sizes[(blocks & 15).long()], sizes[(blocks >> 4).long()]), -1)  # [R, B, 16, 2]
    exponents = scales.int() - 127
    factors = torch.ldexp(torch.ones(scales.shape), exponents).masked_fill(scales == 255, torch.nan)  # [R, B]
    return (pairs.flatten(2) * factors[..., None]).flatten(1)

"""Checkpoints laid out as DeepSeek's: first layers dense, then experts next to shared ones, chosen within groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moe.checkpoints.positions import magnitude, rotary_fields, yarn_weights
from moe.checkpoints.reader import NodeTensors
from moe.checkpoints.rope import RopeReader, numbers_of
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError
from moe.manifest import Gates, Router

INNER = ("greedy", "group_limited_greedy")
"""How DeepSeek-V2 chooses experts; V3's choice is its ``noaux_tc``."""


class DeepseekReader(RopeReader):
    """DeepSeek-V2 and V3 (also R1), and GLM-4-MoE (GLM-4.5, GLM-4.6), whose attention is an ordinary one.

    Layers after the last, which predict further tokens, are not read.
    """

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "glm4_moe", "deepseek_v2", "deepseek_v3")
        second = family == "deepseek_v2"
        self.interleaved = second
        if family == "glm4_moe":
            numbers["qk_norm"] = "head" if fields.flag("use_qk_norm", False) else "none"
        else:
            numbers["latent_attention"] = latent_numbers(fields, numbers)
            self.interleaved = second or fields.flag("rope_interleave", True)
            fields.only("mlp_bias", False)
            fields.only("scoring_func", "softmax" if second else "sigmoid")
            fields.only("moe_layer_freq", 1)
        self.experts = expert_numbers(fields, numbers, {"deepseek_v2": 0, "deepseek_v3": 3}.get(family, 1))
        limited = fields.only("topk_method", *(INNER if second else ("noaux_tc",))) != "greedy"
        if second:
            fields.only("norm_topk_prob", False)
        gates: Gates = "softmax-topk" if second else "sigmoid-topk"
        default, scale = ((8, 4), 2.5) if family == "deepseek_v3" else ((1, 1), 1.0)
        self.router = grouped_router(fields, gates, self.experts, default, limited, scale)
        self.shared = fields.count("n_shared_experts", 2 if second else 1) * numbers["ffn_size"]
        self.finish(source, fields, family, numbers)

    def _router(self, layer: int) -> NodeTensors:
        name, get = f"model.layers.{layer}.{self.moe}.", self.source.get
        tensors = {"router.weight": get(f"{name}gate.weight", self.experts, self.architecture["hidden_size"])}
        if self.router.gates == "sigmoid-topk":
            tensors["router.correction"] = get(f"{name}gate.e_score_correction_bias", self.experts)
        return tensors | self._gated("shared.", f"{name}shared_experts.", self.shared)

    def _attention(self, ours: str, layer: int) -> NodeTensors:
        n = self.architecture
        if "latent_attention" not in n:
            return super()._attention(ours, layer)
        d, heads, turning, sizes = n["hidden_size"], n["heads"], n["head_dim"], n["latent_attention"]
        latent, plain, value, rank = sizes["latent"], sizes["plain"], sizes["value"], sizes.get("queries")
        name, get = f"model.layers.{layer}.self_attn.", self.source.get
        width = plain + turning
        q = get(f"{name}q_{'proj' if rank is None else 'b_proj'}.weight", heads * width, rank or d)
        up = get(f"{name}kv_b_proj.weight", heads * (plain + value), latent).view(heads, plain + value, latent)
        tensors = {
            f"{ours}attention.norm.weight": get(f"model.layers.{layer}.input_layernorm.weight", d),
            f"{ours}expert_norm.weight": get(f"model.layers.{layer}.post_attention_layernorm.weight", d),
            f"{ours}attention.q_up.weight": self._halves(q.view(heads, width, -1)).reshape(q.shape),
            f"{ours}attention.kv_down.weight": self._halves(
                get(f"{name}kv_a_proj_with_mqa.weight", latent + turning, d)[None]
            )[0],
            f"{ours}attention.kv_norm.weight": get(f"{name}kv_a_layernorm.weight", latent),
            f"{ours}attention.k_up.weight": up[:, :plain].flatten(0, 1),
            f"{ours}attention.v_up.weight": up[:, plain:].flatten(0, 1),
            f"{ours}attention.out.weight": get(f"{name}o_proj.weight", d, heads * value),
        }
        if rank is not None:
            tensors[f"{ours}attention.q_down.weight"] = get(f"{name}q_a_proj.weight", rank, d)
            tensors[f"{ours}attention.q_norm.weight"] = get(f"{name}q_a_layernorm.weight", rank)
        if n["attention_bias"]:
            bias = get(f"{name}kv_a_proj_with_mqa.bias", latent + turning)
            tensors[f"{ours}attention.kv_down.bias"] = self._halves(bias[None, :, None])[0, :, 0]
            tensors[f"{ours}attention.out.bias"] = get(f"{name}o_proj.bias", d)
            if rank is not None:
                tensors[f"{ours}attention.q_down.bias"] = get(f"{name}q_a_proj.bias", rank)
        return tensors

    def _halves(self, rows: Tensor) -> Tensor:
        """``rows [H, …, d]`` with the turning numbers, the last of each head, in halves in place of pairs side by side.

        Queries and keys change the same way, so their products stay.
        """
        if not self.interleaved:
            return rows
        start = rows.shape[1] - self.architecture["head_dim"]
        return torch.cat((rows[:, :start], rows[:, start::2], rows[:, start + 1 :: 2]), 1)


def latent_numbers(fields: Fields, numbers: dict[str, Any]) -> dict[str, Any]:
    """Sizes of compressed attention, and the scale of its scores, which YaRN's ``mscale_all_dim`` enlarges. Raises
    CheckpointError."""
    turning = numbers["head_dim"]
    plain = fields.count("qk_nope_head_dim", 128)
    sizes = {"latent": fields.count("kv_lora_rank", 512), "plain": plain, "value": fields.count("v_head_dim", 128)}
    fields.only("head_dim", None, turning)
    fields.only("qk_head_dim", None, plain + turning)
    fields.get("q_lora_rank")
    if fields.config.get("q_lora_rank", 1536) is not None:
        sizes["queries"] = fields.count("q_lora_rank", 1536)
    scale = (plain + turning) ** -0.5
    nested = rotary_fields(fields)
    if nested.get("rope_type") == "yarn":
        factor, _, weight = yarn_weights(nested, numbers["max_positions"])
        scale *= magnitude(factor, weight) ** 2
    return {**sizes, "scale": scale}


def expert_numbers(fields: Fields, numbers: dict[str, Any], default: int) -> int:
    """Experts per layer; completes ``numbers`` with their size and layers, the first ``default`` dense unless stated.
    Raises CheckpointError."""
    dense = fields.get("first_k_dense_replace", default)
    if not isinstance(dense, int) or not 0 <= dense < numbers["layers"]:
        raise CheckpointError(f"{fields.where}: no layer has experts (first_k_dense_replace).")
    fields.get("num_nextn_predict_layers")
    numbers["ffn_size"] = fields.count("moe_intermediate_size")
    numbers["moe_layers"] = list(range(dense, numbers["layers"]))
    return fields.count("n_routed_experts")


def grouped_router(
    fields: Fields, gates: Gates, experts: int, default: tuple[int, int], limited: bool, scale: float
) -> Router:
    """The ``num_experts_per_tok`` best of ``experts``, where ``limited`` in the ``topk_group`` best of ``n_group``
    groups, by ``default`` that many; gates by ``scale`` unless stated. Raises CheckpointError."""
    groups, best = fields.count("n_group", default[0]), fields.count("topk_group", default[1])
    if not limited:
        groups = best = 1
    top_k = fields.count("num_experts_per_tok")
    if experts % groups or best > groups or top_k > experts // groups * best or experts // groups < 2:
        raise CheckpointError(
            f"{fields.where}: {top_k} of {experts} experts cannot be chosen from {best} of {groups} equal groups of "
            "two or more (num_experts_per_tok, n_routed_experts, topk_group, n_group)."
        )
    normalise = fields.flag("norm_topk_prob", gates == "sigmoid-topk")
    scale = fields.number("routed_scaling_factor", scale)
    limits = {"groups": groups, "top_groups": best} if groups > 1 else {}
    return Router(top_k, gates, normalise, scale, **limits)

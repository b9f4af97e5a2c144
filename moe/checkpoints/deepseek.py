"""Checkpoints laid out as DeepSeek's: first layers dense, then experts next to shared ones, chosen within groups."""

from __future__ import annotations

from typing import Any

from moe.checkpoints.reader import NodeTensors
from moe.checkpoints.rope import RopeReader, numbers_of
from moe.checkpoints.source import Fields, Source
from moe.errors import CheckpointError
from moe.manifest import Gates, Router


class DeepseekReader(RopeReader):
    """GLM-4-MoE (GLM-4.5, GLM-4.6). Layers after the last, which predict further tokens, are not read."""

    def __init__(self, source: Source) -> None:
        fields = Fields(source.config, source.where)
        family, numbers = numbers_of(fields, "glm4_moe")
        numbers["qk_norm"] = "head" if fields.flag("use_qk_norm", False) else "none"
        self.experts = expert_numbers(fields, numbers)
        self.router = grouped_router(fields, "sigmoid-topk", self.experts)
        self.shared = fields.count("n_shared_experts", 1) * numbers["ffn_size"]
        self.finish(source, fields, family, numbers)

    def _router(self, layer: int) -> NodeTensors:
        name, get = f"model.layers.{layer}.{self.moe}.", self.source.get
        tensors = {"router.weight": get(f"{name}gate.weight", self.experts, self.architecture["hidden_size"])}
        if self.router.gates == "sigmoid-topk":
            tensors["router.correction"] = get(f"{name}gate.e_score_correction_bias", self.experts)
        return tensors | self._gated("shared.", f"{name}shared_experts.", self.shared)


def expert_numbers(fields: Fields, numbers: dict[str, Any]) -> int:
    """Experts per layer; completes ``numbers`` with their size and layers. Raises CheckpointError."""
    dense = fields.get("first_k_dense_replace", 0)
    if not isinstance(dense, int) or not 0 <= dense < numbers["layers"]:
        raise CheckpointError(f"{fields.where}: no layer has experts (first_k_dense_replace).")
    fields.get("num_nextn_predict_layers")
    numbers["ffn_size"] = fields.count("moe_intermediate_size")
    numbers["moe_layers"] = list(range(dense, numbers["layers"]))
    return fields.count("n_routed_experts")


def grouped_router(fields: Fields, gates: Gates, experts: int) -> Router:
    """The ``num_experts_per_tok`` best of ``experts`` in the ``topk_group`` best of ``n_group`` groups. Raises
    CheckpointError."""
    groups, best = fields.count("n_group", 1), fields.count("topk_group", 1)
    top_k = fields.count("num_experts_per_tok")
    if experts % groups or best > groups or top_k > experts // groups * best or experts // groups < 2:
        raise CheckpointError(
            f"{fields.where}: {top_k} of {experts} experts cannot be chosen from {best} of {groups} equal groups of "
            "two or more (num_experts_per_tok, n_routed_experts, topk_group, n_group)."
        )
    normalise = fields.flag("norm_topk_prob", gates == "sigmoid-topk")
    scale = fields.number("routed_scaling_factor", 1.0)
    limits = {"groups": groups, "top_groups": best} if groups > 1 else {}
    return Router(top_k, gates, normalise, scale, **limits)

"""The router at the end of a segment, and what surrounds the experts' products: scatter and sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe.families.linear import Linear
from moe.manifest import Router


class RouterProgram:
    """``x [T, d]`` to ``expert_ids [T, k] int64`` and ``gates [T, k] float32``, by the manifest's router
    settings.
    """

    __slots__ = ("correction", "linear", "settings", "shared_gate")

    def __init__(
        self, linear: Linear, settings: Router, correction: Tensor | None = None, shared_gate: Linear | None = None
    ) -> None:
        """``correction [E]`` float32 is added to the scores where experts are chosen, not to the gates; a sigmoid of
        ``shared_gate`` is the gate of the experts that every token meets, 1 without one."""
        if settings.gates == "sigmoid-topk" or settings.groups is not None:  # computed in float32 by those models
            linear = Linear(linear.matrix.float(), linear.bias)
        self.linear, self.settings, self.correction = linear, settings, correction
        self.shared_gate = shared_gate

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ids, gates = self._chosen(x)
        shared = self.settings.shared
        if shared is None:
            return ids, gates
        routed, tokens = self.linear.matrix.shape[1], x.shape[0]
        certain = torch.arange(routed, routed + shared, device=x.device).expand(tokens, -1)  # [T, s]
        if self.shared_gate is None:
            weight = gates.new_ones(tokens, shared)  # [T, s]
        else:
            weight = torch.sigmoid(self.shared_gate(x)).float().expand(-1, shared)  # [T, s]
        return torch.cat((ids, certain), -1), torch.cat((gates, weight), -1)  # [T, k + s] each

    def _chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[T, k]`` each."""
        s = self.settings
        if s.gates == "ones" and s.top_k == self.linear.matrix.shape[1]:
            ids = torch.arange(s.top_k, device=x.device).expand(x.shape[0], -1).contiguous()  # [T, E]
            return ids, torch.full(ids.shape, s.scale, dtype=torch.float32, device=x.device)
        logits = self.linear(x.to(self.linear.matrix.dtype))  # [T, E]
        if s.gates in ("softmax-topk", "sigmoid-topk"):
            sigmoid = s.gates == "sigmoid-topk"
            scores = torch.sigmoid(logits) if sigmoid else torch.softmax(logits, -1, dtype=torch.float32)  # [T, E]
            if s.groups is None and self.correction is None:
                gates, ids = torch.topk(scores, s.top_k, -1)  # [T, k]
            else:
                ids = torch.topk(self._choice(scores), s.top_k, -1).indices  # [T, k]
                gates = scores.gather(-1, ids)  # [T, k]
            if s.normalise:
                gates = gates / gates.sum(-1, keepdim=True)
        elif s.gates == "sparsemixer":
            ids, gates = sparsemixer(logits.float(), s.top_k, s.jitter or 0.0)
        else:
            best, ids = torch.topk(logits.float(), s.top_k, -1)  # [T, k]
            gates = torch.softmax(best, -1) if s.gates == "topk-softmax" else torch.ones_like(best)
        return ids, gates if s.scale == 1.0 else gates * s.scale

    def _choice(self, scores: Tensor) -> Tensor:
        """Scores ``[T, E]`` by which experts are chosen: corrected, and -inf outside the best groups (DeepSeek-V3,
        2024, equation 16 and section 2.1.2)."""
        s = self.settings
        if self.correction is not None:
            scores = scores + self.correction
        if s.groups is None or s.top_groups is None:
            return scores
        grouped = scores.view(scores.shape[0], s.groups, -1)  # [T, G, E/G]
        two = s.gates == "sigmoid-topk"  # DeepSeek-V2 ranks groups by their best expert, V3 by the sum of two
        strength = grouped.topk(2, -1).values.sum(-1) if two else grouped.amax(-1)  # [T, G]
        kept = torch.zeros_like(strength, dtype=torch.bool)  # [T, G]
        kept.scatter_(1, strength.topk(s.top_groups, -1).indices, True)
        return grouped.masked_fill(~kept[..., None], -torch.inf).view_as(scores)


def sparsemixer(logits: Tensor, top_k: int, jitter: float) -> tuple[Tensor, Tensor]:
    """Phi-3.5-MoE's choice (Abdin et al. 2024, section 2) without its training noise: one expert after another, each
    gated by a softmax over those left whose logits lie within ``2 jitter`` of the best, relative to their size.

    ``logits [T, E]`` to ``expert_ids`` and ``gates``, ``[T, k]``; a token's gates do not sum to one.
    """
    left, ids, gates = logits, [], []
    for _ in range(top_k):
        best, chosen = left.max(-1, keepdim=True)  # [T, 1] each
        far = (best - logits) / logits.abs().clamp(min=best) > 2 * jitter  # [T, E]
        gates.append(torch.softmax(left.masked_fill(far, -torch.inf), -1).gather(-1, chosen))
        ids.append(chosen)
        left = left.scatter(-1, chosen, -torch.inf)  # [T, E]
    return torch.cat(ids, -1), torch.cat(gates, -1)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Tokens grouped by expert. Rows are the T*k pairs (token, choice), sorted by expert, then token.

    ``experts``: ids that got tokens, ascending; ``counts``: rows of each; ``tokens [T*k]``: token of each
    row;
    ``gates [T*k, 1]`` float32. Example: ids ``[[1, 0], [1, 2]]`` give experts ``[0, 1, 2]``, counts ``[1, 2,
    1]``, tokens ``[0, 0, 1, 1]``.
    """

    experts: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: Tensor
    gates: Tensor

    def scatter(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x [T, d]`` to one ``[m, d]`` per expert of ``experts``."""
        return x.index_select(0, self.tokens).split_with_sizes(self.counts)

    def combine(self, residual: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """``residual [T, d]`` plus each output ``[m, d]`` times its gate, in expert order, in float32."""
        rows = torch.cat(tuple(outputs)) * self.gates  # [T*k, d] float32
        if residual.dtype == torch.float32:
            return residual.index_add(0, self.tokens, rows)  # [T, d]
        return residual.float().index_add_(0, self.tokens, rows).to(residual.dtype)  # [T, d]


def dispatch(expert_ids: Tensor, gates: Tensor) -> Dispatch:
    """Group by expert: ``expert_ids [T, k] int64``, ``gates [T, k] float32``."""
    flat = expert_ids.reshape(-1)  # [T*k]
    order = torch.argsort(flat, stable=True)  # [T*k]
    counts = torch.bincount(flat).tolist()
    experts = tuple(expert for expert, count in enumerate(counts) if count)
    return Dispatch(
        experts,
        tuple(counts[expert] for expert in experts),
        order // expert_ids.shape[1],
        gates.reshape(-1).index_select(0, order)[:, None],
    )

"""The gate on the experts' side: a function routes a layer's tokens itself and computes its own experts' part.

As in Janus (section 3.2) the caller sends all rows to everyone who serves experts of the layer and knows nothing of the
routing; as there (section 3.3) everyone computes the same router on the same rows, and where experts have replicas on
several machines the same choice of replicas (Algorithm 1, :mod:`functions.dispatch.aebs`), so nobody needs to talk.
Unlike the paper's, outputs are not summed here: sums in another order would change their last bits.

Stage ``gate-LAYER``, inputs: ``x [T, d]``; where replicas are chosen also ``slots [machines, width] int64``, the expert
in each slot (-1: none), and ``machine [1] int64``, the one that this call computes for. Reply: ``experts [n] int64``,
those served here that got tokens, ascending; ``counts [n] int64``, rows of each; ``pairs [m] int64``, token · k +
choice of each row; ``gates [m] float32``; ``y [m, d]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from moe.errors import ProgramInputError
from moe.families.routing import RouterProgram
from moe.runtime import NodeProgram

Tensors = dict[str, Tensor]


class GatedExperts:
    """The experts of one layer that a function serves, behind their router."""

    def __init__(
        self, name: str, router: RouterProgram, experts: Mapping[int, NodeProgram], layer_experts: int
    ) -> None:
        """``experts``: by number; ``layer_experts``: how many the layer has, those that every token meets included."""
        self.id = name
        self._router = router
        self._experts = experts
        self._layer_experts = layer_experts

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises ProgramInputError for anything but the module's inputs, ``x [T, d]`` and the others."""
        if tensors.keys() not in ({"x"}, {"x", "slots", "machine"}):
            names = ", ".join(sorted(tensors))
            raise ProgramInputError(f"{self.id}: the call has {names}; it takes x, or x, slots and machine.")
        next(iter(self._experts.values())).check({"x": tensors["x"]})
        if "slots" in tensors:
            slots, machine = tensors["slots"], tensors["machine"]
            if slots.dim() != 2 or slots.dtype != torch.int64 or machine.shape != (1,) or machine.dtype != torch.int64:
                raise ProgramInputError(f"{self.id}: slots must be [machines, width] int64 and machine [1] int64.")
            if not 0 <= int(machine[0]) < slots.shape[0]:
                raise ProgramInputError(
                    f"{self.id}: machine is {int(machine[0])}, slots has machines 0 to {slots.shape[0] - 1}."
                )

    def made_up(self, tokens: int) -> Tensors:
        """A call ``[tokens, d]`` that it accepts, for a rehearsal."""
        return next(iter(self._experts.values())).made_up(tokens)

    def run(self, tensors: Mapping[str, Tensor], *, all_logits: bool = False, checked: bool = False) -> Tensors:
        """The reply to one call; calls are never computed together, as a router's last bits may depend on the other
        rows ``[T, d]`` of its product and all functions must route the same way. Raises ProgramInputError."""
        if not checked:
            self.check(tensors)
        x = tensors["x"]
        with torch.inference_mode():
            ids, gates = self._router(x)  # [T, k] each
            flat = ids.reshape(-1)  # [T*k]
            here = self._served(ids, tensors)
            experts = [expert for expert in torch.unique(flat).tolist() if expert in here]
            pairs = [(flat == expert).nonzero().squeeze(-1) for expert in experts]
            outputs = [
                self._experts[expert].run({"x": x.index_select(0, rows // ids.shape[1])}, checked=True)["y"]
                for expert, rows in zip(experts, pairs, strict=True)
            ]
            order = torch.cat([*pairs, flat.new_empty(0)])  # [m]
            return {
                "experts": torch.tensor(experts, dtype=torch.int64),
                "counts": torch.tensor([len(rows) for rows in pairs], dtype=torch.int64),
                "pairs": order,
                "gates": gates.reshape(-1).index_select(0, order).float(),
                "y": torch.cat(outputs) if outputs else x.new_empty(0, x.shape[1]),
            }

    def _served(self, ids: Tensor, tensors: Mapping[str, Tensor]) -> frozenset[int]:
        """Experts of this function that this call computes. Raises ProgramInputError."""
        if "slots" not in tensors:
            return frozenset(self._experts)
        slots, machine = tensors["slots"].numpy(), int(tensors["machine"][0])
        try:
            chosen = assigned(slots.tobytes(), slots.shape, self._layer_experts, ids.numpy())
        except ValueError as error:
            raise ProgramInputError(f"{self.id}: slots: {error}") from None
        return frozenset(expert for expert, place in chosen.items() if place == machine and expert in self._experts)


def assigned(slots: bytes, shape: tuple[int, ...], experts: int, ids: np.ndarray) -> dict[int, int]:
    """Machine of each activated expert of ``ids`` [T, k] int64 by AEBS. Raises ValueError."""
    balance = _balance(slots, shape, experts)
    replicas = np.empty(ids.shape, np.int32)
    balance.choose(np.ascontiguousarray(ids), replicas)
    return dict(zip(ids.ravel().tolist(), (replicas.ravel() // shape[1]).tolist(), strict=True))


@lru_cache(maxsize=128)
def _balance(slots: bytes, shape: tuple[int, ...], experts: int):  # type: ignore[no-untyped-def]
    """AEBS for a table; compiled rules are loaded when first needed."""
    from functions.dispatch.aebs import ActivatedExpertBalance, replica_table

    return ActivatedExpertBalance(replica_table(np.frombuffer(slots, np.int64).reshape(shape), experts))

"""Dense feed-forward networks become experts: by their neurons, or as full-size copies.

The splitter walks the layers in order; a small calibration batch walks along, so that grouping and routers
see what each layer's experts will see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from moe.checkpoints.reader import DenseFfn, DenseReader, NodeTensors
from moe.families.linear import ACTIVATIONS
from moe.families.segment import Segment
from moe.families.weights import Weights
from moe.manifest import Router
from moe.runtime import FAMILIES

Method = Literal["neurons", "full"]

CALIBRATION_TEXTS = 24
CALIBRATION_TOKENS = 48


@dataclass(frozen=True)
class Converted:
    """A layer's experts, and what its segment gets: the router, and a shared expert if there is one."""

    experts: Sequence[NodeTensors]
    segment: NodeTensors


class Calibration:
    """A batch of tokens that walks through the dense model, layer by layer, in float32.

    ``texts`` are token ids; without them seeded random ids stand in, which exercise every layer but are no
    language.
    """

    def __init__(self, reader: DenseReader, texts: Sequence[Sequence[int]] | None, seed: int) -> None:
        self.reader = reader
        numbers = reader.architecture.get("decoder", reader.architecture)
        vocab = min(numbers["vocab_size"], reader.architecture.get("encoder", numbers)["vocab_size"])
        if texts is None:
            generator = torch.Generator().manual_seed(seed)
            length = min(CALIBRATION_TOKENS, reader.max_tokens)
            texts = torch.randint(vocab, (CALIBRATION_TEXTS, length), generator=generator).tolist()
        self.tokens = torch.tensor([token for text in texts for token in text])  # [T]
        self.lengths = torch.tensor([len(text) for text in texts])  # [B]
        self._state: dict[str, Tensor] = {}

    def before_experts(self, index: int, tensors: NodeTensors) -> Tensor:
        """Run segment ``index``, whose tensors lack only the router. Returns what its experts will see, ``[T,
        d]``.
        """
        weights = {name: tensor.float() for name, tensor in tensors.items()}
        family = FAMILIES[self.reader.family]
        # one expert, gate 1: the dense model itself
        width = next(t.shape[0] for n, t in weights.items() if n.endswith("attention.out.bias"))
        weights["router.weight"] = torch.zeros(1, width)
        segment: Segment = family.segment(
            Weights(weights, "calibration"), self.reader.architecture, Router(1, "ones"), index
        )
        call = {"lengths": self.lengths, **self._state}
        if segment.embed is not None:
            call["token_ids"] = self.tokens
            if "hidden" in call:
                call["memory_lengths"] = self.lengths
        with torch.inference_mode():
            reply = segment(call)
        if "memory" in reply:
            self._state |= {"memory": reply["memory"], "memory_lengths": self.lengths}
        self._state["hidden"] = reply["residual"]
        return reply.get("x", reply["residual"])

    def through_ffn(self, x: Tensor, ffn: DenseFfn, activation: str) -> Tensor:
        """Add the dense FFN's output to the state. Returns its neurons' activations ``[T, F]``."""
        with torch.inference_mode():
            inner = ACTIVATIONS[activation](x @ ffn.w_in.float().t() + ffn.b_in.float())  # [T, F]
            self._state["hidden"] = self._state["hidden"] + inner @ ffn.w_out.float().t()  # [T, d]
        return inner


def convert(ffn: DenseFfn, x: Tensor, activations: Tensor, *, experts: int, method: Method, seed: int) -> Converted:
    """One layer's FFN as ``experts`` experts. ``x [T, d]`` and ``activations [T, F]`` are calibration's."""
    if method == "full":
        copy = {"w_in.weight": ffn.w_in, "w_in.bias": ffn.b_in, "w_out.weight": ffn.w_out}
        router = x[torch.randperm(x.shape[0], generator=torch.Generator().manual_seed(seed))[:experts]]
        return Converted([copy] * experts, {"router.weight": router})
    groups = torch.arange(ffn.w_in.shape[0]).tensor_split(experts)
    parts = [{"w_in.weight": ffn.w_in[g], "w_in.bias": ffn.b_in[g], "w_out.weight": ffn.w_out[:, g]} for g in groups]
    router = torch.stack([ffn.w_in[g].float().mean(0) for g in groups])
    return Converted(parts, {"router.weight": router})

"""Dense feed-forward networks become experts: by their neurons, or as full-size copies.

The splitter walks the layers in order; a small calibration batch walks along, so that grouping and routers
see what each layer's experts will see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moe.checkpoints.reader import DenseFfn, DenseReader, NodeTensors
from moe.convert import (
    ADAPTER_VERSION,
    Converted,
    Groups,
    activation_mass,
    expert_of,
    initial_router,
    split_neurons,
    upcycle_router,
)
from moe.errors import CheckpointError
from moe.families.linear import ACTIVATIONS, Linear
from moe.families.routing import RouterProgram, dispatch
from moe.families.segment import Segment
from moe.families.weights import Weights
from moe.manifest import Router
from moe.runtime import FAMILIES

Method = Literal["neurons", "full"]

CALIBRATION_TEXTS = 24
CALIBRATION_TOKENS = 48


class Calibration:
    """A batch of tokens that walks through the dense model, layer by layer, in float32.

    The token ids are random, by the seed: they exercise every layer but are no language.
    """

    def __init__(self, reader: DenseReader, seed: int) -> None:
        self.reader = reader
        numbers = reader.architecture.get("decoder", reader.architecture)
        vocab = min(numbers["vocab_size"], reader.architecture.get("encoder", numbers)["vocab_size"])
        length = min(CALIBRATION_TOKENS, reader.max_tokens)
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(vocab, (CALIBRATION_TEXTS, length), generator=generator).flatten()  # [T]
        self.lengths = torch.full((CALIBRATION_TEXTS,), length)  # [B]
        self._state: dict[str, Tensor] = {}

    def before_experts(self, index: int, tensors: NodeTensors) -> Tensor:
        """Run segment ``index``, whose tensors lack only the router. Returns what its experts will see, ``[T,
        d]``.
        """
        weights = {name: tensor.float() for name, tensor in tensors.items()}
        family = FAMILIES[self.reader.family]
        # one expert, gate 1: the dense model itself
        numbers = self.reader.architecture.get("decoder", self.reader.architecture)
        weights["router.weight"] = torch.zeros(1, numbers["hidden_size"])
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

    def through_ffn(self, activations: Tensor, ffn: DenseFfn) -> None:
        """Go on with the dense FFN's output: the next layer is calibrated on the dense model's states.

        ``activations``: ``[tokens, neurons] float32``.
        """
        with torch.inference_mode():
            self._state["hidden"] = self._state["hidden"] + activations @ ffn.w_out.float().t()  # [T, d]

    def through_experts(self, x: Tensor, layer: int, converted: Converted, router: Router) -> None:
        """Go on with the output of the experts of ``layer``: the next is calibrated on the pipeline's own states.

        ``x``: ``[tokens, d] float32``, the experts' input.
        """
        family = FAMILIES[self.reader.family]
        route = RouterProgram(Linear(converted.segment["router.weight"].t(), converted.segment["router.bias"]), router)
        with torch.inference_mode():
            groups = dispatch(*route(x))
            outputs = []
            for expert, rows in zip(groups.experts, groups.scatter(x), strict=True):
                part = {name: tensor.float() for name, tensor in converted.experts[expert].items()}
                program = family.expert(Weights(part, "calibration"), self.reader.architecture, layer)
                outputs.append(program(rows))  # [m, d]
            self._state["hidden"] = groups.combine(self._state["hidden"], outputs)  # [T, d]


def activations_of(ffn: DenseFfn, x: Tensor, activation: str) -> Tensor:
    """What the neurons answer to ``x [T, d]``: ``[T, F]``."""
    act = ACTIVATIONS[activation]
    with torch.inference_mode():
        inner = x @ ffn.w_in.float().t() + ffn.b_in.float()  # [T, F]
        return act(inner) if ffn.w_gate is None else act(x @ ffn.w_gate.float().t()) * inner


def convert(
    ffn: DenseFfn, x: Tensor, activations: Tensor, *, experts: int, method: Method, seed: int, cluster: bool = True
) -> Converted:
    """One layer's FFN as ``experts`` experts. ``x [T, d]`` and ``activations [T, F]`` are the calibration's.

    Experts hold what ``expert_of`` gives, the segment's share is ``router.*``. Without ``cluster`` neurons are shared
    out in their order and the router is centred on the calibration: fast, and right where grouping cannot matter
    (every expert runs, or the weights are random). Raises CheckpointError.
    """
    if method == "full":
        copy = expert_of(ffn, torch.arange(ffn.w_in.shape[0]))
        return Converted({"router.weight": upcycle_router(x, experts, seed)}, [copy] * experts)
    if cluster:
        groups = split_neurons(ffn.w_in, ffn.b_in, ffn.w_out, experts, seed, activations)
    else:
        groups = neurons_in_order(ffn.w_in.shape[0], experts)
    weight, bias = initial_router(x, activation_mass(activations, ffn.w_out, groups))
    if not cluster:
        bias = -weight @ x.float().mean(0)
    parts = [expert_of(ffn, group) for group in groups.experts]
    return Converted({"router.weight": weight, "router.bias": bias}, parts)


def neurons_in_order(neurons: int, experts: int) -> Groups:
    """Runs of neighbouring neurons, sizes differing by at most one. Raises CheckpointError."""
    if neurons < experts:
        raise CheckpointError(f"{neurons} neurons cannot be {experts} experts; each needs at least one.")
    return Groups(tuple(torch.arange(neurons).tensor_split(experts)), torch.arange(0))


@dataclass(frozen=True)
class Adapter:
    """A trained adapter file (see ``moe.convert``): its tensors, and the router settings it was trained with.

    ``layers``: model layers that it gives experts to; None: all.
    """

    tensors: Mapping[str, Tensor]
    router: Router
    experts: int
    layers: tuple[int, ...] | None = None


def load_adapter(path: Path) -> Adapter:
    """Read an adapter. Raises CheckpointError for a file that is not one."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(metadata["smoe"])
        if about["version"] != ADAPTER_VERSION:
            raise CheckpointError(f"{path}: is an adapter of version {about['version']}, not {ADAPTER_VERSION}.")
        router = Router(**about["router"])
        experts = tensors["layers.0.router.weight"].shape[0]
        layers = about.get("layers")
        layers = None if layers is None else tuple(int(layer) for layer in layers)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: is not a readable adapter ({error!r}).") from error
    if not all(bool(torch.isfinite(tensor.float()).all()) for tensor in tensors.values()):
        raise CheckpointError(f"{path}: holds values that are not finite numbers.")
    return Adapter(tensors, router, experts, layers)

"""What every family's reader offers to the splitter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from moe.checkpoints.source import Source
from moe.errors import CheckpointError
from moe.manifest import Family, Router, Task

NodeTensors = dict[str, Tensor]


@dataclass(frozen=True)
class DenseFfn:
    """A dense layer's feed-forward network: ``act(x w_in^T + b_in) w_out^T + b_out``.

    ``w_in [F, d]``, ``b_in [F]``, ``w_out [d, F]``; the output's bias belongs to the segments. Gated, with ``w_gate
    [F, d]``: ``(act(x w_gate^T) * (x w_in^T + b_in)) w_out^T``.
    """

    w_in: Tensor
    b_in: Tensor
    w_out: Tensor
    w_gate: Tensor | None = None


class Reader(Protocol):
    """A proved checkpoint. ``layers`` counts MoE layers; segments are 0…layers."""

    family: Family
    task: Task
    architecture: dict[str, Any]
    layers: int
    special: dict[str, int]
    max_tokens: int

    def segment(self, index: int) -> NodeTensors:
        """Tensors of segment ``index`` under the families' names; of dense checkpoints without a router."""


class NativeReader(Reader, Protocol):
    """A checkpoint that is a mixture of experts already."""

    router: Router
    experts: int

    def expert(self, layer: int, expert: int) -> NodeTensors: ...


class DenseReader(Reader, Protocol):
    """A dense checkpoint: its feed-forward networks have to be converted."""

    def ffn(self, layer: int) -> DenseFfn: ...

    def activation(self, layer: int) -> str: ...


def first_of(source: Source, what: str, *prefixes: str) -> str:
    """The prefix under which ``what`` exists. Raises CheckpointError."""
    for prefix in prefixes:
        if source.has(prefix + what):
            return prefix
    raise CheckpointError(f"{source.where}: tensor {what!r} is missing; this is not a checkpoint of its model_type.")

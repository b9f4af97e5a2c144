"""Where training starts: the dense encoder from its checkpoint, neuron groups, first routers and biases."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moe.checkpoints.bert import BertReader
from moe.convert import Groups, initial_router, split_neurons
from moe.distil.student import Batch, DenseEncoder, Student, StudentLayer, dense_pass
from moe.errors import CheckpointError

ROUTER_SCALE = 2.0
"""First router logits have this standard deviation over tokens, which leaves its softmax room to learn."""


def encoder_of(reader: BertReader) -> DenseEncoder:
    """The checkpoint's tensors in float32. Raises CheckpointError for what the student does not compute."""
    numbers = reader.architecture
    if "padding_id" in numbers:
        raise CheckpointError(
            "Distillation takes BERT and DistilBERT; this is a RoBERTa, which counts positions otherwise."
        )
    if numbers["activation"] != "gelu" or numbers["pooling"] != "mean":
        raise CheckpointError(
            f"Distillation takes BERT encoders with gelu and mean pooling; this one has "
            f"{numbers['activation']} and {numbers['pooling']}."
        )
    layers = []
    first = reader.segment(0)
    for index in range(reader.layers):
        before, after, ffn = reader.segment(index), reader.segment(index + 1), reader.ffn(index)
        tensors = {name: t for name, t in before.items() if name.startswith("attention.")}
        tensors |= {name: t for name, t in after.items() if name.startswith("finish.")}
        tensors |= {"ffn.w_in.weight": ffn.w_in, "ffn.w_in.bias": ffn.b_in, "ffn.w_out.weight": ffn.w_out}
        layers.append({name: t.float().contiguous() for name, t in tensors.items()})
    return DenseEncoder(
        first["embed.words"].float(),
        first["embed.positions"].float(),
        first["embed.norm.weight"].float(),
        first["embed.norm.bias"].float(),
        layers,
        numbers["heads"],
        numbers["eps"],
    )


def observe(dense: DenseEncoder, batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor]]:
    """Per layer what the dense FFN sees and does on real tokens: ``[N, d]`` and ``[N, F]``."""
    pairs: list[list[tuple[Tensor, Tensor]]] = [[] for _ in dense.layers]
    with torch.inference_mode():
        for batch in batches:
            inner: list[tuple[Tensor, Tensor]] = []
            dense_pass(dense, batch, inner)
            real = batch.attended.flatten()
            for layer, (x, active) in enumerate(inner):
                pairs[layer].append((x[real], active[real]))
    return [(torch.cat([x for x, _ in parts]), torch.cat([a for _, a in parts])) for parts in pairs]


def start(
    dense: DenseEncoder,
    batches: Sequence[Batch],
    *,
    experts: int,
    top_k: int,
    shared: int,
    rank: int,
    seed: int,
) -> Student:
    """A student whose groups, routers and biases come from the dense model's behaviour on ``batches``.

    Each layer drops the experts that are not chosen; their mean output (where not chosen) goes into the
    layer's bias, and out of an expert's own bias, so that a choice replaces the mean by the real thing.
    """
    observed = observe(dense, batches)
    groups = [
        split_neurons(
            layer["ffn.w_in.weight"],
            layer["ffn.w_in.bias"],
            layer["ffn.w_out.weight"],
            experts,
            seed,
            active,
            shared,
        )
        for layer, (_, active) in zip(dense.layers, observed, strict=True)
    ]
    student = Student(dense, groups, top_k, rank, seed)
    with torch.no_grad():
        for module, (x, active) in zip(student.layers, observed, strict=True):
            layer: StudentLayer = module  # type: ignore[assignment]
            parts = outputs(active, layer.dense["ffn.w_out.weight"], layer.groups)  # [N, E, d]
            mean = parts.mean(0)  # [E, d]
            weight, bias = initial_router(x, (parts - mean).norm(dim=2))
            scale = ROUTER_SCALE / (x @ weight.t() + bias).std().clamp_min(1e-9)
            layer.router_weight.copy_(weight * scale)
            layer.router_bias.copy_(bias * scale)
            hard, _ = student.gates(layer, x)
            dropped = 1.0 - hard  # [N, E]
            absent = torch.einsum("ne,ned->ed", dropped, parts)  # [E, d]
            absent = absent / dropped.sum(0).clamp_min(1.0)[:, None]
            layer.expert_bias.copy_(-absent)
            layer.shift["finish-bias"].copy_(absent.sum(0))
    return student


def outputs(active: Tensor, w_out: Tensor, groups: Groups) -> Tensor:
    """Each expert's output: ``active [N, F]``, ``w_out [d, F]`` to ``[N, E, d]``."""
    return torch.stack([active[:, g] @ w_out[:, g].t() for g in groups.experts], 1)

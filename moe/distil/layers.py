"""Distillation of a decoder layer by layer: which layers bear experts best, and experts that follow the dense network.

What a layer's feed-forward part sees is computed once from the dense model; a layer then trains alone on it, at a
fraction of the cost of passes through the whole model. The loss is the squared error of what is added to the residual,
relative to the residual's size, as the norm that follows divides by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe.distil.decoder import DenseDecoder
from moe.distil.mixture import Mixture, mixture_of
from moe.distil.train import factor


@dataclass(frozen=True)
class DecoderRecipe:
    """Settings of a decoder's distillation. ``layers``: how many get experts, the least sensitive
    ones, or with ``at`` these; ``tokens`` that each layer's experts
    are made from, in texts of ``length``; ``rounds`` of gradient steps over them; ``joint``: tokens of passes through
    the whole model at the end.

    ``collapse`` weighs the loss that starts where an expert's share of the tokens falls below ``floor``.
    """

    layers: int = 10
    at: tuple[int, ...] = ()
    experts: int = 4
    top_k: int = 2
    shared: int = 768
    rank: int = 48
    seed: int = 0
    length: int = 128
    tokens: int = 2048
    rounds: int = 0
    batch_tokens: int = 512
    rate: float = 2e-3
    joint: int = 0
    joint_rate: float = 5e-4
    collapse: float = 1.0
    floor: float = 0.02
    warmup: float = 0.05


@dataclass(frozen=True)
class LayerStep:
    """What a progress display may show: share of all training done, and the loss of this batch."""

    done: float
    loss: float


def expert_inputs(dense: DenseDecoder, ids: Tensor, layers: Sequence[int]) -> dict[int, Tensor]:
    """State before the feed-forward part of each of ``layers``, ``[B·L, d]``, of the texts ``ids [B, L]``."""
    parts: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    # no inference mode: tables of positions are kept, and of a batch of one text the gradient goes through them
    with torch.no_grad():
        for begin in range(0, len(ids), 8):
            states = dense.residuals(ids[begin : begin + 8])
            for layer in layers:
                parts[layer].append(states[layer])
    return {layer: torch.cat(some) for layer, some in parts.items()}


def sensitivity(
    dense: DenseDecoder, ids: Tensor, states: Mapping[int, Tensor], make: Callable[[int, Tensor], Mixture]
) -> dict[int, float]:
    """How much the mean loss on ``ids [B, L]`` grows, in nats a token, with untrained experts in one layer alone.

    ``states``: from ``expert_inputs`` of other texts, what groups and first routers come from; ``make`` builds a
    layer's experts from its normalised states ``[T, d]``.
    """
    with torch.no_grad():
        residuals = dense.residuals(ids)
        whole = dense.loss(ids, residuals[-1])
    grown = {}
    for layer, state in sorted(states.items()):
        mixture = make(layer, dense.blocks[layer].norm(state))
        with torch.no_grad():
            last = dense.onward(ids, layer, residuals[layer], {layer: mixture})
            grown[layer] = float(dense.loss(ids, last) - whole)
    return grown


def maker(dense: DenseDecoder, recipe: DecoderRecipe) -> Callable[[int, Tensor], Mixture]:
    """Builds the experts of a layer from its normalised states ``[T, d]``."""

    def make(layer: int, x: Tensor) -> Mixture:
        return mixture_of(
            dense.ffns[layer],
            x,
            experts=recipe.experts,
            top_k=recipe.top_k,
            shared=recipe.shared,
            rank=recipe.rank,
            seed=recipe.seed + layer,
        )

    return make


def layer_loss(mixture: Mixture, dense: DenseDecoder, layer: int, residual: Tensor, recipe: DecoderRecipe) -> Tensor:
    """Loss of one layer on the states ``residual [T, d]`` before its feed-forward part; 0 where nothing is lost."""
    block = dense.blocks[layer]
    with torch.no_grad():
        x = block.norm(residual)  # [T, d]
        y = block.ffn(x)  # [T, d]
        size = (residual + y).square().sum(1)  # [T]
    error = ((mixture(x) - y).square().sum(1) / size).mean()
    loss: Tensor = error + recipe.collapse * (recipe.floor - mixture.share).clamp_min(0.0).sum()
    return loss


def train_layer(
    mixture: Mixture,
    dense: DenseDecoder,
    layer: int,
    states: Tensor,
    recipe: DecoderRecipe,
    progress: Callable[[float, float], None] = lambda done, loss: None,
) -> list[float]:
    """Adam over ``states [T, d]`` in random batches; returns each batch's loss."""
    optimizer = torch.optim.AdamW(mixture.parameters(), recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)
    generator = torch.Generator().manual_seed(recipe.seed + layer)
    batches = [
        part
        for _ in range(recipe.rounds)
        for part in torch.randperm(len(states), generator=generator).chunk(-(-len(states) // recipe.batch_tokens))
    ]
    losses = []
    for step, rows in enumerate(batches):
        done = step / len(batches)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * factor(done, recipe.warmup)
        loss = layer_loss(mixture, dense, layer, states[rows].float(), recipe)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(mixture.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        progress(done, losses[-1])
    return losses


def train_jointly(
    mixtures: Mapping[int, Mixture],
    dense: DenseDecoder,
    ids: Tensor,
    recipe: DecoderRecipe,
    progress: Callable[[float, float], None] = lambda done, loss: None,
) -> list[float]:
    """All layers together: the sparse model's next-token distribution follows the dense model's on ``ids [B, L]``.

    Loss: Kullback-Leibler divergence in nats a token. Up to the first layer with experts both models are the same.
    """
    parameters = [parameter for mixture in mixtures.values() for parameter in mixture.parameters()]
    optimizer = torch.optim.AdamW(parameters, recipe.joint_rate, betas=(0.9, 0.98), weight_decay=0.0)
    texts = ids[: math.ceil(recipe.joint / ids.shape[1])]
    batches = texts.chunk(math.ceil(texts.numel() / recipe.batch_tokens))
    first, losses = min(mixtures), []
    for step, batch in enumerate(batches):
        done = step / len(batches)
        for group in optimizer.param_groups:
            group["lr"] = recipe.joint_rate * factor(done, recipe.warmup)
        with torch.no_grad():
            states = dense.residuals(batch, first=first)
            teacher = dense.logits(states[-1]).log_softmax(-1)  # [T, vocab]
        student = dense.logits(dense.onward(batch, first, states[0], mixtures)).log_softmax(-1)
        shares = torch.stack([mixture.share for mixture in mixtures.values()])  # [layers, E]
        loss = (teacher.exp() * (teacher - student)).sum(-1).mean()
        optimizer.zero_grad(set_to_none=True)
        whole = loss + recipe.collapse * (recipe.floor - shares).clamp_min(0.0).sum()
        whole.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(loss.item())
        progress(done, losses[-1])
    return losses

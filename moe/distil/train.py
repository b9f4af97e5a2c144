"""The training loop: the student follows the dense model on texts, no labels needed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe.distil.student import Batch, DenseEncoder, Pass, Student, dense_pass

Ids = Sequence[int]


@dataclass(frozen=True)
class Recipe:
    """Settings of a distillation. ``tokens``: length of training in (padded) tokens; ``crop``: longest text,
    in tokens. ``hidden``: weight of the hidden states' loss relative to the embedding's; ``collapse``: weight of
    the loss that starts where an expert's share of the tokens falls below ``floor``.
    """

    experts: int = 4
    top_k: int = 2
    shared: int = 640
    rank: int = 36
    seed: int = 0
    tokens: int = 700_000
    batch_tokens: int = 640
    crop: int = 96
    rate: float = 1.5e-3
    hidden: float = 0.5
    collapse: float = 1.0
    floor: float = 0.02
    warmup: float = 0.03


@dataclass(frozen=True)
class Step:
    """What a progress display may show: share of training done, and the loss and cosine of this batch."""

    done: float
    loss: float
    cosine: float


def batches(texts: Sequence[Ids], recipe: Recipe, seed: int) -> list[Batch]:
    """Texts cut at random to mixed lengths and batched with others of like length, in random order.

    Half of the texts are cut to a random length (at least 5 tokens, begin and end marks kept), the rest only
    where longer than ``crop``.
    """
    rng = random.Random(seed)
    cut = [_cut(text, recipe.crop, rng) for text in texts]
    rng.shuffle(cut)
    result: list[Batch] = []
    pool = 2048
    for begin in range(0, len(cut), pool):
        part = sorted(cut[begin : begin + pool], key=len)
        while part:
            size = max(1, recipe.batch_tokens // len(part[-1]))
            result.append(Batch.of(part[-size:]))
            del part[-size:]
    rng.shuffle(result)
    return result


def _cut(text: Ids, crop: int, rng: random.Random) -> list[int]:
    inner = list(text[1:-1])
    room = crop - 2
    if rng.random() < 0.5 and len(inner) > 5:
        room = rng.randint(4, min(len(inner), room))
    begin = rng.randint(0, len(inner) - room) if len(inner) > room else 0
    return [text[0], *inner[begin : begin + room], text[-1]]


def loss_of(student: Pass, teacher: Pass, attended: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Loss and mean cosine (scalars), of ``attended`` ``[B, L] bool``. Zero when the student is the teacher.

    ``(1 - cosine) + hidden · relative squared error of the hidden states, mean over layers + collapse · …``.
    """
    cosine = (student.embedding * teacher.embedding).sum(1).mean()
    error = torch.stack(
        [
            (mine[attended] - theirs[attended]).square().sum() / theirs[attended].square().sum()
            for mine, theirs in zip(student.hidden, teacher.hidden, strict=True)
        ]
    ).mean()
    real = attended.flatten()
    shares = torch.stack([desired[real].mean(0) for desired in student.desired])  # [layers, E]
    collapse = (recipe.floor - shares).clamp_min(0.0).sum()
    return (1.0 - cosine) + recipe.hidden * error + recipe.collapse * collapse, cosine


def train(
    student: Student,
    dense: DenseEncoder,
    work: Sequence[Batch],
    recipe: Recipe,
    progress: Callable[[Step], None] | None = None,
) -> list[Step]:
    """Adam with warm-up and cosine decay over ``work`` until ``recipe.tokens``; returns each step."""
    optimizer = torch.optim.AdamW(student.parameters(), recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)
    done, steps = 0, []
    while done < recipe.tokens:
        for batch in work:
            share = done / recipe.tokens
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate * factor(share, recipe.warmup)
            with torch.no_grad():
                teacher = dense_pass(dense, batch)
            loss, cosine = loss_of(student(batch), teacher, batch.attended, recipe)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            done += batch.ids.numel()
            steps.append(Step(min(1.0, done / recipe.tokens), loss.item(), cosine.item()))
            if progress is not None:
                progress(steps[-1])
            if done >= recipe.tokens:
                break
    return steps


def factor(share: float, warmup: float) -> float:
    """Learning rate at ``share`` of training, relative to the highest: linear up, then half a cosine down."""
    if share < warmup:
        return (share + 1e-3) / (warmup + 1e-3)
    return 0.02 + 0.98 * 0.5 * (1.0 + math.cos(math.pi * (share - warmup) / (1.0 - warmup)))

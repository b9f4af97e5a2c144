"""Small pipelines, their Φ and random states, for the tests of the networks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rl.agent.contract import CONFIGURATION_FEATURES, Amounts, Batch, Space, State
from rl.agent.settings import NetworkSettings

F, G = 7, 5


def make_space(
    experts: Sequence[int] = (3, 2),
    memories: int = 6,
    cores: Sequence[float] = (1.0, 3.0),
    shares: Sequence[float] = (0.2, 1.0),
    replicas: int = 4,
    concurrencies: int = 3,
) -> Space:
    """Φ with prices that add up, and a layered pipeline with ``experts[i]`` experts in layer i."""
    resources = [(core, 0.0) for core in cores] + [(0.0, share) for share in shares]
    table = torch.zeros(memories, len(resources), len(CONFIGURATION_FEATURES))
    for m in range(memories):
        for r, (core, share) in enumerate(resources):
            size = (m + 1) / memories
            price = 0.1 * size + 0.1 * core + 0.5 * share
            table[m, r] = torch.tensor(
                [2 * size - 1, core / 6, share, float(share > 0), 0, 0, price, -0.3 * (core + 25 * share) ** 0.3]
            )
    mask = torch.arange(max(experts)) < torch.tensor(experts).unsqueeze(-1)
    edges, node = [], len(experts) + 1
    for layer, count in enumerate(experts):
        for expert in range(node, node + count):
            edges += [(layer, expert), (expert, layer + 1)]
        node += count
    return Space(
        mask,
        table,
        torch.arange(1, replicas + 1) / 8,
        torch.arange(1, concurrencies + 1) / 10,
        tuple(edges),
        Amounts(
            torch.tensor([(core, 10 * share) for core, share in resources]),
            64.0 * torch.arange(1, memories + 1),
            torch.arange(1.0, replicas + 1),
        ),
    )


def make_states(space: Space, count: int, seed: int = 0, features: tuple[int, int] = (F, G)) -> list[State]:
    """Random states; the memory that Eq. (2) asks for falls with the replicas, and is too much in some places."""
    random = np.random.default_rng(seed)
    layers, experts = space.mask.shape
    memories, resources, counts, concurrencies = space.sizes
    there = space.mask.numpy()
    states = []
    for _ in range(count):
        axes = [random.integers(0, size, (layers, experts)) for size in (memories, resources, counts, concurrencies)]
        need = np.sort(random.integers(0, memories + 2, (layers, experts, counts)), -1)[..., ::-1]
        states.append(
            State(
                segments=random.uniform(-1, 1, (layers + 1, features[0])).astype(np.float32),
                experts=(random.uniform(-1, 1, (layers, experts, features[0])) * there[..., None]).astype(np.float32),
                pipeline=random.uniform(-1, 1, features[1]).astype(np.float32),
                present=(np.stack(axes, -1) * there[..., None]).astype(np.int16),
                least_memory=np.minimum(need, memories).astype(np.int16),
            )
        )
    return states


def make_batch(space: Space, count: int = 3, seed: int = 0, features: tuple[int, int] = (F, G)) -> Batch:
    return Batch.of(space, make_states(space, count, seed, features))


def random_actions(batch: Batch, seed: int = 0) -> torch.Tensor:
    """[B, n, K, 4] anywhere in Φ, padding 0."""
    generator = torch.Generator().manual_seed(seed)
    shape = batch.present.shape[:3]
    axes = [torch.randint(0, size, shape, generator=generator) for size in batch.space.sizes]
    return torch.stack(axes, -1) * batch.space.mask.unsqueeze(-1)


def make_settings(arm: str = "full", **sizes: int) -> NetworkSettings:
    small = {"width": 16, "hidden": 16, "rank": 8, "joint_hidden": 8, "candidates": 24, "layers": 3, "experts": 4}
    return NetworkSettings(F, G, arm=arm, **{**small, **sizes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(7)

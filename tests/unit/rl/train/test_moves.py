"""Changes of decisions: inside Φ, lawful, and of the scope they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.agent.configuration_table import PRICE
from rl.agent.contract import Batch
from rl.agent.ddpg.exploration_moves import SCOPES, Scope, mixed, moves, resources_by_price
from tests.unit.rl.train import world


def batch_of(least: np.ndarray) -> Batch:
    """Two layers of three experts, with ``least`` [2, 3, P] as Eq. (2)."""
    space = replace(world.space(), mask=torch.ones(2, 3, dtype=torch.bool))
    batch = Batch.of(world.space(), [world.state_of(world.LOADS[:2])] * 4)
    return replace(batch, space=space, least_memory=torch.from_numpy(least).expand(4, 2, 3, 3))


@given(st.integers(0, 2**31), st.sampled_from(SCOPES))
def test_changes_stay_inside_phi_and_satisfy_eq_2(seed: int, scope: Scope) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_of(np.sort(rng.integers(0, 3, (2, 3, 3)))[..., ::-1].copy())
    replicas = (batch.least_memory < 2).float().argmax(-1)  # the first count that a memory is enough for
    base = torch.stack((torch.ones_like(replicas), *(torch.zeros_like(replicas),) * 3), -1)
    base[..., 2] = replicas
    moved = moves(batch, base, scope, 5, torch.Generator().manual_seed(seed))
    assert (moved >= 0).all() and (moved < torch.tensor(batch.space.sizes)).all()
    least = batch.least_memory.expand(5, -1, -1, -1, -1).gather(-1, moved[..., 2:3]).squeeze(-1)
    assert ((moved[..., 0] >= least) | (moved == base).all(-1)).all()


def test_an_expert_moves_on_one_axis_or_on_resource_and_replicas_against_each_other() -> None:
    batch = batch_of(np.zeros((2, 3, 3), dtype=np.int64))
    base = torch.zeros(4, 2, 3, 4, dtype=torch.long)
    base[..., 2] = 1
    moved = moves(batch, base, "expert", 300, torch.Generator().manual_seed(0))
    resource, replicas, concurrency = ((moved != base)[..., axis].flatten() for axis in (1, 2, 3))
    for axis, others in ((resource, replicas | concurrency), (replicas, resource | concurrency)):
        assert (axis & ~others).any()
    assert (concurrency & ~(resource | replicas)).any() and not (concurrency & replicas).any()
    assert (resource & replicas).any()


@pytest.mark.parametrize("scope", ["layer", "window"])
def test_experts_of_a_scope_move_together_from_the_most_or_the_least_loaded_on(scope: Scope) -> None:
    batch = batch_of(np.zeros((2, 3, 3), dtype=np.int64))
    experts = torch.zeros(4, 2, 3, world.NODE)
    experts[..., world.AT["load_peak_5"]] = torch.tensor([[0.1, 0.9, 0.5], [0.7, 0.2, 0.4]])
    base = torch.zeros(4, 2, 3, 4, dtype=torch.long)
    changes = moves(replace(batch, experts=experts), base, scope, 200, torch.Generator().manual_seed(0))
    moved = (changes != base).any(-1)
    seen = set()
    for layer, order in enumerate(([1, 2, 0], [0, 2, 1])):  # the most loaded first
        seen |= {tuple(row) for row in moved[:, :, layer][..., order].flatten(0, 1).tolist()}
    t, f = True, False
    assert seen == {(f, f, f), (t, t, t), (t, f, f), (t, t, f), (f, f, t), (f, t, t)}
    for layer in range(2):
        own, who = changes[:, :, layer].flatten(0, 1), moved[:, :, layer].flatten(0, 1)
        assert all(len({tuple(row) for row in one[those].tolist()}) <= 1 for one, those in zip(own, who, strict=True))


def test_resources_are_those_that_none_cheaper_is_as_fast_as() -> None:
    space = world.space()
    table = space.resource_memory[:, [2, 0, 1, 1]].clone()  # the dearest first; the last as fast as the third, dearer
    table[:, 3, PRICE] += 0.1
    efficient, rank = resources_by_price(replace(space, resource_memory=table))
    assert efficient.tolist() == [1, 2, 0]
    assert rank.tolist() == [2, 0, 1, 1]


def test_a_mixture_takes_whole_layers() -> None:
    base, moved = torch.zeros(4, 2, 3, 4), torch.ones(60, 4, 2, 3, 4)
    mixture = mixed(base, moved, 0.3, torch.Generator().manual_seed(1))
    by_layer = mixture.mean((-1, -2))
    assert ((by_layer == 0) | (by_layer == 1)).all()
    assert 0.2 < by_layer.mean() < 0.4

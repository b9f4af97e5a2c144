"""The critic of whole windows: counterfactuals against playing each one, and a latency it has to learn."""

from __future__ import annotations

import numpy as np
import torch

from rl.agent.contract import Batch
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.window_critic import WindowCritic, _largest_beside
from rl.agent.lattice import features_of
from tests.unit.train import world
from tests.unit.train.test_buffer import filled


def batch_of(count: int) -> Batch:
    rng = np.random.default_rng(2)
    return Batch.of(world.space(), [world.state_of(rng.choice(world.LOADS, 2)) for _ in range(count)])


def test_counterfactuals_are_the_critics_own_values_with_one_expert_changed() -> None:
    torch.manual_seed(0)
    critic, batch = WindowCritic(world.networks(), LearnerSettings()), batch_of(5)
    draw = torch.Generator().manual_seed(1)
    shape = (5, 2, 1)
    sizes = torch.tensor([2, 3, 3, 2])
    actions, other = ((torch.rand(*shape, 4, generator=draw) * sizes).long() for _ in range(2))
    features, others = features_of(batch.space, actions), features_of(batch.space, other)
    found = critic.counterfactuals(batch, features, others[None], world.UNIT)[0]
    for expert in range(2):
        changed = features.clone()
        changed[:, expert, 0] = others[:, expert, 0]
        wanted = critic.value(batch, changed, actions, world.UNIT)
        assert torch.allclose(found[:, expert, 0], wanted, atol=1e-5)


def test_known_costs_are_exact_and_quantiles_rise() -> None:
    critic, buffer = WindowCritic(world.networks(), LearnerSettings()), filled(9)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    features = features_of(samples.observations.space, samples.actions)
    found = critic(samples.observations, features)
    costs = critic.costs(samples.observations, features, found, samples.unit)
    assert torch.allclose(costs, samples.rewards)
    assert (found.p95.diff(dim=-1) > 0).all()


def test_it_learns_how_long_a_window_takes() -> None:
    torch.manual_seed(0)
    learner = LearnerSettings(gamma=0.0)
    critic, buffer = WindowCritic(world.networks(), learner), filled(60)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    optimizer = torch.optim.Adam(critic.parameters(), 3e-3)
    off = []
    for _ in range(300):
        loss, named = critic.loss(samples, torch.zeros(60))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        off.append(named["critic_p95_off"])
    assert off[-1] < 0.3 * off[0]


def test_the_largest_beside_each_leaves_it_out() -> None:
    values = torch.tensor([[3.0], [5.0], [5.0], [1.0]])
    assert _largest_beside(values).flatten().tolist() == [5.0, 5.0, 5.0, 5.0]
    assert _largest_beside(values[[0, 1, 3]]).flatten().tolist() == [5.0, 3.0, 5.0]

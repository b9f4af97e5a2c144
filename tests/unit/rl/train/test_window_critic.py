"""The critic of whole windows: counterfactuals against playing each one, and a latency it has to learn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rl.agent.configuration_table import features_of
from rl.agent.contract import Batch
from rl.agent.ddpg.buffer import BranchStep
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.window_critic import WindowCritic, largest_of_others
from tests.unit.rl.train import world
from tests.unit.rl.train.test_buffer import empty, filled


def batch_of(count: int) -> Batch:
    rng = np.random.default_rng(2)
    return Batch.of(world.space(), [world.state_of(rng.choice(world.LOADS, 2)) for _ in range(count)])


@pytest.mark.parametrize("busy", [False, True])
def test_values_of_a_change_are_the_critics_own_of_the_window_with_it(busy: bool) -> None:
    torch.manual_seed(0)
    critic, batch = WindowCritic(world.networks(), LearnerSettings(busy_meter=busy)), batch_of(5)
    for part in (critic.latency, critic.barrier, critic.busy):
        torch.nn.init.normal_(part.weight, std=0.3)
    draw = torch.Generator().manual_seed(1)
    shape = (5, 2, 1)
    sizes = torch.tensor([2, 3, 3, 2])
    actions, other = ((torch.rand(*shape, 4, generator=draw) * sizes).long() for _ in range(2))
    features, others = features_of(batch.space, actions), features_of(batch.space, other)
    known = critic.embedded_experts(batch)
    by_expert = critic.of_experts(batch, known, features, others[None], world.UNIT)[0]
    by_layer = critic.of_layers(batch, known, features, others[None], world.UNIT)[0]
    for layer in range(2):
        changed = features.clone()
        changed[:, layer] = others[:, layer]
        wanted = critic.value(batch, changed, world.UNIT)
        assert torch.allclose(by_expert[:, layer, 0], wanted, atol=1e-4)
        assert torch.allclose(by_layer[:, layer], wanted, atol=1e-4)
    together = critic.of_windows(batch, known, others[None], world.UNIT)[0]
    assert torch.allclose(together, critic.value(batch, others, world.UNIT), atol=1e-4)


def test_before_it_has_learnt_a_pass_takes_as_long_as_its_calls() -> None:
    critic, batch = WindowCritic(world.networks(), LearnerSettings()), batch_of(3)
    actions = torch.zeros(3, 2, 1, 4, dtype=torch.long)
    actions[:, 0, 0, 1], actions[:, 1, 0, 1] = 0, 2
    _, layers, experts = critic(batch, features_of(batch.space, actions))
    seconds = torch.tensor([world.SECONDS[0], world.SECONDS[2]])
    assert torch.allclose(experts.p95.exp()[..., 0], seconds.float().expand(3, 2), rtol=1e-4)
    assert torch.allclose(layers.barrier.exp(), seconds.float().expand(3, 2), rtol=1e-4)


def test_known_costs_are_exact_and_quantiles_rise() -> None:
    critic, buffer = WindowCritic(world.networks(), LearnerSettings()), filled(9)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    features = features_of(samples.observations.space, samples.actions)
    found, layers, _ = critic(samples.observations, features)
    costs = critic.costs(samples.observations, features, layers, samples.unit)
    assert torch.allclose(costs, samples.rewards)
    assert (found.p95.diff(dim=-1) > 0).all()


@pytest.mark.slow
def test_it_learns_how_long_a_window_takes() -> None:
    torch.manual_seed(0)
    learner = LearnerSettings(gamma=0.0)
    critic, buffer = WindowCritic(world.networks(), learner), filled(60)
    samples = buffer.stack(world.NAME, buffer.rings[world.NAME])
    optimizer = torch.optim.Adam(critic.parameters(), 6e-3)
    off = []
    for _ in range(100):
        loss, named = critic.loss(samples, torch.zeros(60))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        off.append(named["critic_p95_off"])
    assert off[-1] < 0.3 * off[0]


@pytest.mark.slow
def test_it_learns_what_a_change_does_where_nothing_else_can_be_known() -> None:
    """P95 is noise of a window, the same for its branches, times 3 where the first expert has its first resource."""
    torch.manual_seed(0)
    rng, buffer = np.random.default_rng(4), empty()
    for step in filled(60).rings[world.NAME]:
        noise, branches = float(np.exp(rng.normal())), []
        for resource in (0, 1):
            executed = step.executed.copy()
            executed[0, 0, 1] = resource
            branches.append(BranchStep(executed, step.rewards, noise * (3.0 if resource == 0 else 1.0)))
        buffer.add(replace(step, executed=branches[1].executed, p95=noise, branches=tuple(branches)))
    critic = WindowCritic(world.networks(), LearnerSettings())
    optimizer = torch.optim.Adam(critic.parameters(), 6e-3)
    for draw in range(125):
        loss, _ = critic.loss(buffer.sample(32, draw=draw), torch.zeros(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    samples = buffer.sample(64, draw=999)
    features = features_of(samples.observations.space, samples.actions)
    first = samples.actions[:, 0, 0, 1] == 0
    predicted = critic(samples.observations, features)[0].p95.mean(-1).detach()
    assert float(predicted[first].mean() - predicted[~first].mean()) == pytest.approx(np.log(3), rel=0.25)


def test_the_largest_beside_each_leaves_it_out() -> None:
    values = torch.tensor([[3.0], [5.0], [5.0], [1.0]])
    assert largest_of_others(values).flatten().tolist() == [5.0, 5.0, 5.0, 5.0]
    assert largest_of_others(values[[0, 1, 3]]).flatten().tolist() == [5.0, 3.0, 5.0]

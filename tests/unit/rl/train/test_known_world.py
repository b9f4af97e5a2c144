"""The whole learner on a pipeline whose best decisions are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from rl.agent.contract import Batch
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.exploration import decide, with_random
from rl.agent.ddpg.settings import LearnerSettings
from rl.train.parallel_episodes import simulate_all
from tests.unit.rl.train import world

pytestmark = pytest.mark.slow

SETTINGS = {
    "slo_weight": 60.0,
    "actor_rate": 3e-3,
    "critic_rate": 3e-3,
    "actor_from": 300,
    "policy_delay": 1,
    "batch_windows": 16,
    "alternatives": 12,
}


def learnt(learner: LearnerSettings, windows: int, seed: int = 0) -> PipelineDDPG:
    agent = PipelineDDPG(world.networks(), learner, seed=seed)
    agent.set_logger(Logger(None, []))
    tiny = world.space()
    agent.replay_buffer.register(world.NAME, tiny, world.UNIT)
    rng = np.random.default_rng(seed)

    def explore(episodes: list, states: list) -> list:
        temperature, share = learner.explored(agent.done)
        decided = decide(agent.actor.network, Batch.of(tiny, states), temperature, int(rng.integers(2**31)))
        mask = tiny.mask.numpy()
        return [with_random(one, s, tiny.sizes, mask, share, rng) for one, s in zip(decided, states, strict=True)]

    episodes = [
        world.TinyEpisode(windows // 8, np.random.default_rng((seed, episode_number))) for episode_number in range(8)
    ]
    for row in simulate_all(episodes, explore):
        for simulated in row:
            agent.replay_buffer.add(
                world.window(world.loads_of(simulated.state), simulated.outcome.executed, simulated.following)
            )
            agent.num_timesteps += 1
        agent.progress(agent.num_timesteps / windows)
        agent.train(4)
    return agent


@pytest.mark.timeout(1800)
def test_decisions_of_two_experts_keep_the_slo_at_near_the_least_cost() -> None:
    learner = LearnerSettings(random_share=(0.5, 0.1), exploration=0.8, **SETTINGS)  # type: ignore[arg-type]
    agent = learnt(learner, 1600)
    pairs = [np.array(pair) for pair in itertools.product(world.LOADS, repeat=2)]
    batch = Batch.of(world.space(), [world.state_of(pair) for pair in pairs])
    decided = decide(agent.actor.network, batch)
    late = [world.p95_of(pair, actions) > 1 for pair, actions in zip(pairs, decided, strict=True)]
    cost = sum(world.cost_of(actions) for actions in decided)
    assert not any(late)
    assert cost <= 1.5 * sum(world.best_cost(pair) for pair in pairs)
    assert torch.isfinite(torch.cat([p.flatten() for p in agent.policy.parameters()])).all()

"""The paper's agent under stable-baselines3: the environment's vectors, the arg max, and the library's own learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import DDPG
from stable_baselines3.common.env_checker import check_env

from autoscaler.contract import Configuration, ConfigurationSpace
from rl.agent.configuration_table import features_of
from rl.episodes.sizes import resized
from rl.paper_agent import NUMBERS, PaperPolicy, Stepwise, batch_of, paper_networks
from rl.reward import RewardSettings
from simulation.workloads.paper import paper_workload

SPACE = ConfigurationSpace(
    gpu_shares=(), memory_min_mb=512, memory_max_mb=1024, memory_step_mb=256, replicas_max=3, concurrency_max=4
)
NO_TRACES = Path(__file__).parent


def stepwise(**settings: object) -> Stepwise:
    """Two layers of three experts."""
    workload = replace(resized(paper_workload("bert-4"), 2, 3, seed=0), space=SPACE)
    return Stepwise(
        gymnasium.make(
            "rl.env:smoe/Pipeline-v0", workload=workload, pattern="normal", mean_rps=5.0, seconds=120.0,
            world="cores-only", relative_slo=4.0, start=Configuration(512, 4.0, 0.0, 2, 4), data=NO_TRACES, **settings,
        )
    )  # fmt: skip


def agent_of(env: Stepwise, **settings: object) -> DDPG:
    given = {"learning_starts": 8, "batch_size": 8, "gamma": 0.9, "seed": 0, **settings}
    sizes = {"width": 8, "hidden": 8, "dagnn_layers": 1}
    return DDPG(PaperPolicy, env, policy_kwargs=paper_networks(env, **sizes), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def env() -> Stepwise:
    return stepwise()


def test_the_library_accepts_the_environment(env: Stepwise) -> None:
    check_env(env)


@given(seed=st.integers(0, 10_000))
def test_features_of_configurations_are_these_configurations(env: Stepwise, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = np.stack([rng.integers(0, size, 3) for size in env.graph.sizes], -1)
    features = features_of(env.graph, torch.from_numpy(positions)[None])[0].numpy()
    assert np.abs(features).max() <= 1
    assert np.array_equal(env.positions(features.ravel()), positions.ravel())


@pytest.mark.slow
def test_what_the_policy_predicts_is_the_arg_max_of_the_layer(env: Stepwise) -> None:
    agent = agent_of(env)
    observed, _ = env.reset(seed=1)
    for layer in (0, 1, 0):
        action, _ = agent.predict(observed, deterministic=True)  # type: ignore[arg-type]
        tensors, _ = agent.policy.obs_to_tensor(observed)  # type: ignore[arg-type]
        batch, decided, at = batch_of(env.graph, tensors)  # type: ignore[arg-type]
        wanted = agent.policy.actor.network.scores(batch, decided).best().view(1, 2, 3, 4)[0, layer]  # type: ignore[union-attr]
        assert int(at) == layer and action.size == 3 * NUMBERS
        assert np.array_equal(env.positions(action), wanted.numpy().ravel())
        observed, *_ = env.step(action)


@pytest.mark.slow
def test_the_library_s_own_learning_moves_actor_and_critic(env: Stepwise, tmp_path: Path) -> None:
    agent = agent_of(env)
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    agent.learn(24)
    moved = {name for name, value in agent.policy.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.partition(".")[0] for name in moved} == {"actor", "actor_target", "critic", "critic_target"}
    assert any("dagnn" in name for name in moved) and any("pointer" in name for name in moved)
    agent.save(tmp_path / "agent")
    again = DDPG.load(tmp_path / "agent")
    observed, _ = env.reset(seed=2)
    actions = [one.predict(observed, deterministic=True)[0] for one in (agent, again)]  # type: ignore[arg-type]
    assert np.array_equal(*(env.positions(action) for action in actions))


@pytest.mark.slow
def test_where_only_cost_counts_it_learns_the_cheapest() -> None:
    env = stepwise(settings=RewardSettings(slo_weight=1e-6))
    agent = agent_of(env, learning_starts=60, learning_rate=3e-3, batch_size=8)
    agent.learn(240)
    observed, _ = env.reset(seed=3)
    action, _ = agent.predict(observed, deterministic=True)  # type: ignore[arg-type]
    chosen = env.positions(action).reshape(3, 4)
    assert chosen[:, 1].max() == 0 and chosen[:, 2].max() == 0


@pytest.mark.slow
def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[4] / "docs/training.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert "learn(3000" in example and "learning_starts=200" in example
    short = example.replace("learn(3000", "learn(12").replace("learning_starts=200", "learning_starts=4")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(short, names)
    assert names["model"].num_timesteps == 12

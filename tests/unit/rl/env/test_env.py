"""The Gymnasium environment: both checkers, determinism, masks, rewards, and what it shows of earlier decisions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as check_sb3

import rl.env  # noqa: F401 (registers the environment)
from autoscaler.decision.limits import memory_need
from rl.agent.contract import CONFIGURATION_FEATURES
from rl.env import PipelineEnv
from tests.unit.rl.env.builders import START

NO_TRACES = Path(__file__).parent
SETTINGS: dict[str, Any] = {"workload": "bert-4", "seconds": 120.0, "mean_rps": 2.0, "start": START, "data": NO_TRACES}


def made(**more: Any) -> PipelineEnv:
    """By its name, as users do."""
    found = gymnasium.make("smoe/Pipeline-v0", disable_env_checker=True, **{**SETTINGS, **more}).unwrapped
    assert isinstance(found, PipelineEnv)
    return found


@pytest.mark.slow
def test_gymnasium_s_checker_passes() -> None:
    check_env(made(), skip_render_check=True)


def test_the_checker_of_stable_baselines_passes_without_a_warning() -> None:
    check_sb3(made(), warn=True)


def trajectory(seed: int, steps: int = 24) -> tuple[list[float], list[Any]]:
    env = made()
    seen = [env.reset(seed=seed)[0]]
    env.action_space.seed(seed)
    rewards = []
    for _ in range(steps):
        observed, reward, _, _, _ = env.step(env.action_space.sample())
        seen.append(observed)
        rewards.append(reward)
    return rewards, seen


@pytest.mark.slow
def test_the_same_seed_gives_the_same_trajectory_and_another_seed_another() -> None:
    first, second, other = trajectory(3), trajectory(3), trajectory(4)
    assert first[0] == second[0] != other[0]
    for one, two in zip(first[1], second[1], strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], two[key])


def test_an_episode_is_truncated_after_its_windows_and_never_terminated() -> None:
    env = made()
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(3 * 12)]
    assert ends == [(False, False)] * 35 + [(False, True)]
    with pytest.raises(RuntimeError, match="has ended"):
        env.step(env.action_space.sample())


def test_rewards_of_the_layers_are_those_of_the_window() -> None:
    env = made()
    env.reset(seed=1)
    env.action_space.seed(1)
    for _ in range(3):
        rewards = [env.step(env.action_space.sample())[1] for _ in range(12)]
        np.testing.assert_allclose(rewards, env.episode.outcome.reward, rtol=1e-9)


def test_what_was_decided_for_earlier_layers_is_seen_by_later_ones_and_only_then() -> None:
    env = made()
    observed, _ = env.reset(seed=2)
    assert not observed["decided"].any() and observed["layer"].argmax() == 0
    size = 4 * len(CONFIGURATION_FEATURES)
    space, before = env.encoder.space, observed
    for layer in range(3):
        observed, _, _, _, info = env.step(env.action_space.sample())
        decided = observed["decided"].reshape(12, 4, len(CONFIGURATION_FEATURES))
        memory, resource, replicas, concurrency = info["executed"][1]
        expected = space.resource_memory[memory, resource].clone()
        expected[CONFIGURATION_FEATURES.index("replicas")] += space.replicas[replicas]
        expected[CONFIGURATION_FEATURES.index("concurrency")] += space.concurrencies[concurrency]
        np.testing.assert_allclose(decided[layer, 1], expected.numpy(), rtol=1e-6)
        assert not decided[layer + 1 :].any() and observed["layer"].argmax() == layer + 1
        np.testing.assert_array_equal(observed["decided"][: layer * size], before["decided"][: layer * size])
        np.testing.assert_array_equal(observed["experts"], before["experts"])
        before = observed


def test_what_the_cluster_did_not_let_through_was_not_executed() -> None:
    env = made(world="cores-only", relative_slo=5.0, mean_rps=10.0)
    env.reset(seed=0)
    index, cut = env.encoder.configuration_index, 0
    most = np.tile(np.array(index.sizes) - 1, 4)
    for layer in range(3):
        asked = most.reshape(4, 4)
        _, _, _, _, info = env.step(most)
        there = [index._at(int(np.ravel_multi_index(tuple(one), index.sizes))) for one in info["executed"]]
        assert there == [env.episode._platform.configurations()[name] for name in index.functions[layer]]
        assert (env.deciding[1][layer] == info["executed"]).all()
        cut += int((info["executed"] != asked).any())
    assert cut, "there is room for eight replicas of six cores of every expert"


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**16), rps=st.sampled_from([2.0, 30.0]))
def test_eq_2_and_4_hold_whatever_the_action_is(seed: int, rps: float) -> None:
    env = made(mean_rps=rps, seconds=60.0)
    env.reset(seed=seed)
    env.action_space.seed(seed)
    episode = env.episode
    seen = episode.observation
    for layer in range(12):
        env.step(env.action_space.sample())
        for node in episode.workload.topology.experts(layer):
            chosen = episode._platform.configurations()[node.function]
            need = memory_need([node], [seen.node(node.id)], episode.limits)
            assert need is not None and need.holds(chosen)
            assert (chosen.cpu_cores > 0) != (chosen.gpu_share > 0) and chosen in episode.workload.space


@pytest.mark.slow
def test_the_room_s_policy_side_and_the_published_actor_need_nothing_of_training() -> None:
    """The first line lists what importing them brought in. From then on an entry None in ``sys.modules`` makes every
    import of that name fail."""
    code = (
        "import sys, rl, rl.features, rl.reward, rl.episodes, rl.agent.policy, rl.experience\n"
        "print([name for name in ('gymnasium', 'stable_baselines3') if name in sys.modules])\n"
        "sys.modules.update(dict.fromkeys(('gymnasium', 'stable_baselines3', 'optuna', 'tensorboard')))\n"
        "from rl.agent.export import load\n"
        "from evaluation.comparison.learnt_files import published_actor\n"
        "print(type(load(published_actor('any', 'provisioned'))).__name__)"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (completed.returncode, completed.stdout.split("\n")[:2]) == (0, ["[]", "Actor"]), completed.stderr

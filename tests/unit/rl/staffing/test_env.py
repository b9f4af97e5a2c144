"""The staffing environment: one step a window, through the controller's own parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl.episodes import Episode
from rl.episodes.sizes import resized
from rl.staffing.action import AXES, action_of
from rl.staffing.env import StaffingEnv
from rl.staffing.hours import encoder_of
from rl.staffing.policy import StaffingRule
from simulation.engine.requests import draw_requests
from simulation.workloads.paper import paper_workload
from tests.unit.rl.env.builders import REFERENCE, START

VALUES = {
    "load": 0.5,
    "standbys": 2.0,
    "headroom": 1.0,
    "spare": 0.5,
    "hold_s": 1.0,
    "look_back_s": 0.3,
    "budget": 0.5,
    "sleep_s": 60.0,
}


def episodes(rate: float = 30.0) -> Iterator[Episode]:
    workload = replace(resized(paper_workload("bert-4"), 2, 2, seed=0), slo_s=0.3)
    arrival_s = np.sort(np.random.default_rng(7).uniform(0, 120, round(120 * rate)))
    requests = draw_requests(workload, arrival_s, seed=1)
    while True:
        start = workload.initial(START)
        yield Episode(workload, requests, start, reference=REFERENCE, seconds=120.0, encoder=encoder_of)


def actions(values: dict[str, float], priority: float = 0.0) -> np.ndarray:
    return np.tile(np.append(action_of(values), np.float32(priority)), 4)


@pytest.mark.slow
def test_gymnasiums_own_checker_passes() -> None:
    check_env(StaffingEnv(episodes()), skip_render_check=True)


def test_an_episode_ends_with_its_last_window_and_is_truncated() -> None:
    env = StaffingEnv(episodes())
    env.reset()
    ends = [env.step(actions(VALUES))[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]


def test_the_reward_is_what_experts_cost_and_the_risk() -> None:
    env = StaffingEnv(episodes())
    env.reset()
    _, reward, _, _, info = env.step(actions(VALUES))
    outcome = env.episode.outcome
    assert info["costs"].sum(1) * REFERENCE == pytest.approx(outcome.provisioned, rel=1e-5)
    assert info["p95"] is not None and info["p95"] < 0.85
    assert reward == pytest.approx(-outcome.provisioned.sum() / REFERENCE, rel=1e-5)


def test_more_standbys_are_ordered_and_cost_more() -> None:
    costs = []
    for standbys in (0.0, 6.0):
        env = StaffingEnv(episodes())
        env.reset()
        env.step(actions(VALUES | {"standbys": standbys}))
        assert {one.standbys for one in env.episode.present.values() if one.cpu_cores <= 6} >= {int(standbys)}
        costs.append(env.step(actions(VALUES | {"standbys": standbys}))[4]["costs"].sum())
    assert costs[0] < costs[1]


def test_the_rule_that_no_window_corrects_asks_for_what_the_environment_does() -> None:
    env = StaffingEnv(episodes())
    env.reset()
    episode = env.episode
    rule = StaffingRule(episode.workload, episode.encoder, VALUES)
    observation = replace(episode.observation, latency_p95_s=None)
    proposal = rule.propose(observation, observation.end_s, None)
    env.step(actions(VALUES))
    functions = {node.function for node in episode.workload.experts}
    assert {name: episode.present[name] for name in functions} == dict(proposal.desired)
    assert proposal.reasons.keys() == functions


def test_six_numbers_are_named() -> None:
    assert len(AXES) == len(VALUES) and set(VALUES) == {axis.name for axis in AXES}

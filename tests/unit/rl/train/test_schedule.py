"""The teacher that plans for rates: every plan serves its rate, and more load never gets less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluation.regimes.search import price_per_hour
from rl.episodes import Episode
from rl.episodes.sizes import resized
from rl.train.errors import TrainingError
from rl.train.schedule import ScheduleTeacher
from rl.train.teacher import TeacherSettings
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from tests.unit.rl.env.builders import REFERENCE, START

SETTINGS = TeacherSettings(kind="schedule", keep=0.9, look_back=1)
WINDOWS = 4


@pytest.fixture(scope="module")
def workload() -> Workload:
    """Two layers of two experts on cores."""
    whole = paper_workload("bert-4")
    small = resized(whole, 2, 2, seed=0)
    return replace(small, space=replace(small.space, gpu_shares=()), slo_s=0.2)


def episode_of(workload: Workload, rates: tuple[float, ...]) -> Episode:
    """Windows of half a minute with requests at these rates."""
    rng = np.random.default_rng(0)
    arrival_s = np.sort(
        np.concatenate([rng.uniform(30 * k, 30 * k + 30, round(30 * rate)) for k, rate in enumerate(rates)])
    )
    requests = draw_requests(workload, arrival_s, seed=1)
    seconds = 30.0 * len(rates)
    return Episode(workload, requests, workload.initial(START), reference=REFERENCE, seconds=seconds)


@pytest.fixture(scope="module")
def teacher(workload: Workload) -> ScheduleTeacher:
    return ScheduleTeacher(episode_of(workload, (20.0, 2.0, 60.0, 2.0)), SETTINGS)


def test_plans_for_more_load_cost_more_and_the_busiest_is_served(teacher: ScheduleTeacher, workload: Workload) -> None:
    costs = [price_per_hour(workload, plan.configurations) for plan in teacher.plans]
    assert costs == sorted(costs) and costs[0] < costs[-1]
    rates = [plan.rate_rps for plan in teacher.plans]
    assert rates == sorted(rates) and rates[0] == pytest.approx(2.0) and rates[-1] > 60
    arrival_s = np.sort(np.random.default_rng(5).uniform(0, 60, 60 * 60))
    requests = draw_requests(workload, arrival_s, seed=1)
    start = workload.initial(START) | dict(teacher.plans[-1].configurations)
    latency_s = Simulation(workload, requests, start).advance(80.0).latency_s
    assert np.quantile(latency_s, 0.95) <= workload.slo_s


def test_the_plan_is_that_of_the_last_window_s_rate(workload: Workload, teacher: ScheduleTeacher) -> None:
    episode = teacher._episode
    chosen = []
    while episode.windows_left:
        careful, bold = teacher.plan(episode.observation, 1.5)
        chosen.append(next(plan.rate_rps for plan in teacher.plans if plan.configurations is careful))
        assert price_per_hour(workload, bold) <= price_per_hour(workload, careful)
        episode.step(episode.state().present)
    assert [rate >= wanted for rate, wanted in zip(chosen, (20.0, 2.0, 60.0), strict=True)] == [True] * 3
    assert chosen[1] == teacher.plans[0].rate_rps and chosen[2] == teacher.plans[-1].rate_rps > chosen[0]


def test_an_episode_without_requests_is_refused(workload: Workload) -> None:
    with pytest.raises(TrainingError, match="no request to plan for"):
        ScheduleTeacher(episode_of(workload, (0.0, 0.0)), SETTINGS)


def test_a_teacher_that_is_not_known_is_refused() -> None:
    with pytest.raises(TrainingError, match="'queueing' or 'schedule'"):
        TeacherSettings(kind="oracle")  # type: ignore[arg-type]

"""The teacher that plans for loads: every plan serves its windows, and more load never gets less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import Burst, Configuration
from evaluation.regimes.search import price_per_hour
from rl.episodes import Episode
from rl.episodes.sizes import resized
from rl.train.errors import TrainingError
from rl.train.schedule import ScheduleTeacher, between
from rl.train.teacher import Teacher, TeacherSettings
from rl.train.warm_start import teacher_of
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from tests.unit.rl.env.builders import REFERENCE, START

SETTINGS = TeacherSettings(kind="schedule", keep=0.9, look_back=1)
RATES = (20.0, 2.0, 60.0, 2.0)


@pytest.fixture(scope="module")
def workload() -> Workload:
    """Two layers of two experts on cores."""
    whole = paper_workload("bert-4")
    small = resized(whole, 2, 2, seed=0)
    return replace(small, space=replace(small.space, gpu_shares=()), slo_s=0.2)


def episode_of(
    workload: Workload, rates: tuple[float, ...], seconds: float = 30.0, burst: Burst | None = None
) -> Episode:
    """Windows of half a minute with requests at these rates in the first ``seconds`` of each."""
    rng = np.random.default_rng(0)
    arrival_s = np.sort(
        np.concatenate([rng.uniform(30 * k, 30 * k + seconds, round(30 * rate)) for k, rate in enumerate(rates)])
    )
    requests = draw_requests(workload, arrival_s, seed=1)
    whole_s = 30.0 * len(rates)
    return Episode(workload, requests, workload.initial(START), reference=REFERENCE, seconds=whole_s, burst=burst)


@pytest.fixture(scope="module")
def teacher(workload: Workload) -> ScheduleTeacher:
    return ScheduleTeacher(episode_of(workload, RATES), SETTINGS)


def served(episode: Episode, window: int, plan: Mapping[str, Configuration]) -> bool:
    """Whether the P95 of the window's requests alone is within ``keep`` of λ."""
    requests, workload = between(episode.requests, 30.0 * window, 30.0 * window + 30.0), episode.workload
    simulation = Simulation(workload, requests, workload.initial(START) | dict(plan), seed=episode.seed)
    latency_s = simulation.advance(30.0).latency_s
    return bool(np.quantile(latency_s, 0.95) <= SETTINGS.keep * workload.slo_s)


def test_plans_for_more_load_cost_more_and_serve_their_windows(teacher: ScheduleTeacher, workload: Workload) -> None:
    costs = [price_per_hour(workload, plan.configurations) for plan in teacher.plans]
    assert costs == sorted(costs) and costs[0] < costs[-1]
    most = [plan.requests for plan in teacher.plans]
    assert most == sorted(most) and most[0] == 60 and most[-1] == 1800
    assert all(served(teacher._episode, window, teacher.plans[-1].configurations) for window in range(4))
    assert not served(teacher._episode, 2, teacher.plans[0].configurations)


def test_the_plan_is_that_of_the_last_window_s_load(workload: Workload, teacher: ScheduleTeacher) -> None:
    episode = episode_of(workload, RATES)
    chosen = []
    while episode.windows_left:
        careful, bold = teacher.plan(episode.observation, 1.5)
        chosen.append(next(plan.requests for plan in teacher.plans if plan.configurations is careful))
        assert price_per_hour(workload, bold) <= price_per_hour(workload, careful)
        episode.step(episode.state().present)
    assert chosen == [600, 60, 1800]


@pytest.mark.slow
def test_an_hour_that_nothing_serves_is_planned_by_the_queueing_teacher(workload: Workload) -> None:
    hopeless = episode_of(replace(workload, slo_s=1e-3), (2.0, 2.0))
    assert isinstance(teacher_of(hopeless, SETTINGS), Teacher)


def test_an_episode_without_requests_is_refused(workload: Workload) -> None:
    with pytest.raises(TrainingError, match="no request to plan for"):
        ScheduleTeacher(episode_of(workload, (0.0, 0.0)), SETTINGS)


def test_a_teacher_that_is_not_known_is_refused() -> None:
    with pytest.raises(TrainingError, match="'queueing', 'schedule' or 'last-window'"):
        TeacherSettings(kind="oracle")  # type: ignore[arg-type]


def test_plans_have_the_episode_s_standbys_and_cost_less_with_them_where_requests_come_in_bursts(
    workload: Workload,
) -> None:
    costs = []
    for burst in (None, Burst(3, 1.0, 1.0, 2.0)):
        teacher = ScheduleTeacher(episode_of(workload, (10.0, 12.0), seconds=3.0, burst=burst), SETTINGS)
        largest = teacher.plans[-1].configurations
        assert {one.burst for one in largest.values()} == {burst}
        costs.append(price_per_hour(workload, largest))
    assert costs[1] < 0.7 * costs[0]

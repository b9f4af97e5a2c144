"""The teacher that asks the simulator, against a walk through its choices from the cheapest on."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.contract import Configuration, ConfigurationSpace
from rl.episodes import Clip, Episode, episode_of
from rl.train.errors import TrainingError
from rl.train.hindsight import HindsightTeacher, between, choices_of
from rl.train.teacher import TeacherSettings
from simulation.engine.simulation import Simulation
from simulation.workloads.custom import GPU_STARTS
from simulation.workloads.paper import paper_workload, segments_at

CAREFUL = TeacherSettings(kind="hindsight", keep=0.75, look_back=2)


@pytest.fixture
def episode() -> Episode:
    clip = Clip("bert-4", "bursty", 1, mean_rps=60.0, seconds=150.0)
    found = episode_of(clip, start=paper_workload("bert-4").initial(GPU_STARTS[0]))
    for _ in range(2):
        found.step(found.state().present)
    return found


def served(episode: Episode, window: int, choice: Configuration) -> bool:
    """Whether the P95 of the window's requests alone is within ``keep`` of λ."""
    requests = between(episode.requests, 30.0 * window, 30.0 * (window + 1))
    if not requests.arrival_s.size:
        return True
    subject = Simulation(episode.workload, requests, episode.workload.initial(choice), seed=episode.seed)
    latency_s = subject.advance(60.0).latency_s
    assert latency_s.size == requests.arrival_s.size
    return bool(np.quantile(latency_s, 0.95) <= CAREFUL.keep * episode.workload.slo_s)


def test_the_plan_is_what_the_most_demanding_of_the_last_windows_needed(episode: Episode) -> None:
    teacher = HindsightTeacher(episode, CAREFUL)
    needed = [
        next((level for level, choice in enumerate(teacher.choices) if served(episode, window, choice)), 0)
        for window in (1, 2)
    ]
    careful, bold = teacher.plan(episode.observation, 2.0)
    assert set(careful.values()) == {teacher.choices[max(needed)]}
    assert set(bold.values()) == {teacher.choices[max(0, max(needed) - 2)]}
    assert set(teacher.plan(episode.observation, 0.1)[1].values()) == {teacher.choices[max(needed) + 1]}
    assert max(needed) > 0  # or there was nothing to find


def test_choices_cost_more_and_more_and_end_with_replicas_where_there_is_no_gpu() -> None:
    prices = paper_workload("bert-4").prices
    for space in (ConfigurationSpace(), ConfigurationSpace(gpu_shares=())):
        found = choices_of(space, prices)
        spent = [one.replicas * prices.unit_per_s(one) for one in found]
        assert spent == sorted(spent)
    assert [one.replicas for one in found][-2:] == [2, 4]
    assert all(one.gpu_share for one in choices_of(ConfigurationSpace(), prices)[-4:])


def test_segments_grow_with_the_load_that_they_are_made_for() -> None:
    assert [segments_at(rate).replicas for rate in (0.0, 20.0, 62.5, 63.0, 250.0)] == [2, 2, 2, 3, 8]


def test_a_teacher_that_is_not_known_is_refused() -> None:
    with pytest.raises(TrainingError, match="'queueing' or 'hindsight'"):
        TeacherSettings(kind="oracle")  # type: ignore[arg-type]

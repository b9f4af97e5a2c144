"""What a run is made from: checked, stored, read back."""

from __future__ import annotations

import json
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.agent.ddpg.exploration import with_random
from rl.agent.ddpg.settings import LearnerError, LearnerSettings
from rl.train.commands import changed
from rl.train.errors import TrainingError
from rl.train.settings import TrainingSettings
from tests.unit.rl.train import world


def test_settings_come_back_from_json() -> None:
    settings = TrainingSettings(workloads=("bert-4",), seed=3, learner=LearnerSettings(gamma=0.9))
    assert TrainingSettings.from_json(json.loads(json.dumps(settings.as_json()))) == settings


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param({"workloads": ("bert-5",)}, "bert-5.*one or more of bert-4", id="workload"),
        pytest.param({"arm": "half"}, "arm is 'half'", id="arm"),
        pytest.param({"windows": 0}, "greater than or equal to 1", id="windows"),
        pytest.param({"mean_rps": (5.0, 1.0)}, "lowest and highest", id="rates"),
        pytest.param(
            {"learner": LearnerSettings(busy_meter=True)}, "meter is 'provisioned'; allowed is busy", id="meter"
        ),
    ],
)
def test_refuses_a_setting_with_a_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(TrainingError, match=says):
        TrainingSettings(**change)


@pytest.mark.parametrize("stored", [{"colour": 1}, {"learner": {"colour": 1}}, {"teacher": {"colour": 1}}])
def test_refuses_a_stored_setting_that_is_not_known(stored: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match="colour"):
        TrainingSettings.from_json(stored)


def test_the_learner_says_what_it_takes() -> None:
    with pytest.raises(LearnerError, match=r"gamma is 1\.5; it should be less than 1"):
        LearnerSettings(gamma=1.5)


def test_exploration_falls_and_then_rests() -> None:
    learner = LearnerSettings(temperature=(1.0, 0.05), random_share=(0.2, 0.0), exploration=0.5)
    path = [learner.explored(done) for done in (0.0, 0.25, 0.5, 1.0)]
    assert path[0] == (1.0, 0.2)
    assert path[1][0] == pytest.approx(0.05**0.5)
    assert path[2] == path[3] == (pytest.approx(0.05), 0.0)


def test_a_curriculum_begins_with_slow_clips_and_ends_with_all() -> None:
    settings = TrainingSettings()
    found = [settings.patterns(done) for done in (0.0, 0.25, 0.45, 1.0)]
    every = ("slow", "normal", "diurnal", "bursty")
    assert found == [every[:1], every[:3], every, every]
    assert TrainingSettings(curriculum=False).patterns(0.0) == every


def test_settings_are_changed_by_key() -> None:
    settings = changed(TrainingSettings(), ("updates=1", "learner.gamma=0.9", "teacher.keep=0.7"))
    assert (settings.updates, settings.learner.gamma, settings.teacher.keep) == (1, 0.9, 0.7)
    for change in ("colour=1", "learner.busy_meter=false"):
        with pytest.raises(click.BadParameter, match="KEY=JSON"):
            changed(TrainingSettings(meter="busy"), (change,))


def test_a_run_from_before_is_read_though_its_learner_names_the_meter() -> None:
    assert TrainingSettings.from_json({"learner": {"busy_meter": True, "gamma": 0.9}}).learner.gamma == 0.9


@given(seed=st.integers(0, 1000), share=st.floats(0, 1))
def test_random_configurations_satisfy_equation_2(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    state = world.state_of(np.array([0.5, 0.5]))
    least = rng.integers(0, 3, size=(2, 1, 3)).astype(np.int16)  # 2: no memory is enough
    object.__setattr__(state, "least_memory", least)
    before = np.zeros((2, 1, 4), dtype=np.int16)
    randomised = with_random(before, state, world.space().sizes, np.ones((2, 1), dtype=bool), share, rng)
    for expert in range(2):
        memory, resource, replicas, concurrency = randomised[expert, 0]
        changed_here = (randomised[expert, 0] != 0).any()
        possible = (least[expert, 0] < 2).any()
        assert not changed_here or memory >= least[expert, 0, replicas] or (not possible and replicas == 2)
        assert resource < 3
        assert concurrency < 2


def test_no_share_changes_nothing() -> None:
    before = np.ones((2, 1, 4), dtype=np.int16)
    state = world.state_of(np.array([0.5, 0.5]))
    mask = np.ones((2, 1), dtype=bool)
    assert (with_random(before, state, world.space().sizes, mask, 0.0, np.random.default_rng(0)) == before).all()

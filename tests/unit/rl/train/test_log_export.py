"""A controller's log as a Minari data set, read back by Minari itself."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from rl.experience import experiences
from rl.features import Encoder
from rl.train import online
from rl.train.errors import TrainingError
from rl.train.log_export import PLACE, stretches
from smoe.cli import cli
from tests.unit.rl.train.conftest import WINDOWS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setattr(online, "FEWEST", 3)
    return tmp_path


@pytest.mark.usefixtures("topology")
def test_minari_reads_what_the_log_holds(logged: tuple[Path, Encoder], place: Path) -> None:
    import minari

    folder, encoder = logged
    command = ["lab", "export-log", "--log", str(folder), "--dataset", "smoe/test-v0", "--out", str(place), "--json"]
    said = json.loads(CliRunner().invoke(cli, command, catch_exceptions=False).stdout)
    assert said["episodes"] == 1 and said["windows"] == WINDOWS - 1
    (episode,) = minari.load_dataset("smoe/test-v0").iterate_episodes()
    windows = list(experiences(folder, encoder))
    assert np.array_equal(episode.actions, [one.actions.ravel() for one in windows])
    assert np.allclose(episode.observations["experts"][1], windows[0].following.experts.ravel())
    assert len(episode.observations["pipeline"]) == WINDOWS
    assert list(episode.truncations) == [False] * (WINDOWS - 2) + [True] and not episode.terminations.any()
    costs = np.array([one.provisioned.sum() for one in windows])
    over = np.array([max(0.0, (one.p95_s or 0.0) / encoder.slo_s - 1) for one in windows])
    assert np.allclose(episode.rewards, -costs / costs.mean() - 5 * np.minimum(3, over), rtol=1e-5)


@pytest.mark.usefixtures("topology")
def test_a_dataset_that_is_there_and_a_name_that_is_none_are_refused(logged: tuple[Path, Encoder], place: Path) -> None:
    command = ["lab", "export-log", "--log", str(logged[0]), "--out", str(place), "--dataset"]
    CliRunner().invoke(cli, [*command, "smoe/test-v0"], catch_exceptions=False)
    for name in ("smoe/test-v0", "no version"):
        with pytest.raises(TrainingError, match="Minari did not take"):
            CliRunner().invoke(cli, [*command, name], catch_exceptions=False)


def test_a_gap_begins_another_episode(logged: tuple[Path, Encoder]) -> None:
    windows = list(experiences(*logged))
    assert [len(one) for one in stretches([*windows[:2], *windows[3:]])] == [2, WINDOWS - 4]


def test_windows_that_overlap_are_episodes_of_their_own(logged: tuple[Path, Encoder]) -> None:
    windows = list(experiences(*logged))
    one, other = windows[:2], [replace(window, state=copy(window.state)) for window in windows[2:4]]
    other[0] = replace(other[0], following=other[1].state)
    mixed = [one[0], other[0], one[1], other[1]]
    assert stretches(mixed) == [one, other]

"""Training on a few short hours: the reward by hand, the same seed twice, stopped and gone on with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from autoscaler.errors import SettingsError
from evaluation.comparison.grid import Grid
from rl.faasconf import training
from rl.faasconf.storage import load_state, save_state
from rl.faasconf.train import train
from rl.faasconf.training import Judged, Trainer, TrainingSettings, refused_reward, reward_of
from tests.unit.rl.faasconf.conftest import Observe
from tests.unit.traces.public_layout import public_layout

SETTINGS = TrainingSettings(
    episodes=2, filling=1, copies=3, offline_updates=2, updates=1, train_seeds=1, validate_every=1
)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """An hour without public traces; the search of its good deployments, seconds, is made once for all tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "_good_deployments", cache(training._good_deployments))
        yield Grid(
            ("bert-4",), ("normal",), (0,), ("static",), (0,),
            window_s=10.0, seconds=60.0, mean_rps=8.0, warm_up_windows=2,
            data=tmp_path_factory.mktemp("no-traces"), bound=False,
        )  # fmt: skip


def weights_of(trainer: Trainer) -> torch.Tensor:
    return torch.cat([part.flatten() for part in trainer.learner.actor.state_dict().values()])


def test_the_reward_is_minus_price_and_minus_a_fixed_part_for_a_missed_slo(observe: Observe) -> None:
    late, price = observe(), 3.0
    assert late.latency_p95_s == 0.1
    assert reward_of(late, price, 1.5, 0.05, 0.5) == pytest.approx(-2 * 0.457 - 0.5)
    assert reward_of(late, price, 1.5, 0.2, 0.5) == pytest.approx(-2 * 0.457)
    silent = replace(late, latency_p95_s=None)
    assert reward_of(silent, price, 1.5, 0.2, 0.5) == pytest.approx(-2 * 0.457 - 0.5)
    assert reward_of(replace(silent, in_flight=0.0), price, 1.5, 0.2, 0.5) == pytest.approx(-2 * 0.457)


def test_a_refused_action_is_as_good_as_it_could_be_when_too_dear_and_missed_when_too_cheap() -> None:
    assert refused_reward(9.0, 3.0, 0.5) == pytest.approx(-3 * 0.457)
    assert refused_reward(1.5, 3.0, 0.5) == pytest.approx(-0.5 * 0.457 - 0.5)


@pytest.mark.slow
def test_what_safe_exploration_refuses_is_remembered_beside_what_replaces_it(grid: Grid) -> None:
    """A critic that saw the replacements alone never hears of what the actor wishes: 24 layers were not learnt so."""
    trainer = Trainer(grid, SETTINGS)
    mean_price = trainer.history.mean_price
    trainer.history = replace(trainer.history, prices=np.full(4, mean_price))  # nothing else is safe
    trainer.step()
    assert len(trainer.buffer) == 5
    trainer.step()
    assert (len(trainer.buffer), trainer.replayed) == (5 + 2 * 5, 6)
    tried, refused = (trainer.buffer.arrays["actions"][start:15:2] for start in (5, 6))
    assert not np.array_equal(tried, refused)
    states = trainer.buffer.arrays["states"]
    assert np.array_equal(states[5:15:2], states[6:15:2])


def test_the_cheapest_that_keeps_the_slo_is_best_else_the_fewest_violations() -> None:
    rows = [Judged(0, 9.0, 0, 20, 0.0, 0.0), Judged(1, 5.0, 1, 20, 0.0, 0.0), Judged(2, 1.0, 2, 20, 0.0, 0.0)]
    assert min(rows, key=lambda row: row.rank) is rows[1]
    assert min([rows[2], Judged(3, 0.5, 5, 20, 0.0, 0.0)], key=lambda row: row.rank) is rows[2]


@pytest.mark.slow
def test_training_fills_learns_and_judges(grid: Grid) -> None:
    trainer = Trainer(grid, SETTINGS)
    before = weights_of(trainer).clone()
    trainer.step()
    assert len(trainer.buffer) == 5 and trainer.is_due  # six windows, five of them after an action
    assert bool((weights_of(trainer) != before).any())
    assert trainer.judge().judged_windows == 4
    assert (trainer.history.actions.shape, len(trainer.history.prices)) == ((4, 48, 5), 4)
    filled = weights_of(trainer).clone()
    trainer.step()
    assert bool((weights_of(trainer) != filled).any())
    assert trainer.buffer.added == 10 + 5  # so few good actions have nearly one price, and no other is safe


@pytest.mark.slow
def test_the_same_seed_trains_the_same_and_a_stopped_training_goes_on(grid: Grid, tmp_path: Path) -> None:
    whole = Trainer(grid, SETTINGS)
    whole.step()
    first = weights_of(whole).clone()
    whole.step()
    save_state(whole, None, tmp_path / "state.safetensors")
    whole.step()
    again = Trainer(grid, SETTINGS)
    again.step()
    assert torch.equal(first, weights_of(again))
    assert load_state(again, tmp_path / "state.safetensors") is None
    again.step()
    assert again.episode == 3 and torch.equal(weights_of(whole), weights_of(again))
    assert (whole.buffer.arrays["rewards"] == again.buffer.arrays["rewards"]).all()
    (tmp_path / "public").mkdir()
    public_layout(tmp_path / "public")
    changes = (replace(grid, mean_rps=9.0), replace(grid, data=tmp_path / "public"))
    for name, other in (("settings", replace(SETTINGS, violation=1.0)), *(("_train", one) for one in changes)):
        with pytest.MonkeyPatch.context() as patched, pytest.raises(SettingsError, match="other settings, hours"):
            patched.setattr(again, name, other)
            load_state(again, tmp_path / "state.safetensors")


@pytest.mark.slow
def test_the_best_weights_are_stored_and_nothing_is_trained_twice(grid: Grid, tmp_path: Path) -> None:
    episodes: list[int] = []
    out, weights = tmp_path / "out", tmp_path / "weights"
    best = train(grid, SETTINGS, out, weights, lambda trainer, judged: episodes.append(trainer.episode))
    assert best is not None and episodes == [1, 2, 3]
    assert [path.name for path in weights.iterdir()] == ["bert-4.safetensors"]
    assert len((out / "bert-4.csv").read_text().splitlines()) == 1 + 3
    assert train(grid, SETTINGS, out, weights) == best
    assert np.isfinite(best.cost)

"""Fine-tuning from a controller's log, written here by the real loop on the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from autoscaler.logger import FunctionLogger
from autoscaler.policy.static import StaticPolicy
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.settings import NetworkSettings
from rl.episodes import Clip, work_of
from rl.evaluate.policies import limits_of
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder, calls_of
from rl.sim.play import play
from rl.sim.simulation import Simulation
from rl.train import online
from rl.train.errors import TrainingError
from rl.train.kinds import GPU_STARTS

WINDOWS = 6


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Encoder]:
    """A log of ``WINDOWS`` windows, and the encoder of its pipeline."""
    folder = tmp_path_factory.mktemp("log")
    work = work_of(Clip("bert-4", "slow", 3, mean_rps=2.0, seconds=30.0 * WINDOWS))
    workload = work.workload
    simulation = Simulation(workload, work.requests, workload.initial(GPU_STARTS[0]), seed=1)
    with FunctionLogger(folder, {}, workload.slo_s, windows_per_file=2) as logger:
        play(simulation, StaticPolicy(), limits_of(workload), window_s=30.0, until_s=30.0 * WINDOWS, logger=logger)
    return folder, Encoder(workload.topology, limits_of(workload), workload.prices, workload.slo_s, calls_of(workload))


def agent() -> PipelineDDPG:
    sizes = {"width": 8, "hidden": 8, "rank": 4}
    networks = NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES), **sizes)  # type: ignore[arg-type]
    found = PipelineDDPG(networks, LearnerSettings(batch_windows=2, actor_from=0), seed=0)
    found.set_logger(Logger(None, []))
    return found


def test_it_learns_from_decisions_that_were_taken_and_from_no_others(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    tuned, before = agent(), agent()
    found = online.fine_tune(tuned, "bert-4", folder, encoder, window_s=30.0, updates=2)
    ring = tuned.replay_buffer.rings["bert-4"]
    assert found == len(ring) == WINDOWS - 1
    assert all((step.executed == ring[0].executed).all() for step in ring)
    assert np.mean([step.rewards.sum() for step in ring]) == pytest.approx(-1, rel=1e-5)
    pairs = zip(tuned.actor.parameters(), before.actor.parameters(), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_a_short_log_is_refused(logged: tuple[Path, Encoder]) -> None:
    folder, encoder = logged
    with pytest.raises(TrainingError, match="holds 5 windows"):
        online.fine_tune(agent(), "bert-4", folder, encoder, window_s=30.0, updates=1)

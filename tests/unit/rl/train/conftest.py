"""A controller's log, written by the real loop on the simulator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from autoscaler.build import shown
from autoscaler.logger import FunctionLogger
from autoscaler.policy.static import StaticPolicy
from autoscaler.settings import ControllerSettings
from evaluation.comparison.policies import limits_of
from rl.episodes import Clip, work_of
from rl.features import Encoder, calls_of
from simulation.engine.controlled import simulate_policy
from simulation.engine.simulation import Simulation
from simulation.workloads.custom import GPU_STARTS
from simulation.workloads.paper import paper_workload

WINDOWS = 6


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Encoder]:
    """A log of ``WINDOWS`` windows, and the encoder of its pipeline."""
    folder = tmp_path_factory.mktemp("log")
    work = work_of(Clip("bert-4", "slow", 3, mean_rps=2.0, seconds=30.0 * WINDOWS))
    workload = work.workload
    simulation = Simulation(workload, work.requests, workload.initial(GPU_STARTS[0]), seed=1)
    given = ControllerSettings("http://127.0.0.1:1", folder, "static", slo_s=workload.slo_s, interval_s=30.0)
    context = {"settings": shown(given), "prices": asdict(workload.prices)}
    with FunctionLogger(folder, context, workload.slo_s, windows_per_file=2) as logger:
        simulate_policy(
            simulation, StaticPolicy(), limits_of(workload), window_s=30.0, until_s=30.0 * WINDOWS, logger=logger
        )
    return folder, Encoder(workload.topology, limits_of(workload), workload.prices, workload.slo_s, calls_of(workload))


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's pipeline has no folder: the paper's workloads are made."""
    monkeypatch.setattr("rl.agent.windows.load_topology", lambda *_: paper_workload("bert-4").topology)

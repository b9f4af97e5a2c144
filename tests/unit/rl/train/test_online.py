"""Fine-tuning from a controller's log, written here by the real loop on the simulator."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from stable_baselines3.common.logger import Logger

from autoscaler.contract import Burst
from rl.agent.contract import Batch
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.doubts import RANGES
from rl.agent.export import load, made
from rl.agent.export import save as export
from rl.agent.policy import LearntPolicy
from rl.agent.settings import NetworkSettings
from rl.episodes.episode import encoder_of
from rl.experience import ticks
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder, calls_of
from rl.features.ranges import Ranges
from rl.train import online
from rl.train.errors import TrainingError
from rl.train.rounds import Rounds
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings, ValidationSettings
from simulation.workloads.custom import GPU_STARTS, CustomPipeline
from simulation.workloads.paper import paper_workload
from smoe.cli import cli
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.rl.train.conftest import WINDOWS
from traces.provenance import path_sha256


def agent() -> PipelineDDPG:
    sizes = {"width": 8, "hidden": 8, "rank": 4}
    networks = NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES), **sizes)  # type: ignore[arg-type]
    learner = PipelineDDPG(networks, LearnerSettings(batch_windows=2, actor_from=0), seed=0)
    learner.set_logger(Logger(None, []))
    return learner


def test_it_learns_from_decisions_that_were_taken_and_from_no_others(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    tuned, before = agent(), agent()
    logged_windows = online.Logged("bert-4", online.windows_of(folder, encoder), encoder, 30.0)
    online.fine_tune(tuned, logged_windows, updates=2)
    ring = tuned.replay_buffer.rings["bert-4"]
    assert len(logged_windows.windows) == len(ring) == WINDOWS - 1
    assert all((step.executed == ring[0].executed).all() for step in ring)
    assert np.mean([step.rewards.sum() for step in ring]) == pytest.approx(-1, rel=1e-5)
    pairs = zip(tuned.actor.parameters(), before.actor.parameters(), strict=True)
    assert not all(torch.equal(one, other) for one, other in pairs)


def test_a_short_log_is_refused(logged: tuple[Path, Encoder]) -> None:
    folder, encoder = logged
    with pytest.raises(TrainingError, match="holds 5 windows"):
        online.windows_of(folder, encoder)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A folder as ``smoe lab train`` leaves it, with an agent that has learnt nothing yet."""
    folder = tmp_path / "run"
    folder.mkdir()
    one = agent()
    one.save(folder / "checkpoint.zip")
    nothing = Ranges.of([]).bounds
    far = {name: np.full_like(bounds, -9.0) for name, bounds in nothing.items()}
    export(folder / BEST, one.actor.network, {RANGES: Ranges(far).as_json()})
    (folder / "run.json").write_text(json.dumps({"settings": {"seed": 7}}))
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("topology")
def test_the_command_leaves_the_run_as_it_is_and_writes_an_actor_that_says_what_made_it(
    logged: tuple[Path, Encoder], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    out, before = tmp_path / "new" / "actor.safetensors", path_sha256(trained)
    command = ["fine-tune", "--run", str(trained), "--log", str(logged[0]), "--updates", "2", "--out", str(out)]
    result = CliRunner().invoke(cli, [*command, "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["windows"] == WINDOWS - 1 and document["log_sha256"] == path_sha256(logged[0])
    assert path_sha256(trained) == before
    stored = made(out)
    assert stored["settings"] == {"seed": 7} and stored["fine_tuned"]["updates"] == 2
    least, most = stored[RANGES]["pipeline"]["layers"]
    assert least == -9.0 and -1 < most < 1, "it was trained on what the run had met and on the log"
    encoder, start = logged[1], GPU_STARTS[0]
    a_start = start.replicas * encoder.prices.unit_per_s(start)
    assert document["ran_per_hour"] == pytest.approx(3600 * a_start * int(encoder.configuration_index.mask.sum()))
    assert document["before_per_hour"] == pytest.approx(_mean_proposal(agent(), *logged))
    tuned = agent()
    tuned.actor.network.load_state_dict(load(out).state_dict())
    assert document["after_per_hour"] == pytest.approx(_mean_proposal(tuned, *logged))
    reported = CliRunner().invoke(cli, command, catch_exceptions=False).stdout
    assert "learnt from 5 windows of bert-4, 2 updates" in reported and "nothing was tried" in reported


def _mean_proposal(of: PipelineDDPG, folder: Path, encoder: Encoder) -> float:
    """Currency an hour, by the policy that the controller runs."""
    policy, memory, costs = LearntPolicy(of.actor.network, encoder), None, []
    seen = [tick.observation for tick in ticks(folder)]
    for observation in seen[:-1]:
        decided = of.actor.network.decide(Batch.of(encoder.space, [encoder.encode(observation, memory)[0]]))
        desired = encoder.configuration_index.configurations(decided[0].numpy())
        memory = policy.propose(observation, 0.0, memory).memory
        costs.append(sum(one.replicas * encoder.prices.unit_per_s(one) for one in desired.values()))
    return 3600 * sum(costs) / len(costs)


@pytest.mark.usefixtures("topology")
def test_a_log_of_a_pipeline_that_is_trained_on_is_read_in_its_mean_calls(
    logged: tuple[Path, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The policy counts in calls of 64 tokens by default, a custom pipeline's requests have 24."""
    write_pipeline(tmp_path / "mine", name="mine")
    custom = CustomPipeline(str(tmp_path / "mine"), 300.0, "a.parquet", 0.5, mean_tokens=24.0)
    table = {"profile": "a.parquet", "cpu_scale": 0.5, "other_machine": True, "mean_tokens": 24}
    gone = replace(custom, folder=str(tmp_path / "gone"))
    assert online.trained_with([gone, custom], "mine") == table
    assert online.trained_with([custom], "bert-4") is None and not caplog.text
    paper = replace(custom, folder=str(tmp_path / "bert"))
    write_pipeline(tmp_path / "bert", name="bert-4")
    with caplog.at_level(logging.WARNING, "smoe.train"):  # whatever level a command left
        assert online.trained_with([gone, paper], "bert-4") is None
    assert re.search(r"log of bert-4 is read .* cannot be read \(gone-300ms-0.5: .*; bert-300ms-0.5: .*", caplog.text)
    monkeypatch.setattr(online, "FEWEST", 3)
    monkeypatch.setattr(online, "planned_by", lambda one: {"workload": "bert-4", "mean_tokens": round(one.mean_tokens)})
    monkeypatch.setattr(CustomPipeline, "pipeline", "bert-4")
    seconds = online.read(logged[0], pipelines=[custom]).encoder.calls.seconds
    assert seconds == pytest.approx(calls_of(paper_workload("bert-4", mean_tokens=24)).seconds)
    assert seconds != pytest.approx(online.read(logged[0]).encoder.calls.seconds)


@pytest.mark.usefixtures("topology")
def test_a_folder_without_a_run_or_a_log_is_refused(
    logged: tuple[Path, Encoder], trained: Path, tmp_path: Path
) -> None:
    with pytest.raises(TrainingError, match="holds no training run"):
        CliRunner().invoke(cli, ["fine-tune", "--run", str(tmp_path), "--log", str(logged[0])], catch_exceptions=False)
    with pytest.raises(TrainingError, match="holds no log of a controller"):
        online.read(trained)
    with pytest.raises(TrainingError, match="holds 5 windows"):
        online.read(logged[0])


def test_an_agent_of_other_features_is_refused(logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    other = agent()
    other.networks = replace(other.networks, node_features=3)
    windows = online.Logged("bert-4", online.windows_of(folder, encoder), encoder, 30.0)
    with pytest.raises(TrainingError, match="has 3 node"):
        online.fine_tune(other, windows, updates=1)


SETTINGS = TrainingSettings(
    workloads=("bert-4",), windows=6, lanes=2, episode_windows=4, variants=(), mean_rps=(2.0, 2.0), warm_start=6,
    clone_updates=2, curriculum=False, width=8, hidden=8,
    learner=LearnerSettings(batch_windows=2, actor_from=1), rank=4,
    validation=ValidationSettings(seconds=180.0, warm_up=1, mean_rps=(2.0,)),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("topology")
def test_a_training_that_begins_with_a_log_goes_on_with_it_and_with_no_other(
    logged: tuple[Path, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    monkeypatch.setattr("rl.train.validation.REPLAYED_PATTERNS", ("normal",))
    folder, out = logged[0], tmp_path / "run"
    Run(SETTINGS, out, log=folder).go()
    again = Run(SETTINGS, out, log=folder)
    again.go()
    ring = again.agent.replay_buffer.rings["bert-4"]
    assert len(ring) == WINDOWS - 1 + SETTINGS.windows and again.agent.num_timesteps == SETTINGS.windows
    assert [bool(step.branches) for step in ring] == [False] * (WINDOWS - 1) + [True] * SETTINGS.windows
    with pytest.raises(TrainingError, match="other log_sha256"):
        Run(SETTINGS, out)


def test_windows_of_a_log_are_rewarded_as_simulated_ones_of_that_pipeline(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    known, windows = agent(), online.Logged("bert-4", online.windows_of(folder, encoder), encoder, 30.0)
    reference = Rounds(SETTINGS, known).register(SETTINGS.kinds[0])
    online.fill(known, windows, reference)
    cost = [one.provisioned.sum() for one in windows.windows]
    rewards = [step.rewards.sum() for step in known.replay_buffer.rings["bert-4"]]
    assert rewards == pytest.approx([-one / reference for one in cost], rel=1e-5)


def test_a_log_is_learnt_from_however_small_its_costs_are_but_not_where_there_are_none(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    window = online.windows_of(folder, encoder)[0]
    for each, mean in ((1e-6, 1.5e-6), (0.0, None)):
        costs = [np.full_like(window.provisioned, each * times / window.provisioned.size) for times in (1, 2)]
        windows = online.Logged("bert-4", tuple(replace(window, provisioned=cost) for cost in costs), encoder, 30.0)
        if mean is not None:
            assert online.mean_cost(windows, busy=False) == pytest.approx(mean)
        else:
            with pytest.raises(TrainingError, match="cost nothing"):
                online.mean_cost(windows, busy=False)


def test_a_log_of_another_pipeline_of_the_same_name_or_of_other_prices_is_refused(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    folder, encoder = logged
    windows = online.Logged("bert-4", online.windows_of(folder, encoder), encoder, 30.0)
    larger, dearer = agent(), agent()
    larger.replay_buffer.register("bert-4", encoder_of(paper_workload("bert-8")).space, 1.0)
    with pytest.raises(TrainingError, match="has other experts"):
        online.fill(larger, windows)
    dearer.replay_buffer.register("bert-4", encoder.space, 1e6)
    with pytest.raises(TrainingError, match="priced by another sheet"):
        online.fill(dearer, windows)


@pytest.mark.usefixtures("topology")
def test_a_log_is_read_without_an_actor(
    logged: tuple[Path, Encoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(online, "FEWEST", 3)
    gone = tmp_path / "smoe.toml"
    gone.write_text('actor = "gone.safetensors"\n')
    for policy_settings in (None, gone):
        assert len(online.read(logged[0], policy_settings).windows) == WINDOWS - 1
    assert "withdrawn" not in caplog.text


def test_how_many_windows_are_left_out_and_why_is_logged_or_in_the_refusal(
    logged: tuple[Path, Encoder], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TrainingError, match="5 are left out for standbys"):
        online.windows_of(*logged, burst=Burst(3))
    monkeypatch.setattr(online, "FEWEST", 0)
    with caplog.at_level(logging.WARNING, "smoe.train"):  # whatever level a command left
        online.windows_of(*logged, burst=Burst(3))
    assert "0 windows are learnt from; 5 are left out for standbys" in caplog.text


def test_a_log_of_other_nodes_than_the_manifest_s_is_refused(logged: tuple[Path, Encoder]) -> None:
    larger = paper_workload("bert-8")
    encoder = encoder_of(replace(larger, topology=replace(larger.topology, pipeline="bert-4")))
    with pytest.raises(TrainingError, match="other nodes than those of bert-4"):
        online.windows_of(logged[0], encoder)

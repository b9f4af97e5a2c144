"""``smoe lab explain``: reasons agree with the decision, for a fresh window and for one of a controller's log."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from autoscaler.build import build_controller, shown
from autoscaler.contract import Capacity
from autoscaler.decision.limits import memory_need
from autoscaler.logger import FunctionLogger
from autoscaler.policies import Making
from autoscaler.settings import ControllerSettings
from evaluation.comparison.policies import limits_of
from platform_words.memory import CONTAINER, FORKED, RuntimeMemory
from rl.agent import commands
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch
from rl.agent.errors import NetworkError
from rl.agent.explain import Choice, ExpertReasons, explain
from rl.agent.export import save
from rl.agent.policy import encoder_of, make
from rl.agent.settings import NetworkSettings
from rl.agent.variants import actor
from rl.agent.windows import as_learnt, logged, making_of, making_of_log
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from simulation.engine.controlled import simulate_policy
from simulation.engine.simulation import Simulation
from smoe.cli import cli
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.rl.env.builders import START, episode, requests, workload


@pytest.fixture(scope="module")
def network() -> SisoActor:
    torch.manual_seed(2)
    return actor(NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES)))


@pytest.fixture
def stored(tmp_path: Path, network: SisoActor) -> Path:
    path = tmp_path / "actor.safetensors"
    save(path, network, {})
    return path


def test_reasons_are_those_of_the_decision(network: SisoActor) -> None:
    one = episode(seconds=60.0)
    reasons = explain(network, one.encoder, one.state(), top=4)
    chosen = network.decide(Batch.of(one.encoder.space, [one.state()]))[0].numpy()
    desired = one.encoder.configuration_index.configurations(chosen)
    assert {row.function: row.chosen.configuration for row in reasons} == desired
    weights: dict[int, float] = defaultdict(float)
    for row in reasons:
        weights[row.layer] += row.pointer
        assert row.best[0].configuration == row.chosen.configuration
        assert row.best[0].score == pytest.approx(row.chosen.score, abs=1e-5)
        assert [choice.score for choice in row.best] == sorted((choice.score for choice in row.best), reverse=True)
        assert 0 < row.best[0].probability <= 1 and row.entropy > 0
        assert len({choice.configuration for choice in row.best}) == len(row.best) == 4
        assert row.present == one.present[row.function]
    assert list(weights.values()) == pytest.approx([1.0] * one.encoder.topology.layers, abs=1e-5)


def test_every_configuration_shown_is_allowed_and_their_number_is_that_of_eq_2(network: SisoActor) -> None:
    one = episode(seconds=60.0)
    encoder, nodes = one.encoder, {node.function: node for node in one.encoder.topology.nodes}
    for row in explain(network, encoder, one.state(), top=2)[:6]:
        seen = one.observation.node(nodes[row.function].id)
        assert seen is not None
        need, space = memory_need([nodes[row.function]], [seen], one.limits), encoder.configuration_index.space
        assert need is not None and all(need.holds(choice.configuration) for choice in row.best)
        sizes = [sum(mb >= least for mb in space.memory_sizes_mb) for least in space.mask(need).values() if least]
        assert row.allowed == sum(sizes) * len(space.resources) * len(space.concurrencies)


@pytest.mark.slow
def test_the_command_prints_a_fresh_window_as_json(stored: Path) -> None:
    command = ["explain", "--workload", "bert-4", "--window", "1", "--mean-rps", "2", "--actor", str(stored)]
    result = CliRunner().invoke(cli, [*command, "--layer", "3", "--json"])
    assert result.exit_code == 0, result.output
    printed = json.loads(result.output)
    assert printed["simulated"] is True and printed["workload"] == "bert-4" and printed["arm"] == "full"
    assert [(row["layer"], row["expert"]) for row in printed["experts"]] == [(3, expert) for expert in range(4)]
    assert all(row["stored"] is None and len(row["best"]) == 3 for row in printed["experts"])
    shown_table = CliRunner().invoke(cli, [*command, "--layer", "3"])
    assert "layer 3" in shown_table.output and "pointer" in shown_table.output
    other = CliRunner().invoke(cli, [*command, "--layer", "12"])
    assert other.exit_code == 2 and "it has 0 to 11" in other.output


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_what_was_taken_is_shown_where_the_cluster_had_no_room_for_the_best(
    taken: int, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = [Choice(replace(START, replicas=count), -float(count), 0.1) for count in (3, 2, 1)]
    row = ExpertReasons(0, 0, "e", 1.0, START, choices[taken], tuple(choices[:2]), 1.0, 3)
    commands._show([row], {}, {})
    table = capsys.readouterr().out
    assert table.count("MiB") == (3 if taken == 2 else 2)
    assert ("no room" in table) == (taken > 0)


def test_a_stored_decision_is_explained_from_the_log(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, folder = workload(), tmp_path / "log"
    chosen = tmp_path / "policy.toml"
    chosen.write_text(f'actor = "{stored}"\nworkload = "bert-4"\n')
    given = {"policy": "smoe", "policy_settings": chosen, "slo_s": one.slo_s, "log_dir": folder}
    settings = ControllerSettings("http://127.0.0.1:1", tmp_path, orchestration="process", **given)  # type: ignore[arg-type]
    policy = make(Making(settings, one.topology, limits_of(one), one.prices))
    context = {"settings": shown(settings), "prices": asdict(one.prices)}
    simulation = Simulation(one, requests(), one.initial(START))
    with FunctionLogger(folder, context, one.slo_s) as logger:
        steps = simulate_policy(
            simulation, policy, limits_of(one), window_s=30.0, until_s=90.0, epoch_s=1e9, logger=logger
        )
    monkeypatch.setattr("rl.agent.windows.load_topology", lambda *_: one.topology)
    seen = steps[1].report
    window = logged(folder, seen.observation.end_s, None)
    reasons = explain(window.actor, window.encoder, window.state)
    assert {row.function: row.chosen.configuration for row in reasons} == dict(window.stored)
    assert window.stored == {decision.function: decision.desired for decision in seen.decisions}
    result = CliRunner().invoke(cli, ["explain", "--log", str(folder), "--layer", "0"])
    assert result.exit_code == 0, result.output
    assert "4 of 4 desired configurations are those that were stored" in result.output
    with pytest.raises(NetworkError, match="has no window that ended at 5"):
        logged(folder, 5.0, None)


@pytest.mark.parametrize(
    ("platform", "logged", "expected"),
    [
        ("openfaas", "process", FORKED),
        ("openfaas", "kubernetes", CONTAINER),
        ("openfaas", None, CONTAINER),
        ("openfaas", "older", FORKED),
        ("kubernetes", "older", CONTAINER),
    ],
)
def test_memory_of_a_stored_decision_is_what_was_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, logged: str | None, expected: RuntimeMemory
) -> None:
    one = workload()
    monkeypatch.setattr("rl.agent.windows.load_topology", lambda *_: replace(one.topology, dtype="float32"))
    settings = shown(ControllerSettings("http://127.0.0.1:1", tmp_path, platform=platform))  # type: ignore[arg-type]
    settings["orchestration"] = logged
    if logged == "older":
        del settings["orchestration"]
    assert making_of({"settings": settings, "prices": asdict(one.prices)}).limits.runtime == expected


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="holds no log of a controller"):
        logged(tmp_path, None, None)


def logged_by_controller(folder: Path, manifest: Path, now_s: float = 1000.0, **more: Any) -> Path:
    """The log of a controller of ``manifest`` that ticked once; nothing runs there."""
    given = ControllerSettings("http://127.0.0.1:9", manifest, policy="static", log_dir=folder, slo_s=0.5, **more)
    controller, _ = build_controller(given, FakePlatform({}))
    controller.tick(now_s)
    controller.close()
    return folder


@pytest.mark.slow
def test_the_limits_of_a_stored_decision_are_the_controllers(tmp_path: Path) -> None:
    capacity = tmp_path / "capacity.toml"
    capacity.write_text("cores = 40.0\nmemory_mb = 9000.0\n")
    folder = logged_by_controller(
        tmp_path / "log", write_pipeline(tmp_path / "m"), min_replicas=2, max_replicas=20, capacity=capacity
    )
    capacity.unlink()
    making = making_of_log(folder)
    assert (making.limits.space.replicas_min, making.limits.space.replicas_max) == (2, 20)
    assert making.limits.capacity == Capacity(cores=40.0, memory_mb=9000.0)
    index = encoder_of(as_learnt(making)).configuration_index
    twelve = {function: replace(START, replicas=12) for row in index.functions for function in row}
    assert {one.replicas for one in index.configurations(index.actions(twelve)).values()} == {12}


def test_a_log_is_read_where_the_controller_s_files_are_not(tmp_path: Path) -> None:
    folder = logged_by_controller(tmp_path / "log", write_pipeline(tmp_path / "there"))
    moved = (tmp_path / "there").rename(tmp_path / "here")
    with pytest.raises(NetworkError, match="--manifest"):
        making_of_log(folder)
    assert making_of_log(folder, moved).topology.pipeline == "tiny"


def test_policy_settings_of_a_log_are_those_of_its_time(tmp_path: Path) -> None:
    settings = tmp_path / "burst.toml"
    settings.write_text("[burst]\nstandbys = 2\n")
    folder = logged_by_controller(tmp_path / "log", write_pipeline(tmp_path / "m"), policy_settings=settings)
    settings.unlink()
    assert making_of_log(folder).whole_table() == {"burst": {"standbys": 2}}


@pytest.mark.slow
def test_of_a_log_of_two_pipelines_the_one_that_is_named_is_taken(tmp_path: Path) -> None:
    first, second = write_pipeline(tmp_path / "first"), write_pipeline(tmp_path / "second", "other")
    for now_s, manifest in ((1000.0, first), (2000.0, second)):
        logged_by_controller(tmp_path / "log", manifest, now_s)
    assert making_of_log(tmp_path / "log").topology.pipeline == "other"
    assert making_of_log(tmp_path / "log", first).topology.pipeline == "tiny"
    with pytest.raises(NetworkError, match="no log of a controller for third"):
        making_of_log(tmp_path / "log", write_pipeline(tmp_path / "third", "third"))


@pytest.mark.slow
def test_a_log_of_another_policy_is_explained_by_an_actor_that_is_named(tmp_path: Path, stored: Path) -> None:
    folder = logged_by_controller(tmp_path / "log", write_pipeline(tmp_path / "m"))
    with pytest.raises(NetworkError, match="is of the policy static"):
        logged(folder, None, None)
    with pytest.raises(NetworkError, match="stale or incomplete"):
        logged(folder, None, stored)

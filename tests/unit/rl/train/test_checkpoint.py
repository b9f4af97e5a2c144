"""Save, load, resume; and files that must not be opened."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger

from rl.agent.contract import Batch
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.checkpoint import load_windows, save_windows
from rl.agent.ddpg.exploration import decide
from rl.agent.ddpg.settings import LearnerError, LearnerSettings
from tests.unit.rl.train import world
from tests.unit.rl.train.test_buffer import filled

LEARNER = LearnerSettings(batch_windows=4, actor_from=2, gamma=0.5)


def agent_of(seed: int = 0) -> PipelineDDPG:
    agent = PipelineDDPG(world.networks(), LEARNER, seed=seed)
    return ready(agent)


def ready(agent: PipelineDDPG) -> PipelineDDPG:
    agent.set_logger(Logger(None, []))
    agent.replay_buffer.register(world.NAME, world.space(), world.UNIT)
    for step in filled(12).rings[world.NAME]:
        agent.replay_buffer.add(step)
    return agent


def weights(agent: PipelineDDPG) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in agent.policy.parameters()])


def batch() -> Batch:
    rng = np.random.default_rng(4)
    return Batch.of(world.space(), [world.state_of(rng.uniform(0.1, 1, 2)) for _ in range(16)])


@pytest.mark.slow
def test_same_seed_same_weights_and_another_seed_others() -> None:
    agents = [agent_of(0), agent_of(0), agent_of(1)]
    for agent in agents:
        agent.train(6)
    assert torch.equal(weights(agents[0]), weights(agents[1]))
    assert not torch.equal(weights(agents[0]), weights(agents[2]))


def test_targets_follow_slowly_and_only_after_the_critic_has_begun() -> None:
    agent = agent_of()
    agent.train(2)
    assert all(map(torch.equal, agent.actor.parameters(), agent.actor_target.parameters()))
    agent.train(3)
    both = (agent.actor.parameters(), agent.actor_target.parameters())
    apart = sum(float((a - b).detach().abs().sum()) for a, b in zip(*both, strict=True))
    assert apart > 0


@pytest.mark.slow
def test_warm_updates_in_parts_come_to_the_same_weights() -> None:
    whole, parts = agent_of(), agent_of()
    whole.clone(7)
    whole.train(5)
    for begin, count in ((0, 3), (3, 3), (6, 1)):
        parts.clone(count, begin, 7)
    for count in (2, 2, 1):
        parts.train(count)
    assert torch.equal(weights(whole), weights(parts))


def test_a_saved_agent_decides_the_same(tmp_path: Path) -> None:
    agent = agent_of()
    agent.train(6)
    agent.num_timesteps = 77
    agent.save(tmp_path / "agent.zip")
    again = PipelineDDPG.load(tmp_path / "agent.zip")
    assert (decide(agent.actor.network, batch()) == decide(again.actor.network, batch())).all()
    assert (again.num_timesteps, again._n_updates, again.learner, again.networks) == (
        77, 6, agent.learner, agent.networks,
    )  # fmt: skip


def test_a_checkpoint_may_name_settings_that_were_removed_since(tmp_path: Path) -> None:
    agent = agent_of()
    agent.save(tmp_path / "agent.zip")
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(entries["data"])
    data["learner"] |= {"judge": "window", "credit": "own", "gradient": "improvement"}
    data["networks"] |= {"known_cost": True}
    with zipfile.ZipFile(tmp_path / "older.zip", "w") as archive:
        for name, content in (entries | {"data": json.dumps(data).encode()}).items():
            archive.writestr(name, content)
    again = PipelineDDPG.load(tmp_path / "older.zip")
    assert (again.learner, again.networks) == (agent.learner, agent.networks)


@pytest.mark.slow
def test_going_on_from_a_checkpoint_comes_to_the_same_weights(tmp_path: Path) -> None:
    whole, first = agent_of(), agent_of()
    whole.train(12)
    first.train(7)
    first.save(tmp_path / "agent.zip")
    save_windows(tmp_path / "windows.npz", first.replay_buffer)
    second = PipelineDDPG.load(tmp_path / "agent.zip")
    second.set_logger(Logger(None, []))
    second.replay_buffer.register(world.NAME, world.space(), world.UNIT)
    load_windows(tmp_path / "windows.npz", second.replay_buffer)
    second.train(5)
    assert torch.equal(weights(whole), weights(second))


def test_a_checkpoint_holds_no_pickle_of_objects(tmp_path: Path) -> None:
    agent_of().save(tmp_path / "agent.zip")
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        data = archive.read("data").decode()
    assert ":serialized:" not in data
    assert set(json.loads(data)) >= {"networks", "learner", "seed"}


class Marker:
    """What a malicious pickle would run."""

    ran = False

    def __reduce__(self) -> tuple:
        return (run_marker, ())


def run_marker() -> None:
    Marker.ran = True


def rewritten(path: Path, **entries: bytes) -> io.BytesIO:
    """A stored checkpoint with entries replaced or added."""
    content = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(content, "w") as target:
        for name in source.namelist():
            target.writestr(name, entries.pop(name, source.read(name)))
        for name, value in entries.items():
            target.writestr(name, value)
    content.seek(0)
    return content


def test_a_checkpoint_with_a_pickled_setting_is_refused_unopened(tmp_path: Path) -> None:
    agent_of().save(tmp_path / "agent.zip")
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        data = json.loads(archive.read("data"))
    hidden = {":type:": "dict", ":serialized:": base64.b64encode(pickle.dumps(Marker())).decode()}
    for place in ("seed", "learner"):
        evil = rewritten(tmp_path / "agent.zip", data=json.dumps(data | {place: hidden}).encode())
        with pytest.raises(LearnerError, match=f"pickled object at 'data.{place}'"):
            PipelineDDPG.load(evil)
    assert not Marker.ran


@pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")
def test_weights_that_are_a_pickle_are_refused(tmp_path: Path) -> None:
    agent_of().save(tmp_path / "agent.zip")
    with pytest.raises(LearnerError):
        PipelineDDPG.load(rewritten(tmp_path / "agent.zip", **{"policy.pth": pickle.dumps(Marker())}))
    assert not Marker.ran


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"no zip at all", "no checkpoint", id="no zip"),
        pytest.param(b"", "no checkpoint", id="empty"),
    ],
)
def test_what_is_no_checkpoint_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(LearnerError, match=says):
        PipelineDDPG.load(io.BytesIO(content))


def test_foreign_entries_and_other_networks_are_refused(tmp_path: Path) -> None:
    agent_of().save(tmp_path / "agent.zip")
    with pytest.raises(LearnerError, match="does not write"):
        PipelineDDPG.load(rewritten(tmp_path / "agent.zip", **{"replay.pkl": b"x"}))
    with zipfile.ZipFile(tmp_path / "agent.zip") as archive:
        data = json.loads(archive.read("data"))
    data["networks"]["width"] = 32
    with pytest.raises(LearnerError, match="does not fit"):
        PipelineDDPG.load(rewritten(tmp_path / "agent.zip", data=json.dumps(data).encode()))
    data["networks"]["colour"] = 1
    with pytest.raises(LearnerError, match="does not fit"):
        PipelineDDPG.load(rewritten(tmp_path / "agent.zip", data=json.dumps(data).encode()))


def test_a_zip_without_settings_is_refused() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("policy.pth", b"")
    content.seek(0)
    with pytest.raises(LearnerError, match="no checkpoint"):
        PipelineDDPG.load(content)


def test_the_agent_has_no_environment_of_its_own() -> None:
    with pytest.raises(LearnerError, match="smoe lab train"):
        agent_of().learn(10)

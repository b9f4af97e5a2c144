"""The file of an actor: the same decisions after loading, and a sentence for what is not one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from rl.agent.errors import NetworkError
from rl.agent.export import KEY, load, made, save
from rl.agent.settings import NetworkSettings
from rl.agent.variants import actor
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from tests.unit.rl.agent.conftest import make_batch, make_space

SIZES = (len(NODE_FEATURES), len(PIPELINE_FEATURES))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "actor.safetensors"
    save(path, actor(NetworkSettings(*SIZES)), {"seed": 3})
    return path


def rewritten(path: Path, **changes: object) -> Path:
    """The same file with another header."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header.update(changes)
    save_file(tensors, path, metadata={KEY: json.dumps(header)})
    return path


def test_a_loaded_actor_decides_the_same(tmp_path: Path) -> None:
    space = make_space((3, 1, 4))
    batch = make_batch(space, features=SIZES)
    first = actor(NetworkSettings(*SIZES))
    save(tmp_path / "a", first, {})
    second = load(tmp_path / "a")
    assert torch.equal(first.decide(batch), second.decide(batch))
    weights, again = first.state_dict(), second.state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights.keys() | again.keys())
    # Where in memory weights lie decides how products round: equal to the last bits but one.
    assert torch.allclose(first.log_prob(batch, batch.present), second.log_prob(batch, batch.present), rtol=1e-6)


def test_what_made_it_is_stored_beside_it_and_the_file_is_small(stored: Path) -> None:
    assert made(stored) == {"seed": 3}
    assert stored.stat().st_size < 5_000_000
    assert [path.name for path in stored.parent.iterdir()] == ["actor.safetensors"]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"weight": torch.zeros(2)}, other)
    text = tmp_path / "text"
    text.write_text("no tensors here")
    for path, said in ((other, "does not say smoe-actor"), (text, "is not the file"), (tmp_path / "gone", "not there")):
        with pytest.raises(NetworkError, match=said):
            load(path)


def test_features_of_another_version_are_named(stored: Path) -> None:
    names = {"node": ["other", *(feature.name for feature in NODE_FEATURES[1:])]}
    with pytest.raises(NetworkError, match=r"its node feature 0 is other, .* train it again"):
        load(rewritten(stored, features=names))


GIVEN = {"node_features": SIZES[0], "pipeline_features": SIZES[1], "direct": True}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, "has version 2; this program reads 1"),
        ({"settings": {"node_features": SIZES[0]}}, "pipeline_features"),
        ({"settings": {**GIVEN, "width": 64}}, "by its settings"),
        ({"settings": {**GIVEN, "arm": "no-dagnn"}}, "unknown tensor"),
        ({"settings": {**GIVEN, "arm": "other"}}, "arm is 'other'"),
        ({"settings": {"depth": 3}}, "'depth' is not known"),
        ({"made": None}, "its header has no made"),
    ],
    ids=["version", "incomplete", "sizes", "arm", "no such arm", "no such setting", "made"],
)
def test_a_header_that_does_not_fit_is_refused(stored: Path, changes: dict[str, object], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        load(rewritten(stored, **changes))


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    broken = actor(NetworkSettings(*SIZES))
    with torch.no_grad():
        next(broken.parameters()).fill_(torch.nan)
    save(tmp_path / "a", broken, {})
    with pytest.raises(NetworkError, match="not finite"):
        load(tmp_path / "a")


def test_an_actor_for_other_features_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="node features"):
        save(tmp_path / "a", actor(NetworkSettings(3, SIZES[1])), {})

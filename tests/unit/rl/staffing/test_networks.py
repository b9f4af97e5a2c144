"""Actor and critic of the staffing policy: what they begin with, and what they tell apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stable_baselines3.common.noise import VectorizedActionNoise

from rl.agent.contract import Batch
from rl.agent.errors import NetworkError
from rl.staffing.action import action_of
from rl.staffing.ddpg import SharedNoise, networks_of
from rl.staffing.export import load, save
from rl.staffing.features import NODES, PIPELINE
from rl.staffing.networks import MOST_PRIORITY, NUMBERS, StaffingActor, StaffingCritic
from tests.unit.rl.agent.conftest import make_batch, make_space

START = action_of(
    {
        "load": 0.5,
        "standbys": 3.0,
        "headroom": 1.0,
        "spare": 0.7,
        "hold_s": 2.0,
        "look_back_s": 0.3,
        "budget": 0.6,
        "sleep_s": 20.0,
    }
)
SIZES = networks_of(width=16, hidden=16)


def batch_of_states(count: int) -> Batch:
    """Random ones of a pipeline whose second layer has an expert less."""
    return make_batch(make_space((3, 2)), count, features=(len(NODES), len(PIPELINE)))


def actor(seed: int = 0) -> StaffingActor:
    torch.manual_seed(seed)
    return StaffingActor(SIZES, START)


def test_an_actor_begins_near_its_start_for_every_expert() -> None:
    batch = batch_of_states(3)
    staffed = actor()(batch)
    mask = batch.space.mask
    assert staffed.actions.shape == (3, *mask.shape, NUMBERS)
    assert float((staffed.actions[:, mask] - torch.from_numpy(START)).abs().max().detach()) < 0.2


def test_priorities_of_a_layer_have_a_mean_of_one() -> None:
    batch = batch_of_states(2)
    priority = actor()(batch).priority
    counts = batch.space.mask.sum(-1)
    assert torch.allclose(priority.sum(-1), counts.expand(2, -1).float(), atol=1e-5)


def test_a_priority_is_the_same_in_training_and_when_it_serves() -> None:
    """However much the pointer is of one mind: an action of the environment ends at 1."""
    space = make_space((4, 4))
    batch, network = make_batch(space, 5, features=(len(NODES), len(PIPELINE))), actor()
    with torch.no_grad():
        network.encoder.pointer.score.weight.mul_(1e3)
    priority = network(batch).priority.detach()
    assert float(priority.max()) == MOST_PRIORITY and float(priority.min()) >= 0.0


def test_experts_with_other_features_get_other_numbers() -> None:
    batch = batch_of_states(1)
    network = actor()
    with torch.no_grad():
        network.head[-1].weight.mul_(20)  # as training makes it
    one = network(batch).actions
    batch.experts[0, 0, 0] += 1.0
    other = network(batch).actions
    own = float((one - other)[0, 0, 0].detach().abs().max())
    assert own > 0.01 and own > 2 * float((one - other)[0, 0, 1].detach().abs().max())


def test_the_cost_of_padding_is_nothing_and_all_is_at_least_zero() -> None:
    batch = batch_of_states(2)
    judged = StaffingCritic(SIZES)(batch, torch.rand(2, *batch.space.mask.shape, NUMBERS))
    assert float(judged.costs[:, ~batch.space.mask].detach().abs().sum()) == 0.0
    assert bool((judged.costs >= 0).all()) and bool((judged.risk >= 0).all()) and judged.risk.shape == (2,)


def test_an_actor_comes_back_from_its_file(tmp_path) -> None:
    network = actor()
    save(tmp_path / "actor", network, {"by": "a test"})
    loaded, made = load(tmp_path / "actor")
    batch = batch_of_states(2)
    assert all(torch.equal(loaded.state_dict()[name], value) for name, value in network.state_dict().items())
    assert torch.allclose(loaded(batch).actions, network(batch).actions, atol=1e-5) and made == {"by": "a test"}


def test_another_file_is_refused_with_a_sentence(tmp_path) -> None:
    path = tmp_path / "actor"
    path.write_bytes(b"no tensors")
    with pytest.raises(NetworkError, match="is not the file of an actor"):
        load(path)


def test_environments_do_not_share_their_noise_and_a_seed_makes_it_again() -> None:
    drawn = [VectorizedActionNoise(SharedNoise(2, 3, (1.0, 0.5, 0.1), seed=1), 4)() for _ in range(2)]
    assert len({row.tobytes() for row in drawn[0]}) == 4 and np.array_equal(drawn[0], drawn[1])


def test_noise_is_partly_shared_and_leaves_priorities_alone() -> None:
    noise = SharedNoise(2, 3, (1.0, 0.0, 0.1), seed=1)().reshape(6, NUMBERS + 1)
    assert np.abs(noise[:, -1]).max() == 0.0
    assert (
        np.ptp(noise[:, 0]) < 1.0 < np.abs(np.stack([SharedNoise(2, 3, (1.0, 0.0, 0.1), s)() for s in range(20)])).max()
    )

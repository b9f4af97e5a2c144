"""Attention and neighbours, worked out by hand; the learner on a world whose best action is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autoscaler.contract import NodeInfo, Topology
from rl.faasconf.learner import Buffer, Learner, LearnerSettings, Sample, room
from rl.faasconf.networks import Actor, Attention, Critic
from rl.faasconf.policy import adjacency, agents
from simulation.workloads.paper import paper_workload


def test_attention_is_the_square_of_query_times_key_over_its_row() -> None:
    """Two features, one hidden unit: q = (1, 2, 3) and k = (1, 0, 2) for the three agents."""
    attention = Attention(2, 1)
    with torch.no_grad():
        attention.query.copy_(torch.tensor([[1.0], [0.0]]))
        attention.key.copy_(torch.tensor([[0.0], [1.0]]))
    states = torch.tensor([[[1.0, 1.0], [2.0, 0.0], [3.0, 2.0]]])
    edges = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    attended = attention(states, edges)[0]
    # row 0: (1·0)² and (1·2)²; row 1: (2·1)² and (2·2)²; row 2: (3·1)² and (3·0)²
    expected = [
        [0.0, 0.0, 4 / 4.001],
        [4 / 20.001, 0.0, 16 / 20.001],
        [9 / 9.001, 0.0, 0.0],
    ]
    assert torch.allclose(attended, torch.tensor(expected), atol=1e-6)


def test_an_agent_without_neighbours_attends_to_nothing() -> None:
    attended = Attention(3)(torch.randn(2, 4, 3), torch.zeros(4, 4))
    assert torch.equal(attended, torch.zeros(2, 4, 4))


def test_neighbours_are_the_experts_of_the_layers_before_and_after() -> None:
    topology = paper_workload("bert-4").topology
    found, nodes = adjacency(topology), agents(topology)
    layer = np.array([node.layer for node in nodes])
    expected = np.abs(layer[:, None] - layer[None, :]) == 1
    assert (found.numpy() == expected).all()


def test_neighbours_are_found_through_several_nodes_that_are_no_agents() -> None:
    """a → s → t → b, and c beside them with no way to either."""
    kinds = {"a": "expert", "s": "segment", "t": "segment", "b": "expert", "c": "expert"}
    nodes = tuple(
        NodeInfo(name, name, kind, place, 0, 1, 1, 1)  # type: ignore[arg-type]
        for place, (name, kind) in enumerate(kinds.items())
    )
    topology = Topology("p", "0" * 64, 5, nodes, (("a", "s"), ("s", "t"), ("t", "b"), ("t", "s")))
    assert [node.id for node in agents(topology)] == ["a", "b", "c"]
    assert adjacency(topology).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_actor_and_critic_know_neighbours_only() -> None:
    """Changing a state moves the agent itself and its neighbours, nobody else."""
    torch.manual_seed(0)
    edges = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    actor, critic = Actor(4, 2).eval(), Critic(4, 2).eval()
    states = torch.randn(1, 3, 4)
    moved = states.clone()
    moved[0, 0] += 1.0
    with torch.no_grad():
        outputs, after = actor(states, edges), actor(moved, edges)
        values = critic(states, outputs, edges) - critic(moved, outputs, edges)
    assert outputs.shape == (1, 3, 2) and bool(((outputs > 0) & (outputs < 1)).all())
    assert [bool((a != b).any()) for a, b in zip(outputs[0], after[0], strict=True)] == [True, True, False]
    assert (values[0] != 0).tolist() == [True, True, False]


EDGES = torch.ones(3, 3) - torch.eye(3)


def best_of(states: np.ndarray) -> np.ndarray:
    """[agents, 2] what the known world rewards: the most where the first feature is above 0, else the least."""
    return np.repeat((states[:, :1] > 0).astype(np.float32), 2, axis=1)


def sample(rng: np.random.Generator, count: int) -> Buffer:
    """Of a world without time, where nearness to :func:`best_of` is rewarded."""
    buffer = Buffer(count, 3, 4, 2)
    for _ in range(count):
        states, actions = rng.normal(size=(3, 4)).astype(np.float32), rng.random((3, 2)).astype(np.float32)
        buffer.add(states, actions, -float(np.abs(actions - best_of(states)).sum()), states)
    return buffer


def learner(seed: int) -> Learner:
    return Learner(EDGES, 4, 2, LearnerSettings(learning_rate=3e-3, gamma=0.0, batch=32), seed)


@pytest.mark.slow
def test_it_learns_the_best_actions_of_a_known_world() -> None:
    rng = np.random.default_rng(1)
    one, buffer = learner(0), sample(rng, 500)
    for _ in range(150):
        one.update(buffer.sample(32, rng))
    seen = [rng.normal(size=(3, 4)).astype(np.float32) for _ in range(60)]
    off = [np.abs(one.agent.outputs(states, EDGES) - best_of(states)) for states in seen]
    assert np.mean(off) < 0.3  # at random it is a half


def test_outputs_at_their_ends_can_leave_them() -> None:
    """The sigmoid's slope at 0.997 is 0.003; with room to 0 the logit's gradient is the critic's own."""
    outputs, slope = torch.tensor([0.997, 0.997, 0.25]), torch.tensor([2.0, -2.0, -2.0])
    assert torch.allclose(room(outputs, slope), torch.tensor([0.997, 0.003, 0.75]))


def test_it_begins_at_given_outputs_whatever_the_state() -> None:
    one, wanted = learner(0), torch.tensor([0.1, 0.0])
    one.begin_at(wanted)
    outputs = one.agent.outputs(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32), EDGES)
    assert np.abs(outputs - wanted.numpy()).max() < 0.05


def test_the_same_seed_gives_the_same_weights_and_another_others() -> None:
    def trained(seed: int) -> torch.Tensor:
        rng = np.random.default_rng(0)
        one, buffer = learner(seed), sample(rng, 50)
        for _ in range(5):
            one.update(buffer.sample(16, rng))
        return torch.cat([part.flatten() for part in one.actor.parameters()]).detach()

    torch.rand(3)  # what others draw changes nothing
    first = trained(0)
    torch.rand(5)
    assert torch.equal(first, trained(0)) and not torch.equal(first, trained(1))


def test_targets_follow_by_tau() -> None:
    one = learner(0)
    before = [part.clone() for part in one.targets[0].parameters()]
    batch = Sample(torch.randn(8, 3, 4), torch.rand(8, 3, 2), torch.randn(8), torch.randn(8, 3, 4))
    one.update(batch)
    for old, new, network in zip(before, one.targets[0].parameters(), one.actor.parameters(), strict=True):
        assert torch.allclose(new, old + 0.01 * (network - old), atol=1e-7)


def test_the_buffer_forgets_the_oldest_first() -> None:
    buffer = Buffer(3, 1, 1, 1)
    for number in range(5):
        value = np.full((1, 1), number, np.float32)
        buffer.add(value, value, float(number), value)
    assert len(buffer) == 3
    assert sorted(buffer.arrays["rewards"].tolist()) == [2.0, 3.0, 4.0]
    drawn = buffer.sample(200, np.random.default_rng(0))
    assert set(drawn.rewards.tolist()) == {2.0, 3.0, 4.0}
    assert torch.equal(drawn.states.flatten(), drawn.rewards)

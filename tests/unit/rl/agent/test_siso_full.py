"""The full-joint score against brute force over every configuration of a small Φ."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rl.agent.configuration_table import allowed, features_of
from rl.agent.contract import Space
from rl.agent.siso_full import Joint, JointScores
from tests.unit.rl.agent.conftest import make_batch, make_space

ROWS, HIDDEN = 8, 8


def scored(space: Space) -> tuple[Joint, Tensor, Tensor, Tensor]:
    """Scores of random states; every configuration, its brute-force g [N, |Φ|], and the states."""
    scores = JointScores(space.resource_memory.shape[-1], HIDDEN, 200)
    batch = make_batch(space, ROWS)
    least = batch.least_memory[:, 0, 0]
    states = torch.randn(ROWS, HIDDEN, requires_grad=True)
    scored = scores.scores(scores.prepare(space), states, scores.filters(space, least, batch.present[:, 0, 0]))
    with torch.no_grad():
        scores.weight.mul_(6)
    actions = torch.tensor(list(itertools.product(*(range(size) for size in space.sizes))))
    hidden = states.unsqueeze(1) + scores.of_configuration(features_of(space, actions))
    g = hidden.relu() @ scores.weight
    permitted = allowed(least, space.sizes[0])[:, actions[:, 2]] <= actions[:, 0]
    return scored, actions, g.masked_fill(~permitted, -torch.inf), states


def test_the_arg_max_is_that_of_the_whole_space() -> None:
    found, actions, g, _ = scored(make_space())
    assert torch.equal(found.best(), actions[g.argmax(-1)])


def test_relaxed_is_the_arg_max_forward() -> None:
    joint, actions, g, _ = scored(make_space())
    best = features_of(joint.prepared.space, actions[g.argmax(-1)])
    assert torch.allclose(joint.relaxed(), best, atol=1e-6)


def test_probabilities_and_entropy_are_those_of_the_whole_softmax() -> None:
    found, actions, g, _ = scored(make_space())
    best = g.argmax(-1)
    wanted = g.log_softmax(-1)[torch.arange(ROWS), best]
    assert torch.allclose(found.log_prob(actions[best]), wanted, atol=1e-4)
    assert torch.allclose(found.entropy(), torch.distributions.Categorical(logits=g).entropy(), atol=1e-4)


def test_the_cross_entropy_pulls_where_that_of_the_whole_softmax_does() -> None:
    found, actions, g, states = scored(make_space())
    best = g.topk(3).indices.T
    weights = torch.rand(3, ROWS).softmax(0)
    exact = -(weights * g.log_softmax(-1).gather(1, best.T).T).sum()
    own = found.cross_entropy(actions[best], weights).sum()
    gradients = [torch.autograd.grad(value, states, retain_graph=True)[0].flatten() for value in (own, exact)]
    assert torch.nn.functional.cosine_similarity(*gradients, dim=0) > 0.9


def test_samples_come_as_often_as_the_softmax_says() -> None:
    found, actions, g, _ = scored(make_space(memories=3, cores=(1.0,), shares=(0.5,), replicas=2, concurrencies=2))
    generator, draws = torch.Generator().manual_seed(3), 3000
    place = torch.tensor([8, 4, 2, 1])
    drawn = torch.stack([found.sample(2.0, generator) for _ in range(draws)])
    counts = torch.nn.functional.one_hot((drawn * place).sum(-1), len(actions)).sum(0) / draws
    wanted = (g / 2.0).softmax(-1)
    assert (counts[wanted == 0] == 0).all()
    assert (counts - wanted).abs().max() < 5 * 0.5 / draws**0.5


def test_candidates_obey_the_mask_and_their_gradient_points_where_the_whole_softmax_does() -> None:
    found, actions, g, states = scored(make_space())
    for candidates in (found._even(), found._near(found.best())):
        assert (candidates[..., 0] >= found.least.gather(1, candidates[..., 2])).all()
    towards = torch.randn(ROWS, found.prepared.space.resource_memory.shape[-1])
    expected = g.softmax(-1) @ features_of(found.prepared.space, actions)
    (wanted,) = torch.autograd.grad((expected * towards).sum(), states, retain_graph=True)
    own = torch.stack(
        [torch.autograd.grad((found.relaxed() * towards).sum(), states, retain_graph=True)[0] for _ in range(20)]
    ).mean(0)
    assert torch.nn.functional.cosine_similarity(own.flatten(), wanted.flatten(), 0) > 0.8


def test_the_best_configurations_are_those_of_the_whole_space() -> None:
    found, actions, g, _ = scored(make_space())
    best, logs = found.top(3)
    wanted, at = g.log_softmax(-1).topk(3, -1)
    here = wanted > -torch.inf
    assert torch.allclose(logs[here], wanted[here], atol=1e-4)
    assert torch.equal(best[here], actions[at][here])

"""Junction tree of the scores against brute force over every configuration of a small Φ."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rl.agent.configuration_table import allowed, features_of
from rl.agent.contract import Space
from rl.agent.errors import NetworkError
from rl.agent.siso import FORBIDDEN, Cliques, JunctionScores
from tests.unit.rl.agent.conftest import make_batch, make_space

ROWS = 12


def everything(space: Space) -> Tensor:
    """[|Φ|, 4]."""
    return torch.tensor(list(itertools.product(*(range(size) for size in space.sizes))))


def scored(space: Space, keep_concurrency: bool = False) -> tuple[Cliques, Tensor, Tensor, Tensor]:
    """Cliques of random queries, the queries, what Eq. (2) asks for and what is in force."""
    scores = JunctionScores(space.resource_memory.shape[-1], 16, 8, keep_concurrency)
    batch = make_batch(space, ROWS)
    queries = 3 * torch.randn(ROWS, scores.queries, requires_grad=True)
    least, present = batch.least_memory[:, 0, 0], batch.present[:, 0, 0]
    filters = scores.filters(space, least, present)
    return scores.scores(scores.prepare(space), queries, filters), queries, least, present


def brute_force(found: Cliques, least: Tensor) -> tuple[Tensor, Tensor]:
    """Every configuration, and the softmax [N, |Φ|] over those that Eq. (2) allows."""
    actions = everything(found.space)
    g = torch.stack([found.score(action.expand(ROWS, 4)) for action in actions], -1)
    permitted = allowed(least, found.space.sizes[0])[:, actions[:, 2]] <= actions[:, 0]
    assert (g[~permitted] < FORBIDDEN / 2).all() and (g[permitted] > FORBIDDEN / 2).all()
    return actions, g.masked_fill(~permitted, -torch.inf)


def test_the_arg_max_is_that_of_the_whole_space() -> None:
    found, _, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    assert torch.equal(found.best(), actions[g.argmax(-1)])


def test_the_probability_of_a_configuration_is_that_of_the_whole_softmax() -> None:
    found, _, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    wanted = g.log_softmax(-1)
    for at in range(0, len(actions), 7):
        own = found.log_prob(actions[at].expand(ROWS, 4))
        here = wanted[:, at] > -torch.inf
        assert torch.allclose(own[here], wanted[here, at], atol=1e-4)


def test_the_log_of_a_probability_has_the_gradient_of_the_whole_softmax() -> None:
    found, queries, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    best = g.nan_to_num(neginf=1e9).argmin(-1)  # an unlikely one that is allowed
    wanted = g.log_softmax(-1)[torch.arange(ROWS), best].sum()
    own = found.log_prob(actions[best]).sum()
    gradients = [torch.autograd.grad(value, queries, retain_graph=True)[0] for value in (own, wanted)]
    assert torch.allclose(own, wanted, atol=1e-3) and torch.allclose(*gradients, atol=1e-5)
    assert gradients[1].abs().max() > 0.01


def test_the_cross_entropy_is_that_of_the_whole_softmax() -> None:
    found, _, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    best = g.topk(3).indices.T  # [3, N]
    weights = torch.rand(3, ROWS).softmax(0)
    wanted = -(weights * g.log_softmax(-1).gather(1, best.T).T).sum(0)
    assert torch.allclose(found.cross_entropy(actions[best], weights), wanted, atol=1e-4)


def test_entropy_is_that_of_the_whole_softmax() -> None:
    found, _, least, _ = scored(make_space())
    _, g = brute_force(found, least)
    assert torch.allclose(found.entropy(), torch.distributions.Categorical(logits=g).entropy(), atol=1e-4)


def test_relaxed_is_the_arg_max_forward_and_the_expectation_backward() -> None:
    found, queries, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    towards = torch.randn(ROWS, found.space.resource_memory.shape[-1])
    relaxed = found.relaxed()
    assert torch.equal(relaxed, features_of(found.space, found.best()))
    expected = g.softmax(-1) @ features_of(found.space, actions)
    (wanted,) = torch.autograd.grad((expected * towards).sum(), queries, retain_graph=True)
    (own,) = torch.autograd.grad((relaxed * towards).sum(), queries)
    assert torch.allclose(own, wanted, atol=1e-5) and wanted.abs().max() > 0.01


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_samples_come_as_often_as_the_softmax_says(temperature: float) -> None:
    space = make_space(memories=3, cores=(1.0,), shares=(0.5,), replicas=2, concurrencies=2)
    found, _, least, _ = scored(space)
    actions, g = brute_force(found, least)
    generator = torch.Generator().manual_seed(3)
    draws = 10000
    many = replace(found, compute=found.compute.repeat(draws, 1, 1), memory=found.memory.repeat(draws, 1, 1))
    drawn = many.sample(temperature, generator).view(draws, ROWS, 4)
    place = torch.tensor([8, 4, 2, 1])
    assert torch.equal((actions * place).sum(-1), torch.arange(len(actions)))
    counts = torch.nn.functional.one_hot((drawn * place).sum(-1), len(actions)).sum(0) / draws
    wanted = (g / temperature).softmax(-1)
    assert (counts[wanted == 0] == 0).all()
    assert (counts - wanted).abs().max() < 5 * 0.5 / draws**0.5


def test_the_best_configurations_are_those_of_the_whole_space() -> None:
    found, _, least, _ = scored(make_space())
    actions, g = brute_force(found, least)
    best, logs = found.top(9)
    wanted, at = g.log_softmax(-1).topk(9, -1)
    here = wanted > -torch.inf
    assert torch.allclose(logs[here], wanted[here], atol=1e-4)
    assert torch.equal(best[here], actions[at][here])


def test_without_concurrency_it_stays_as_it_is() -> None:
    found, _, _, present = scored(make_space(), keep_concurrency=True)
    for chosen in (found.best(), found.sample(5.0, None)):
        assert torch.equal(chosen[:, 3], present[:, 3])


def test_where_no_memory_is_enough_the_largest_with_the_most_replicas_is_left() -> None:
    assert allowed(torch.tensor([[6, 6, 6], [6, 6, 2]]), 6).tolist() == [[6, 6, 5], [6, 6, 2]]


def test_keeping_what_is_in_force_has_a_worth_of_its_own() -> None:
    space = make_space()
    scores = JunctionScores(space.resource_memory.shape[-1], 16, 8, keep_concurrency=False)
    batch = make_batch(space, ROWS)
    queries = torch.zeros(ROWS, scores.queries)
    queries[:, -2:] = 100.0
    least, present = torch.zeros(ROWS, space.sizes[2], dtype=torch.long), batch.present[:, 0, 0]
    chosen = scores.scores(scores.prepare(space), queries, scores.filters(space, least, present)).best()
    assert torch.equal(chosen[:, 1:3], present[:, 1:3])


def test_prices_that_do_not_add_up_are_refused() -> None:
    space = make_space()
    space.resource_memory[..., 6] = space.resource_memory[..., 6].log()
    with pytest.raises(NetworkError, match=r"feature price .* is not the sum"):
        scored(space)

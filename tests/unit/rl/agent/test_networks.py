"""Actor and critic of every arm behind their protocols: masks, gradients, symmetry, and what hangs on what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.agent.configuration_table import allowed, features_of
from rl.agent.contract import Batch, Space
from rl.agent.critic import Critic
from rl.agent.errors import NetworkError
from rl.agent.settings import NetworkSettings
from rl.agent.variants import ARMS, actor
from tests.parameters import examples
from tests.unit.rl.agent.conftest import make_batch, make_settings, make_space, random_actions

UNEQUAL = (3, 1, 4)


def critic(arm: str) -> Critic:
    """A critic for an actor of ``arm``; the flat one, which has none of its own, gets the full arm's."""
    return Critic(make_settings("full" if arm == "ddpg-only" else arm))


def violations(batch: Batch, actions: Tensor) -> Tensor:
    """Where Eq. (2) does not hold, or an axis of Φ is left; Eq. (4) holds for every position of the resource's axis."""
    least = allowed(batch.least_memory, batch.space.sizes[0]).gather(-1, actions[..., 2:3]).squeeze(-1)
    ends = torch.tensor(batch.space.sizes)
    outside = ((actions < 0) | (actions >= ends)).any(-1)
    return ((actions[..., 0] < least) | outside) & batch.space.mask


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e6])
def test_every_arm_decides_within_the_masks(arm: str, temperature: float) -> None:
    batch = make_batch(make_space(UNEQUAL))
    network = actor(make_settings(arm))
    chosen, again = (network.decide(batch, temperature, torch.Generator().manual_seed(1)) for _ in range(2))
    assert chosen.dtype == torch.int64 and chosen.shape == batch.present.shape
    assert torch.equal(chosen, again)
    assert not violations(batch, chosen).any()
    assert not chosen[:, ~batch.space.mask].any()
    if arm == "no-concurrency":
        assert torch.equal(chosen[..., 3], batch.present[..., 3])


@pytest.mark.parametrize("arm", ARMS)
def test_relaxed_actions_are_those_decided_when_the_layers_before_are(arm: str) -> None:
    batch = make_batch(make_space(UNEQUAL))
    network = actor(make_settings(arm))
    chosen = network.decide(batch)
    relaxed = network.relaxed(batch, chosen)
    wanted = features_of(batch.space, chosen) * batch.space.mask.unsqueeze(-1)
    assert torch.allclose(relaxed, wanted, atol=1e-6)


@pytest.mark.parametrize("arm", ARMS)
def test_gradients_flow_from_the_critic_to_every_parameter(arm: str) -> None:
    batch = make_batch(make_space((4, 4, 4)), count=4)
    network, judge = actor(make_settings(arm)), critic(arm)
    executed = random_actions(batch)
    worth = judge(batch, network.relaxed(batch, executed), executed)
    assert worth.shape == (4, 3) and worth.dtype == torch.float32
    (worth * torch.randn_like(worth)).sum().backward()
    for owner in (network, judge):
        still = [name for name, value in owner.named_parameters() if value.grad is None or not value.grad.any()]
        assert not still


@pytest.mark.parametrize("arm", ARMS)
def test_the_log_of_a_probability_is_highest_at_the_arg_max(arm: str) -> None:
    batch = make_batch(make_space(UNEQUAL))
    network = actor(make_settings(arm))
    chosen = network.decide(batch)
    other = network.decide(batch, 1e6, torch.Generator().manual_seed(5))
    at_best = network.log_prob(batch, chosen)
    scores = network.scores(batch, chosen)
    there = batch.space.mask
    assert (at_best[:, ~there] == 0).all() and (at_best[:, there] < 0).all()
    assert (scores.log_prob(other[:, there].flatten(0, 1)) <= at_best[:, there].flatten() + 1e-5).all()
    at_best.sum().backward()
    assert any(value.grad is not None and value.grad.any() for value in network.parameters())


@pytest.mark.parametrize("arm", ["full", "no-dagnn", "no-pointer", "no-concurrency", "full-joint"])
def test_permuting_experts_permutes_their_decisions(arm: str) -> None:
    batch = make_batch(make_space((4, 4, 4)))
    order = torch.tensor([2, 0, 3, 1])
    swapped = replace(
        batch,
        experts=batch.experts[:, :, order],
        present=batch.present[:, :, order],
        least_memory=batch.least_memory[:, :, order],
    )
    network, judge = actor(make_settings(arm)), critic(arm)
    chosen = network.decide(batch)
    assert torch.equal(network.decide(swapped), chosen[:, :, order])
    features = features_of(batch.space, chosen)
    worth = judge(batch, features, chosen), judge(swapped, features[:, :, order], chosen[:, :, order])
    assert torch.allclose(*worth, atol=1e-5)


@pytest.mark.parametrize("arm", ARMS)
def test_what_stands_at_padding_changes_nothing(arm: str) -> None:
    batch = make_batch(make_space(UNEQUAL))
    padding = (~batch.space.mask).unsqueeze(-1)
    other = replace(batch, experts=batch.experts + 5.0 * padding)
    network, judge = actor(make_settings(arm)), critic(arm)
    chosen = network.decide(batch)
    features = features_of(batch.space, chosen)
    assert torch.equal(network.decide(other), chosen)
    worth = judge(batch, features, chosen), judge(other, features + 5.0 * padding, chosen)
    assert torch.allclose(*worth, atol=1e-5)


@pytest.mark.parametrize("arm", ["full", "no-dagnn", "no-pointer", "full-joint"])
def test_more_padding_changes_nothing(arm: str) -> None:
    narrow = make_batch(make_space((3, 3)))
    mask = torch.arange(5) < 3

    def wider(values: Tensor) -> Tensor:
        return torch.cat((values, torch.zeros_like(values)[:, :, :2]), 2)

    parts = {name: wider(getattr(narrow, name)) for name in ("experts", "present", "least_memory")}
    wide = replace(narrow, space=replace(narrow.space, mask=mask.expand(2, -1)), **parts)
    network, judge = actor(make_settings(arm)), critic(arm)
    chosen = network.decide(narrow)
    assert torch.equal(network.decide(wide), wider(chosen))
    features = features_of(narrow.space, chosen)
    worth = judge(narrow, features, chosen), judge(wide, wider(features), wider(chosen))
    assert torch.allclose(*worth, atol=1e-5)


@pytest.mark.parametrize("arm", ["full", "no-dagnn", "no-pointer", "no-concurrency", "full-joint"])
def test_a_layer_sees_what_was_decided_in_those_before_it_and_no_other(arm: str) -> None:
    batch = make_batch(make_space(UNEQUAL))
    network, judge = actor(make_settings(arm)), critic(arm)
    first = random_actions(batch, 1)
    second = first.clone()
    second[:, 1] = random_actions(batch, 2)[:, 1]
    features = features_of(batch.space, first)
    queries = [network.queries(batch, executed)[0] for executed in (first, second)]
    worth = [judge(batch, features, executed) for executed in (first, second)]
    for before, after in (queries, worth):
        assert torch.equal(before[:, :2], after[:, :2])
        assert not torch.allclose(before[:, 2], after[:, 2])


def test_decisions_change_with_what_was_decided_before() -> None:
    batch = make_batch(make_space((4, 4, 4)), count=30)
    network = actor(make_settings())
    with torch.no_grad():
        network.to_queries.weight.mul_(20)  # type: ignore[operator]
    found = [network.relaxed(batch, random_actions(batch, seed)) for seed in (1, 2)]
    assert torch.equal(found[0][:, 0], found[1][:, 0])
    assert not torch.equal(found[0][:, 1:], found[1][:, 1:])


@given(
    least=st.lists(st.integers(0, 6), min_size=12, max_size=12),
    temperature=st.sampled_from([0.0, 0.3, 1e9]),
    arm=st.sampled_from(["full", "no-concurrency", "full-joint", "ddpg-only"]),
)
@settings(max_examples=examples(20), deadline=None)
def test_no_table_of_least_memories_is_ever_violated(least: list[int], temperature: float, arm: str) -> None:
    batch = make_batch(make_space((2, 1)), count=1)
    table = torch.tensor(least).view(1, 1, 3, 4).expand(1, 2, 3, 4)[:, :, :2].clone()
    batch = replace(batch, least_memory=table)
    chosen = actor(make_settings(arm)).decide(batch, temperature)
    assert not violations(batch, chosen).any()
    for place in torch.nonzero((table == 6).all(-1) & batch.space.mask).tolist():
        assert chosen[tuple(place)][[0, 2]].tolist() == [5, 3]


CPU_ONLY = {"shares": (), "cores": (0.5, 1.0, 2.0), "memories": 9, "replicas": 2, "concurrencies": 5}


@pytest.mark.parametrize("arm", ["full", "no-dagnn", "no-pointer", "no-concurrency", "full-joint"])
def test_one_set_of_weights_decides_for_any_pipeline_and_space(arm: str) -> None:
    network, judge = actor(make_settings(arm)), critic(arm)
    for space in (make_space((2,)), make_space((1, 7, 2, 3, 5)), make_space((6, 6), **CPU_ONLY)):  # type: ignore[arg-type]
        batch = make_batch(space)
        chosen = network.decide(batch)
        assert not violations(batch, chosen).any()
        assert judge(batch, network.relaxed(batch, chosen), chosen).shape == (3, len(space.mask))


def test_the_flat_arm_refuses_pipelines_that_are_larger_than_it() -> None:
    network = actor(make_settings("ddpg-only"))
    for experts in ((2, 2, 2, 2), (5,)):
        with pytest.raises(NetworkError, match="takes pipelines of up to 3 layers of 4 experts"):
            network.decide(make_batch(make_space(experts)))


def test_graphs_that_are_not_layered_are_refused() -> None:
    space = make_space()
    other = Space(space.mask, space.resource_memory, space.replicas, space.concurrencies, (*space.edges, (0, 2)))
    with pytest.raises(NetworkError, match="edge 0 → 2 of the pipeline is not one of a layered pipeline"):
        actor(make_settings()).decide(make_batch(other))


def test_the_pointer_weighs_the_experts_that_there_are() -> None:
    batch = make_batch(make_space(UNEQUAL))
    chosen = random_actions(batch)
    for arm in ARMS:
        weights, scores = actor(make_settings(arm)).explain(batch, chosen)
        assert torch.allclose(weights.sum(-1), torch.ones(3, 3), atol=1e-5)
        assert not weights[:, ~batch.space.mask].any() and not scores[:, ~batch.space.mask].any()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"arm": "none"}, "arm is 'none'"),
        ({"width": 10}, "multiple of heads"),
        ({"rank": 0}, "rank is 0"),
        ({"arm": "ddpg-only", "layers": 0}, "layers is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(sizes: dict[str, object], said: str) -> None:
    with pytest.raises(NetworkError, match=said):
        make_settings(**{"arm": "full", **sizes})  # type: ignore[arg-type]


def test_the_published_sizes_fit_into_five_megabytes() -> None:
    count = sum(value.numel() for value in actor(NetworkSettings(60, 50)).parameters())
    assert 4 * count < 1_000_000

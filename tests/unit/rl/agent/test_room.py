"""Decisions within a cluster: exact under each expert's limits, in the pointer's order, the same where all fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.agent.actor import Actor
from rl.agent.contract import Amounts, Batch, Space
from rl.agent.room import Room, floors, needs
from tests.parameters import examples
from tests.unit.rl.agent.conftest import make_batch, make_settings, make_space, random_actions

PLENTY = torch.tensor([1e6, 1e9, 1e6])


def amounts_of(space: Space) -> Amounts:
    assert space.amounts is not None
    return space.amounts


def walled(batch: Batch, room: Tensor) -> Batch:
    return replace(batch, room=room.expand(len(batch.experts), 3))


def taken(batch: Batch, actions: Tensor) -> Tensor:
    return (needs(amounts_of(batch.space), actions) * batch.space.mask[..., None]).sum((1, 2))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(limits=st.tuples(st.floats(1, 12), st.floats(64, 1600), st.floats(0, 40)), seed=st.integers(0, 99))
def test_the_arg_max_under_limits_is_that_of_all_configurations_within_them(
    limits: tuple[float, float, float], seed: int
) -> None:
    torch.manual_seed(seed)
    space = make_space()
    batch, actor = make_batch(space, 1, seed), Actor(make_settings())
    scored = actor.scores(batch, random_actions(batch, seed)).within(  # type: ignore[attr-defined]
        torch.tensor(limits).expand(5, 3), amounts_of(space)
    )
    plain = actor.scores(batch, random_actions(batch, seed))
    every = torch.tensor(list(product(*map(range, space.sizes))))
    fitting = (needs(amounts_of(space), every) <= torch.tensor(limits)).all(-1)
    scores = torch.stack([plain.score(one.expand(5, 4)) for one in every], -1)  # [5, Φ]
    best = scores.masked_fill(~fitting, -torch.inf).amax(-1)
    possible = best > -1e8  # Eq. (2) and the limits together leave something
    torch.testing.assert_close(plain.score(scored.best())[possible], best[possible])
    assert (needs(amounts_of(space), scored.best()) <= torch.tensor(limits))[possible].all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_all_fits_decisions_are_those_without_walls(temperature: float) -> None:
    batch, actor = make_batch(make_space(), 4), Actor(make_settings())
    without = actor.decide(batch, temperature, torch.Generator().manual_seed(1))
    within = actor.decide(walled(batch, PLENTY), temperature, torch.Generator().manual_seed(1))
    assert torch.equal(without, within)


@settings(max_examples=examples(25))
@given(share=st.floats(0.0, 1.0), temperature=st.sampled_from([0.0, 2.0]), seed=st.integers(0, 50))
def test_all_decisions_together_stay_within_any_room_that_holds_the_floors(
    share: float, temperature: float, seed: int
) -> None:
    torch.manual_seed(seed)
    batch, actor = make_batch(make_space(), 2, seed), Actor(make_settings())
    least = batch.least_memory.clamp(max=batch.space.sizes[0] - 1)  # some memory is enough for all
    batch = replace(batch, least_memory=least)
    wanted = taken(batch, actor.decide(batch))
    floor = (floors(amounts_of(batch.space), least) * batch.space.mask[..., None]).sum((1, 2))
    room = floor + share * (wanted - floor).clamp(min=0)
    within = actor.decide(replace(batch, room=room), temperature, torch.Generator().manual_seed(seed))
    assert (taken(batch, within) <= room * (1 + 1e-4)).all()


def test_the_last_tenth_of_a_gpu_goes_to_whom_the_pointer_names_first() -> None:
    """Two stragglers of one layer that want a share each, where the room has one."""
    space = make_space((2,), cores=(1.0,), shares=(0.1,), replicas=1, concurrencies=1)
    batch, actor = make_batch(space, 1), Actor(make_settings())
    batch = replace(batch, least_memory=torch.zeros_like(batch.least_memory))
    both = actor.scores(batch, batch.present)
    wanting = replace(both, compute=torch.tensor([0.0, 1.0]).expand(2, 1, 2))  # type: ignore[type-var]
    for weights, first in ((torch.tensor([[0.9, 0.1]]), 0), (torch.tensor([[0.1, 0.9]]), 1)):
        room = Room(walled(batch, torch.tensor([2.0, 1e6, 1.0])))
        chosen = room.decide(0, wanting, weights, lambda scored: scored.best())  # type: ignore[arg-type, attr-defined]
        assert chosen[0, first, 1] == 1 and chosen[0, 1 - first, 1] == 0


def test_where_not_even_floors_fit_everybody_has_a_floor() -> None:
    batch, actor = make_batch(make_space(), 2), Actor(make_settings())
    batch = replace(batch, least_memory=batch.least_memory.clamp(max=batch.space.sizes[0] - 1))
    chosen = actor.decide(walled(batch, torch.tensor([0.5, 1.0, 0.0])))
    floor = floors(amounts_of(batch.space), batch.least_memory)
    mask = batch.space.mask
    assert (needs(amounts_of(batch.space), chosen)[:, mask] <= floor[:, mask] + 1e-4).all()


def test_a_space_without_amounts_knows_no_walls() -> None:
    batch, actor = make_batch(make_space(), 2), Actor(make_settings())
    unknown = replace(walled(batch, torch.ones(3)), space=replace(batch.space, amounts=None))
    assert torch.equal(actor.decide(unknown), actor.decide(batch))

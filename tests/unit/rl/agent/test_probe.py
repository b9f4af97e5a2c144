"""Experts that differ stay different on their way through an actor that has learnt nothing yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rl.agent.contract import Batch
from rl.agent.probe import STAGES, apart, stages
from rl.agent.settings import NetworkSettings
from rl.agent.variants import actor
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from tests.unit.rl.agent.conftest import make_batch, make_space

SIZES = (len(NODE_FEATURES), len(PIPELINE_FEATURES))
AT = {feature.name: at for at, feature in enumerate(NODE_FEATURES)}
LOADS = ("tokens_per_s", "requests_per_s", "calls", "load_mean_5", "load_peak_5", "token_share", "request_share")
COST, STRAGGLER = ("price", "spend"), ("latency_p95", "latency_mean", "straggler", "waiting")


def differing_in(names: tuple[str, ...]) -> Batch:
    """States that differ in everything, whose experts differ in ``names`` alone, from -1 to 1 within a layer."""
    batch = make_batch(make_space((4, 4)), count=8, features=SIZES)
    experts = batch.experts[:, :1, :1].expand_as(batch.experts).clone()
    for name in names:
        experts[..., AT[name]] = torch.linspace(-1, 1, 4)
    return replace(batch, experts=experts)


@pytest.mark.parametrize("names", [LOADS, COST, STRAGGLER], ids=["load", "cost", "straggler"])
@pytest.mark.parametrize("seed", range(3))
def test_no_stage_forgets_what_experts_differ_in(names: tuple[str, ...], seed: int) -> None:
    torch.manual_seed(seed)
    batch = differing_in(names)
    mask = batch.space.mask
    apart_at = {
        name: apart(values, mask)
        for name, values in stages(actor(NetworkSettings(*SIZES)), batch, batch.present).items()
    }
    assert tuple(apart_at) == STAGES
    assert min(apart_at.values()) > 0.3 * apart_at["features"]
    assert apart_at["query"] > 0.5 * apart_at["features"]


def test_without_the_direct_way_the_query_forgets_more() -> None:
    batch = differing_in(LOADS)
    torch.manual_seed(0)
    values = [
        apart(stages(actor(NetworkSettings(*SIZES, direct=direct)), batch, batch.present)["query"], batch.space.mask)
        for direct in (True, False)
    ]
    assert values[0] > values[1]


def test_experts_that_are_the_same_are_nowhere_apart() -> None:
    batch = differing_in(())
    for values in stages(actor(NetworkSettings(*SIZES)), batch, batch.present).values():
        assert apart(values, batch.space.mask) < 1e-3

"""What a platform cannot give, and what a placement asks for, within the limits of a decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Bound, Configuration, ConfigurationSpace, Decision
from autoscaler.decision.limits import LimitSettings, memory_need
from tests.unit.autoscaler.builders import configuration, observation
from tests.unit.autoscaler.deciding import FUNCTION, NODE, NODES, SETTINGS, SPACE, decision


def bounded(desired: Configuration, bound: Bound, present: Configuration | None = None, **more: Any) -> Decision:
    return decision(desired, present, bounds={FUNCTION: bound}, **more)


@pytest.mark.parametrize(
    ("bound", "desired", "target"),
    [
        pytest.param(Bound("quota", memory_mb=512), configuration(3, memory_mb=512), configuration(3), id="memory"),
        pytest.param(Bound("quota", cpu_cores=3), configuration(2, cpu_cores=4.0), configuration(2), id="cores"),
        pytest.param(
            Bound("quota", gpu_share=0.2), configuration(cpu_cores=0.0, gpu_share=0.3), configuration(), id="GPU share"
        ),
        pytest.param(Bound("quota", replicas=2), configuration(5), configuration(2), id="replicas"),
    ],
)
def test_an_axis_does_not_grow_to_what_the_platform_refuses_and_the_others_do(
    bound: Bound, desired: Configuration, target: Configuration
) -> None:
    allowed = bounded(desired, bound)
    assert allowed.target == target and allowed.limits_hit == ("platform: quota",)


def test_less_than_what_was_refused_is_granted_and_so_is_shrinking_from_beyond_it() -> None:
    bound = Bound("quota", replicas=3, memory_mb=1024)
    assert bounded(configuration(3, memory_mb=960), bound).limits_hit == ()
    less = bounded(configuration(memory_mb=1536), bound, configuration(memory_mb=2048))
    assert less.target.memory_mb == 1536 and less.limits_hit == ()


def test_replicas_that_cannot_run_are_taken_back_also_where_the_policy_desires_them() -> None:
    allowed = bounded(configuration(5), Bound("unschedulable", replicas=2), configuration(5))
    assert allowed.target == configuration(2) and allowed.limits_hit == ("platform: unschedulable",) and allowed.changes


def test_what_is_taken_back_is_never_below_the_least_replicas() -> None:
    settings = LimitSettings(space=ConfigurationSpace(replicas_min=3))
    allowed = bounded(configuration(5), Bound("unschedulable", replicas=0), configuration(5), settings=settings)
    assert allowed.target == configuration(3)


def test_taking_back_what_cannot_run_asks_for_nothing_else() -> None:
    """Fewer replicas hold more tokens each, but those that run have run all along."""
    seen = observation({NODE: {"peak_tokens": 120_000.0}})
    need = memory_need([NODES[FUNCTION]], [seen.node(NODE)], SETTINGS)
    wide = configuration(5, memory_mb=512)
    assert need is not None and need.holds(wide) and not need.holds(wide.with_replicas(2))
    allowed = bounded(wide, Bound("unschedulable", replicas=2), wide, seen=seen)
    assert allowed.target == wide.with_replicas(2)


@given(
    desired=st.builds(
        configuration, st.integers(1, 12), memory_mb=st.integers(1, 4096), concurrency=st.integers(1, 12)
    ),
    present=st.builds(configuration, st.integers(1, 8), memory_mb=st.integers(128, 2048)),
    replicas=st.integers(0, 8),
    memory_mb=st.integers(0, 4096),
    peak=st.none() | st.floats(0, 1e6),
)
def test_no_decision_grows_to_what_the_platform_refuses(
    desired: Configuration, present: Configuration, replicas: int, memory_mb: int, peak: float | None
) -> None:
    seen = observation({NODE: {"peak_tokens": peak}})
    target = bounded(desired, Bound("no", replicas, memory_mb), present, seen=seen).target
    assert target.replicas <= max(1, replicas) or target.replicas < present.replicas <= replicas
    assert target.memory_mb <= present.memory_mb or target.memory_mb < memory_mb


def test_bounds_together_are_as_tight_as_the_tightest() -> None:
    both = Bound("quota", replicas=3, memory_mb=512).and_also(Bound("deferred", memory_mb=0, cpu_cores=2))
    assert both == Bound("quota, deferred", 3, 0, 2)


def test_what_was_refused_bounds_only_what_it_made_more_of() -> None:
    refused = Bound.below(configuration(2), configuration(5, memory_mb=512), "quota")
    assert refused == Bound("quota", memory_mb=512)
    assert refused.refuses(configuration(memory_mb=512)) and not refused.refuses(configuration(8, memory_mb=511))


def test_a_replica_stays_on_every_node_that_a_placement_gives_the_function() -> None:
    allowed = decision(configuration(1), configuration(4), floors={FUNCTION: 2})
    assert allowed.target.replicas == 2 and allowed.limits_hit == ("placement: a replica on each of 2 nodes",)
    assert not decision(configuration(1), configuration(2), floors={FUNCTION: 2}).changes
    assert decision(configuration(3), configuration(2), floors={FUNCTION: 2}).target.replicas == 3


def test_a_placement_on_more_nodes_than_there_may_be_replicas_asks_for_as_many_as_there_may_be() -> None:
    settings = replace(SETTINGS, space=replace(SPACE, replicas_max=2))
    assert decision(configuration(1), configuration(2), settings=settings, floors={FUNCTION: 5}).target.replicas == 2


def test_a_placement_says_nothing_of_other_functions_and_changes_nothing_by_itself() -> None:
    assert decision(configuration(1), configuration(4), floors={"other": 3}).target.replicas == 1
    assert not decision(configuration(1), configuration(1), floors={FUNCTION: 2}).changes

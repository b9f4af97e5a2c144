"""What is measured, in which order, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from moe.manifest import Manifest
from simulation.profiles.measure.measurement_plan import (
    QUICK,
    NodeClass,
    Plan,
    ProfileSettings,
    axis_tokens,
    make_plan,
    node_classes,
)
from simulation.profiles.model.errors import ProfileError

CLASSES = (NodeClass("segment-0", ("segment-0",)), NodeClass("expert-0-0", ("expert-0-0", "expert-0-1")))


def plan(settings: ProfileSettings, alone_s: float = 0.001) -> Plan:
    pilot = {(entry.node, tokens): alone_s for entry in CLASSES for tokens in axis_tokens(settings)}
    return make_plan(CLASSES, frozenset({"expert-0-0"}), settings, pilot)


def test_every_point_comes_once_in_each_repeat() -> None:
    settings = replace(QUICK, repeats=3)
    planned = plan(settings)
    one = {replace(point, repeat=0) for point in planned.live}
    assert len(planned.live) == 3 * len(one)
    assert len(set(planned.live)) == len(planned.live)


def test_repeats_have_different_orders_and_the_same_seed_the_same() -> None:
    settings = replace(QUICK, repeats=2)
    planned = plan(settings)
    half = len(planned.live) // 2
    assert [replace(point, repeat=0) for point in planned.live[:half]] != [
        replace(point, repeat=0) for point in planned.live[half:]
    ]
    assert plan(settings).live == planned.live


def test_tokens_shares_memory_and_concurrency_are_all_covered() -> None:
    settings = ProfileSettings()
    planned = plan(settings)
    experts = [point for point in (*planned.live, *planned.memory) if point.node == "expert-0-0"]
    assert {point.tokens for point in experts} >= set(settings.tokens)
    assert {point.share for point in experts} >= set(settings.shares)
    assert {point.concurrency for point in experts} >= {1, *settings.concurrencies}
    assert {point.memory_mib for point in experts} >= set(settings.memory_mib)


def test_points_of_one_memory_limit_are_together() -> None:
    limits = [(point.node, point.memory_mib) for point in plan(replace(QUICK, repeats=2)).memory]
    changes = sum(first != second for first, second in pairwise(limits))
    assert changes == len(set(limits)) - 1


def test_points_with_too_slow_calls_are_left_out_and_counted() -> None:
    settings = replace(QUICK, longest_call_s=0.5)
    planned = plan(settings, alone_s=0.1)
    assert planned.left_out > 0
    assert all(point.loop == "open" or 0.1 / point.share * point.concurrency <= 0.5 for point in planned.live)
    assert plan(settings, alone_s=0.001).left_out == 0


def test_only_experts_have_a_surface() -> None:
    assert {point.node for point in plan(QUICK).live if point.family == "surface"} == {"expert-0-0"}


def test_memory_of_the_surface_brings_its_share() -> None:
    for point in plan(QUICK).live:
        if point.family == "surface":
            assert point.memory_mib == pytest.approx(point.share * 1769, abs=0.5)


def test_the_time_of_a_plan_is_the_sum_of_its_points() -> None:
    planned = plan(QUICK)
    assert planned.total_s == pytest.approx(sum(planned.seconds(point) for point in (*planned.live, *planned.memory)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokens": ()}, "tokens is \\(\\)"),
        ({"shares": (0.5, 0.0)}, "shares.1 is 0.0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"seconds_per_point": -1.0}, "seconds_per_point is -1.0"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ProfileError, match=named):
        replace(ProfileSettings(), **change)  # type: ignore[arg-type]


def test_nodes_with_the_same_program_and_sizes_are_one_class(minilm: Manifest) -> None:
    found = {entry.node: entry.members for entry in node_classes(minilm)}
    assert set(found) == {"segment-0", "segment-1", "segment-6", "expert-0-0"}
    assert found["segment-1"] == tuple(f"segment-{place}" for place in range(1, 6))
    assert len(found["expert-0-0"]) == 24
    assert sum(len(members) for members in found.values()) == len(minilm.nodes)

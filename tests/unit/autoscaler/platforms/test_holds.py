"""What is remembered of refusals: how long, how often, and what of a configuration, on a scripted clock."""

from __future__ import annotations

import math

import pytest

from autoscaler.contract import Bound
from autoscaler.errors import PlatformError
from autoscaler.platforms.kubernetes.holds import Holds
from autoscaler.platforms.kubernetes.room import refused_limits
from tests.unit.autoscaler.builders import configuration

F = "m-expert-0-0"
FIRST_S = 1000.0


class Held:
    """Holds, and the time."""

    def __init__(self) -> None:
        self.now_s = FIRST_S
        self.holds = Holds(lambda: self.now_s)

    def lasts_s(self) -> float:
        """How long the hold of F lasts from now on; afterwards it is over."""
        begun_s = self.now_s
        while self.holds.bound(F) is not None:
            self.now_s += 1.0
        return self.now_s - begun_s


@pytest.fixture
def held() -> Held:
    return Held()


def test_holds_that_follow_each_other_double_up_to_eight_minutes_and_begin_again_after_a_long_rest(held: Held) -> None:
    lasted = []
    for _ in range(6):
        held.holds.replicas(F, "quota", 2, "no")
        lasted.append(held.lasts_s())
    held.now_s += 481.0
    held.holds.replicas(F, "quota", 2, "no")
    assert [*lasted, held.lasts_s()] == [60, 120, 240, 480, 480, 480, 60]
    assert held.holds.counts == {(F, "quota"): 7}


def test_what_is_met_again_while_it_is_held_is_corrected_and_neither_longer_nor_counted_twice(held: Held) -> None:
    for most, since_s in ((4, 0.0), (4, 10.0), (3, 20.0)):
        held.now_s = FIRST_S + since_s
        held.holds.replicas(F, "unschedulable", most, "no")
    assert held.holds.bound(F) == Bound("unschedulable", 3) and held.lasts_s() == 40
    assert held.holds.counts == {(F, "unschedulable"): 2}


def test_a_smaller_order_that_is_refused_too_tightens_the_bound(held: Held) -> None:
    for memory_mb in (1024, 512):
        bound = Bound.below(configuration(), configuration(memory_mb=memory_mb), "quota")
        held.holds.limits(F, "quota", bound, "no")
    assert held.holds.bound(F) == Bound("quota", memory_mb=512)
    with pytest.raises(PlatformError, match="not asked for again yet"):
        held.holds.check(F, configuration(), configuration(memory_mb=576))
    assert held.holds.check(F, configuration(), configuration(3, memory_mb=448)) == configuration()


def test_replicas_and_limits_are_held_separately_next_to_each_other(held: Held) -> None:
    held.holds.replicas(F, "unschedulable", 2, "no node")
    held.holds.limits(F, "quota", Bound("quota", cpu_cores=2), "no cores")
    assert held.holds.bound(F) == Bound("unschedulable, quota", 2, cpu_cores=2)
    assert [(one.kind, one.message) for one in held.holds.conditions()] == [
        ("quota", "no cores"),
        ("unschedulable", "no node"),
    ]
    held.holds.came_about(F, configuration(3))
    assert held.holds.bound(F) == Bound("quota", cpu_cores=2)


def test_something_given_back_ends_the_wait_after_ten_seconds_and_not_before(held: Held) -> None:
    held.holds.replicas(F, "quota", 2, "no")
    held.now_s += 3.0
    held.holds.given_back()
    assert held.lasts_s() == 7


def test_a_missing_right_is_no_bound_and_is_not_given_back(held: Held) -> None:
    held.holds.right("m", "cannot patch")
    held.holds.given_back()
    assert held.holds.bounded() == set() and held.holds.bound("m") is None
    held.now_s += 599.0
    assert held.holds.lacks_right("m")
    held.now_s += 1.0
    assert not held.holds.lacks_right("m") and held.holds.conditions() == []


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ("exceeded quota: t, requested: limits.memory=1Gi, used: limits.memory=1Gi, limited: …", (1024, math.inf)),
        ("exceeded quota: t, requested: limits.cpu=1,requests.memory=1Gi, used: limits.cpu=3, limited: …", (1024, 2)),
        ("exceeded quota: t, requested: requests.cpu=1, used: limits.memory=9Gi, limited: …", (math.inf, 2)),
        ("[maximum cpu usage per Container is 1, but limit is 2, maximum cpu usage per Pod is 1, …]", (math.inf, 2)),
        ("exceeded quota: t, requested: pods=1, used: pods=2, limited: pods=2", (1024, 2)),
        ("something else", (1024, 2)),
    ],
    ids=["memory", "both", "cores", "limit range", "neither", "no names"],
)
def test_of_what_grew_only_what_the_refusal_names_is_held_back(said: str, bound: tuple[float, float]) -> None:
    refused = refused_limits("quota", configuration(), configuration(4, memory_mb=1024, cpu_cores=2.0), said)
    assert (refused.memory_mb, refused.cpu_cores) == bound and refused.replicas == math.inf

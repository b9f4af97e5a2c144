"""Failure stories on a scripted clock: the controller's loop on the API double while things around it break."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.contract import MetricsSource, Observation
from autoscaler.decision.limits import LimitSettings
from autoscaler.lease import NotLeaderError
from autoscaler.loop import Controller
from autoscaler.platforms.kubernetes import KubernetesPlatform, cache
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import NAMESPACE, put, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation, topology

pytestmark = pytest.mark.timeout(600)
TICK_S = 5.0
TEN_MINUTES = 120
NODES = ("expert-0-0", "expert-0-1")
FUNCTIONS = tuple(f"m-{node}" for node in NODES)
POLICY = HpaPolicy(HpaSettings(down_stabilisation_s=20.0, kinds=frozenset(("expert",))))


class Load:
    """A metrics source whose calls in flight are scripted, for replicas as they are; ``lie`` changes what it says."""

    def __init__(self, double: Running) -> None:
        self._double = double
        self.calls = 0.0
        self.lie: dict[str, Any] | None = None
        self.stale = False

    def observe(self, now_s: float, window_s: float) -> Observation:
        changes: dict[str, dict[str, Any]] = {}
        for node, function in zip(NODES, FUNCTIONS, strict=True):
            replicas = int(self._double.deployment(function)["spec"]["replicas"])
            known = {"ready_replicas": replicas, "measured_replicas": replicas, "in_flight": self.calls}
            changes[node] = known | {"busy_s": self.calls * window_s} | (self.lie or {})
        problems = ("Prometheus is old",) if self.stale else ()
        return observation(changes, start_s=now_s - window_s, end_s=now_s, stale=self.stale, problems=problems)


class Story:
    """Two experts in a cluster, a load, and a clock that moves by one tick at a time."""

    def __init__(
        self,
        double: Running,
        platform: KubernetesPlatform,
        source: MetricsSource | None = None,
        namespace: str = NAMESPACE,
    ) -> None:
        self.double = double
        self.namespace = namespace
        self.load = Load(double)
        self.platform = platform
        limits = LimitSettings()
        self.controller = Controller(
            topology(), source or self.load, POLICY, platform, limits, PRICES, wait=lambda _: None, window_s=TICK_S
        )
        self.now_s = NOW_S
        self.seen: list[tuple[int, ...]] = []

    def simulate(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now_s += TICK_S
            self.controller.tick(self.now_s)
            self.seen.append(self.replicas())

    def replicas(self) -> tuple[int, ...]:
        replicas = (self.double.deployment(function, self.namespace) for function in FUNCTIONS)
        return tuple(int(one["spec"]["replicas"]) for one in replicas)


@pytest.fixture
def story(
    request: pytest.FixtureRequest, double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Story]:
    """A story whose platform lists at each look, or (parameter ``watches``) follows by watches."""
    monkeypatch.setattr(cache, "_WAITS_S", (0.01,))
    for function in FUNCTIONS:
        put(double, spec(function))
    platform = platforms()
    if getattr(request, "param", "lists") == "watches":
        platform.cluster.follow()
    yield Story(double, platform)
    platform.close()


BOTH = pytest.mark.parametrize("story", ["lists", "watches"], indirect=True)


@pytest.mark.slow
@BOTH
def test_ten_minutes_without_an_api_server_change_nothing_and_the_first_tick_after_them_catches_up(
    double: Running, story: Story
) -> None:
    story.simulate(2)
    story.load.calls = 8.4
    double.set(down=True)
    begun = len(writes(double))
    story.simulate(TEN_MINUTES)
    assert set(story.seen) == {(1, 1)} and len(writes(double)) == begun
    double.set(down=False)
    story.simulate(6)
    assert story.seen[TEN_MINUTES + 2 :] == [(3, 3)] * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        {"in_flight": math.nan, "busy_s": math.nan},
        {"in_flight": None, "busy_s": None},
        {"ready_replicas": None, "measured_replicas": None},
        {"in_flight": -5.0, "busy_s": -25.0},
    ],
    ids=["NaN", "gaps", "no replicas", "a counter that fell"],
)
def test_a_prometheus_that_lies_takes_no_function_below_its_minimum_and_is_forgotten_when_it_is_right_again(
    story: Story, lie: dict[str, Any]
) -> None:
    story.load.calls = 8.4
    story.simulate(4)
    assert story.seen[-1] == (3, 3)
    story.load.lie = lie
    story.simulate(20)
    assert min(min(row) for row in story.seen) >= 1
    assert max(max(row) for row in story.seen) <= 3
    story.load.lie = None
    story.simulate(8)
    assert story.seen[-1] == (3, 3)


@pytest.mark.slow
def test_old_data_hold_the_scale_for_as_long_as_they_are_old(story: Story) -> None:
    story.load.calls = 8.4
    story.simulate(4)
    story.load.calls, story.load.stale = 0.0, True
    story.simulate(TEN_MINUTES)
    assert set(story.seen[3:]) == {(3, 3)}
    story.load.stale = False
    story.simulate(12)
    assert story.seen[-1] == (1, 1)


@BOTH
def test_a_leader_killed_within_its_orders_leaves_what_the_next_one_completes(
    double: Running, story: Story, platforms: Platforms
) -> None:
    orders = 0

    def killed_after_one() -> None:
        nonlocal orders
        orders += 1
        if orders > 1:
            raise NotLeaderError("killed")

    dying = Story(double, platforms(guard=killed_after_one))
    dying.load.calls = 8.4
    dying.simulate(1)
    assert sorted(dying.replicas()) == [1, 3]
    story.load.calls = 8.4
    story.now_s = dying.now_s
    story.simulate(5)
    assert story.seen == [(3, 3)] * 5


@pytest.mark.parametrize("story", ["watches"], indirect=True)
def test_watches_that_are_dropped_in_every_tick_miss_nothing_and_flap_nothing(
    double: Running, story: Story, platforms: Platforms
) -> None:
    story.load.calls = 8.4
    for tick in range(12):
        if tick == 8:
            story.load.calls = 2.8
        double.end_watches()
        story.simulate(1)
    end_s, pause = time.monotonic() + 20, threading.Event()
    while story.platform.cluster.behind() and time.monotonic() < end_s:
        pause.wait(0.01)
    assert story.platform.configurations() == platforms().configurations()
    assert story.seen == [(3, 3)] * 11 + [(1, 1)]


def test_load_that_trembles_around_a_target_flaps_nothing(story: Story) -> None:
    for i in range(30):
        story.load.calls = 5.6 * (1.05 if i % 2 else 0.95)
        story.simulate(1)
    assert len(set(story.seen[2:])) == 1


def test_limits_that_a_dying_controller_noted_and_did_not_set_are_set_by_the_next(
    double: Running, story: Story, platforms: Platforms
) -> None:
    function = FUNCTIONS[0]
    orders = 0

    def killed_before_the_resize() -> None:
        nonlocal orders
        orders += 1
        if orders > 1:
            raise NotLeaderError("killed")

    dying = platforms(guard=killed_before_the_resize)
    present = dying.configurations()[function]
    with pytest.raises(NotLeaderError):
        dying.apply(function, present, replace(present, memory_mb=512))
    story.platform.configurations()
    story.platform.keep()
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["memory"] for pod in double.pods(function)]
    assert limits == ["512Mi"]
    assert story.platform.configurations()[function] == configuration(memory_mb=512)


def test_a_story_s_clock_is_not_the_machine_s() -> None:
    assert abs(NOW_S - time.time()) > 86400

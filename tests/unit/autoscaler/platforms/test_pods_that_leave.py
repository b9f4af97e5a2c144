"""Pods that end take up room: who waits for it waits longer, and what was taken back for want of room comes again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from autoscaler.policy.static import StaticPolicy
from tests.doubles.kubernetes.cluster import Node
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.platforms.ticks import TICK_S, F, G, Stories, Story, hits

pytestmark = pytest.mark.timeout(600)

ROOM_FOR_FOUR = "1Gi"


def held(double: Running, stories: Stories, *functions: str, replicas: int = 4, memory: str = ROOM_FOR_FOUR) -> Story:
    """Functions with so many replicas under the policy that holds what there is, on one node."""
    story = stories(*(functions or (F,)))
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": memory})}))
    story.desired({function: configuration(replicas) for function in functions or (F,)})
    story.controller.policy = StaticPolicy()
    story.tick(2)
    return story


def kill_all(double: Running, *, at_once: bool = False) -> None:
    double.set(hold_ends=not at_once)
    double.do(double.cluster.delete_pods)


def seconds_until(story: Story, replicas: int, among: Iterable[int], most_s: float = 700.0) -> float:
    """How long it takes until there are so many replicas; before it, none but those ``among``."""
    begun_s = story.clock()
    while story.present().replicas != replicas:
        assert story.present().replicas in among and story.clock() - begun_s < most_s
        story.tick()
    return story.clock() - begun_s


def on_nodes(double: Running, function: str = F) -> int:
    return sum("nodeName" in pod["spec"] for pod in double.pods(function))


def note(double: Running) -> str | None:
    return double.deployment(F)["metadata"]["annotations"].get("smoe.taken-back")


def test_while_pods_end_those_that_wait_for_their_room_are_not_taken_back(double: Running, stories: Stories) -> None:
    story = held(double, stories)
    kill_all(double)
    begun = len(writes(double))
    story.tick(30)  # 150 s: without pods that end, 60 are enough
    assert story.present().replicas == 4 and story.kinds() == [(F, "unschedulable")] * 4
    double.do(double.cluster.let_end)
    story.tick(3)
    assert on_nodes(double) == 4 and story.kinds() == [] and story.platform.bounds() == {}
    assert "patch deployments/scale" not in writes(double)[begun:] and note(double) is None


@pytest.mark.slow
def test_pods_that_end_for_ever_are_waited_for_three_times_as_long(double: Running, stories: Stories) -> None:
    story = held(double, stories)
    kill_all(double)
    assert seconds_until(story, 1, {4}) == pytest.approx(180.0, abs=2 * TICK_S)


@pytest.mark.slow
def test_the_scheduler_has_a_minute_after_the_last_pod_has_ended(double: Running, stories: Stories) -> None:
    story = held(double, stories)
    kill_all(double)
    story.tick(4)
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": "256Mi"})}))
    double.do(double.cluster.let_end)
    assert seconds_until(story, 1, {4}) == pytest.approx(60.0, abs=2 * TICK_S)


def test_pods_of_other_functions_that_end_count_and_those_without_a_node_do_not(
    double: Running, stories: Stories
) -> None:
    story = held(double, stories, F, G, replicas=2)
    double.set(hold_ends=True)
    double.do(lambda: [double.cluster.delete_pod(pod) for pod in double.cluster.pods(G)])
    story.tick(30)
    assert story.present(G).replicas == 2
    double.do(double.cluster.let_end)
    assert on_nodes(double, G) == 2
    small = Node({"cpu": "32", "memory": "512Mi"})
    double.do(lambda: double.cluster.nodes.update({"node-1": small}))
    story.tick(30)
    double.do(lambda: [double.cluster.delete_pod(pod) for pod in double.cluster.pods(G)])  # these end at once
    story.tick(2)
    waiting = [pod for pod in double.pods(G) if "nodeName" not in pod["spec"]]
    assert waiting
    double.set(hold_ends=True)
    double.do(lambda: [double.cluster.delete_pod(pod) for pod in double.cluster.pods(G)])
    assert not story.platform.cluster.known.pods_end()


@pytest.mark.slow
def test_what_was_taken_back_for_want_of_room_comes_again_under_a_policy_that_holds_what_there_is(
    double: Running, stories: Stories
) -> None:
    story = held(double, stories)
    kill_all(double)
    seconds_until(story, 1, {4})
    assert note(double) == "4 1" and hits(story.tick()) == ("platform: unschedulable",)
    double.do(double.cluster.let_end)
    assert seconds_until(story, 4, {1}) <= 60.0 + TICK_S
    story.tick(30)
    assert story.present().replicas == on_nodes(double) == 4 and story.platform.bounds() == {} and note(double) is None


@pytest.mark.slow
def test_a_controller_that_starts_afterwards_brings_it_back_too(
    double: Running, stories: Stories, platforms: Platforms
) -> None:
    story = held(double, stories)
    kill_all(double)
    seconds_until(story, 1, {4})
    double.do(double.cluster.let_end)
    other = Story(double, platforms, story.controller._limits, story._moved)
    other.clock, other.controller.policy = story.clock, StaticPolicy()
    other.tick(2)
    assert other.present().replicas == 4


@pytest.mark.slow
def test_what_people_scale_afterwards_is_left_to_them(double: Running, stories: Stories, platforms: Platforms) -> None:
    story = held(double, stories)
    kill_all(double)
    seconds_until(story, 1, {4})
    double.do(double.cluster.let_end)
    by_hand = platforms()
    for replicas in (2, 1):
        by_hand.apply(F, by_hand.configurations()[F], configuration(replicas))
        story.tick(30)
        assert story.present().replicas == replicas and note(double) is None


@pytest.mark.slow
def test_room_that_never_comes_back_is_asked_for_less_and_less_often_and_the_number_is_kept(
    double: Running, stories: Stories
) -> None:
    story = held(double, stories)
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": "512Mi"})}))
    kill_all(double, at_once=True)
    seen = [story.tick() and story.present().replicas for _ in range(70)]
    assert set(seen) == {4, 2}
    assert seen.count(2) > seen.count(4)
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.tick(100)
    assert story.present().replicas == on_nodes(double) == 4

"""Replicas and roll-outs that no node takes, on the API double: taken back, told, tried again later."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest

from autoscaler.contract import ConfigurationSpace
from tests.doubles.kubernetes.cluster import Node
from tests.doubles.kubernetes.fixtures import Platforms, resources
from tests.doubles.kubernetes.functions import NAMESPACE, put, quota, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.platforms.ticks import BIG, SHARE, TICK_S, F, G, Stories, hits

pytestmark = pytest.mark.timeout(600)


# replicas without room


def small_node(double: Running, memory: str) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": memory})}))


@pytest.mark.slow
def test_replicas_that_no_node_takes_are_waited_for_and_then_taken_back_and_tried_again_later(
    double: Running, stories: Stories
) -> None:
    story = stories()
    small_node(double, "1Gi")  # room for four
    story.desired({F: configuration(8)})
    seen = [story.tick() and story.present().replicas for _ in range(64)]
    assert set(seen) == {8, 4}
    changes = [tick * TICK_S for tick in range(1, len(seen)) if seen[tick] != seen[tick - 1]]
    lasted = [changes[0], *(later - earlier for earlier, later in pairwise(changes))]
    assert lasted[:4] == pytest.approx([60, 60, 60, 120], abs=2 * TICK_S)


def test_while_replicas_wait_for_a_node_no_more_are_asked_for(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    story.desired({F: configuration(6)})
    report = story.desired({F: configuration(8)})
    assert story.present() == configuration(6) and hits(report) == ("platform: unschedulable",)


def test_taken_back_replicas_stay_desired_and_come_when_there_is_a_node(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    story.desired({F: configuration(6)})
    story.tick(14)
    assert story.present() == configuration(4) and story.kinds() == [(F, "unschedulable")]
    begun = len(writes(double))
    story.tick(5)
    assert len(writes(double)) == begun
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.tick(10)
    assert story.present() == configuration(6) and story.kinds() == [] and story.platform.bounds() == {}


def test_replicas_that_somebody_else_found_room_for_are_held_back_no_longer(
    double: Running, stories: Stories, platforms: Platforms
) -> None:
    story = stories()
    small_node(double, "1Gi")
    story.desired({F: configuration(6)})
    story.tick(14)
    assert story.kinds() == [(F, "unschedulable")] and list(story.platform.bounds()) == [F]
    other = platforms()
    other.apply(F, other.configurations()[F], configuration(5))
    story.platform.configurations()
    story.platform.keep()
    assert list(story.platform.bounds()) == [F], "the fifth has no node yet"
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.platform.configurations()
    story.platform.keep()
    assert story.platform.bounds() == {} and story.kinds() == []


def test_replicas_without_a_node_never_go_below_the_least_and_unmanaged_ones_are_left_alone(
    double: Running, stories: Stories
) -> None:
    story = stories(F, G, space=ConfigurationSpace(replicas_min=3))
    small_node(double, "512Mi")
    put(double, spec("m-expert-1-0"), replicas=5)
    story.desired({F: configuration(6)})
    story.tick(20)
    assert story.present() == configuration(3)
    assert story.present("m-expert-1-0") == configuration(5)


def test_replicas_without_a_node_stay_at_the_least_that_the_function_s_label_says(
    double: Running, stories: Stories
) -> None:
    story = stories(G)
    small_node(double, "1Gi")
    put(double, spec(F, labels={"smoe.pipeline": "m", "com.openfaas.scale.min": "5"}))
    story.desired({F: configuration(8)})
    story.tick(16)
    assert story.present() == configuration(5)


# replicas whose pods are refused


LIMIT_RANGE = "maximum memory usage per Container is 128Mi, but limit is 256Mi"
POD_SECURITY = 'violates PodSecurity "baseline:latest": hostPath volumes (volume "weights")'


def test_replicas_beyond_a_limit_range_are_taken_back_in_the_next_tick_and_not_asked_for(
    double: Running, stories: Stories
) -> None:
    """Of pods that run from before it; its words as in Kubernetes' plugin/pkg/admission/limitranger."""
    story = stories()
    double.do(lambda: double.cluster.refuse_new_pods(LIMIT_RANGE))
    story.desired({F: configuration(4)})
    assert story.kinds() == [(F, "quota")]
    report = story.tick()
    assert story.present() == configuration(1) and hits(report) == ("platform: quota",)
    begun = len(writes(double))
    story.tick(8)
    assert len(writes(double)) == begun and story.count("quota") == 1
    assert LIMIT_RANGE in str(story.platform.conditions()[0])


def test_replicas_whose_pods_are_refused_for_a_minute_are_taken_back_and_tried_again_later(
    double: Running, stories: Stories
) -> None:
    story = stories()
    double.do(lambda: double.cluster.refuse_new_pods(POD_SECURITY))
    story.desired({F: configuration(4)})
    report = story.desired({F: configuration(6)})
    assert story.present() == configuration(4) and hits(report) == ("platform: refused",)
    story.tick(12)
    assert story.present() == configuration(1) and story.kinds() == [(F, "refused")]
    double.do(lambda: double.cluster.refuse_new_pods(""))
    story.tick(14)
    assert story.present() == configuration(6) and story.kinds() == [] and story.platform.bounds() == {}


def test_pods_that_are_refused_for_a_moment_come_afterwards(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.refuse_new_pods("failed calling webhook"))
    story.desired({F: configuration(4)})
    story.tick(4)
    double.do(lambda: double.cluster.refuse_new_pods(""))
    story.tick()
    assert len(double.pods(F)) == 4 and story.kinds() == [] and story.count("refused") == 0


# limits that cannot be rolled out


def no_gpu(double: Running) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": "64Gi"})}))


def test_a_share_of_a_gpu_that_no_node_has_is_taken_back_and_replicas_go_on_serving(
    double: Running, stories: Stories
) -> None:
    story = stories()
    no_gpu(double)
    (before,) = double.pods(F)
    story.desired({F: SHARE})
    assert story.present() == SHARE and story.kinds() == [(F, "unschedulable")]
    story.tick(13)
    assert story.present() == configuration()
    (after,) = double.pods(F)
    assert after["metadata"]["name"] == before["metadata"]["name"]
    report = story.tick()
    assert hits(report) == ("platform: unschedulable",) and story.kinds() == [(F, "unschedulable")]
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.tick(14)
    assert story.present() == SHARE and story.kinds() == []


def test_a_roll_out_over_quota_is_taken_back(double: Running, stories: Stories) -> None:
    story = stories()
    quota(double, pods="1")
    story.desired({F: SHARE})
    assert story.kinds() == [(F, "quota")]
    story.tick(14)
    assert story.present() == configuration() and len(double.pods(F)) == 1


def test_a_resize_that_waits_and_finds_no_other_node_either_is_taken_back(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    double.do(lambda: double.cluster.set_resizing("deferred"))
    (before,) = double.pods(F)
    story.desired({F: configuration(memory_mb=896)})
    assert story.kinds() == [(F, "deferred")]
    story.tick(8)
    assert story.kinds() == [(F, "deferred"), (F, "unschedulable")]
    begun = len(writes(double))
    story.tick(5)
    assert len(writes(double)) == begun
    story.tick(9)
    assert story.present() == configuration() and hits(story.tick()) == ("platform: unschedulable",)
    (after,) = double.pods(F)
    assert after["metadata"]["name"] == before["metadata"]["name"]
    assert resources(after)["limits"]["memory"] == "256Mi"


def test_limits_that_a_person_rolls_out_are_not_taken_back(double: Running, stories: Stories) -> None:
    story = stories()
    story.desired({F: configuration()})
    small_node(double, "512Mi")

    def redeploy() -> None:
        """As the gateway does it."""
        document = double.store.get("deployments", NAMESPACE, F)
        live = orjson.loads(document["metadata"]["annotations"]["smoe.live"])
        resources = document["spec"]["template"]["spec"]["containers"][0]["resources"]
        for kind in ("limits", "requests"):
            live[kind]["memory"] = resources[kind]["memory"] = "1Gi"
        document["metadata"]["annotations"]["smoe.live"] = orjson.dumps(live).decode()
        double.store.replace("deployments", document, "someone")

    double.do(redeploy)
    story.policy.now.clear()
    story.tick(20)
    assert story.present() == BIG and story.kinds() == [(F, "unschedulable")]
    assert story.asked() == 1


def test_limits_do_not_grow_further_while_a_resize_waits(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.set_resizing("deferred"))
    story.desired({F: configuration(memory_mb=512)})
    report = story.desired({F: BIG})
    assert story.present() == configuration(memory_mb=512) and hits(report) == ("platform: deferred",)


# a node that is gone


def test_replicas_of_a_lost_node_are_elsewhere_once_it_is_given_up_with_their_limits(
    double: Running, stories: Stories
) -> None:
    story = stories()
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.desired({F: configuration(2, memory_mb=512)})
    double.do(lambda: double.cluster.lose_node("node-1"))
    story.tick()
    assert story.kinds() == [(F, "node lost")] * 2
    double.do(lambda: double.cluster.evict_lost(30.0))
    story.tick(2)
    alive = [pod for pod in double.pods(F) if "deletionTimestamp" not in pod["metadata"]]
    assert [pod["spec"]["nodeName"] for pod in alive] == ["node-2"] * 2
    assert [resources(pod)["limits"]["memory"] for pod in alive] == ["512Mi"] * 2

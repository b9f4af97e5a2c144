"""A cluster that says no, tick by tick, on the API double: each no is told once, planned with, tried again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import orjson
import pytest

from autoscaler.contract import Configuration, ConfigurationSpace, Observation, Proposal, TickReport
from autoscaler.decision.limits import LimitSettings
from autoscaler.loop import Controller
from tests.doubles.kubernetes import store
from tests.doubles.kubernetes.cluster import Node
from tests.doubles.kubernetes.errors import Refusal
from tests.doubles.kubernetes.functions import NAMESPACE, put, quota, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import PRICES, configuration, observation, topology
from tests.unit.kubernetes.conftest import Clock, Platforms, resources

pytestmark = pytest.mark.timeout(100)
F, G = "m-expert-0-0", "m-expert-0-1"
TICK_S = 5.0
BIG = configuration(memory_mb=1024)
SHARE = configuration(cpu_cores=0.0, gpu_share=0.3)


class Wishes:
    """A policy that wishes what it is told."""

    name = "wishes"

    def __init__(self) -> None:
        self.now: dict[str, Configuration] = {}

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        return Proposal(dict(self.now), dict.fromkeys(self.now, "wished"))


class Nothing:
    """A metrics source of a pipeline at rest."""

    def observe(self, now_s: float, window_s: float) -> Observation:
        return observation(start_s=now_s - window_s, end_s=now_s)


class Story:
    """Functions at ``configuration()`` in one namespace, wishes, and ticks, which move the cluster's clock too."""

    def __init__(
        self, double: Running, platforms: Platforms, limits: LimitSettings, moved: Callable[[float], None]
    ) -> None:
        self.double = double
        self._moved = moved
        self.clock = Clock()
        self.platform = platforms(clock=self.clock)
        self.policy = Wishes()
        parts = (topology(), Nothing(), self.policy, self.platform, limits, PRICES)
        self.controller = Controller(*parts, wait=lambda _: None, window_s=TICK_S)

    def tick(self, ticks: int = 1) -> TickReport:
        for _ in range(ticks):
            self.clock.ahead_s += TICK_S
            self._moved(self.clock.ahead_s)
            report = self.controller.tick(self.clock())
            self.platform.keep()
        return report

    def wish(self, wishes: Mapping[str, Configuration]) -> TickReport:
        self.policy.now.update(wishes)
        return self.tick()

    def present(self, function: str = F) -> Configuration:
        return self.platform.configurations()[function]

    def kinds(self) -> list[tuple[str, str]]:
        self.platform.configurations()
        return [(one.function, one.kind) for one in self.platform.conditions()]

    def asked(self, what: str = "patch pods/resize") -> int:
        return writes(self.double).count(what)

    def count(self, kind: str, function: str = F) -> int:
        return self.platform.holds.counts[function, kind]


Stories = Callable[..., Story]


@pytest.fixture
def stories(double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch) -> Stories:
    """Begins a story of some functions, by default of one; ``limits``: settings of decisions."""

    def begin(*functions: str, **limits: Any) -> Story:
        for function in functions or (F,):
            put(double, spec(function))
        return Story(
            double, platforms, LimitSettings(**limits), lambda ahead_s: monkeypatch.setattr(store, "ahead_s", ahead_s)
        )

    return begin


def hits(report: TickReport, function: str = F) -> tuple[str, ...]:
    return next(one.limits_hit for one in report.decisions if one.function == function)


# over quota, in place


def test_a_resize_over_quota_is_asked_for_once_and_told_until_it_is_asked_for_again(
    double: Running, stories: Stories
) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    first = story.wish({F: BIG})
    assert "exceeded quota: team" in first.failures[F]
    begun = len(writes(double))
    for _ in range(10):
        report = story.tick()
        assert hits(report) == ("platform: quota",) and not report.failures
        assert story.kinds() == [(F, "quota")]
    assert len(writes(double)) == begun and story.asked() == story.count("quota") == 1
    assert story.present() == configuration()


def test_each_try_that_is_refused_again_doubles_the_time_to_the_next(double: Running, stories: Stories) -> None:
    story, tries = stories(), []
    quota(double, **{"limits.memory": "512Mi"})
    story.wish({F: BIG})
    for tick in range(1, 40):
        before = story.asked()
        story.tick()
        if story.asked() > before:
            tries.append(tick * TICK_S)
    assert tries == pytest.approx([60, 180], abs=2 * TICK_S)


def test_once_the_quota_is_lifted_the_next_try_succeeds_and_nothing_is_told_any_more(
    double: Running, stories: Stories
) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    story.wish({F: BIG})
    quota(double, **{"limits.memory": "4Gi"})
    story.tick(14)
    assert story.present() == BIG and story.kinds() == [] and story.platform.bounds() == {}


def test_another_wish_that_fits_is_granted_while_the_first_is_held_back(double: Running, stories: Stories) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi"})
    story.wish({F: BIG})
    story.wish({F: configuration(memory_mb=512)})
    assert story.present() == configuration(memory_mb=512) and story.kinds() == [(F, "quota")]


def test_what_the_quota_has_enough_of_still_grows(double: Running, stories: Stories) -> None:
    story = stories()
    quota(double, **{"limits.memory": "512Mi", "limits.cpu": "8"})
    report = story.wish({F: configuration(memory_mb=1024, cpu_cores=2.0)})
    assert report.applied == (F,) and story.present() == configuration(cpu_cores=2.0)


def test_what_a_limit_range_forbids_is_asked_for_once(double: Running, stories: Stories) -> None:
    """Its words as in Kubernetes' plugin/pkg/admission/limitranger, which answers 403."""
    said = 'pods "p" is forbidden: maximum memory usage per Container is 512Mi, but limit is 1Gi'
    story = stories()
    double.set(refusals={("patch", "pods/resize"): Refusal(403, "Forbidden", said)})
    story.wish({F: BIG})
    begun = len(writes(double))
    report = story.tick(8)
    assert hits(report) == ("platform: quota",) and len(writes(double)) == begun and story.asked() == 1
    assert said in str(story.platform.conditions()[0])


def test_within_the_tick_the_budget_of_what_was_refused_goes_to_another(double: Running, stories: Stories) -> None:
    replica_per_hour = (PRICES.cpu_core_s + 0.25 * PRICES.memory_gib_s) * 3600
    story = stories(F, G, budget_per_hour=3 * replica_per_hour)
    quota(double, **{"limits.memory": "1Gi"})
    report = story.wish({F: BIG, G: configuration(2)})
    assert report.applied == (G,) and set(report.failures) == {F}
    assert (story.present(F), story.present(G)) == (configuration(), configuration(2))


def test_what_another_function_gives_back_ends_the_wait(double: Running, stories: Stories) -> None:
    story = stories(F, G)
    quota(double, **{"limits.memory": "1Gi"})
    story.wish({G: configuration(memory_mb=512)})
    story.wish({F: configuration(memory_mb=768)})
    story.wish({G: configuration()})
    assert story.present() == configuration()
    story.tick(2)
    assert story.present() == configuration(memory_mb=768) and story.count("quota") == 1


def test_new_replicas_over_quota_are_brought_in_line_with_one_try_a_hold(double: Running, stories: Stories) -> None:
    """They come as the template says, smaller than their function: growing them is what the quota refuses."""
    story = stories()
    quota(double, **{"limits.memory": "1280Mi"})
    story.wish({F: configuration(memory_mb=512)})
    story.wish({F: configuration(3, memory_mb=512)})
    tried = story.asked()
    story.tick(8)
    assert story.asked() == tried and story.kinds() == [(F, "quota")]
    quota(double, **{"limits.memory": "4Gi"})
    story.tick(8)
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"] * 3
    assert story.kinds() == []


# replicas without room


def small_node(double: Running, memory: str) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-1": Node({"cpu": "32", "memory": memory})}))


def test_replicas_that_no_node_takes_are_waited_for_and_then_taken_back_and_tried_again_later(
    double: Running, stories: Stories
) -> None:
    story = stories()
    small_node(double, "1Gi")  # room for four
    story.wish({F: configuration(8)})
    seen = [story.tick() and story.present().replicas for _ in range(64)]
    assert set(seen) == {8, 4}
    changes = [tick * TICK_S for tick in range(1, len(seen)) if seen[tick] != seen[tick - 1]]
    lasted = [changes[0], *(later - earlier for earlier, later in pairwise(changes))]
    assert lasted[:4] == pytest.approx([60, 60, 60, 120], abs=2 * TICK_S)


def test_while_replicas_wait_for_a_node_no_more_are_asked_for(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    story.wish({F: configuration(6)})
    report = story.wish({F: configuration(8)})
    assert story.present() == configuration(6) and hits(report) == ("platform: unschedulable",)


def test_taken_back_replicas_stay_told_and_come_when_there_is_a_node(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    story.wish({F: configuration(6)})
    story.tick(14)
    assert story.present() == configuration(4) and story.kinds() == [(F, "unschedulable")]
    begun = len(writes(double))
    story.tick(5)
    assert len(writes(double)) == begun
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.tick(10)
    assert story.present() == configuration(6) and story.kinds() == [] and story.platform.bounds() == {}


def test_replicas_without_a_node_never_go_below_the_least_and_unmanaged_ones_are_left_alone(
    double: Running, stories: Stories
) -> None:
    story = stories(F, G, space=ConfigurationSpace(replicas_min=3))
    small_node(double, "512Mi")
    put(double, spec("m-expert-1-0"), replicas=5)
    story.wish({F: configuration(6)})
    story.tick(20)
    assert story.present() == configuration(3)
    assert story.present("m-expert-1-0") == configuration(5)


def test_replicas_without_a_node_stay_at_the_least_that_the_function_s_label_says(
    double: Running, stories: Stories
) -> None:
    story = stories(G)
    small_node(double, "1Gi")
    put(double, spec(F, labels={"smoe.pipeline": "m", "com.openfaas.scale.min": "5"}))
    story.wish({F: configuration(8)})
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
    story.wish({F: configuration(4)})
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
    story.wish({F: configuration(4)})
    report = story.wish({F: configuration(6)})
    assert story.present() == configuration(4) and hits(report) == ("platform: refused",)
    story.tick(12)
    assert story.present() == configuration(1) and story.kinds() == [(F, "refused")]
    double.do(lambda: double.cluster.refuse_new_pods(""))
    story.tick(14)
    assert story.present() == configuration(6) and story.kinds() == [] and story.platform.bounds() == {}


def test_pods_that_are_refused_for_a_moment_come_afterwards(double: Running, stories: Stories) -> None:
    story = stories()
    double.do(lambda: double.cluster.refuse_new_pods("failed calling webhook"))
    story.wish({F: configuration(4)})
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
    story.wish({F: SHARE})
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
    story.wish({F: SHARE})
    assert story.kinds() == [(F, "quota")]
    story.tick(14)
    assert story.present() == configuration() and len(double.pods(F)) == 1


def test_a_resize_that_waits_and_finds_no_other_node_either_is_taken_back(double: Running, stories: Stories) -> None:
    story = stories()
    small_node(double, "1Gi")
    double.do(lambda: double.cluster.set_resizing("deferred"))
    (before,) = double.pods(F)
    story.wish({F: configuration(memory_mb=896)})
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
    story.wish({F: configuration()})
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
    story.wish({F: configuration(memory_mb=512)})
    report = story.wish({F: BIG})
    assert story.present() == configuration(memory_mb=512) and hits(report) == ("platform: deferred",)


# a node that is gone


def test_replicas_of_a_lost_node_are_elsewhere_in_the_next_tick_with_their_limits(
    double: Running, stories: Stories
) -> None:
    story = stories()
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    story.wish({F: configuration(2, memory_mb=512)})
    double.do(lambda: double.cluster.lose_node("node-1"))
    story.tick()
    assert story.kinds() == [(F, "node lost")] * 2
    double.do(lambda: double.cluster.evict_lost(TICK_S))
    story.tick(2)
    alive = [pod for pod in double.pods(F) if "deletionTimestamp" not in pod["metadata"]]
    assert [pod["spec"]["nodeName"] for pod in alive] == ["node-2"] * 2
    assert [resources(pod)["limits"]["memory"] for pod in alive] == ["512Mi"] * 2


# no right to resize


def without_right(double: Running) -> None:
    """The user may do all that the controller does but resize pods."""
    every = ("get", "list", "watch", "patch", "create", "update")
    rules = [
        {"apiGroups": ["", "apps"], "resources": ["pods", "deployments", "deployments/scale"], "verbs": list(every)}
    ]
    double.set(grants={"anonymous": rules})


def test_without_the_right_to_resize_limits_are_rolled_out_in_the_same_tick_and_it_is_told_once(
    double: Running, stories: Stories, caplog: pytest.LogCaptureFixture
) -> None:
    story = stories(F, G)
    without_right(double)
    with caplog.at_level(logging.WARNING):
        report = story.wish({F: BIG, G: BIG})
        story.wish({F: configuration(memory_mb=512)})
        story.tick(20)
    assert set(report.applied) == {F, G} and not report.failures
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"]
    assert story.asked() == 1 and story.kinds() == [("m", "forbidden")] and story.count("forbidden", "m") == 1
    (told,) = [record.message for record in caplog.records if "pods/resize" in record.message]
    assert "changed limits are rolled out" in told


def without(double: Running, missing: str) -> None:
    """The user may do all that the controller does but patch this resource."""
    groups, every = ["", "apps"], ["pods", "pods/resize", "deployments", "deployments/scale"]
    written = [resource for resource in every if resource != missing]
    reads = {"apiGroups": groups, "resources": every, "verbs": ["get", "list", "watch"]}
    double.set(grants={"anonymous": [reads, {"apiGroups": groups, "resources": written, "verbs": ["patch"]}]})


@pytest.mark.parametrize(
    ("missing", "wish"),
    [("deployments/scale", configuration(4)), ("deployments", BIG)],
    ids=["replicas", "limits"],
)
def test_an_order_without_the_right_to_it_is_tried_again_after_growing_times(
    double: Running, stories: Stories, missing: str, wish: Configuration
) -> None:
    story, tries = stories(), []
    without(double, missing)
    first = story.wish({F: wish})
    assert f'cannot patch resource "{missing}"' in first.failures[F]
    for tick in range(1, 40):
        before = story.asked(f"patch {missing}")
        report = story.tick()
        assert story.kinds() == [(F, "forbidden")] and story.present() == configuration()
        if story.asked(f"patch {missing}") > before:
            tries.append(tick * TICK_S)
        else:
            assert hits(report) == ("platform: forbidden",) and not report.failures
    assert tries == pytest.approx([60, 180], abs=2 * TICK_S)
    double.set(grants=None)
    story.tick(49)
    assert story.present() == wish and story.kinds() == []


def test_within_the_tick_the_budget_of_what_there_is_no_right_to_goes_to_another(
    double: Running, stories: Stories
) -> None:
    replica_per_hour = (PRICES.cpu_core_s + 0.25 * PRICES.memory_gib_s) * 3600
    story = stories(F, G, budget_per_hour=3 * replica_per_hour)
    without(double, "deployments")
    report = story.wish({F: BIG, G: configuration(2)})
    assert report.applied == (G,) and set(report.failures) == {F} and story.present(G) == configuration(2)


def test_the_right_is_looked_for_again_after_a_while(double: Running, stories: Stories) -> None:
    story = stories()
    without_right(double)
    story.wish({F: configuration(memory_mb=512)})
    double.set(grants=None)
    story.clock.ahead_s += 600.0
    (before,) = double.pods(F)
    story.wish({F: BIG})
    (after,) = double.pods(F)
    assert resources(after)["limits"]["memory"] == "1024Mi" and story.kinds() == []
    assert after["metadata"]["name"] == before["metadata"]["name"]


def test_a_right_that_is_lost_leaves_no_replica_with_the_limits_of_an_old_template(
    double: Running, stories: Stories
) -> None:
    story = stories()
    story.wish({F: configuration(memory_mb=512)})
    without_right(double)
    story.wish({F: configuration(2, memory_mb=512)})
    story.tick(2)
    assert [resources(pod)["limits"]["memory"] for pod in double.pods(F)] == ["512Mi"] * 2
    assert story.kinds() == [("m", "forbidden")]

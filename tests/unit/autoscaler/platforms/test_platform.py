"""The controller's Kubernetes platform on the API double: live resizes, roll-outs, and what stands in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Configuration, Decision
from autoscaler.errors import PlatformError, UnreachableError
from autoscaler.lease import NotLeaderError
from autoscaler.platforms.kubernetes import GpuSettings, KubernetesPlatform
from autoscaler.platforms.kubernetes.client import RefusedError
from tests.doubles.kubernetes.cluster import Node
from tests.doubles.kubernetes.errors import Refusal
from tests.doubles.kubernetes.fixtures import Platforms, environment, resources
from tests.doubles.kubernetes.functions import NAMESPACE, put, put_openfaas, quota, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.platforms.ticks import Clock

pytestmark = pytest.mark.timeout(600)
F = "m-expert-0-0"
GPU = configuration(cpu_cores=0.0, gpu_share=0.3)


@pytest.fixture
def platform(double: Running, platforms: Platforms) -> KubernetesPlatform:
    """One function at ``configuration()``, read once."""
    put(double, spec(F))
    platform = platforms()
    assert platform.configurations() == {F: configuration()}
    return platform


def order(platform: KubernetesPlatform, target: Configuration, function: str = F) -> None:
    """Read, apply, read, as a tick does, and keep."""
    platform.apply(function, platform.configurations()[function], target)
    assert platform.configurations()[function] == target
    platform.keep()


def names(double: Running) -> set[str]:
    return {pod["metadata"]["name"] for pod in double.pods(F)}


def limits(double: Running) -> list[dict[str, Any]]:
    return [resources(pod)["limits"] for pod in double.pods(F)]


def kinds(platform: KubernetesPlatform) -> list[str]:
    platform.configurations()
    return [condition.kind for condition in platform.conditions()]


def test_memory_and_cores_change_on_live_pods_and_not_in_the_template(
    double: Running, platform: KubernetesPlatform
) -> None:
    before, generation = names(double), double.deployment(F)["metadata"]["generation"]
    order(platform, configuration(memory_mb=512, cpu_cores=2.5))
    assert limits(double) == [{"memory": "512Mi", "cpu": "2500m"}] and names(double) == before
    assert double.deployment(F)["metadata"]["generation"] == generation


def test_replicas_that_come_later_are_brought_in_line(double: Running, platform: KubernetesPlatform) -> None:
    order(platform, configuration(memory_mb=512))
    platform.apply(F, configuration(memory_mb=512), configuration(3, memory_mb=512))
    assert sorted(one["memory"] for one in limits(double)) == ["256Mi", "256Mi", "512Mi"]
    platform.configurations()
    platform.keep()
    assert [one["memory"] for one in limits(double)] == ["512Mi"] * 3


def test_requests_keep_the_class_of_service(double: Running, platforms: Platforms) -> None:
    same = {"memory": "256Mi", "cpu": "1000m"}
    put(double, spec(F, limits=same, requests=same))
    order(platforms(), configuration(memory_mb=512, cpu_cores=0.5))
    assert [resources(pod)["requests"] for pod in double.pods(F)] == [{"memory": "512Mi", "cpu": "500m"}]


def test_a_gpu_share_is_rolled_out_behind_replicas_that_go_on_serving(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    platform = platforms(gpu=GpuSettings(81920))
    before = names(double)
    double.set(hold_starts=True)
    order(platform, GPU)
    assert before < names(double)
    double.do(double.cluster.let_start)
    (pod,) = double.pods(F)
    assert resources(pod)["limits"] == {"memory": "256Mi", "nvidia.com/gpu": "3"}
    assert environment(pod)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert environment(pod)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=24576M"
    order(platform, configuration())
    (pod,) = double.pods(F)
    assert resources(pod)["limits"] == {"memory": "256Mi", "cpu": "1000m"}
    assert not {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"} & environment(pod).keys()


def test_concurrency_reaches_live_pods(double: Running, platform: KubernetesPlatform) -> None:
    before = names(double)
    order(platform, configuration(concurrency=9))
    assert [pod["metadata"]["annotations"]["smoe.settings"] for pod in double.pods(F)] == ['{"max_inflight":9}']
    assert names(double) == before


def test_concurrency_is_rolled_out_where_a_function_reads_only_its_environment(
    double: Running, platforms: Platforms
) -> None:
    put(double, spec(F, annotations={}))
    order(platforms(), configuration(concurrency=9))
    assert [environment(pod)["max_inflight"] for pod in double.pods(F)] == ["9"]


def test_an_older_kubernetes_rolls_new_limits_out(double: Running, platforms: Platforms) -> None:
    double.set(version=(1, 32))
    put(double, spec(F))
    platform, before = platforms(), names(double)
    order(platform, configuration(memory_mb=512))
    assert limits(double) == [{"memory": "512Mi", "cpu": "1000m"}] and not before & names(double)
    assert "cannot resize pods" in platform.notes()[0]


def test_nothing_is_written_while_nothing_differs_and_only_for_what_changed(
    double: Running, platform: KubernetesPlatform
) -> None:
    put(double, spec("m-expert-0-1"), 3)
    platform.configurations()
    platform.keep()
    assert writes(double) == []
    order(platform, configuration(2))
    assert writes(double) == ["patch deployments/scale"]


def test_what_the_node_can_never_hold_is_rolled_out_to_another_in_the_same_tick(
    double: Running, platform: KubernetesPlatform
) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-2": Node({"cpu": "64", "memory": "1Ti"})}))
    order(platform, configuration(memory_mb=100 * 1024))
    assert [pod["spec"]["nodeName"] for pod in double.pods(F)] == ["node-2"]


def test_replicas_that_no_node_holds_are_named(double: Running, platform: KubernetesPlatform) -> None:
    before = names(double)
    platform.apply(F, configuration(), configuration(memory_mb=100 * 1024))
    assert kinds(platform) == ["unschedulable"]
    assert "Insufficient memory" in platform.conditions()[0].message
    assert before < names(double)


def test_a_resize_over_quota_is_taken_back_and_named_and_others_go_on(double: Running, platforms: Platforms) -> None:
    clock = Clock()
    platform = platforms(clock=clock)
    put(double, spec(F))
    put(double, spec("m-expert-0-1"))
    quota(double, **{"limits.memory": "1Gi"})
    platform.configurations()
    big, more = configuration(memory_mb=1024), configuration(2)
    decisions = [
        Decision(F, F, configuration(), big, big, ""),
        Decision("m-expert-0-1", "m-expert-0-1", configuration(), more, more, ""),
    ]
    result = apply(platform, decisions, lambda _: None)
    assert result.applied == ["m-expert-0-1"] and "exceeded quota: team" in result.failures[F]
    assert platform.configurations() == {F: configuration(), "m-expert-0-1": more}
    platform.keep()
    assert [(one.function, one.kind) for one in platform.conditions()] == [(F, "quota")]
    clock.ahead_s = 61.0
    assert platform.conditions() == ()


def test_replicas_over_quota_are_not_asked_for_again_for_a_minute(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    quota(double, pods="2")
    clock = Clock()
    platform = platforms(clock=clock)
    platform.configurations()
    platform.apply(F, configuration(), configuration(5))
    assert kinds(platform) == ["quota"]
    assert platform.bounds()[F].replicas == 2
    platform.apply(F, configuration(5), configuration(2))
    assert platform.configurations()[F].replicas == 2
    with pytest.raises(PlatformError, match="quota: that much was refused and is not asked for again yet"):
        platform.apply(F, configuration(2), configuration(3))
    clock.ahead_s = 61.0
    platform.apply(F, configuration(2), configuration(3))
    assert double.deployment(F)["spec"]["replicas"] == 3


FORBIDDEN = Refusal(403, "Forbidden", 'deployments.apps "f" is forbidden: User "c" cannot patch resource')


@pytest.mark.parametrize(
    ("resource", "target"),
    [
        ("deployments/scale", configuration(3)),
        ("deployments", configuration(memory_mb=512)),
        ("pods/resize", configuration(memory_mb=512)),
        ("deployments", GPU),
    ],
    ids=["replicas", "the note of new limits", "live limits", "a roll-out"],
)
def test_what_is_forbidden_is_named_until_it_is_allowed_and_others_go_on(
    double: Running, platform: KubernetesPlatform, resource: str, target: Configuration
) -> None:
    double.set(refusals={("patch", resource): FORBIDDEN})
    with pytest.raises(RefusedError, match="is forbidden"):
        platform.apply(F, configuration(), target)
    platform.keep()
    assert kinds(platform) == ["forbidden"]
    assert platform.configurations() == {F: configuration()}
    double.set(refusals={})
    order(platform, target)
    assert "forbidden" not in kinds(platform)


@pytest.mark.parametrize(("before", "desired", "after"), [(1, 3, 3), (3, 1, 3)], ids=["more", "fewer"])
def test_where_limits_are_refused_replicas_may_grow_and_not_shrink(
    double: Running, platform: KubernetesPlatform, before: int, desired: int, after: int
) -> None:
    platform.apply(F, configuration(), configuration(before))
    double.set(refusals={("patch", "pods/resize"): FORBIDDEN})
    with pytest.raises(RefusedError, match="is forbidden"):
        platform.apply(F, configuration(before), configuration(desired, memory_mb=512))
    assert platform.configurations() == {F: configuration(after)}


def test_a_deferred_resize_is_waited_for_and_then_placed_again_once(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    clock = Clock()
    platform, before = platforms(clock=clock), names(double)
    double.do(lambda: double.cluster.set_resizing("deferred"))
    order(platform, configuration(memory_mb=512))
    assert kinds(platform) == ["deferred"]
    platform.keep()
    assert names(double) == before
    clock.ahead_s = 31.0
    platform.keep()
    assert limits(double) == [{"memory": "512Mi", "cpu": "1000m"}] and not before & names(double)
    after = names(double)
    platform.configurations()
    platform.keep()
    assert names(double) == after and kinds(platform) == []


def test_an_infeasible_resize_is_placed_again_at_once(double: Running, platform: KubernetesPlatform) -> None:
    before = names(double)
    double.do(lambda: double.cluster.set_resizing("infeasible"))
    platform.apply(F, configuration(), configuration(memory_mb=512))
    assert kinds(platform) == ["infeasible"]
    platform.keep()
    assert not before & names(double) and limits(double) == [{"memory": "512Mi", "cpu": "1000m"}]


def test_a_lost_node_is_named_until_its_replicas_are_replaced(double: Running, platform: KubernetesPlatform) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    double.do(lambda: double.cluster.lose_node("node-1"))
    assert kinds(platform) == ["node lost"]
    assert "node node-1 is not heard of any more" in platform.conditions()[0].message
    double.do(double.cluster.evict_lost)
    assert kinds(platform) == ["node lost"]
    order(platform, configuration(memory_mb=512))
    alive = [pod for pod in double.pods(F) if "deletionTimestamp" not in pod["metadata"]]
    assert [pod["spec"]["nodeName"] for pod in alive] == ["node-2"]
    assert [resources(pod)["limits"]["memory"] for pod in alive] == ["512Mi"]


def test_an_api_server_that_is_gone_changes_nothing_and_the_next_tick_goes_on(
    double: Running, platform: KubernetesPlatform
) -> None:
    double.set(down=True)
    for act in (
        platform.configurations,
        lambda: platform.apply(F, configuration(), configuration(3)),
        lambda: platform.apply(F, configuration(), configuration(memory_mb=512)),
    ):
        with pytest.raises(UnreachableError):
            act()
    double.set(down=False)
    assert platform.configurations() == {F: configuration()}
    order(platform, configuration(3, memory_mb=512))


def test_conflicts_and_429_are_waited_out(double: Running, platform: KubernetesPlatform) -> None:
    double.set(conflicts=2)
    order(platform, configuration(2, memory_mb=512))
    double.set(throttled=2)
    assert platform.configurations()[F].replicas == 2


def test_a_partial_success_is_repaired_by_the_next_tick(double: Running, platform: KubernetesPlatform) -> None:
    """The desired state is noted, the resize fails: the pod is brought in line later, and nothing claims it was
    done."""
    double.set(refusals={("patch", "pods/resize"): Refusal(500, "InternalError", "etcdserver: request timed out")})
    with pytest.raises(PlatformError):
        platform.apply(F, configuration(), configuration(memory_mb=512))
    assert limits(double) == [{"memory": "256Mi", "cpu": "1000m"}]
    assert platform.configurations() == {F: configuration()}
    double.set(refusals={})
    order(platform, configuration(memory_mb=512))
    assert limits(double) == [{"memory": "512Mi", "cpu": "1000m"}]


def test_what_a_leader_left_half_done_the_next_one_completes(double: Running, platforms: Platforms) -> None:
    """The first is killed between its note and the first resize; the second knows nothing but the cluster."""
    put(double, spec(F), 3)
    first, second = platforms(), platforms()
    double.set(refusals={("patch", "pods/resize"): Refusal(503, "ServiceUnavailable", "gone")})
    with pytest.raises(UnreachableError):
        first.apply(F, first.configurations()[F], configuration(3, memory_mb=512))
    double.set(refusals={})
    assert second.configurations() == {F: configuration(3, memory_mb=512)}
    second.keep()
    assert [one["memory"] for one in limits(double)] == ["512Mi"] * 3


def test_who_is_not_the_leader_writes_nothing(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    put_openfaas(double, "m-expert-0-1")

    def guard() -> None:
        raise NotLeaderError("c1 does not hold the lease")

    platform = platforms(guard=guard)
    platform.configurations()
    acts: list[Callable[[], None]] = [
        platform.keep,
        lambda: platform.apply(F, configuration(), configuration(3)),
        lambda: platform.apply(F, configuration(), configuration(memory_mb=512)),
        lambda: platform.apply(F, configuration(), GPU),
    ]
    for act in acts:
        with pytest.raises(NotLeaderError):
            act()
    assert writes(double) == []


# OpenFaaS's own Deployments


def test_openfaas_own_autoscaler_is_set_aside_once(double: Running, platforms: Platforms) -> None:
    put_openfaas(double, F, **{"com.openfaas.scale.type": "rps"})
    platform = platforms()
    platform.configurations()
    platform.keep()
    document = double.deployment(F)
    assert document["spec"]["template"]["metadata"]["labels"]["com.openfaas.scale.type"] == "smoe"
    assert document["metadata"]["annotations"]["smoe.scale-type-before"] == "rps"
    before = writes(double)
    platform.configurations()
    platform.keep()
    assert writes(double) == before


def test_what_a_redeployment_by_openfaas_undid_is_done_again(double: Running, platforms: Platforms) -> None:
    put_openfaas(double, F)
    platform = platforms()
    order(platform, configuration(memory_mb=512, concurrency=4))
    order(platform, GPU)

    def redeploy() -> None:
        double.store.delete("deployments", NAMESPACE, F)

    double.do(redeploy)
    put_openfaas(double, F)
    assert platform.configurations() == {F: configuration()}
    platform.keep()
    assert platform.configurations() == {F: GPU}
    assert limits(double) == [{"memory": "256Mi", "nvidia.com/gpu": "3"}]


def enlarged(double: Running, platforms: Platforms) -> tuple[KubernetesPlatform, set[str]]:
    """A Deployment of OpenFaaS's once it was ordered twice the memory, and its pods."""
    put_openfaas(double, F)
    platform = platforms()
    order(platform, configuration(memory_mb=512, concurrency=4))
    return platform, names(double)


def test_new_pods_of_openfaas_deployments_start_with_the_memory_that_was_ordered(
    double: Running, platforms: Platforms
) -> None:
    _, before = enlarged(double, platforms)
    double.do(double.cluster.delete_pods)
    assert [one["memory"] for one in limits(double)] == ["512Mi"] and not names(double) & before


def test_pods_of_openfaas_deployments_that_need_no_more_memory_than_new_ones_get_are_resized(
    double: Running, platforms: Platforms
) -> None:
    platform, before = enlarged(double, platforms)
    order(platform, configuration(memory_mb=384, cpu_cores=2.0, concurrency=4))
    assert names(double) == before and [one["memory"] for one in limits(double)] == ["384Mi"]


def test_what_the_gateway_was_ordered_by_a_person_is_not_undone(double: Running, platform: KubernetesPlatform) -> None:
    order(platform, configuration(memory_mb=512))

    def redeploy() -> None:
        double.store.delete("deployments", NAMESPACE, F)

    double.do(redeploy)
    put(double, spec(F, limits={"memory": "128Mi", "cpu": "1000m"}, requests={}))
    platform.configurations()
    platform.keep()
    assert platform.configurations() == {F: configuration(memory_mb=128)}


def test_the_community_edition_s_bounds_are_said(double: Running, platforms: Platforms) -> None:
    put_openfaas(double, F, owner=None)
    platform = platforms()
    platform.configurations()
    assert any("between 1 and 5" in note for note in platform.notes())
    put_openfaas(double, "m-expert-0-1")


def test_a_refusal_names_what_was_asked_and_what_was_said(double: Running, platform: KubernetesPlatform) -> None:
    with pytest.raises(RefusedError, match=r"PATCH /apis/apps/v1/.*/scale: .* answered 422: .*greater than or equal"):
        platform._client.scale(F, -1)

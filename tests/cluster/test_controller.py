"""The controller's platform on an API server: live resizes, later replicas, quotas, watches, and two controllers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Decision
from autoscaler.platforms.kubernetes import KubernetesPlatform
from autoscaler.platforms.kubernetes.client import RefusedError
from tests.cluster.conftest import Target, until
from tests.doubles.kubernetes.functions import openfaas_deployment, spec
from tests.unit.autoscaler.builders import configuration

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
async def platform(target: Target) -> KubernetesPlatform:
    """With function ``f`` and its one pod."""
    target.asking.deploy(spec("f"))
    await until(lambda: len(target.pods()) == 1)
    return KubernetesPlatform(target.asking, "m")


async def test_memory_and_cores_change_on_live_pods_and_not_in_the_template(
    target: Target, platform: KubernetesPlatform
) -> None:
    before, template = target.names(), target.deployment()["spec"]["template"]
    platform.apply("f", configuration(), configuration(memory_mb=512, cpu_cores=2.5))
    assert target.limits() == [(512, 2.5)] and target.names() == before
    assert target.deployment()["spec"]["template"] == template


async def test_replicas_that_come_later_are_brought_in_line(target: Target, platform: KubernetesPlatform) -> None:
    live = configuration(memory_mb=512)
    platform.apply("f", configuration(), live)
    platform.apply("f", live, configuration(3, memory_mb=512))
    await until(lambda: len(target.pods()) == 3)

    def in_line() -> bool:
        platform.configurations()
        platform.keep()
        return target.limits() == [(512, 1)] * 3

    await until(in_line)
    assert len(target.pods()) == 3


async def test_requests_keep_the_class_of_service(target: Target) -> None:
    same = {"memory": "256Mi", "cpu": "1000m"}
    target.asking.deploy(spec("f", limits=same, requests=same))
    await until(lambda: len(target.pods()) == 1)
    KubernetesPlatform(target.asking, "m").apply("f", configuration(), configuration(memory_mb=512, cpu_cores=0.5))
    (pod,) = target.pods()
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"memory": "512Mi", "cpu": "500m"}


async def test_a_resize_over_quota_is_taken_back_and_named_and_others_go_on(
    target: Target, platform: KubernetesPlatform
) -> None:
    target.asking.deploy(spec("g"))
    await until(lambda: len(target.pods("g")) == 1)
    hard = {"limits.memory": "1Gi"}
    target.asking.create("resourcequotas", {"metadata": {"name": "team"}, "spec": {"hard": hard}})
    await until(lambda: target.asking.read("resourcequotas/team").get("status", {}).get("hard") == hard)
    platform.configurations()
    big, more = configuration(memory_mb=1024), configuration(2)
    decisions = [
        Decision("f", "f", configuration(), big, big, ""),
        Decision("g", "g", configuration(), more, more, ""),
    ]
    result = apply(platform, decisions, lambda _: None)
    assert result.applied == ["g"] and "exceeded quota: team" in result.failures["f"]
    assert platform.configurations() == {"f": configuration(), "g": more}
    assert target.limits() == [(256, 1)]
    assert [(one.function, one.kind) for one in platform.conditions()] == [("f", "quota")]


async def test_nothing_is_written_while_nothing_differs_and_only_for_what_changed(
    target: Target, platform: KubernetesPlatform
) -> None:
    platform.configurations()
    platform.keep()
    before = target.asking.writes()
    platform.configurations()
    platform.keep()
    assert target.asking.writes() == before
    platform.apply("f", configuration(), configuration(2))
    assert target.asking.writes() == before + 1


async def test_a_refusal_names_what_was_asked_and_what_was_said(target: Target, platform: KubernetesPlatform) -> None:
    with pytest.raises(RefusedError, match=r"PATCH /apis/apps/v1/.*/scale: .* answered 422: .*greater than or equal"):
        target.asking.scale("f", -1)


async def test_openfaas_own_autoscaler_is_set_aside_once(target: Target) -> None:
    labels = {"com.openfaas.scale.type": "rps"}
    target.asking.create("apps/v1:deployments", openfaas_deployment("f", target.namespace, **labels))
    platform = KubernetesPlatform(target.asking, "m")
    platform.configurations()
    platform.keep()
    document = target.deployment()
    assert document["spec"]["template"]["metadata"]["labels"]["com.openfaas.scale.type"] == "smoe"
    assert document["metadata"]["annotations"]["smoe.scale-type-before"] == "rps"
    await until(lambda: len(target.pods()) == 1)
    platform.configurations()
    platform.keep()
    before = target.asking.writes()
    platform.configurations()
    platform.keep()
    assert target.asking.writes() == before


@pytest.fixture
def following(target: Target) -> Iterator[KubernetesPlatform]:
    with ExitStack() as stack:
        following = KubernetesPlatform(target.asking, "m")
        following.cluster.follow()
        stack.callback(following.close)
        yield following


async def test_what_others_change_is_seen_by_watches_without_asking(
    target: Target, following: KubernetesPlatform
) -> None:
    target.asking.deploy(spec("f"))
    await until(lambda: not following.cluster.behind() and following.configurations() == {"f": configuration()})
    target.asking.patch("apps/v1:deployments/f", {"spec": {"replicas": 3}})
    asked = target.asking.calls["GET", "deployments", 200]
    await until(lambda: following.configurations() == {"f": configuration(3)})
    assert target.asking.calls["GET", "deployments", 200] == asked
    target.asking.delete("apps/v1:deployments/f", propagationPolicy="Background")
    await until(lambda: following.configurations() == {})

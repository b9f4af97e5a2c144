"""The controller's watch caches on the API double: what they save, and that they are left aside when they break."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Decision
from autoscaler.errors import PlatformError, UnreachableError
from autoscaler.platforms.kubernetes import KubernetesPlatform, cache, store
from autoscaler.platforms.kubernetes.cache import Kept, trimmed_deployment, trimmed_pod
from autoscaler.platforms.kubernetes.client import Rate
from autoscaler.platforms.kubernetes.conditions import conditions_of
from autoscaler.platforms.kubernetes.deployments import configuration_of, live_of, resize_patch, settings_patch
from autoscaler.platforms.kubernetes.store import Known
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import put, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration
from tests.unit.autoscaler.platforms.watching import F, G, asked_by, put_many, reads, until

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def following(double: Running, platforms: Platforms) -> Iterator[KubernetesPlatform]:
    """A platform of one function that follows by watches, both of them open, which it knows a little later."""
    put(double, spec(F))
    platform = platforms()
    platform.cluster.follow()
    until(lambda: double.do(lambda: double.api.watching) == 2)
    until(lambda: asked_by(double, platform.configurations) == [])
    yield platform
    platform.close()


def test_a_tick_that_changes_nothing_asks_nothing(double: Running, following: KubernetesPlatform) -> None:
    assert following.configurations() == {F: configuration()}
    following.keep()
    assert asked_by(double, lambda: [(following.configurations(), following.keep()) for _ in range(5)]) == []


def test_only_what_changes_causes_calls(double: Running, following: KubernetesPlatform) -> None:
    put(double, spec(G))
    until(lambda: G in following.configurations())
    before = len(reads(double))
    more = Decision(F, "expert-0-0", configuration(), configuration(3), configuration(3), "busy")
    assert apply(following, [more]).applied == [F]
    assert writes(double) == ["patch deployments/scale"] and len(reads(double)) == before


def test_what_was_ordered_is_read_at_once_though_the_watch_may_be_behind(
    double: Running, following: KubernetesPlatform
) -> None:
    target = configuration(2, memory_mb=512, concurrency=9)
    following.apply(F, configuration(), target)
    assert following.configurations()[F] == target


def test_changes_of_others_are_seen(double: Running, following: KubernetesPlatform) -> None:
    def scale() -> None:
        document = double.store.get("deployments", "openfaas-fn", F)
        document["spec"]["replicas"] = 4
        double.store.replace("deployments", document, "someone")

    before = following.configurations()[F]
    double.do(scale)
    until(lambda: following.configurations()[F].replicas != before.replicas)
    assert following.configurations()[F] == replace(before, replicas=4)


def test_deleted_functions_are_gone(double: Running, following: KubernetesPlatform) -> None:
    double.do(lambda: double.store.delete("deployments", "openfaas-fn", F))
    until(lambda: not following.configurations())


def test_a_dropped_watch_goes_on_and_nothing_is_missed(double: Running, following: KubernetesPlatform) -> None:
    double.do(double.api.cut_watches)
    put(double, spec(G))
    until(lambda: set(following.configurations()) == {F, G})
    until(lambda: double.do(lambda: double.api.watching) == 2)


def test_a_watch_that_is_too_old_lists_again(double: Running, following: KubernetesPlatform) -> None:
    before = reads(double).count("list")
    double.do(lambda: (put_many(double, 3), double.store.compact(), double.api.cut_watches()))
    until(lambda: len(following.configurations()) == 4)
    assert reads(double).count("list") > before


def test_while_the_api_server_is_gone_nothing_old_is_taken_for_new(
    double: Running, following: KubernetesPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (0.05,))
    following.configurations()
    double.set(down=True)
    double.do(double.api.cut_watches)

    def fails() -> bool:
        try:
            following.configurations()
        except UnreachableError:
            return True
        return False

    until(fails)
    with pytest.raises(PlatformError):
        following.configurations()
    double.set(down=False)
    assert following.configurations() == {F: configuration()}
    until(lambda: double.do(lambda: double.api.watching) == 2)


def test_what_is_trimmed_away_is_nothing_that_is_read(double: Running, platforms: Platforms) -> None:
    put(double, spec(F), replicas=2)
    double.do(lambda: double.cluster.set_resizing("deferred"))
    platform = platforms()
    platform.configurations()
    platform.apply(F, configuration(2), configuration(2, memory_mb=512))
    deployment = double.deployment(F)
    pods = double.pods(F)
    short, shorts = trimmed_deployment(deployment), [trimmed_pod(pod) for pod in pods]
    assert configuration_of(short) == configuration_of(deployment)
    whole, kept = list(conditions_of(deployment, pods)), list(conditions_of(short, shorts))
    assert kept == whole and whole
    wanted = live_of(platform._deployment(F))
    assert wanted is not None
    for pod, trimmed in zip(pods, shorts, strict=True):
        assert resize_patch(trimmed, F, wanted) == resize_patch(pod, F, wanted)
        assert settings_patch(trimmed, wanted) == settings_patch(pod, wanted)


def test_what_is_kept_comes_back_as_it_was_and_to_each_as_a_copy_of_his_own(
    double: Running, platforms: Platforms
) -> None:
    put(double, spec(F), replicas=2)
    deployment, (pod, _) = double.deployment(F), double.pods(F)
    kept = [Kept.of(document) for document in (deployment, pod)]
    assert [one.document() for one in kept] == [deployment, pod]
    assert [(one.function, one.pipeline, one.version) for one in kept] == [
        (F, "m", document["metadata"]["resourceVersion"]) for document in (deployment, pod)
    ]
    kept[0].document()["spec"]["replicas"] = 9
    assert kept[0].document()["spec"]["replicas"] == 2


def kept(name: str, version: str, function: str = F, pipeline: str = "m", replicas: int = 1) -> Kept:
    labels = {"faas_function": function, "smoe.pipeline": pipeline}
    resources = {"limits": {"memory": "256Mi", "cpu": "1"}}
    return Kept.of(
        {
            "metadata": {"name": name, "uid": name, "resourceVersion": version, "labels": labels},
            "spec": {
                "replicas": replicas,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [{"name": name, "resources": resources}]},
                },
            },
        }
    )


def pod(name: str, version: str, function: str = F) -> Kept:
    return Kept.of({"metadata": {"name": name, "resourceVersion": version, "labels": {"faas_function": function}}})


def test_what_changed_comes_and_goes_is_not_settled_and_nothing_else() -> None:
    known = Known("m")
    mine, other, foreign = kept(F, "1"), kept(G, "2", G), kept("x", "3", "x", pipeline="y")
    pods = [pod("f-1", "4"), pod("f-2", "5"), pod("g-1", "6", G)]
    known.look([mine, other, foreign], pods)
    assert known.unsettled() == [F, G] and set(known.configurations()) == {F, G}
    for name in (F, G):
        known.settle(name, known.versions(name))
    known.look([mine, other, foreign], pods)
    assert known.unsettled() == []
    known.look([mine, other, foreign], [pods[0], pods[2]])
    assert known.unsettled() == [F] and len(known.pods(F)) == 1
    known.look([mine, kept(G, "7", G, replicas=4)], [pods[0], pods[2], pod("f-2", "5")])
    assert known.unsettled() == [G] and known.configurations()[G].replicas == 4
    known.look([mine], [])
    assert known.unsettled() == [F] and set(known.configurations()) == {F} and known.deployment(G) is None


def test_a_pod_that_changes_its_function_is_one_of_the_other_only() -> None:
    known = Known("m")
    known.look([kept(F, "1"), kept(G, "2", G)], [pod("p", "3")])
    known.look([kept(F, "1"), kept(G, "2", G)], [pod("p", "4", G)])
    assert known.pods(F) == [] and len(known.pods(G)) == 1


def allocated(make: Callable[[], object]) -> int:
    """Bytes that stay allocated with what ``make`` gives."""
    tracemalloc.start()
    try:
        result = make()
        return tracemalloc.get_traced_memory()[0] if result is not None else 0
    finally:
        tracemalloc.stop()


def test_an_object_that_is_kept_takes_little_more_than_its_packed_form() -> None:
    packed = len(kept(F, "1").packed)
    assert allocated(lambda: [kept(F, str(i)) for i in range(500)]) < 500 * (packed + 700)


def test_looking_at_all_functions_keeps_a_bounded_part_of_them_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"f-{i}" for i in range(500)]
    known = Known("m")
    known.look([kept(name, "1", name) for name in names], [pod(f"{name}-1", "2", name) for name in names])

    def look() -> object:
        assert [known.pods(name)[0]["metadata"]["name"] for name in names] == [f"{name}-1" for name in names]
        documents = [known.deployment(name) for name in names]
        return documents[-1]

    whole = allocated(look)
    monkeypatch.setattr(store, "UNPACKED", 50)
    known.look([kept(name, "3", name) for name in names], [pod(f"{name}-1", "4", name) for name in names])
    assert allocated(look) < whole / 5


def test_a_first_look_reads_each_list_once(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    platform = platforms()
    platform.cluster.follow()
    assert platform.configurations() == {F: configuration()}
    until(lambda: double.do(lambda: double.api.watching) == 2)
    assert reads(double).count("list") == 2
    platform.close()


def test_calls_are_spread_out_to_the_rate_after_a_burst() -> None:
    now = [0.0]
    rate = Rate(per_s=10.0, burst=3, clock=lambda: now[0])
    assert [rate.take() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    now[0] = 0.2
    assert rate.take() == pytest.approx(0.1)
    now[0] = 100.0
    assert [rate.take() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])

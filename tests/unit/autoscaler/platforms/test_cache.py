"""The controller's watch caches on the API double: what they save, and that they are left aside when they break."""

from __future__ import annotations

import itertools
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from autoscaler.actuator.actuator import apply
from autoscaler.contract import Decision
from autoscaler.errors import PlatformError, UnreachableError
from autoscaler.platforms.kubernetes import KubernetesPlatform, cache, store
from autoscaler.platforms.kubernetes.cache import Kept, WatchCache, trimmed_deployment, trimmed_pod
from autoscaler.platforms.kubernetes.client import Event, ExpiredError, Rate
from autoscaler.platforms.kubernetes.conditions import conditions_of
from autoscaler.platforms.kubernetes.deployments import configuration_of, live_of, resize_patch, settings_patch
from autoscaler.platforms.kubernetes.store import Known
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import put, spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration

pytestmark = pytest.mark.timeout(600)
F, G = "m-expert-0-0", "m-expert-0-1"


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait for something that another thread does."""
    end_s, pause = time.monotonic() + limit_s, threading.Event()
    while not condition():
        assert time.monotonic() < end_s, "not in time"
        pause.wait(0.01)


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


def asked_by(double: Running, act: Callable[[], object]) -> list[tuple[str, str]]:
    """Verb and resource of the calls that come while ``act`` runs."""
    before = double.do(lambda: len(double.api.calls))
    act()
    return double.do(lambda: [(one.verb, one.resource) for one in double.api.calls[before:]])


def reads(double: Running) -> list[str]:
    return double.do(lambda: [one.verb for one in double.api.calls if one.verb in ("get", "list", "watch")])


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

    double.do(scale)
    until(lambda: following.configurations()[F].replicas == 4)


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


def put_many(double: Running, count: int) -> None:
    from gateway.backends.kubernetes import objects
    from gateway.backends.kubernetes.settings import KubernetesSettings

    for i in range(count):
        document = objects.deployment(spec(f"m-more-{i}"), KubernetesSettings(), frozenset())
        double.store.create("deployments", document, "smoe-gateway")


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


class Script:
    """A source that does as it is told, one watch after the other."""

    def __init__(self, watches: list[list[Event] | Exception]) -> None:
        self.watches = watches
        self.lists = 0
        self.asked: list[str] = []
        self.done = threading.Event()

    def list(self) -> tuple[Iterator[dict[str, Any]], Callable[[], str]]:
        self.lists += 1
        return iter([thing("a", "1")]), lambda: "5"

    def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
        self.asked.append(version)
        opened(lambda: None)
        if not self.watches:
            self.done.set()
            threading.Event().wait(0.05)
            return
        step = self.watches.pop(0)
        if isinstance(step, Exception):
            raise step
        yield from step


def thing(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version, "uid": name}, **more}


def simulated(*watches: list[Event] | Exception) -> tuple[Script, WatchCache]:
    script, clock = Script(list(watches)), itertools.count(0.0, cache.LIVED_S)
    watch_cache = WatchCache(script, lambda document: document, lambda: next(clock))
    watch_cache.start()
    assert script.done.wait(20)
    return script, watch_cache


def test_each_watch_begins_where_the_last_one_ended() -> None:
    script, found = simulated([("MODIFIED", thing("a", "7"))], [("BOOKMARK", thing("", "9"))])
    assert script.asked[:3] == ["5", "7", "9"] and script.lists == 1
    found.close()


def test_an_expired_version_lists_again() -> None:
    script, found = simulated(ExpiredError("watch"), [("ADDED", thing("b", "8"))])
    assert script.lists == 2
    assert {one.name for one in found.objects() or ()} == {"a", "b"}
    found.close()


@pytest.mark.parametrize("end", [[], [("MODIFIED", thing("a", "7"))], ExpiredError("watch")], ids=["", "event", "410"])
def test_a_second_watch_in_a_row_that_ends_at_once_is_not_followed_by_a_third_before_a_pause(
    end: list[Event] | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (1000.0,))
    script = Script([end] * 50)
    watch_cache = WatchCache(script, lambda document: document, lambda: 0.0)
    watch_cache.start()
    until(lambda: len(script.asked) == 2 and watch_cache.objects() is None)
    watch_cache.close()
    assert len(script.asked) == 2 and not watch_cache._thread.is_alive()


def test_watches_that_lived_are_followed_by_the_next_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (1000.0,))
    script, clock = Script([[]] * 50), itertools.count(0.0, cache.LIVED_S)
    watch_cache = WatchCache(script, lambda document: document, lambda: next(clock))
    watch_cache.start()
    assert script.done.wait(20)
    watch_cache.close()


def test_pauses_between_watches_that_end_at_once_grow_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script([[]] * 6)
    watch_cache = WatchCache(script, lambda document: document, lambda: 0.0)
    waited: list[float | None] = []
    monkeypatch.setattr(watch_cache._stop, "wait", waited.append)
    watch_cache.start()
    assert script.done.wait(20)
    monkeypatch.undo()
    watch_cache.close()
    assert waited[:5] == [0.2, 1.0, 5.0, 5.0, 5.0]


class Held(Script):
    """Its lists wait until they may end; with ``error`` they end by it."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__([])
        self.error, self.may_end = error, threading.Event()

    def list(self) -> tuple[Iterator[dict[str, Any]], Callable[[], str]]:
        assert self.may_end.wait(20)
        if self.error is not None:
            raise self.error
        return super().list()


def test_a_first_look_reads_each_list_once(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))
    platform = platforms()
    platform.cluster.follow()
    assert platform.configurations() == {F: configuration()}
    until(lambda: double.do(lambda: double.api.watching) == 2)
    assert reads(double).count("list") == 2
    platform.close()


def test_a_list_under_way_is_waited_for() -> None:
    script = Held()
    found = WatchCache(script, lambda document: document, time.monotonic)
    found.start()
    threading.Timer(0.2, script.may_end.set).start()
    assert found.objects() is None
    assert [one.name for one in found.fresh() or ()] == ["a"] and script.lists == 1
    found.close()


@pytest.mark.parametrize("error", [UnreachableError("gone"), RuntimeError("a fault of the cache")], ids=["", "fault"])
def test_a_list_that_was_waited_for_and_failed_is_an_error_of_the_look_where_it_is_the_api_server_s(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (1000.0,))
    script = Held(error)
    found = WatchCache(script, lambda document: document, time.monotonic)
    found.start()
    threading.Timer(0.2, script.may_end.set).start()
    if isinstance(error, PlatformError):
        with pytest.raises(UnreachableError, match="gone"):
            found.fresh()
    assert found.fresh() is None  # whoever asks lists for himself
    found.close()


def test_nobody_waits_for_a_list_of_a_cache_that_was_closed_before() -> None:
    script = Held()
    found = WatchCache(script, lambda document: document, time.monotonic)
    found._stop.set()
    found.start()
    assert found.fresh() is None and script.lists == 0
    found.close()


def test_an_older_form_does_not_undo_what_a_write_was_answered() -> None:
    script, found = simulated()
    found.put(Kept.of(thing("a", "12", spec={"replicas": 1})))
    script.watches.append([("MODIFIED", thing("a", "11", spec={"replicas": 0}))])
    until(lambda: not script.watches)
    assert [one.document() for one in found.objects() or ()] == [thing("a", "12", spec={"replicas": 1})]
    found.close()


def test_calls_are_spread_out_to_the_rate_after_a_burst() -> None:
    now = [0.0]
    rate = Rate(per_s=10.0, burst=3, clock=lambda: now[0])
    assert [rate.take() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])
    now[0] = 0.2
    assert rate.take() == pytest.approx(0.1)
    now[0] = 100.0
    assert [rate.take() for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])

"""The states of a watch cache: what it answers in each, and what becomes of it when lists and watches go wrong."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from autoscaler.errors import PlatformError, UnreachableError
from autoscaler.platforms.kubernetes import KubernetesPlatform, cache, client
from autoscaler.platforms.kubernetes.cache import ClientSource, Kept, WatchCache, trimmed_deployment
from autoscaler.platforms.kubernetes.client import Event, ExpiredError, Object, RefusedError
from platform_words.labels import FUNCTION_LABEL
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running
from tests.parameters import some_fast
from tests.unit.autoscaler.platforms.watching import F, G, Held, Script, put_many, reads, thing, until

pytestmark = pytest.mark.timeout(600)


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


def test_a_list_s_older_page_does_not_undo_a_write_that_was_answered_meanwhile() -> None:
    script = Held()
    script.may_end.set()
    found = WatchCache(script, lambda document: document, time.monotonic)
    script.watches = [ExpiredError("watch")]
    lists = script.list

    def written_meanwhile() -> tuple[Iterator[Object], Callable[[], str]]:
        if script.lists == 1:  # the second list: its page is read, then a write is answered
            found.put(Kept.of(thing("a", "4", spec={"replicas": 3})))
        return lists()

    script.list = written_meanwhile  # type: ignore[method-assign]
    found.start()
    until(lambda: script.lists == 2 and found.objects() is not None)
    assert [one.version for one in found.objects() or ()] == ["4"]
    found.close()


def test_a_late_answer_does_not_bring_back_an_object_that_was_replaced_by_another() -> None:
    replaced = {"metadata": {"name": "a", "resourceVersion": "8", "uid": "another"}}
    _, found = simulated([("DELETED", thing("a", "7")), ("ADDED", replaced)])
    found.put(Kept.of(thing("a", "6")))
    assert [(one.uid, one.version) for one in found.objects() or ()] == [("another", "8")]
    found.close()


@pytest.mark.slow
def test_what_a_second_list_finds_unchanged_stays_the_same_object() -> None:
    script = Script([])
    found = WatchCache(script, lambda document: document, time.monotonic)
    found.start()
    until(lambda: found.objects() is not None)
    before = found.objects()
    script.watches.append(ExpiredError("watch"))
    until(lambda: script.lists == 2 and found.objects() is not None)
    after = found.objects()
    found.close()
    assert before and after and all(one is other for one, other in zip(before, after, strict=True))


def test_a_list_that_ended_is_fresh_for_a_moment_until_its_watch_is_open() -> None:
    may_open, asked, now_s = threading.Event(), threading.Event(), [0.0]

    class Slow(Script):
        def watch(self, version: str, seconds: int, opened: Callable[[Callable[[], None]], object]) -> Iterator[Event]:
            asked.set()
            assert may_open.wait(20)
            return super().watch(version, seconds, opened)

    found = WatchCache(Slow([]), lambda document: document, lambda: now_s[0])
    found.start()
    assert asked.wait(20)
    assert found.objects() is None and [one.name for one in found.fresh() or ()] == ["a"]
    now_s[0] += cache.FRESH_S
    assert found.fresh() is None  # whoever asks lists for itself
    may_open.set()
    until(lambda: found.objects() is not None)
    found.close()


@pytest.mark.parametrize("failures", [cache.RELISTS_AFTER - 1, cache.RELISTS_AFTER])
def test_a_version_that_a_server_refuses_again_and_again_is_given_up(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (0.0,))
    script = Script([UnreachableError("Too large resource version")] * failures)
    found = WatchCache(script, lambda document: document, lambda: 0.0)
    found.start()
    until(lambda: not script.watches and found.objects() is not None)
    found.close()
    assert script.lists == (2 if failures == cache.RELISTS_AFTER else 1)


@pytest.mark.slow
def test_a_watch_that_breaks_once_in_a_while_goes_on_from_its_version() -> None:
    steps: list[list[Event] | Exception] = [UnreachableError("broke off"), []] * cache.RELISTS_AFTER
    script, found = simulated(*steps)  # on a clock on which each of them lived
    found.close()
    assert script.lists == 1


class Between(ClientSource):
    """Deployments of a double; ``acts`` are done one after the other, each once a list has given its first object."""

    def __init__(self, platform: KubernetesPlatform, acts: list[Callable[[], object]]) -> None:
        super().__init__(platform._client, "deployments", FUNCTION_LABEL)
        self._acts = acts

    def list(self) -> tuple[Iterator[Object], Callable[[], str]]:
        listed, version = super().list()

        def items() -> Iterator[Object]:
            yield from itertools.islice(listed, 1)
            if self._acts:
                self._acts.pop(0)()
            yield from listed

        return items(), version


def expire(double: Running, name: str) -> Callable[[], object]:
    """What makes the rest of a list that is under way too old."""

    def act() -> None:
        put(double, spec(name))
        double.do(double.store.compact)

    return act


def names(found: list[Kept] | None) -> list[str] | None:
    return None if found is None else sorted(one.name for one in found)


@pytest.fixture
def paged(double: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deployments a, b and c, which a list gives one at a time."""
    monkeypatch.setattr(client, "PAGE", 1)
    for name in ("a", "b", "c"):
        put(double, spec(name))


@pytest.mark.usefixtures("paged")
def test_a_list_whose_pages_grow_too_old_begins_again_and_who_waits_for_it_gets_it(
    double: Running, platforms: Platforms
) -> None:
    found = WatchCache(Between(platforms(), [expire(double, "d")]), trimmed_deployment, time.monotonic)
    found.start()
    assert names(found.fresh()) == ["a", "b", "c", "d"]
    until(lambda: names(found.objects()) == ["a", "b", "c", "d"])
    # The second page was refused or, where it had been asked for ahead, the third.
    assert reads(double).count("list") in (2 + 4, 3 + 4)
    found.close()


@pytest.mark.usefixtures("paged")
def test_a_list_whose_pages_grow_too_old_twice_is_an_error_and_the_next_one_comes_after_a_pause(
    double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (1000.0,))
    acts = [expire(double, "d"), expire(double, "e")]
    found = WatchCache(Between(platforms(), acts), trimmed_deployment, time.monotonic)
    found.start()
    with pytest.raises(RefusedError, match="410"):
        found.fresh()
    assert found.fresh() is None and acts == []
    found.close()


@pytest.mark.usefixtures("paged")
def test_a_look_without_watches_begins_its_list_again_too(
    double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = platforms()
    source = Between(platform, [expire(double, "d")])
    monkeypatch.setattr(platform._client, "deployments", lambda selector: source.list()[0])
    assert sorted(platform.configurations()) == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("paged")
def test_the_next_page_is_asked_for_while_one_is_read(double: Running, platforms: Platforms) -> None:
    listed = Between(platforms(), []).list()[0]
    assert next(listed)["metadata"]["name"] == "a"
    until(lambda: reads(double).count("list") == 2)
    assert [one["metadata"]["name"] for one in listed] == ["b", "c"] and reads(double).count("list") == 3


def test_an_event_between_a_list_and_its_watch_is_not_lost(double: Running, platforms: Platforms) -> None:
    put(double, spec(F))

    def act() -> None:
        put(double, spec(G))
        double.do(lambda: double.store.delete("deployments", "openfaas-fn", F))

    found = WatchCache(Between(platforms(), [act]), trimmed_deployment, time.monotonic)
    found.start()
    until(lambda: names(found.objects()) == [G])
    assert reads(double).count("list") == 1
    found.close()


def test_while_watches_end_at_once_again_and_again_looks_list_and_afterwards_no_list_is_needed(
    double: Running, platforms: Platforms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WAITS_S", (0.01,))
    put(double, spec(F))
    double.set(ending=10**9)
    platform = platforms()
    platform.cluster.follow()
    until(platform.cluster.behind)
    until(lambda: reads(double).count("watch") > 10)
    put(double, spec(G))
    until(lambda: sorted(platform.configurations()) == [F, G])
    double.set(ending=0)
    until(lambda: not platform.cluster.behind())
    lists = reads(double).count("list")
    until(lambda: sorted(platform.configurations()) == [F, G] and not platform.cluster.behind())
    put(double, spec("m-last"))
    until(lambda: "m-last" in platform.configurations())
    assert reads(double).count("list") == lists
    platform.close()


@pytest.mark.parametrize("seed", some_fast(range(4), 0))
def test_whatever_happens_a_cache_comes_to_what_the_server_has(
    double: Running, platforms: Platforms, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects come, change and go while watches are cut, versions forgotten and the server is away."""
    monkeypatch.setattr(cache, "_WAITS_S", (0.0, 0.01))
    rng = random.Random(seed)
    found = WatchCache(Between(platforms(), []), trimmed_deployment, time.monotonic)
    found.start()

    def versions() -> dict[str, str]:
        return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in stored()}

    def stored() -> list[Object]:
        return list(double.store.all("deployments", "openfaas-fn"))

    def scale(name: str, replicas: int) -> None:
        document = double.store.get("deployments", "openfaas-fn", name)
        document["spec"]["replicas"] = replicas
        double.store.replace("deployments", document, "someone")

    def happen(number: int) -> None:
        kind = rng.choice(("put", "put", "scale", "scale", "delete", "cut", "compact", "away"))
        if kind == "put":
            put_many(double, 1, number)
        elif kind in ("scale", "delete") and stored():
            name = rng.choice(stored())["metadata"]["name"]
            scale(name, number) if kind == "scale" else double.store.delete("deployments", "openfaas-fn", name)
        elif kind in ("cut", "compact"):
            double.api.cut_watches() if kind == "cut" else double.store.compact()
        double.api.down = kind == "away"

    for number in range(60):
        double.do(lambda number=number: happen(number))  # type: ignore[misc]
        read = found.objects()
        assert read is None or len({one.name for one in read}) == len(read)
    double.set(down=False)
    until(lambda: {one.name: one.version for one in found.objects() or ()} == double.do(versions))
    assert double.do(versions)
    found.close()

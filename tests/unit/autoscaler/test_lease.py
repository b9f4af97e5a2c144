"""Leader election on scripted clocks: one acts at a time, the next takes over in time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from autoscaler.errors import PlatformError, SettingsError, UnreachableError
from autoscaler.lease import Elector, Lease, LeaseSettings, NotLeaderError
from autoscaler.progress import Progress

TAKEOVER_S = 20.0
STALLED_S = 30.0


class Store:
    """A Lease as the API server keeps it: replaced only by who read its last form."""

    namespace = "openfaas-fn"

    def __init__(self) -> None:
        self.document: Lease | None = None
        self.down = False

    def lease(self, name: str) -> Lease | None:
        self._reach()
        return self.document

    def put_lease(self, document: Lease) -> Lease:
        self._reach()
        given = document["metadata"].get("resourceVersion")
        present = None if self.document is None else self.document["metadata"]["resourceVersion"]
        if given != present:
            raise PlatformError("409")
        meta = {**document["metadata"], "resourceVersion": str(int(present or 0) + 1)}
        self.document = {**document, "metadata": meta}
        return self.document

    def _reach(self) -> None:
        if self.down:
            raise UnreachableError("nobody answers")


class World:
    """Controllers on one store; each sees time through its own clock, ``skews_s`` apart."""

    def __init__(self, *skews_s: float) -> None:
        self.now_s = 1000.0
        self.store = Store()
        self.ticks = [Progress(STALLED_S, self._clock(skew_s)) for skew_s in skews_s]
        self.electors = [
            Elector(
                self.store,
                LeaseSettings("controller", f"c{i}"),
                self._clock(skew_s),
                lambda: self.now_s,
                self.ticks[i].goes_on,
            )
            for i, skew_s in enumerate(skews_s)
        ]

    def _clock(self, skew_s: float) -> Callable[[], float]:
        return lambda: self.now_s + skew_s

    def leaders(self) -> list[int]:
        return [i for i, elector in enumerate(self.electors) if elector.leads()]

    def simulate(self, seconds: float, *ticking: int) -> list[list[int]]:
        """Who leads after every half second, in which ``ticking`` go on and each elector does its step in time."""
        seen = []
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            for i in ticking:
                self.ticks[i].turn()
            for elector in self.electors if self.now_s % 2.0 == 0.0 else ():
                elector.step()
            seen.append(self.leaders())
        return seen


def test_the_first_leads_and_the_second_does_not_act() -> None:
    world = World(0.0, 0.0)
    assert world.electors[0].step() and not world.electors[1].step()
    world.electors[0].guard()
    with pytest.raises(NotLeaderError, match="c1 does not hold the lease controller"):
        world.electors[1].guard()


def test_a_leader_that_renews_keeps_the_lease() -> None:
    world = World(0.0, 0.0)
    world.simulate(2.0, 0, 1)
    assert world.simulate(400.0, 0, 1) == [[0]] * 800


@pytest.mark.parametrize("skew_s", [0.0, 86_400.0, -86_400.0])
def test_the_second_takes_over_within_20_s_and_never_while_the_first_may_still_act(skew_s: float) -> None:
    world = World(0.0, skew_s)
    world.electors[0].step()
    died_s = world.now_s  # it renews no more
    while not world.electors[1].step():
        assert world.now_s - died_s < TAKEOVER_S
        world.now_s += 2.0
        assert len(world.leaders()) <= 1
    assert world.now_s - died_s < TAKEOVER_S
    assert world.leaders() == [1]
    assert world.store.document is not None and world.store.document["spec"]["leaseTransitions"] == 1


def test_a_leader_stops_by_itself_before_its_last_call_could_meet_the_next_leader() -> None:
    world = World(0.0, 0.0)
    world.electors[0].step()
    world.electors[1].step()
    settings = LeaseSettings("controller", "c")
    world.now_s += settings.deadline_s
    assert world.leaders() == []
    world.now_s += settings.call_s  # a write begun in the last moment has ended
    assert not world.electors[1].step()
    world.now_s += settings.duration_s - settings.deadline_s - settings.call_s
    assert world.electors[1].step()


def test_two_that_come_at_once_are_not_both_leaders() -> None:
    world = World(0.0, 0.0)
    read = world.store.lease("controller")
    assert read is None
    assert world.electors[0].step()
    world.store.lease = lambda name: read  # type: ignore[method-assign]
    assert not world.electors[1].step()


def test_a_leader_survives_a_short_outage_and_gives_up_in_a_long_one() -> None:
    world = World(0.0, 0.0)
    world.electors[0].step()
    world.store.down = True
    world.now_s += 4.0
    assert world.electors[0].step()
    world.now_s += 4.0
    assert not world.electors[0].step()
    world.store.down = False
    assert world.electors[0].step()


def test_a_lease_given_back_is_taken_at_once() -> None:
    world = World(0.0, 0.0)
    world.electors[0].step()
    world.electors[1].step()
    world.electors[0].release()
    assert world.leaders() == []
    assert world.electors[1].step()


@pytest.mark.parametrize("skew_s", [0.0, 86_400.0, -86_400.0])
def test_a_leader_whose_tick_hangs_renews_no_more_and_does_not_act_when_it_wakes(skew_s: float) -> None:
    world = World(0.0, skew_s)
    assert world.simulate(10.0, 0, 1)[-1] == [0]
    seen = world.simulate(STALLED_S + TAKEOVER_S, 1)  # the first one's process is there, its tick is not
    assert seen[: round(STALLED_S / 0.5) - 1] == [[0]] * (round(STALLED_S / 0.5) - 1)
    assert seen[-1] == [1] and all(len(leaders) <= 1 for leaders in seen)
    world.ticks[0].sign()  # it wakes in the middle of its orders
    with pytest.raises(NotLeaderError, match="c0 may not act: its tick has stood still"):
        world.electors[0].guard()
    assert world.simulate(60.0, 0, 1) == [[1]] * 120  # it stands by when its tick has ended
    with pytest.raises(NotLeaderError, match="c0 does not hold the lease"):
        world.electors[0].guard()


def test_a_tick_that_wakes_before_another_took_over_does_nothing_more_and_the_next_one_acts() -> None:
    world = World(0.0)
    world.simulate(2.0, 0)
    assert world.simulate(STALLED_S + 5.0)[-1] == []
    world.ticks[0].sign()
    with pytest.raises(NotLeaderError):
        world.electors[0].guard()
    assert world.simulate(2.0, 0)[-1] == [0]


def test_a_long_tick_that_gets_on_is_no_hung_one() -> None:
    world = World(0.0, 0.0)
    world.simulate(2.0, 0, 1)
    for _ in range(10):
        assert world.simulate(STALLED_S - 1.0, 1)[-1] == [0]
        world.ticks[0].sign()


def test_a_standby_whose_loop_hangs_takes_nothing_over() -> None:
    world = World(0.0, 0.0)
    world.simulate(2.0, 0, 1)
    world.simulate(STALLED_S, 0)
    world.electors.pop(0).release()
    assert world.simulate(60.0) == [[]] * 120


def test_whoever_resigns_acts_no_more_and_keeps_the_lease_until_its_last_order_is_answered() -> None:
    world = World(0.0, 0.0)
    world.simulate(2.0, 0, 1)
    world.electors[0].resign()
    assert world.leaders() == [] and not world.electors[1].step()
    world.electors[0].release()
    assert world.electors[1].step()


def test_whoever_lost_the_lease_gives_nothing_back() -> None:
    world = World(0.0, 0.0)
    world.electors[0].step()
    world.now_s += 100.0
    world.ticks[1].turn()
    world.electors[1].step()
    world.now_s += 14.0
    assert world.electors[1].step()
    world.electors[0].release()
    assert world.leaders() == [1] and not world.electors[0].step()


@pytest.mark.parametrize("seed", range(20))
def test_there_are_never_two_leaders_whatever_fails(seed: int) -> None:
    """Three controllers, outages, pauses and hung ticks at random: at most one leads, and with a healthy store soon one
    does."""
    chance = random.Random(seed)
    world = World(*(chance.uniform(-1e6, 1e6) for _ in range(3)))
    for _ in range(600):
        world.store.down = chance.random() < 0.3
        chance.choice(world.electors).step()
        if chance.random() < 0.3:
            chance.choice(world.ticks).turn()
        assert len(world.leaders()) <= 1
        world.now_s += chance.expovariate(1.0)
    world.store.down = False
    for progress in world.ticks:
        progress.turn()
    for elector in itertools.islice(itertools.cycle(world.electors), 30):
        elector.step()
        world.now_s += 2.0 / 3
    assert len(world.leaders()) == 1


@pytest.mark.parametrize(
    ("changes", "key"), [({"deadline_s": 10.0}, "deadline_s is 10.0"), ({"retry_s": 9.0}, "retry_s is 9.0")]
)
def test_settings_with_which_two_could_act_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingsError, match=key):
        Elector(Store(), LeaseSettings("l", "c", **changes))

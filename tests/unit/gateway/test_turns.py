"""Who gets places that many share, and who is left some."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from gateway.turns import Known, Party, Turns

Taken = list[tuple[Party, asyncio.Task[None]]]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def ask(turns: Turns, *parties: Party) -> Taken:
    taken = [(party, asyncio.create_task(turns.take(party))) for party in parties]
    await settle()
    return taken


def served(taken: Taken) -> Counter[str]:
    return Counter(party.owner for party, task in taken if task.done())


async def end(*all_taken: Taken) -> None:
    for taken in all_taken:
        for _, task in taken:
            task.cancel()
    await settle()


async def test_owners_that_take_all_they_can_leave_half_to_owners_without_any() -> None:
    turns = Turns(16, each=6)
    many = await ask(turns, *[Party(owner, f"{owner}{member}") for owner in "ab" for member in range(20)])
    assert served(many) == {"a": 6, "b": 2}
    new = await ask(turns, *[Party(owner, owner) for owner in "cdefghijk" for _ in range(3)])
    assert served(new) == dict.fromkeys("cdefghij", 1)
    await end(many, new)


async def test_an_owner_has_no_more_than_its_bound_however_many_members_it_has() -> None:
    turns = Turns(64, each=6)
    many = await ask(turns, *[Party("a", f"a:{member}") for member in range(20) for _ in range(3)])
    assert served(many) == {"a": 6}
    one = await ask(turns, *[Party("b", "b:1")] * 20)
    assert served(one) == {"b": 3}  # half of its owner's: a second member has some
    assert served(await ask(turns, Party("b", "b:2"))) == {"b": 1}
    await end(many, one)


async def test_a_place_goes_to_who_has_none_under_way_and_of_those_to_who_has_waited_longest() -> None:
    turns = Turns(3, each=4)
    first = await ask(turns, *[Party("a", "a")] * 4, Party("b", "b"))
    assert served(first) == {"a": 2, "b": 1}
    later = await ask(turns, Party("b", "b"), Party("d", "d"), Party("e", "e"))
    for given, expected in (("a", {"d": 1}), ("d", {"d": 1, "e": 1})):
        turns.give(Party(given, given))
        await settle()
        assert served(later) == expected
    assert served(first)["a"] == 2
    await end(first, later)


async def test_some_places_are_for_trusted_parties_only() -> None:
    turns = Turns(8, each=8, kept=3)
    others = await ask(turns, *[Party(str(owner), str(owner)) for owner in range(20)])
    assert sum(served(others).values()) == 5
    trusted = await ask(turns, *[Party(name, name, trusted=True) for name in ("x", "y", "z", "w")])
    assert sum(served(trusted).values()) == 3
    await end(others, trusted)


@pytest.mark.parametrize("given", [False, True])
async def test_who_stops_waiting_takes_no_place(given: bool) -> None:
    turns, party = Turns(1, each=1), Party("a", "a")
    await turns.take(party)
    waiting = await ask(turns, party, party)
    if given:
        turns.give(party)  # to the first, which does not run again before it is cancelled
    waiting[0][1].cancel()
    if not given:
        turns.give(party)
    await settle()
    assert waiting[0][1].cancelled()
    assert waiting[1][1].done()
    turns.give(party)
    await asyncio.wait_for(turns.take(party), 10)


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_takes_gives_and_leaves_no_place_is_lost_or_given_twice(seed: int) -> None:
    chance, turns = random.Random(seed), Turns(6, each=4, kept=2)
    parties = [Party(owner, f"{owner}{member}", trusted=owner == "t") for owner in "abct" for member in range(3)]
    waiting: Taken = []
    holding: list[Party] = []
    for _ in range(300):
        move = chance.random()
        if move < 0.5:
            party = chance.choice(parties)
            waiting.append((party, asyncio.create_task(turns.take(party))))
        elif move < 0.8 and holding:
            turns.give(holding.pop(chance.randrange(len(holding))))
        elif waiting:
            chance.choice(waiting)[1].cancel()
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        holding += [party for party, task in waiting if task.done() and not task.cancelled()]
        waiting = [(party, task) for party, task in waiting if not task.done()]
        assert len(holding) <= 6
        assert sum(not party.trusted for party in holding) <= 4
        assert max(Counter(holding).values(), default=0) <= 2
        assert max(Counter(party.owner for party in holding).values(), default=0) <= 4
    while waiting or holding:
        await settle()
        holding += [party for party, task in waiting if task.done() and not task.cancelled()]
        waiting = [(party, task) for party, task in waiting if not task.done()]
        assert holding or not waiting, "nobody has a place, and some wait"
        if holding:
            turns.give(holding.pop())


def test_the_last_that_did_well_are_known() -> None:
    known = Known(2)
    for name, well in (("a", True), ("b", True), ("a", True), ("c", True), ("d", False)):
        known.note(name, well=well)
    assert [name in known for name in "abcd"] == [True, False, True, False]
    known.note("a", well=False)
    assert "a" not in known

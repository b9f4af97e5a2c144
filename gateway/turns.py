"""Places that many receivers share, so that those that hold theirs for long leave some to others."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import NamedTuple


class Party(NamedTuple):
    """Who takes a place: one of an owner's members. ``trusted`` ones may take the places that are kept."""

    owner: str
    member: str
    trusted: bool = False

    @property
    def group(self) -> tuple[str, bool]:
        return self.owner, self.trusted


class Turns:
    """``places`` at a time, at most ``each`` of an owner.

    Half of what there is at both levels is for owners, and members of an owner, with none under way: however many are
    slow and take all they can, others are served. A place that comes free goes to who has waited longest of those who
    may take it.
    """

    def __init__(self, places: int, *, each: int, kept: int = 0) -> None:
        """``kept``: places for trusted parties only."""
        self._each, self._kept, self._common = each, kept, places - kept
        self._free = places
        self._taken: Counter[tuple[str | bool, ...]] = Counter()
        self._waiting: OrderedDict[Party, OrderedDict[asyncio.Future[None], int]] = OrderedDict()
        self._arrived = 0

    async def take(self, party: Party) -> None:
        """Wait for a place; :meth:`give` returns it."""
        turn = asyncio.get_running_loop().create_future()
        self._arrived += 1
        self._waiting.setdefault(party, OrderedDict())[turn] = self._arrived
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given in the same moment
                self.give(party)
            elif turn in self._waiting.get(party, ()):
                self._leave(party, turn)
            raise

    def give(self, party: Party) -> None:
        """Return a place."""
        self._count(party, -1)
        self._hand_out()

    def _hand_out(self) -> None:
        while (party := self._next()) is not None:
            turn = next(iter(self._waiting[party]))
            self._leave(party, turn)
            if not turn.done():
                self._count(party, 1)
                turn.set_result(None)

    def _next(self) -> Party | None:
        if not self._free:
            return None
        return min(filter(self._may_take, self._waiting), key=self._waiting_since, default=None)

    def _may_take(self, party: Party) -> bool:
        owned, had = self._taken[party.group], self._taken[party]
        free = self._free - (0 if party.trusted else self._kept)
        for_others = (self._kept if party.trusted else self._common) // 2 if owned else 0
        return free > for_others and owned < (self._each // 2 if had else self._each)

    def _waiting_since(self, party: Party) -> int:
        return next(iter(self._waiting[party].values()))

    def _leave(self, party: Party, turn: asyncio.Future[None]) -> None:
        turns = self._waiting[party]
        del turns[turn]
        if not turns:
            del self._waiting[party]

    def _count(self, party: Party, more: int) -> None:
        self._free -= more
        for counted in (party.group, party):
            self._taken[counted] += more
            if not self._taken[counted]:
                del self._taken[counted]


class Known:
    """The last ``size`` that did well; one that did badly is not among them."""

    def __init__(self, size: int = 1000) -> None:
        self._size = size
        self._names: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def note(self, name: str, *, well: bool) -> None:
        self._names.pop(name, None)
        if well:
            self._names[name] = None
            if len(self._names) > self._size:
                self._names.popitem(last=False)

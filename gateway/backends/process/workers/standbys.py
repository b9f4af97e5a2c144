"""Standby workers: prepared processes that lack only function and weights, kept by group, bounded in memory.

The instance manager of ElasticMoE (section 4.5), for functions: a group is a pipeline, whose next replica may be any of
its functions. Groups that started a replica last keep their standbys; when all of them together use too much memory,
those of the group that was used longest ago are ended.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gateway.contract import BackendError

log = logging.getLogger(__name__)


@dataclass
class _Group:
    """What standbys of a group prepare for, and those that have."""

    entry: str
    environ: Mapping[str, str]
    functions: set[str] = field(default_factory=set)
    """Functions that have started a replica; more standbys than these are never needed for one new replica of each."""
    slots: deque[str] = field(default_factory=deque)
    bytes_each: int = 0
    """Own memory of the last one measured."""


@dataclass
class Standbys:
    """The pool. ``prepare(entry, environ)`` makes one and returns its slot and own bytes; ``end(slot)`` ends one."""

    desired: int
    limit_bytes: int
    prepare: Callable[[str, Mapping[str, str]], Awaitable[tuple[str, int]]]
    end: Callable[[str], None]
    _groups: OrderedDict[str, _Group] = field(default_factory=OrderedDict)
    """Least recently used first."""
    _bytes: dict[str, int] = field(default_factory=dict)
    """Own memory by slot."""

    def take(self, name: str, function: str, entry: str, environ: Mapping[str, str]) -> str | None:
        """A standby for a function of group ``name``, or None; the group is now the one used last."""
        if not name or not self.desired:
            return None
        group = self._groups.setdefault(name, _Group(entry, environ))
        group.entry, group.environ = entry, environ
        group.functions.add(function)
        self._groups.move_to_end(name)
        slot = group.slots.popleft() if group.slots else None
        if slot is not None:
            del self._bytes[slot]
        return slot

    def count(self) -> int:
        """Standbys ready now."""
        return len(self._bytes)

    def forget(self, slot: str) -> None:
        """A process has ended; it may have been a standby."""
        if self._bytes.pop(slot, None) is not None:
            for group in self._groups.values():
                with suppress(ValueError):
                    group.slots.remove(slot)

    async def fill(self, go_on: Callable[[], bool]) -> None:
        """Prepare what is missing, the group used last first, one at a time while ``go_on()``."""
        for name in reversed(list(self._groups)):
            while go_on() and await self._add(name):
                pass

    async def _add(self, name: str) -> bool:
        """One more standby of a group; False where it has enough or memory is used up by groups used later."""
        group = self._groups[name]
        if len(group.slots) >= min(self.desired, len(group.functions)) or not self._room(name, group.bytes_each):
            return False
        try:
            slot, group.bytes_each = await self.prepare(group.entry, group.environ)
        except BackendError as error:
            log.warning("no standby could be prepared: %s", error)
            return False
        if not self._room(name, group.bytes_each):
            self.end(slot)
            return False
        group.slots.append(slot)
        self._bytes[slot] = group.bytes_each
        return True

    def _room(self, name: str, nbytes: int) -> bool:
        """Whether this much more fits, after ending standbys of groups used longer ago where that is needed."""
        for other, group in self._groups.items():
            if other == name:
                break
            while group.slots and sum(self._bytes.values()) + nbytes > self.limit_bytes:
                slot = group.slots.pop()
                del self._bytes[slot]
                self.end(slot)
        return sum(self._bytes.values()) + nbytes <= self.limit_bytes


def own_bytes(pid: int) -> int:
    """Memory that would be free without this process; 0 where it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Dirty", "Private_Clean")))

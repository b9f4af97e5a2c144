"""What ingresses asked to have activated: by sender, each for its lease; and for how long standbys were activated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.contract import Activation

Key = tuple[str, str]
MAX_SENDERS = 64


@dataclass
class Activations:
    """The last of each sender, and until when it holds (seconds of the caller's clock)."""

    _by_sender: dict[str, tuple[Activation, float]] = field(default_factory=dict)

    def put(self, activation: Activation, now_s: float) -> None:
        """The longest silent sender is forgotten where there are too many."""
        self._by_sender.pop(activation.sender, None)
        self._by_sender[activation.sender] = (activation, now_s + activation.lease_s)
        if len(self._by_sender) > MAX_SENDERS:
            del self._by_sender[next(iter(self._by_sender))]

    def levels(self, now_s: float) -> dict[Key, int]:
        """(name, namespace) → standbys, the largest of all senders; forgets those whose lease has ended."""
        self._by_sender = {sender: held for sender, held in self._by_sender.items() if held[1] > now_s}
        largest: dict[Key, int] = {}
        for activation, _ in self._by_sender.values():
            for key, count in activation.levels.items():
                largest[key] = max(count, largest.get(key, 0))
        return largest

    def next_end_s(self) -> float | None:
        """When the first lease ends."""
        return min((until_s for _, until_s in self._by_sender.values()), default=None)


class Leases:
    """Has what is asked for now brought about, again when a lease ends; on the running event loop."""

    def __init__(self, bring_about: Callable[[Mapping[Key, int]], None]) -> None:
        """``bring_about``: gets (name, namespace) → standbys, all others none."""
        self._bring_about = bring_about
        self._activations = Activations()
        self._end: asyncio.TimerHandle | None = None

    def put(self, activation: Activation) -> None:
        """What one sender asks for from now on."""
        self._activations.put(activation, asyncio.get_running_loop().time())
        self.apply()

    def apply(self) -> None:
        """Bring it about, and look again when the first lease ends."""
        self.close()
        loop = asyncio.get_running_loop()
        self._bring_about(self._activations.levels(loop.time()))
        end_s = self._activations.next_end_s()
        self._end = None if end_s is None else loop.call_at(end_s, self.apply)

    def close(self) -> None:
        """Look no more."""
        if self._end is not None:
            self._end.cancel()


class ActivatedTime:
    """For how long standbys of a function were activated. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._activated = 0
        self._since_s = clock()
        self._sum_s = 0.0

    def count(self, activated: int) -> None:
        """So many are activated from now on."""
        now_s = self._clock()
        self._sum_s += self._activated * (now_s - self._since_s)
        self._activated, self._since_s = activated, now_s

    def seconds(self) -> float:
        """Seconds so far, summed over standbys."""
        return self._sum_s + self._activated * (self._clock() - self._since_s)

"""Which replicas of a function to start and which to drain, when to start again after a crash, and whose turn it is to
exchange replicas. Computes only; ``function.py`` carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.backends.process.settings import BackoffSettings
from gateway.contract import ReplicaState

HOPELESS = 3
"""Ends before being ready, in a row, after which a function's replicas are reported as unable to start."""
STARTED: tuple[ReplicaState, ...] = ("ready", "standby")
_RANK: Mapping[ReplicaState, int] = {"ready": 0, "standby": 1}


@dataclass(frozen=True)
class Member:
    """A replica as a change of replicas looks at it. ``generation`` grows with each change that needs new processes."""

    id: str
    state: ReplicaState
    generation: int
    order: int
    """Grows with each start, so the newest has the largest."""
    machine: str = ""


@dataclass(frozen=True)
class ReplicaChange:
    """``start`` new replicas of the present generation, one on each of ``machines``; ``stop`` these replicas."""

    start: int
    stop: tuple[str, ...]
    machines: tuple[str, ...] = ()
    exchanging: bool = False
    """Some replicas wait for others to take their place: for a while there are more than desired."""


def next_change(
    replicas: Iterable[Member], desired: int, generation: int, places: Mapping[str, int] | None = None
) -> ReplicaChange:
    """The next change towards ``desired`` replicas of ``generation``; the surge is 1: new ones are ready before old go.

    ``places``: how many of them on each machine; they add up to ``desired``. A replica on a machine that has enough
    counts as old, as one of an earlier generation does. Draining replicas count for nothing. Repeated after every
    change of state, this converges.
    """
    wanted = {"": desired} if places is None else dict(places)
    alive = [replica for replica in replicas if replica.state != "draining"]  # one that stands by is started, too
    new, old = _sorted_out(alive, generation, wanted)
    start = max(0, min(desired - len(new), desired + bool(old) - len(alive)))
    stop = [replica.id for replica in old if replica.state == "starting"]
    old_ready = [replica for replica in old if replica.state in STARTED]
    ready = len(old_ready) + sum(replica.state in STARTED for replica in new)
    stop += [replica.id for replica in old_ready[: max(0, ready - desired)]]
    missing = [
        machine
        for machine, count in wanted.items()
        for _ in range(count - sum(replica.machine == machine for replica in new))
    ]
    return ReplicaChange(start, tuple(stop), tuple(missing[:start]), len(old) > len(stop))


def opened(
    replicas: Iterable[Member], count: int, generation: int, places: Mapping[str, int] | None = None
) -> set[str]:
    """Which ``count`` of the started replicas take calls; the others stand by.

    ``places``: how many of them on each machine, as far as there are so many. Those of the present generation come
    first, then those that take calls already, so that few change.
    """
    started = sorted(
        (member for member in replicas if member.state in STARTED),
        key=lambda member: (member.generation != generation, _RANK[member.state], member.order),
    )
    left = {"": count} if places is None else dict(places)
    placed = []
    for member in started:
        if left.get(member.machine, 0) > 0:
            left[member.machine] -= 1
            placed.append(member.id)
    others = [member.id for member in started if member.id not in placed]
    return set((placed + others)[:count])


def _sorted_out(alive: list[Member], generation: int, wanted: Mapping[str, int]) -> tuple[list[Member], list[Member]]:
    """Replicas to keep, and those to replace or end in the order in which they go.

    Kept on each machine are ready ones before those that stand by and starting ones, older ones before newer ones.
    """
    old = sorted((member for member in alive if member.generation != generation), key=lambda member: member.order)
    left = dict(wanted)
    kept, surplus = [], []
    for member in sorted(alive, key=lambda member: (_RANK.get(member.state, 2), member.order)):
        if member.generation != generation:
            continue
        if left.get(member.machine, 0) > 0:
            left[member.machine] -= 1
            kept.append(member)
        else:
            surplus.append(member)
    # Those still starting serve nobody: they go first, then the newest.
    return kept, old + surplus[::-1]


@dataclass
class Backoff:
    """Crash series of one function."""

    settings: BackoffSettings
    crashes: int = 0
    """Crashes in a row without a stable run between them."""
    not_before_s: float = 0.0
    """Monotonic time before which nothing is started."""
    never_ready: int = 0
    """Crashes in a row of replicas that were not ready yet."""

    @property
    def hopeless(self) -> bool:
        """Replicas end before they are ready so often that starting another will hardly help."""
        return self.never_ready >= HOPELESS

    def crashed(self, now_s: float, ready_for_s: float | None) -> float:
        """A replica ended after being ready for ``ready_for_s`` (None: never). Returns the delay in seconds."""
        if ready_for_s is not None and ready_for_s >= self.settings.stable_after_s:
            self.crashes = 0
        self.crashes += 1
        self.never_ready = self.never_ready + 1 if ready_for_s is None else 0
        delay_s = self._delay_s()
        self.not_before_s = max(self.not_before_s, now_s + delay_s)
        return delay_s

    def reset(self) -> None:
        """Someone changed the function: try at once."""
        self.crashes = self.never_ready = 0
        self.not_before_s = 0.0

    def ready(self) -> None:
        """A replica became ready: others may."""
        self.never_ready = 0

    def wait_s(self, now_s: float) -> float:
        """Seconds until a start is allowed; 0 when it is."""
        return max(0.0, self.not_before_s - now_s)

    def _delay_s(self) -> float:
        if self.crashes <= 1:
            return 0.0
        exponent = min(self.crashes - 2, 64)
        return min(self.settings.limit_s, self.settings.first_s * self.settings.factor**exponent)


@dataclass
class Exchanges:
    """Turns for exchanges. A function that gets none is called again when another is done; first come, first served."""

    limit: int
    _under_way: set[str] = field(default_factory=set)
    _waiting: dict[str, Callable[[], None]] = field(default_factory=dict)

    def begin(self, function: str, again: Callable[[], None]) -> bool:
        """Whether ``function`` may go on with its exchange; if not, ``again`` is called when it is its turn."""
        if function in self._under_way:
            return True
        if len(self._under_way) >= self.limit:
            self._waiting[function] = again
            return False
        self._waiting.pop(function, None)
        self._under_way.add(function)
        return True

    def done(self, function: str) -> None:
        """``function`` has as many replicas as desired, or no longer exchanges any."""
        self._waiting.pop(function, None)
        if function not in self._under_way:
            return
        self._under_way.discard(function)
        for waiting, again in list(self._waiting.items()):
            if len(self._under_way) >= self.limit:
                return
            self._waiting.pop(waiting, None)
            again()

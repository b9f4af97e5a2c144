"""What every scheduler knows of its instances: who prefills and decodes what, and how fast tokens came lately.

The numbers come from the requests that the scheduler itself dispatched and from the tokens that pass by; instances
report nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from functions.scheduling.predictor import Profile
from functions.scheduling.settings import SchedulingError, Targets

MAX_REQUESTS = 1_000_000
"""Requests in flight at once; more are refused, as each holds an entry."""


class Role(Enum):
    """A label in the scheduler; an instance of either role computes both phases."""

    PREFILL = "prefill"
    DECODE = "decode"

    @property
    def other(self) -> Role:
        return Role.DECODE if self is Role.PREFILL else Role.PREFILL


@dataclass
class Instance:
    """One instance as the scheduler sees it."""

    name: int
    profile: Profile
    role: Role
    prefills: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Request → (tokens of its prompt, predicted seconds)."""
    decodes: dict[int, int] = field(default_factory=dict)
    """Request → tokens of its prompt."""
    decode_tokens: int = 0
    """Σ L(r) over ``decodes``: prompts and what was generated of them so far."""
    interval_s: float = 0.0
    """Mean token interval of the last update interval; 0 where it has nothing to decode."""
    intervals_s: float = 0.0
    """Sum of the token intervals since the last update."""
    intervals: int = 0

    prefill_tokens: int = field(init=False)
    prefill_s: float = field(init=False)
    """Sums over ``prefills``."""

    def __post_init__(self) -> None:
        self.prefill_tokens = sum(tokens for tokens, _ in self.prefills.values())
        self.prefill_s = sum(seconds for _, seconds in self.prefills.values())

    def begin_prefill(self, request: int, tokens: int) -> None:
        seconds = self.profile.prefill.seconds(tokens)
        self.prefills[request] = (tokens, seconds)
        self.prefill_tokens += tokens
        self.prefill_s += seconds

    def end_prefill(self, request: int) -> int:
        """The request's tokens."""
        tokens, seconds = self.prefills.pop(request)
        self.prefill_tokens -= tokens
        self.prefill_s = self.prefill_s - seconds if self.prefills else 0.0  # what rounding leaves ends with them
        return tokens


class Scheduler(ABC):
    """Bookkeeping around two choices. All methods raise SchedulingError for requests and instances it does not have."""

    roles = True
    """Whether an instance's role means anything."""

    def __init__(self, profiles: Mapping[int, Profile], targets: Targets, prefill: int) -> None:
        """The first ``prefill`` of the instances begin with prefill, the others with decode; so do those that
        :meth:`add` brings. A phase without an instance is computed by those of the other."""
        if prefill < 1 or 0 < len(profiles) <= prefill:
            raise SchedulingError(
                f"a scheduler needs at least one instance for each phase, got {prefill} for prefill of {len(profiles)}"
            )
        self.targets = targets
        self.instances: dict[int, Instance] = {}
        self._retired: dict[int, Instance] = {}
        self.flips = 0
        self._prefill = prefill
        self._prefilling: dict[int, int] = {}
        self._decoding: dict[int, int] = {}
        for name, profile in profiles.items():
            self.add(name, profile)

    def add(self, name: int, profile: Profile, role: Role | None = None) -> None:
        """One more instance; without ``role`` for prefill while that has fewer than it began with, else for decode."""
        if name in self.instances or name in self._retired:
            raise SchedulingError(f"there is an instance {name} already")
        fewer = len(self.having(Role.PREFILL)) < self._prefill
        self.instances[name] = Instance(name, profile, role or (Role.PREFILL if fewer else Role.DECODE))

    def retire(self, name: int) -> None:
        """An instance gets nothing new; what it has goes on there, and it is forgotten by :meth:`lose`."""
        self._retired[name] = self._instance(name)
        self.instances.pop(name, None)

    @abstractmethod
    def choose_prefill(self, tokens: int, now_s: float) -> Instance:
        """The instance that prefills a new prompt of ``tokens``."""

    @abstractmethod
    def choose_decode(self, tokens: int, prefilled_on: Instance, now_s: float) -> Instance:
        """The instance that decodes a request whose prompt of ``tokens`` is computed."""

    def update(self, now_s: float) -> None:  # noqa: B027  rules without a monitoring loop keep this one
        """One round of the monitoring loop."""

    def having(self, role: Role) -> list[Instance]:
        return [instance for instance in self.instances.values() if instance.role is role]

    def pool(self, role: Role) -> list[Instance]:
        """The instances that compute a phase: those of the role, or all where it has none. Raises SchedulingError where
        there is no instance."""
        if not self.instances:
            raise SchedulingError("there is no instance")
        return self.having(role) or list(self.instances.values())

    def prefill(self, request: int, tokens: int, now_s: float) -> int:
        """Dispatch the prefill of a new request; the instance's name."""
        if tokens < 1:
            raise SchedulingError(f"a prompt has at least one token, got {tokens}")
        if request in self._prefilling or request in self._decoding:
            raise SchedulingError(f"request {request} is in flight already")
        if len(self._prefilling) + len(self._decoding) >= MAX_REQUESTS:
            raise SchedulingError(f"{MAX_REQUESTS} requests are in flight, no more are taken")
        instance = self.choose_prefill(tokens, now_s)
        instance.begin_prefill(request, tokens)
        self._prefilling[request] = instance.name
        return instance.name

    def decode(self, request: int, now_s: float) -> int:
        """The prefill of a request has ended; dispatch its decode; the instance's name."""
        source = self._instance(self._held(self._prefilling, request, "is prefilled nowhere"))
        tokens = source.end_prefill(request)
        del self._prefilling[request]
        instance = self.choose_decode(tokens, source, now_s)
        instance.decodes[request] = tokens
        instance.decode_tokens += tokens
        self._decoding[request] = instance.name
        return instance.name

    def generated(self, instance: int, tokens: int, interval_s: float) -> None:
        """An iteration of ``instance`` gave ``tokens`` tokens, each ``interval_s`` after its text's last one."""
        held = self._instance(instance)
        held.decode_tokens += tokens
        held.intervals_s += tokens * interval_s
        held.intervals += tokens

    def finish(self, request: int, generated: int) -> None:
        """A decode ended, or its client left, after ``generated`` tokens reported by :meth:`generated`."""
        held = self._instance(self._held(self._decoding, request, "is decoded nowhere"))
        held.decode_tokens -= held.decodes.pop(request) + generated
        del self._decoding[request]

    def abandon(self, request: int) -> None:
        """A request's client left before the prefill ended."""
        self._instance(self._held(self._prefilling, request, "is prefilled nowhere")).end_prefill(request)
        del self._prefilling[request]

    def lose(self, instance: int) -> list[int]:
        """An instance is gone; the requests it had, which begin again. Each phase keeps one while two remain."""
        held = self._instance(instance)
        others = self.having(held.role.other)
        if self.having(held.role) == [held] and len(others) > 1:
            min(others, key=lambda other: other.prefill_s).role = held.role
        self.instances.pop(instance, None)
        self._retired.pop(instance, None)
        requests = [*held.prefills, *held.decodes]
        for request in requests:
            self._prefilling.pop(request, None)
            self._decoding.pop(request, None)
        return requests

    def _instance(self, name: int) -> Instance:
        held = self.instances.get(name) or self._retired.get(name)
        if held is None:
            raise SchedulingError(f"there is no instance {name}")
        return held

    @staticmethod
    def _held(table: Mapping[int, int], request: int, why: str) -> int:
        if request not in table:
            raise SchedulingError(f"request {request} {why}")
        return table[request]

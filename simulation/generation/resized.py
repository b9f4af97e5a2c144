"""Text generation while an instance is resized, by the ways that ElasticMoE (arXiv 2510.02613, section 7.2) compares.

One instance of some accelerators serves; at one moment a larger or smaller one is ordered, which takes a while. Ways:

- ``elastic``: the instance itself becomes the other, with its texts and their keys and values; meanwhile it goes on
  with what it has and takes nothing new (the paper's appendix A.1).
- ``cold-restart``: it stops; texts begin again on the other one.
- ``extravagant``: the other one starts on accelerators of its own; the old one ends its texts and leaves.
- ``concurrent`` (*colocated* in section 7.2): the other one starts on the same accelerators, so both have room for two
  sets of weights and keys and values at all times; while both have texts, each takes twice as long.
- ``replica``: a second instance of the first kind, on accelerators of its own; both serve from then on.
- ``none``.

Prompts that have not begun when the other one is ready go there. Times of the ways are given, not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from functions.scheduling.peers import Colocated
from functions.scheduling.settings import Targets
from simulation.generation.engine import GenerationSimulation, Request, _Instance
from simulation.generation.hardware import Hardware

Way = Literal["elastic", "cold-restart", "extravagant", "concurrent", "replica", "none"]
WAYS: tuple[Way, ...] = get_args(Way)
OLD, NEW = 0, 1


def slowed(hardware: Hardware, factor: float) -> Hardware:
    """The same with iterations ``factor`` times as long."""
    times = {name: factor * getattr(hardware, name) for name in ("iteration_s", "token_s", "attention_s", "context_s")}
    return replace(hardware, **times)


class ResizedSimulation(GenerationSimulation):
    """One run of one way. ``requests`` in order of arrival."""

    def __init__(
        self, requests: Sequence[Request], old: Hardware, new: Hardware, way: Way, order_s: float, scale_s: float,
        targets: Targets,
    ) -> None:  # fmt: skip
        """``old`` and ``new``: the instances with the room that the way leaves them; ``scale_s``: from the order until
        the other one serves."""
        scheduler = Colocated({}, targets, 1)
        scheduler.add(OLD, old.profile())
        self._kinds: dict[int, Hardware] = {OLD: old, NEW: old if way == "replica" else new}
        super().__init__(requests, scheduler, self._kinds)
        self._way: Way = way
        self._new, self._scale_s = new, scale_s
        self._closed = False
        self._held: list[int] = []
        """Requests that nobody takes yet."""
        self.restarted = 0
        """Requests that began again."""
        self.ready_s: float | None = None
        """When the other one served."""
        self.left_s: float | None = None
        """When the old one was gone, or had become the other."""
        if way != "none":
            self._at(order_s, "ordered")

    @property
    def ended_s(self) -> list[float | None]:
        """[requests] when each had all its tokens."""
        return self._end

    def _ordered(self) -> None:
        self._at(self._now + self._scale_s, "ready")
        self._closed = self._way in ("elastic", "cold-restart")
        if self._way == "cold-restart":
            del self._instances[OLD]
            self._held = sorted(self._scheduler.lose(OLD))
            self.restarted = len(self._held)
            self.left_s = self._now

    def _ready(self) -> None:
        self.ready_s = self._now
        if self._way == "elastic":
            instance = self._instances[OLD]
            instance.free_kv += self._new.kv_tokens - self._kinds[OLD].kv_tokens
            self._kinds[OLD] = self._new
            self._scheduler.instances[OLD].profile = self._new.profile()
            self.left_s = self._now
        else:
            self._instances[NEW] = _Instance(NEW, self._kinds[NEW].kv_tokens)
            self._scheduler.add(NEW, self._kinds[NEW].profile())
        if self._way in ("extravagant", "concurrent"):
            self._hand_over()
        self._closed = False
        held, self._held = self._held, []
        for at in held:
            self._arrival(at)
        for instance in list(self._instances.values()):
            self._begin(instance)

    def _hand_over(self) -> None:
        """The old one keeps what it has begun."""
        old = self._instances[OLD]
        moved = [at for at, computed in old.prompts if computed < 0]
        for at in moved:
            self._scheduler.abandon(at)
            old.prompts.remove([at, -1])
        self._scheduler.retire(OLD)
        if self._way == "concurrent":
            self._kinds |= {name: slowed(self._kinds[name], 2.0) for name in (OLD, NEW)}
        self._held += moved
        self._leave_when_empty()

    def _leave_when_empty(self) -> None:
        old = self._instances.get(OLD)
        if old is None or OLD in self._scheduler.instances:
            return
        if old.running or old.prompts or old.joining or old.ends:
            return
        del self._instances[OLD]
        self._scheduler.lose(OLD)
        self._kinds[NEW] = self._new
        self.left_s = self._now

    def _arrival(self, at: int) -> None:
        if self._closed:
            self._held.append(at)
        else:
            super()._arrival(at)

    def _iterated(self, name: int, batch: int, nanoseconds: int) -> None:
        if name not in self._instances:  # it was stopped in the midst of an iteration
            self._chunks.pop(name, None)
            return
        super()._iterated(name, batch, nanoseconds)
        self._leave_when_empty()

"""The simulator as a platform: orders go to the simulation, the list shows them at once, replicas come about later."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.capacity import needs, total_needs
from autoscaler.contract import Bound, Capacity, Configuration, Resources
from autoscaler.errors import FunctionGoneError, PlatformError, UnreachableError
from simulation.engine.errors import SimulationError
from simulation.engine.simulated import Simulated


class SimulatedPlatform:
    """Functions of a simulated pipeline. The ingress is among them, but costs and serves nothing here.

    Where the workload has a capacity, replicas beyond it are not brought about: like pods of a full cluster they wait
    for what others give up at the same moment, and what is still refused then is bounded at the next tick.
    ``broken`` holds functions whose changes fail, ``down`` makes every call fail: to simulate a platform's bad days.
    """

    def __init__(self, simulation: Simulated) -> None:
        self.broken: set[str] = set()
        self.down = False
        self.orders = 0
        """Orders taken that changed something."""
        self._simulation = simulation
        self._waiting: dict[str, Configuration] = {}
        """Orders of which a part was refused for want of room, by function."""
        self._refused_s = 0.0
        self._held: _Held | None = None
        self._fixed = {
            node.function: simulation.workload.segment_configuration
            for node in simulation.workload.topology.nodes
            if node.kind == "ingress"
        }

    def configurations(self) -> Mapping[str, Configuration]:
        self._reach()
        simulated = {function: self._simulation.configuration(function) for function in self._simulation.index}
        return {**self._fixed, **simulated}

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        self._reach()
        if function not in self._fixed and function not in self._simulation.index:
            raise FunctionGoneError(f"function {function} is not deployed")
        if function in self.broken:
            raise PlatformError(f"function {function} could not be changed")
        now = self._fixed[function] if function in self._fixed else self._simulation.configuration(function)
        self.orders += now != target
        capacity = self._simulation.workload.capacity
        if capacity is None:
            self._order(function, target)
            return
        if self._refused_s != self._simulation.now_s:  # what was refused at another time has to be ordered again
            self._waiting, self._refused_s = {}, self._simulation.now_s
        self._waiting[function] = target
        every = self.configurations()
        if self._held is None or self._held.present != every:
            self._held = _Held(every)
        while any(self._bring_about(name, self._waiting[name], self._held, capacity) for name in list(self._waiting)):
            pass  # what one gave up, another may have

    def bounds(self) -> Mapping[str, Bound]:
        """Function → its replicas, of those that were refused more at the last moment of orders."""
        refused = {function: self.configurations()[function].replicas for function in self._waiting}
        return {function: Bound("no machine has room", replicas) for function, replicas in refused.items()}

    def _bring_about(self, function: str, target: Configuration, held: _Held, capacity: Capacity) -> bool:
        """Order as much of ``target`` as there is room for; whether that changed anything."""
        possible = held.possible(function, target, capacity)
        if possible == target:
            del self._waiting[function]
        if possible == held.present[function]:
            return False
        self._order(function, possible)
        held.change(function, possible)
        return True

    def _order(self, function: str, target: Configuration) -> None:
        if function in self._fixed:
            self._fixed[function] = target
            return
        try:
            self._simulation.order(function, target)
        except SimulationError as error:
            raise PlatformError(f"function {function} could not be changed: {error}") from error

    def _reach(self) -> None:
        if self.down:
            raise UnreachableError("the platform does not answer")


class _Held:
    """What functions have, and what all of it takes: added up when something else changed it, not for each number of
    replicas of each order."""

    def __init__(self, present: Mapping[str, Configuration]) -> None:
        self.present = dict(present)
        self._taken = total_needs(present.values())

    def possible(self, function: str, target: Configuration, capacity: Capacity) -> Configuration:
        """``target`` with as many replicas as there is room for, never fewer than run now; the present configuration
        where not even these have room with the target's limits."""
        now = self.present[function]
        for replicas in range(target.replicas, min(now.replicas, target.replicas) - 1, -1):
            part = target.with_replicas(replicas)
            short = self._beyond(function, part, capacity)
            if not short or not _grows(needs(now), needs(part), short):
                return part
        return now

    def change(self, function: str, configuration: Configuration) -> None:
        self._taken = self._with(function, configuration)
        self.present[function] = configuration

    def _beyond(self, function: str, configuration: Configuration, capacity: Capacity) -> tuple[str, ...]:
        if capacity.machines:
            return capacity.beyond({**self.present, function: configuration}.values())
        return self._with(function, configuration).beyond(capacity.total)

    def _with(self, function: str, configuration: Configuration) -> Resources:
        return self._taken.minus(needs(self.present[function])).plus(needs(configuration))


def _grows(before: Resources, after: Resources, short: tuple[str, ...]) -> bool:
    """Whether ``after`` takes more than ``before`` of what is short."""
    names = ("cores", "memory", "GPUs")
    return "machines" in short or any(
        more > less for name, less, more in zip(names, before, after, strict=True) if name in short
    )

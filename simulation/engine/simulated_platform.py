"""The simulator as a platform: orders go to the simulation, the list shows them at once, replicas come about later."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.contract import Configuration
from autoscaler.errors import FunctionGoneError, PlatformError, UnreachableError
from simulation.engine.errors import SimulationError
from simulation.engine.simulation import Simulation


class SimulatedPlatform:
    """Functions of a simulated pipeline. The ingress is among them, but costs and serves nothing here.

    ``broken`` holds functions whose changes fail, ``down`` makes every call fail: to simulate a platform's bad days.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.broken: set[str] = set()
        self.down = False
        self.orders = 0
        """Orders taken that changed something."""
        self._simulation = simulation
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

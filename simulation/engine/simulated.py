"""What the controller's loop needs of a simulation, whatever is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from autoscaler.contract import Configuration, NodeInfo
from simulation.arrays import Floats, Tokens
from simulation.engine.simulation import Window
from simulation.workloads.workload import Workload


class Arrived(Protocol):
    """Requests; [N] each."""

    @property
    def arrival_s(self) -> Floats: ...

    @property
    def tokens(self) -> Tokens: ...


class Use(Protocol):
    """What replicas use of their cores; nodes by their place."""

    def used(self, node: int) -> float: ...

    def limited(self, node: int) -> bool: ...


class Simulated(Protocol):
    """A pipeline under load that is moved forward window by window."""

    @property
    def workload(self) -> Workload: ...

    @property
    def requests(self) -> Arrived: ...

    @property
    def nodes(self) -> tuple[NodeInfo, ...]: ...

    @property
    def index(self) -> Mapping[str, int]: ...

    @property
    def now_s(self) -> float: ...

    @property
    def fleet(self) -> Use: ...

    def configuration(self, function: str) -> Configuration: ...

    def order(self, function: str, target: Configuration) -> None: ...

    def advance(self, until_s: float) -> Window: ...

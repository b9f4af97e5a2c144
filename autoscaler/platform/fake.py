"""A platform in memory: for tests, dry runs and the simulator's contract suite."""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.contract import Configuration
from autoscaler.errors import FunctionGoneError, PlatformError


class FakePlatform:
    """Applies at once; ``broken`` holds functions whose changes fail."""

    def __init__(self, functions: Mapping[str, Configuration]) -> None:
        self.functions = dict(functions)
        self.broken: set[str] = set()
        self.applied: list[tuple[str, Configuration]] = []

    def configurations(self) -> Mapping[str, Configuration]:
        return dict(self.functions)

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        if function not in self.functions:
            raise FunctionGoneError(f"function {function} is not deployed")
        if function in self.broken:
            raise PlatformError(f"function {function} could not be changed")
        self.functions[function] = target
        self.applied.append((function, target))

"""A platform in memory, on a clock that its owner moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoscaler.contract import Configuration
from autoscaler.errors import FunctionGoneError, PlatformError, UnreachableError


class FakePlatform:
    """Takes orders at once; they show after ``delay_s`` on ``clock`` (seconds).

    ``broken`` holds functions whose changes fail, ``down`` makes every call fail, ``orders`` is what was asked for.
    """

    def __init__(
        self,
        functions: Mapping[str, Configuration],
        clock: Callable[[], float] = lambda: 0.0,
        delay_s: float = 0.0,
    ) -> None:
        self.functions = dict(functions)
        self.broken: set[str] = set()
        self.down = False
        self.orders: list[tuple[str, Configuration]] = []
        self._clock = clock
        self._delay_s = delay_s
        self._coming: list[tuple[float, str, Configuration]] = []

    def configurations(self) -> Mapping[str, Configuration]:
        self._reach()
        for due in [order for order in self._coming if order[0] <= self._clock()]:
            self._coming.remove(due)
            self.functions[due[1]] = due[2]
        return dict(self.functions)

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        self._reach()
        if function not in self.functions:
            raise FunctionGoneError(f"function {function} is not deployed")
        if function in self.broken:
            raise PlatformError(f"function {function} could not be changed")
        self.orders.append((function, target))
        self._coming = [order for order in self._coming if order[1] != function]
        self._coming.append((self._clock() + self._delay_s, function, target))

    def _reach(self) -> None:
        if self.down:
            raise UnreachableError("the platform does not answer")

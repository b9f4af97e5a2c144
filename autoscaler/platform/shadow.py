"""A platform that only pretends: orders are remembered, shown in the next list, and never sent.

So a policy, its limits and its cool-downs go on as if it acted, on what really happens; what it would have cost is told
beside what was paid. What its decisions would have done to the traffic stays unknown: latencies are those of the real
configurations.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.contract import Configuration, Platform
from autoscaler.errors import FunctionGoneError
from autoscaler.prices import PriceSheet


class ShadowPlatform:
    """:class:`autoscaler.contract.Platform` over another one, of which only the list is used."""

    def __init__(self, real: Platform) -> None:
        self._real = real
        self._present: Mapping[str, Configuration] = {}
        self._pretended: dict[str, Configuration] = {}
        self._read = False

    def configurations(self) -> Mapping[str, Configuration]:
        """The real functions, those with orders as ordered."""
        self._present, self._read = self._real.configurations(), True
        self._pretended = {name: one for name, one in self._pretended.items() if name in self._present}
        return {**self._present, **self._pretended}

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        if not self._read:
            self.configurations()
        if function not in self._present:
            raise FunctionGoneError(f"function {function} is not deployed")
        self._pretended[function] = target

    def costs(self, window_s: float, prices: PriceSheet) -> tuple[float, float]:
        """Provisioned cost of a window: of what is really configured, and of what would be."""
        real = self._present
        pretended = {**real, **self._pretended}

        def cost(configurations: Mapping[str, Configuration]) -> float:
            return sum(one.replicas * window_s * prices.unit_per_s(one) for one in configurations.values())

        return cost(real), cost(pretended)

"""A platform that only pretends: orders are remembered, shown in the next list, and never sent.

So a policy, its limits and its cool-downs go on as if it acted, on what really happens; what it would have cost is
reported next to what was paid. What its decisions would have done to the traffic stays unknown: latencies, and the
seconds that calls spend at replicas, are those of the real configurations. How long standbys of a rule that is not the
real one would have been activated is not known either: they cost at least what calls take beyond the replicas that
always run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.contract import Configuration, Cost, NodeObservation, Observation, PlacedPlatform, Platform
from autoscaler.errors import FunctionGoneError
from autoscaler.prices import PriceSheet, function_cost, money, summed
from autoscaler.state.shares import total

METERS = ("busy", "provisioned")


@dataclass(frozen=True, slots=True)
class Compared:
    """Cost of the same time as it is and as it would be."""

    real: Cost
    shadow: Cost


class ShadowPlatform:
    """:class:`autoscaler.contract.Platform` over another one, of which only the list is used."""

    def __init__(self, real: Platform) -> None:
        self._real = real
        self._present: Mapping[str, Configuration] = {}
        self._pretended: dict[str, Configuration] = {}
        self._before: dict[str, Configuration] = {}
        """What was pretended when the last window ended."""
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

    def floors(self) -> Mapping[str, int]:
        """The real platform's."""
        return self._real.floors() if isinstance(self._real, PlacedPlatform) else {}

    def window_costs(self, observation: Observation, prices: PriceSheet) -> Compared:
        """Both meters of the window that has passed, over all functions that there are: as configured really, and as it
        was pretended before the window's own orders, which the next one pays for. To be asked once after each tick.

        A meter is None where it is not known of one function.
        """
        rows: dict[str, list[NodeObservation]] = {}
        for node in observation.nodes:
            rows.setdefault(node.function, []).append(node)
        real, shadow = [], []
        for function, present in self._present.items():
            nodes = rows.get(function, ())
            pretended = self._before.get(function, present)
            real.append(_cost(nodes, present, observation.window_s, prices))
            if nodes and pretended != present:
                nodes = _as_if(nodes, present, pretended, observation.window_s)
            shadow.append(_cost(nodes, pretended, observation.window_s, prices))
        self._before = dict(self._pretended)
        return Compared(summed(real), summed(shadow))


class ShadowBill:
    """What a run has cost and would have cost, summed over the time between its ticks (windows may overlap).

    A time in which one of both is not known counts for neither.
    """

    def __init__(self, platform: ShadowPlatform, prices: PriceSheet, policy: str) -> None:
        self.policy = policy
        self.currency = prices.currency
        self.seconds = dict.fromkeys(METERS, 0.0)
        self.real = dict.fromkeys(METERS, 0.0)
        self.shadow = dict.fromkeys(METERS, 0.0)
        self.window = Compared(Cost(None, None), Cost(None, None))
        """Costs of the last window."""
        self._platform = platform
        self._prices = prices
        self._end_s: float | None = None

    def add(self, observation: Observation) -> None:
        """Take in one window, after its tick."""
        self.window = self._platform.window_costs(observation, self._prices)
        passed_s = 0.0 if self._end_s is None else max(0.0, observation.end_s - self._end_s)
        self._end_s = observation.end_s
        for meter in METERS:
            real, shadow = getattr(self.window.real, meter), getattr(self.window.shadow, meter)
            if real is not None and shadow is not None:
                self.seconds[meter] += passed_s
                self.real[meter] += real / observation.window_s * passed_s
                self.shadow[meter] += shadow / observation.window_s * passed_s

    def summary(self) -> dict[str, Any]:
        """The last window and the run so far as plain values."""
        window = self.window
        return {
            "currency": self.currency,
            "cost_real": window.real.provisioned,
            "cost_shadow": window.shadow.provisioned,
            "busy_real": window.real.busy,
            "busy_shadow": window.shadow.busy,
            "total": {
                meter: {"seconds": self.seconds[meter], "real": self.real[meter], "shadow": self.shadow[meter]}
                for meter in METERS
            },
        }

    def line(self) -> str:
        """The same in a few words."""
        window = f"{self._money(self.window.shadow.provisioned)} instead of {self._money(self.window.real.provisioned)}"
        total = f"{self._money(self.shadow['provisioned'])} instead of {self._money(self.real['provisioned'])}"
        return f"shadow: {window} in this window, {total} so far"

    def verdict(self) -> str:
        """The run in sentences."""
        return f"shadow: {self.policy} " + ", ".join(self._verdict(meter) for meter in reversed(METERS))

    def _verdict(self, meter: str) -> str:
        seconds, real, shadow = self.seconds[meter], self.real[meter], self.shadow[meter]
        if not seconds:
            return f"has no {meter} cost that is known"
        change = "" if not real else f" ({shadow / real - 1.0:+.1%})"
        amounts = f"{self._money(shadow)} {meter} instead of {self._money(real)}"
        return f"would have cost {amounts} in {seconds:.0f} s{change}"

    def _money(self, amount: float | None) -> str:
        return "–" if amount is None else money(amount, self.currency)


def _as_if(
    nodes: Sequence[NodeObservation], present: Configuration, pretended: Configuration, window_s: float
) -> list[NodeObservation]:
    """Replicas, and standbys of another rule, that are there have nothing to do with those that there would be."""
    activated_s = nodes[0].activated_s
    if pretended.burst != present.burst:
        busy_s = total([node.busy_s if node.busy_replica_s is None else node.busy_replica_s for node in nodes])
        activated_s = None if busy_s is None else max(0.0, busy_s - pretended.running * window_s)
    most_s = (pretended.running + pretended.standbys) * window_s
    return [
        node._replace(
            ready_replicas=pretended.replicas,
            busy_replica_s=None if node.busy_replica_s is None else min(node.busy_replica_s, most_s),
            activated_s=None if activated_s is None else min(activated_s, pretended.standbys * window_s),
        )
        for node in nodes
    ]


def _cost(nodes: Sequence[NodeObservation], configuration: Configuration, window_s: float, prices: PriceSheet) -> Cost:
    if not nodes:
        return Cost(None, configuration.replicas * window_s * prices.unit_per_s(configuration))
    return function_cost([nodes[0]._replace(configuration=configuration), *nodes[1:]], window_s, prices)

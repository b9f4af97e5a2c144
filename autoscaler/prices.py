"""U_φ of Eq. (7) and the two cost meters of a window; both are always reported.

*Busy* is the paper's reading: seconds that replicas were in use × U_φ. *Provisioned* is what a cluster's owner pays:
replicas × seconds of the window × U_φ, and for standbys their memory, from activation to release a replica's U_φ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from autoscaler.checked import Checked, from_table, read_toml
from autoscaler.contract import Configuration, Cost, NodeObservation, Observation
from autoscaler.errors import SettingsError
from autoscaler.state.shares import total

DEFAULT_SHEET = Path(__file__).with_name("prices.toml")
Price = Annotated[float, Field(ge=0, lt=1e6)]
Meter = Literal["busy", "provisioned"]
METERS: tuple[Meter, ...] = ("busy", "provisioned")
DEFAULT_METER: Meter = "provisioned"
"""The meter of rewards and published policies unless another is named: what a cluster's owner pays."""


def money(amount: float, currency: str) -> str:
    """An amount for people, with three significant digits: ``$8.31``, ``EUR 0.0421``."""
    sign = "$" if currency in ("USD", "$") else f"{currency} "
    return f"{sign}{amount:,.0f}" if amount >= 99.95 else f"{sign}{amount:#.3g}"


@dataclass(frozen=True)
class PriceSheet(Checked):
    """Prices in ``currency`` per second."""

    name: str
    source: str
    currency: str
    cpu_core_s: Price
    memory_gib_s: Price
    gpu_s: Price
    """A whole GPU."""

    def unit_per_s(self, configuration: Configuration) -> float:
        """U_φ of one replica."""
        return (
            configuration.cpu_cores * self.cpu_core_s
            + configuration.memory_mb / 1024 * self.memory_gib_s
            + configuration.gpu_share * self.gpu_s
        )

    def standby_per_s(self, configuration: Configuration) -> float:
        """U_φ of one standby: started, with its memory, and with neither cores nor a GPU share until it is
        activated."""
        return configuration.memory_mb / 1024 * self.memory_gib_s

    def standbys(self, configuration: Configuration, seconds: float, activated_s: float = 0.0) -> float:
        """All standbys of a function for ``seconds``, in which they were activated for ``activated_s`` in sum."""
        waiting_s = max(0.0, configuration.standbys * seconds - activated_s)
        return waiting_s * self.standby_per_s(configuration) + activated_s * self.unit_per_s(configuration)

    def provisioned(self, configuration: Configuration, seconds: float, activated_s: float = 0.0) -> float:
        """A function for ``seconds``: replicas that always run, and standbys, activated for ``activated_s`` in sum."""
        always = configuration.running * seconds * self.unit_per_s(configuration)
        return always + self.standbys(configuration, seconds, activated_s)


def load_prices(path: Path = DEFAULT_SHEET) -> PriceSheet:
    """Read a price sheet. Raises SettingsError."""
    document = read_toml(path, "price sheet")
    try:
        return from_table(PriceSheet, document)
    except SettingsError as error:
        raise SettingsError(f"price sheet {path}: {error}") from error


def function_cost(nodes: Sequence[NodeObservation], window_s: float, prices: PriceSheet) -> Cost:
    """Both meters of one function in one window; None where a number is missing. ``nodes``: those it serves."""
    configuration = nodes[0].configuration
    if configuration is None:
        return Cost(None, None)
    unit = prices.unit_per_s(configuration)
    always_s, activated_s = _open_s(configuration, nodes[0], window_s)
    busy_s = busy_replica_seconds(nodes, configuration, window_s)
    standbys = prices.standbys(configuration, window_s, activated_s)
    return Cost(None if busy_s is None else busy_s * unit, always_s * unit + standbys, standbys)


def busy_replica_seconds(
    nodes: Sequence[NodeObservation], configuration: Configuration, window_s: float
) -> float | None:
    """Seconds in which replicas of one function had at least one call, summed; None where a number is missing.

    They are the calls' seconds at replicas, but never more than all replicas have that took calls. That is exact when
    calls do not share a replica and when all replicas are busy, and an upper bound in between; a source that knows the
    seconds gives them (``busy_replica_s``).
    """
    busy_s = _total([node.busy_replica_s for node in nodes])
    if busy_s is None:
        seconds = _total([node.busy_s for node in nodes])
        busy_s = None if seconds is None else min(seconds, sum(_open_s(configuration, nodes[0], window_s)))
    return busy_s


def _open_s(configuration: Configuration, node: NodeObservation, window_s: float) -> tuple[float, float]:
    """Replica-seconds in which replicas that always run took calls, and in which standbys did."""
    replicas = max(configuration.replicas, node.ready_replicas or 0)
    if configuration.running < configuration.replicas:  # ready ones wait, too
        replicas = configuration.running
    # Where it is not known how long standbys were activated, all of them count as replicas.
    activated_s = configuration.standbys * window_s if node.activated_s is None else node.activated_s
    return replicas * window_s, activated_s


def _total(values: Sequence[float | None]) -> float | None:
    """The sum, None where one is unknown."""
    if len(values) == 1:
        return values[0]
    measured = [value for value in values if value is not None]
    return sum(measured) if len(measured) == len(values) else None


def total_cost(observation: Observation, prices: PriceSheet) -> tuple[Cost, dict[str, Cost]]:
    """Sum over all functions (None where one is not known: a part is no sum), and each node's.

    Nodes that share a function share its cost equally.
    """
    functions: dict[str, list[NodeObservation]] = {}
    for node in observation.nodes:
        functions.setdefault(node.function, []).append(node)
    costs: list[Cost] = []
    by_node: dict[str, Cost] = {}
    window_s = observation.window_s
    for nodes in functions.values():
        cost = function_cost(nodes, window_s, prices)
        costs.append(cost)
        part = cost
        if len(nodes) > 1:
            part = Cost(*(None if amount is None else amount / len(nodes) for amount in cost.amounts))
        for node in nodes:
            by_node[node.node] = part
    return summed(costs), by_node


def summed(costs: Sequence[Cost]) -> Cost:
    """Each meter of all together; None where one is not known: a part is no sum."""
    return Cost(*map(total, zip(*(cost.amounts for cost in costs), strict=True))) if costs else Cost(None, None)

"""U_φ of Eq. (7) and the two cost meters of a window (design: both are always reported).

*Busy* is the paper's reading: replicas × seconds in use × U_φ. *Provisioned* is what a cluster's owner pays:
replicas × seconds of the window × U_φ.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from autoscaler.contract import Configuration, Cost, NodeObservation, Observation
from autoscaler.errors import SettingsError

DEFAULT_SHEET = Path(__file__).with_name("prices.toml")


@dataclass(frozen=True)
class PriceSheet:
    """Prices in ``currency`` per second."""

    name: str
    source: str
    currency: str
    cpu_core_s: float
    memory_gib_s: float
    gpu_s: float
    """A whole GPU."""

    def unit_per_s(self, configuration: Configuration) -> float:
        """U_φ of one replica."""
        return (
            configuration.cpu_cores * self.cpu_core_s
            + configuration.memory_mb / 1024 * self.memory_gib_s
            + configuration.gpu_share * self.gpu_s
        )


def load_prices(path: Path = DEFAULT_SHEET) -> PriceSheet:
    """Read a price sheet. Raises SettingsError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"price sheet {path} cannot be read: {error}") from error
    names = [entry.name for entry in fields(PriceSheet)]
    wrong = sorted(set(document) ^ set(names))
    if wrong:
        raise SettingsError(f"price sheet {path}: key {wrong[0]!r} is missing or not known; the keys are {names}")
    for key in ("cpu_core_s", "memory_gib_s", "gpu_s"):
        if not isinstance(document[key], int | float) or not 0 <= document[key] < 1e6:
            raise SettingsError(f"price sheet {path}: {key} is {document[key]!r}; it takes a price of 0 or more")
    return PriceSheet(**document)


def node_cost(node: NodeObservation, window_s: float, prices: PriceSheet) -> Cost:
    """Both meters of one function in one window; None where a number is missing.

    Busy seconds of a replica set are the calls' seconds at replicas divided by its concurrency in use, so that one
    replica that serves ten calls at once for a second is busy for one second, not ten.
    """
    configuration = node.configuration
    if configuration is None:
        return Cost(None, None)
    unit = prices.unit_per_s(configuration)
    replicas = node.ready_replicas if node.ready_replicas is not None else configuration.replicas
    provisioned = replicas * window_s * unit
    if node.busy_s is None:
        return Cost(None, provisioned)
    slots = max(1, configuration.concurrency)
    busy_s = min(node.busy_s / slots, replicas * window_s)
    return Cost(busy_s * unit, provisioned)


def total_cost(observation: Observation, prices: PriceSheet) -> tuple[Cost, dict[str, Cost]]:
    """Sum over all functions, and each one's."""
    by_node = {node.node: node_cost(node, observation.window_s, prices) for node in observation.nodes}
    busy = [cost.busy for cost in by_node.values() if cost.busy is not None]
    provisioned = [cost.provisioned for cost in by_node.values() if cost.provisioned is not None]
    return Cost(sum(busy) if busy else None, sum(provisioned) if provisioned else None), by_node

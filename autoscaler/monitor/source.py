"""A MetricsSource over any reader of readings."""

from __future__ import annotations

from typing import Protocol

from autoscaler.contract import NAMESPACE, Observation, Topology
from autoscaler.state.features import observe
from autoscaler.state.readings import Readings


class Reader(Protocol):
    """Reads the catalogue's metrics for one window; never raises."""

    def read(self, now_s: float, window_s: float) -> Readings: ...


class Monitor:
    """Observations of one pipeline, whose functions are in what the gateway calls ``namespace``."""

    def __init__(self, topology: Topology, reader: Reader, namespace: str = NAMESPACE) -> None:
        self._topology = topology
        self._reader = reader
        self._namespace = namespace

    def observe(self, now_s: float, window_s: float) -> Observation:
        return observe(self._topology, self._reader.read(now_s, window_s), self._namespace)

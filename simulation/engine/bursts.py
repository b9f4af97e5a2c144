"""Standbys in the simulation: each activation is a replica that takes calls from then until its release.

Activation follows from arrivals alone (:mod:`functions.dispatch.activation`), so a window's are known before its first
stage is simulated, and stages stay independent of each other. A released standby ends the calls it has; wanted again
meanwhile, it counts as another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Configuration
from functions.dispatch.activation import MEASURE_S, MeasuredWork, Standbys, token_rates
from simulation.arrays import Calls, Floats
from simulation.engine.fleet import Fleet
from simulation.engine.kernel import BUSY_S
from simulation.engine.requests import Requests


@dataclass(frozen=True)
class BurstSettings:
    """How standbys are simulated; which functions have some is in their configurations."""

    activation_s: float = 0.1
    """Seconds from the request that finds too little until the standby takes calls."""
    seconds_per_token: Mapping[str, float] | None = None
    """Function → replica-seconds a token of the pipeline costs it; None: measured as the ingress does, of whole
    windows and from tokens that were answered, so that nothing is activated in the first."""
    stays: bool = True
    """On one machine nothing falls asleep, either, for as long as the longest request of the window before took, as
    the ingress lets nothing sleep while it has a request. Stage by stage that is not known."""


DEFAULT_BURSTS = BurstSettings()


class Bursts:
    """State of all standbys, from window to window. ``index``: function → node."""

    def __init__(
        self,
        settings: BurstSettings,
        requests: Requests,
        index: Mapping[str, int],
        configurations: Mapping[str, Configuration],
    ) -> None:
        self.settings = settings
        self._requests = requests
        self._standbys = {
            place: standbys
            for function, place in index.items()
            if (standbys := _standbys_of(configurations[function])) is not None
        }
        given = settings.seconds_per_token
        self._given = {index[function]: seconds for function, seconds in (given or {}).items()}
        self._longest_s = 0.0
        self._work = MeasuredWork(len(index))
        self._busy_s: Floats = np.zeros(len(index))
        self._tokens = self._measured_s = 0.0
        self._first = self._last = 0
        self._rates: dict[float, Floats] = {}

    def __len__(self) -> int:
        """Functions that have standbys."""
        return len(self._standbys)

    def open(self, first: int, last: int, rates: dict[float, Floats] | None = None) -> None:
        """A window of the requests ``first`` to ``last``. ``rates``: token rates [arrivals of the window] by look-back
        that are known, to which others are added."""
        self._first, self._last, self._rates = first, last, {} if rates is None else rates

    def activate(self, node: int, fleet: Fleet, end_s: float) -> None:
        """Bring about the open window's activations and releases of ``node``, before its stage is simulated."""
        standbys, configuration = self._standbys.get(node), fleet.configurations[node]
        if standbys is None or configuration is None:
            return
        arrival_s = self._requests.arrival_s[self._first : self._last]
        burst = standbys.burst
        seconds = self._seconds_per_token(node) if burst.token_s is None else burst.token_s
        wanted = burst.wanted(self._rate(burst.look_back_s), seconds)
        fleet.follow(node, standbys.spans(arrival_s, wanted, end_s, self._longest_s), self.settings.activation_s)

    def change(self, node: int, fleet: Fleet, target: Configuration, now_s: float) -> None:
        """Other standbys for a node: those beyond ``target``'s are released, the rest stays as it is."""
        before, after = self._standbys.pop(node, None), _standbys_of(target)
        if after is not None:
            self._standbys[node] = after
        for number, level in enumerate(before.levels if before else ()):
            if after is not None and number < len(after.levels):
                after.levels[number] = level
            elif level.until_s is not None:
                fleet.release(node, number, now_s)

    def replace(self, node: int, fleet: Fleet, now_s: float) -> None:
        """Release what is activated: the node's replicas are replaced by others (another GPU share)."""
        standbys = self._standbys.get(node)
        for number, level in enumerate(standbys.levels if standbys else ()):
            if level.until_s is not None:
                fleet.release(node, number, now_s)
                level.until_s = None

    def close(self, meter: Floats, finished: Calls, longest_s: float, length_s: float) -> None:
        """The open window's measurements: ``meter`` [nodes, METERS], the requests that were answered, what the longest
        of them took, 0 where that is not to count, and the window's length."""
        self._longest_s = longest_s if self.settings.stays else 0.0
        self._busy_s = self._busy_s + meter[:, BUSY_S]
        self._tokens += float(self._requests.tokens[finished].sum())
        self._measured_s += length_s
        if self._measured_s >= MEASURE_S and self._tokens:
            self._work.add(self._busy_s, self._tokens, int(self._measured_s / MEASURE_S))
            self._busy_s, self._tokens, self._measured_s = np.zeros_like(self._busy_s), 0.0, 0.0

    def _seconds_per_token(self, node: int) -> float:
        if node in self._given:
            return self._given[node]
        return float(self._work.seconds_per_token[node])

    def _rate(self, look_back_s: float) -> Floats:
        """[arrivals of the window] tokens per second."""
        if look_back_s not in self._rates:
            requests = self._requests
            self._rates[look_back_s] = token_rates(
                requests.arrival_s[: self._last], requests.tokens[: self._last], self._first, look_back_s
            )
        return self._rates[look_back_s]


def _standbys_of(configuration: Configuration) -> Standbys | None:
    return None if configuration.burst is None else Standbys(configuration.burst, configuration.replicas)

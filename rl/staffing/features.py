"""What the staffing policy sees beyond :mod:`rl.features`: how fast tokens arrive within a fraction of a second, and
which standbys there were.

A window's mean load is the same for a steady hour and a bursty one, and which rule wakes standbys best hangs on just
that difference. The ingress counts at every arrival how many tokens came in the look-back that ends with it; burst
activation goes by the same number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoscaler.contract import Memory, NodeObservation, Observation
from functions.serving.metric_names import LOOK_BACKS_S
from rl.agent.contract import State
from rl.features import NODE_FEATURES, PIPELINE_FEATURES, Encoder, Feature, History
from rl.features.catalogue import SLOTS, Scales
from simulation.arrays import Floats

QUANTILES = ("p50", "p95", "p99")
SPANS = (5, 30)
"""Windows that a look back covers."""
_RATES = tuple((look_back_s, name) for look_back_s in LOOK_BACKS_S for name in QUANTILES)
_UNKNOWN = "arrivals_unknown"


def _arrival_features() -> tuple[Feature, ...]:
    now = [
        Feature(f"arrivals_{name}_{look_back_s:g}", f"{name} over requests of TPS within {look_back_s:g} s, as work",
                SLOTS, 1e-3, 1000, True, _UNKNOWN)
        for look_back_s, name in _RATES
    ]  # fmt: skip
    past = [
        Feature(f"arrivals_{name}_{look_back_s:g}_{span}", f"largest of it in the last {span} windows",
                SLOTS, 1e-3, 1000, True, _UNKNOWN)
        for span in SPANS
        for look_back_s, name in _RATES
    ]  # fmt: skip
    return (
        *now,
        *past,
        Feature("arrivals_spread", "P95 over P50 at the shortest look-back", "1", 1, 100, True, _UNKNOWN),
        Feature(_UNKNOWN, "1: nothing arrived, or no data", "0 or 1", 0, 1),
    )


ARRIVAL_FEATURES = _arrival_features()
STANDBY_FEATURES = (
    Feature("standbys", "standbys configured", "8 replicas", 0, 2),
    Feature("headroom", "k of the activation rule, 0 without standbys", "1", 0, 2),
    Feature("spare", "z of it", "1", 0, 2),
    Feature("hold", "seconds that a woken replica stays", "8 s", 0, 1),
    Feature("look_back", "seconds of arrivals that count", "1 s", 0, 2),
    Feature("activated", "standbys activated, on average over the window", "8 replicas", 0, 2),
)
NODES: tuple[Feature, ...] = (*NODE_FEATURES, *STANDBY_FEATURES)
"""Numbers of a segment or expert."""
PIPELINE: tuple[Feature, ...] = (*PIPELINE_FEATURES, *ARRIVAL_FEATURES)
"""Numbers of the pipeline."""
FEATURES: Mapping[str, Sequence[Feature]] = {"experts": NODES, "segments": NODES, "pipeline": PIPELINE}
"""By group, as :class:`rl.features.ranges.Ranges` names them."""


@dataclass(frozen=True, eq=False)
class Remembered:
    """What the policy remembers from window to window."""

    history: History = field(default_factory=History)
    rates: Floats = field(default_factory=lambda: np.zeros((0, len(_RATES))))
    """[≤ 30, look-backs x quantiles] tokens per second, oldest first; NaN: not known."""


class StaffingEncoder(Encoder):
    """:class:`rl.features.Encoder` with the features above at the end of each row."""

    def encode(self, observation: Observation, memory: Memory = None) -> tuple[State, Remembered]:  # type: ignore[override]
        """As the base's; ``memory`` is a :class:`Remembered`, anything else begins again."""
        past = memory if isinstance(memory, Remembered) else Remembered()
        state, history = super().encode(observation, past.history)
        measured = {(one.look_back_s, name): getattr(one, name) for one in observation.arrivals for name in QUANTILES}
        now = np.array([measured.get(rate, np.nan) for rate in _RATES])
        rates = np.concatenate([past.rates, now[None]])[-max(SPANS) :]
        standbys = np.array([_standby_row(node, observation.window_s) for node in self._rows(observation)])
        nodes = np.concatenate([_STANDBY_SCALES.encode(standbys), np.zeros((1, len(STANDBY_FEATURES)), np.float32)])
        row = _ARRIVAL_SCALES.encode(self._arrival_row(now, rates))[0]
        extended = replace(
            state,
            segments=np.concatenate([state.segments, nodes[self._segments]], -1),
            experts=np.concatenate([state.experts, nodes[self._experts]], -1),
            pipeline=np.concatenate([state.pipeline, row]),
        )
        return extended, Remembered(history, rates)

    def _arrival_row(self, now: Floats, rates: Floats) -> Floats:
        """[1, features] in the catalogue's units, NaN where not known; ``now`` [rates], ``rates`` [windows, rates]."""
        work = self.calls.mean_s / self.calls.tokens
        raw = np.zeros((1, len(ARRIVAL_FEATURES)))
        columns = [now * work, *(np.fmax.reduce(rates[-span:]) * work for span in SPANS)]
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = now[1] / now[0]
        raw[0, :-1] = [*np.concatenate(columns), spread if np.isfinite(spread) else np.nan]
        return raw


_STANDBY_SCALES, _ARRIVAL_SCALES = Scales(STANDBY_FEATURES), Scales(ARRIVAL_FEATURES)


def _standby_row(node: NodeObservation, window_s: float) -> tuple[float, ...]:
    burst = None if node.configuration is None else node.configuration.burst
    if burst is None:
        return (0.0,) * len(STANDBY_FEATURES)
    activated = (node.activated_s or 0.0) / window_s
    return burst.standbys / 8, burst.headroom, burst.spare, burst.hold_s / 8, burst.look_back_s, activated / 8

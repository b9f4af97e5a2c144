"""Where an actor was trained: the least and largest number of every feature over the states that it learnt from.

Stored next to the actor, so that a controller can say when it is asked about something that was never met. Numbers are
encoded ones (:mod:`rl.features.catalogue`); where one is not known its flag is 1, and the flag's range shows
whether that was ever so in training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rl.agent.contract import State
from rl.features.catalogue import NODE_FEATURES, PIPELINE_FEATURES, Feature
from simulation.arrays import Floats

TOLERANCE = 0.05
"""Part of a feature's scale by which a number may lie beyond what was met."""
FEATURES: Mapping[str, Sequence[Feature]] = {
    "experts": NODE_FEATURES,
    "segments": NODE_FEATURES,
    "pipeline": PIPELINE_FEATURES,
}
_EXPERT = next(place for place, feature in enumerate(NODE_FEATURES) if feature.name == "expert")


@dataclass(frozen=True, eq=False)
class Ranges:
    """``bounds``: group of features → [2, features] float64, least and largest; NaN where one was never known.
    ``features``: the groups' catalogues."""

    bounds: Mapping[str, Floats]
    features: Mapping[str, Sequence[Feature]] = field(default_factory=lambda: FEATURES)

    @classmethod
    def of(cls, states: Iterable[State], features: Mapping[str, Sequence[Feature]] = FEATURES) -> Ranges:
        """The ranges of ``states``; of no state at all everything is NaN, and nothing is outside."""
        bounds = {name: np.full((2, len(group)), np.nan) for name, group in features.items()}
        for state in states:
            for name, rows in _rows(state, features).items():
                low, high = bounds[name]
                bounds[name] = np.stack([np.fmin(low, np.fmin.reduce(rows)), np.fmax(high, np.fmax.reduce(rows))])
        return cls(bounds, features)

    def joined(self, other: Ranges) -> Ranges:
        """The ranges of the states of both, which have the same features."""
        pairs = {name: (bounds, other.bounds[name]) for name, bounds in self.bounds.items()}
        joined = {name: np.stack([np.fmin(a[0], b[0]), np.fmax(a[1], b[1])]) for name, (a, b) in pairs.items()}
        return replace(self, bounds=joined)

    def outside(self, state: State) -> str:
        """What of ``state`` lies farthest beyond the ranges, in words; empty where nothing does."""
        farthest, sentence = TOLERANCE, ""
        for name, rows in _rows(state, self.features).items():
            low, high = self.bounds[name]
            beyond = np.nan_to_num(np.fmax.reduce(np.maximum(low - rows, rows - high))) / _scales(self.features[name])
            place = int(beyond.argmax())
            if beyond[place] > farthest:
                farthest, feature = float(beyond[place]), self.features[name][place].name
                sentence = f"{feature} of {name} is {100 * farthest:.0f} % of its scale beyond all that was trained on"
        return sentence

    def as_json(self) -> dict[str, Any]:
        """Group → feature → least and largest; features that were never known are left out."""
        return {
            name: {
                feature.name: [float(low), float(high)]
                for feature, low, high in zip(self.features[name], *bounds, strict=True)
                if low <= high
            }
            for name, bounds in self.bounds.items()
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], features: Mapping[str, Sequence[Feature]] = FEATURES) -> Ranges:
        """As of :meth:`as_json`. Raises KeyError and ValueError for something else."""
        unknown = (np.nan, np.nan)
        return cls(
            {
                name: np.array([stored[name].get(feature.name, unknown) for feature in group], np.float64).T
                for name, group in features.items()
            },
            features,
        )


def _rows(state: State, features: Mapping[str, Sequence[Feature]]) -> dict[str, Floats]:
    """Group → [rows, features] float64; NaN where a number is not known. Experts that are none are left out."""
    experts = state.experts[state.experts[..., _EXPERT] > 0]
    by_group: dict[str, Floats] = {}
    for name, rows in (("experts", experts), ("segments", state.segments), ("pipeline", state.pipeline[None])):
        flags, flagged = _flags(features[name])
        values = rows.astype(np.float64)
        values[:, flagged] = np.where(rows[:, flags] > 0, np.nan, values[:, flagged])
        by_group[name] = values
    return by_group


def _flags(features: Sequence[Feature]) -> tuple[list[int], list[int]]:
    """Places of the features that have a flag, as (their flags' places, their own)."""
    at = {feature.name: place for place, feature in enumerate(features)}
    pairs = [(at[feature.flag], place) for place, feature in enumerate(features) if feature.flag]
    return [flag for flag, _ in pairs], [place for _, place in pairs]


def _scales(features: Sequence[Feature]) -> Floats:
    """Lengths of the features' encoded scales."""
    return np.array([high - low for low, high in (feature.bounds for feature in features)])

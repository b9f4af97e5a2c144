"""How far the fit is off where it has not looked: points left out in turn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

from simulation.profiles.fit.fitting import Fit, fit, least_disturbed, predict
from simulation.profiles.fit.rows import Row
from simulation.profiles.model.errors import ProfileError

FOLDS = 5
Key = tuple[str, str, int, float, int]


@dataclass(frozen=True)
class Errors:
    """Mean absolute percentage errors (as fractions) over ``points`` points."""

    points: int
    mean: float
    p50: float
    p95: float

    def to_json(self) -> dict[str, float]:
        return {key: round(float(value), 4) for key, value in asdict(self).items()}


def key_of(row: Row) -> Key:
    """What makes two rows repeats of the same point."""
    return (row.node, row.family, row.tokens, row.share, row.concurrency)


def cross_validate(rows: Sequence[Row], tick_s: float) -> Mapping[str, Errors]:
    """Errors by ``alone``, ``busy`` (one call always in flight), ``concurrency`` and ``all``.

    Points (all repeats of them together) are dealt into ``FOLDS``; each is predicted by a fit without its fold and
    compared with the median over its quiet repeats.
    """
    usable = least_disturbed([row for row in rows if row.feasible and row.family in ("alone", "busy", "concurrency")])
    points: dict[Key, list[Row]] = {}
    for row in usable:
        points.setdefault(key_of(row), []).append(row)
    order = sorted(points)
    random.Random(0).shuffle(order)
    predictions: dict[str, list[tuple[float, float, float]]] = {}
    for fold in range(FOLDS):
        held = set(order[fold::FOLDS])
        kept = [row for row in usable if key_of(row) not in held]
        fitted = _fit_or_none(kept, tick_s)
        for key in sorted(held):
            if fitted is not None and key[0] in fitted.nodes:
                predictions.setdefault(key[1], []).append(_errors(fitted, points[key]))
    predictions["all"] = [error for errors in predictions.values() for error in errors]
    return {name: _summary(errors) for name, errors in predictions.items() if errors}


def _fit_or_none(rows: Sequence[Row], tick_s: float) -> Fit | None:
    try:
        return fit(rows, tick_s)
    except ProfileError:
        return None


def _errors(fitted: Fit, repeats: Sequence[Row]) -> tuple[float, float, float]:
    predicted = predict(fitted.nodes[repeats[0].node], repeats[0], fitted.tick_s)
    pairs = (
        (predicted.mean_s, [row.mean_s for row in repeats]),
        (predicted.p50_s, [row.p50_s for row in repeats]),
        (predicted.p95_s, [row.p95_s for row in repeats]),
    )
    measured_s = [median(value for value in values if value is not None) for _, values in pairs]
    first, second, third = (abs(said / was - 1) for (said, _), was in zip(pairs, measured_s, strict=True))
    return first, second, third


def _summary(errors: Sequence[tuple[float, float, float]]) -> Errors:
    mean, p50, p95 = (float(value) for value in np.mean(errors, axis=0))
    return Errors(len(errors), mean, p50, p95)

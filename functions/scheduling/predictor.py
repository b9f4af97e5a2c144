"""What an instance can do, from its profile: prefill time by prompt length, token interval by tokens in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from functions.scheduling.settings import SchedulingError


@dataclass(frozen=True)
class PrefillModel:
    """T(r, i) = constant + linear · tokens + square · tokens², in seconds."""

    constant_s: float
    linear_s: float
    square_s: float

    def seconds(self, tokens: int) -> float:
        """Predicted prefill time of a prompt of ``tokens``; never below 0, where a fit may dip."""
        return max(self.constant_s + tokens * (self.linear_s + tokens * self.square_s), 0.0)


@dataclass(frozen=True)
class DecodeModel:
    """Token interval = constant + linear · tokens in the batch (context of all its requests), in seconds."""

    constant_s: float
    linear_s: float

    def seconds(self, tokens: int) -> float:
        return self.constant_s + self.linear_s * tokens

    def most_tokens(self, tpot_s: float) -> int:
        """MT(i, SLO_TPOT): the most tokens at once whose interval is at most ``tpot_s``; 0 where none is."""
        return max(math.floor((tpot_s - self.constant_s) / self.linear_s + 1e-9), 0)


@dataclass(frozen=True)
class Profile:
    """One instance."""

    prefill: PrefillModel
    decode: DecodeModel


def fit_prefill(tokens: Sequence[int], seconds: Sequence[float]) -> PrefillModel:
    """Least squares of degree 2; of degree 1, or the mean, where jitter bends or tilts the curve down, as then longer
    prompts than were measured would take no time. Raises SchedulingError with fewer than three different lengths."""
    _check(tokens, seconds, least=3)
    for degree in (2, 1):
        fitted = least_squares(tokens, seconds, degree)
        if fitted[0] >= 0 and fitted[-2] + 2 * (degree - 1) * fitted[0] * min(tokens) >= 0:
            square, linear, constant = [0.0] * (2 - degree) + fitted
            return PrefillModel(constant, linear, square)
    return PrefillModel(fmean(seconds), 0.0, 0.0)


def fit_decode(tokens: Sequence[int], seconds: Sequence[float]) -> DecodeModel:
    """Least squares of degree 1. Raises SchedulingError with fewer than two different numbers of tokens, and where the
    interval does not grow with them, as then no number of tokens is too many."""
    _check(tokens, seconds, least=2)
    linear, constant = least_squares(tokens, seconds, 1)
    if linear <= 0:
        raise SchedulingError("the measured token interval does not grow with the tokens in the batch")
    return DecodeModel(constant, linear)


def least_squares(x: Sequence[float], y: Sequence[float], degree: int) -> list[float]:
    """The polynomial's coefficients, highest first, for more than ``degree`` different ``x``.

    In exact fractions, rounded once: a solver's last bits are its CPU's, and whole runs may go another way by them."""
    points = [(Fraction(at), Fraction(value)) for at, value in zip(x, y, strict=True)]
    powers = range(degree, -1, -1)
    sums = [sum((at**power for at, _ in points), Fraction()) for power in range(2 * degree + 1)]
    right = [sum((at**power * value for at, value in points), Fraction()) for power in range(degree + 1)]
    rows = [[*(sums[one + other] for other in powers), right[one]] for one in powers]
    for place in range(degree + 1):  # no pivot is 0, as the matrix is positive definite
        pivot = [value / rows[place][place] for value in rows[place]]
        rows = [
            pivot if other == place else [a - row[place] * b for a, b in zip(row, pivot, strict=True)]
            for other, row in enumerate(rows)
        ]
    return [float(row[-1]) for row in rows]


def _check(tokens: Sequence[int], seconds: Sequence[float], least: int) -> None:
    if len(tokens) != len(seconds):
        raise SchedulingError(f"{len(tokens)} numbers of tokens but {len(seconds)} times were measured")
    if len(set(tokens)) < least:
        raise SchedulingError(f"a profile needs at least {least} different numbers of tokens, got {len(set(tokens))}")
    if not all(math.isfinite(value) and value >= 0 for value in (*tokens, *seconds)):
        raise SchedulingError("a profile's tokens and times must be finite and at least 0")

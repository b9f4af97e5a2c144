"""What an instance can do, from its profile: prefill time by prompt length, token interval by tokens in the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
        fitted = np.polyfit(np.asarray(tokens, float), np.asarray(seconds, float), degree)
        if fitted[0] >= 0 and fitted[-2] + 2 * (degree - 1) * fitted[0] * min(tokens) >= 0:
            square, linear, constant = [0.0] * (2 - degree) + [float(one) for one in fitted]
            return PrefillModel(constant, linear, square)
    return PrefillModel(float(np.mean(seconds)), 0.0, 0.0)


def fit_decode(tokens: Sequence[int], seconds: Sequence[float]) -> DecodeModel:
    """Least squares of degree 1. Raises SchedulingError with fewer than two different numbers of tokens, and where the
    interval does not grow with them, as then no number of tokens is too many."""
    _check(tokens, seconds, least=2)
    linear, constant = np.polyfit(np.asarray(tokens, float), np.asarray(seconds, float), 1)
    if linear <= 0:
        raise SchedulingError("the measured token interval does not grow with the tokens in the batch")
    return DecodeModel(float(constant), float(linear))


def _check(tokens: Sequence[int], seconds: Sequence[float], least: int) -> None:
    if len(tokens) != len(seconds):
        raise SchedulingError(f"{len(tokens)} numbers of tokens but {len(seconds)} times were measured")
    if len(set(tokens)) < least:
        raise SchedulingError(f"a profile needs at least {least} different numbers of tokens, got {len(set(tokens))}")
    if not all(math.isfinite(value) and value >= 0 for value in (*tokens, *seconds)):
        raise SchedulingError("a profile's tokens and times must be finite and at least 0")

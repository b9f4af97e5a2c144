"""What an instance computes next, by when its texts are due: how much of prompts fits an iteration, and whose.

A text's first token is due TTFT after its arrival, its k-th token after that k · TPOT (less a margin) after the first
one: as TPOT is a mean, tokens that came early are time that a prompt may take. Only computes, as all of this package.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass

from functions.scheduling.predictor import Profile
from functions.scheduling.settings import Targets


@dataclass(frozen=True)
class Prompt:
    """A prompt that waits at an instance, or is computed in parts there."""

    name: int
    due_s: float
    """When its first token is due."""
    work_s: float
    """What is left to compute of it."""


def in_time_first(prompts: Iterable[Prompt], now_s: float) -> list[Prompt]:
    """Prompts in the order in which they are computed: those that can be in time by when they are due, then the others
    by the same.

    As many as can be are in time, where each is computed as predicted and none arrives (Moore and Hodgson's rule, 1968:
    in order of dueness, and whenever one would be late, the longest so far is put off).
    """
    end_s = now_s
    longest: list[tuple[float, int]] = []
    late: list[int] = []
    ordered = sorted(prompts, key=lambda one: one.due_s)
    for place, one in enumerate(ordered):
        heapq.heappush(longest, (-one.work_s, place))
        end_s += one.work_s
        if end_s > one.due_s:
            work_s, put_off = heapq.heappop(longest)
            end_s += work_s
            late.append(put_off)
    in_time = sorted(place for _, place in longest)
    return [ordered[place] for place in (*in_time, *sorted(late))]


@dataclass(frozen=True)
class Pacing:
    """One instance's rule. ``reorder`` False: prompts as they came."""

    profile: Profile
    targets: Targets
    reorder: bool = True
    margin: float = 0.95
    """Part of TPOT after which a next token is due: what iterations take longer than predicted is made up for."""
    late_s: float = 1.0
    """Texts whose next token is late by more do not hold prompts back any more."""

    @property
    def interval_s(self) -> float:
        """Time after a token at which the next one is due."""
        return self.margin * self.targets.tpot_s

    def work_s(self, start: int, end: int) -> float:
        """Predicted time of a prompt's tokens from ``start`` to ``end``."""
        model = self.profile.prefill
        return max(0.0, model.constant_s) + (end - start) * (model.linear_s + (start + end) * model.square_s)

    def order(self, prompts: Iterable[Prompt], now_s: float) -> list[Prompt]:
        """In which order prompts are computed."""
        return in_time_first(prompts, now_s) if self.reorder else sorted(prompts, key=lambda one: one.due_s)

    def tightest_s(self, slacks_s: Iterable[float]) -> float:
        """The least time until a next token is due, of texts that still hold prompts back; −∞ where none does."""
        return min((one for one in slacks_s if one >= -self.late_s), default=-math.inf)

    def room(self, most: int, context: int, slack_s: float, start: int) -> int:
        """Most tokens of prompts, ``start`` of the first of which are computed, in an iteration with decodes of
        ``context`` tokens together, the next of which is due in ``slack_s`` (:meth:`tightest_s`); at most ``most``."""
        if slack_s < -self.late_s:
            return most
        spare_s = slack_s - self.profile.decode.seconds(context)
        if spare_s <= 0:
            return 0
        linear_s, square_s = self.profile.prefill.linear_s, self.profile.prefill.square_s
        per_token_s = linear_s + 2 * square_s * start
        if per_token_s <= 0:
            return most
        if square_s * spare_s > 1e-6 * per_token_s**2:  # the root of per_token · t + square · t² = spare
            return min(most, int(((per_token_s**2 + 4 * square_s * spare_s) ** 0.5 - per_token_s) / (2 * square_s)))
        return min(most, int(spare_s / per_token_s))

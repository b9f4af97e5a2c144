"""The decisions of a run that moved most money, a sentence each: what changed, at what cost, and the policy's reason,
which names the second best choice and its cost where the policy compares any. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.prices import money
from smoe.report.model import Action

DECISIONS = 3
SECOND = "the second best"
"""In the reason of a policy that compares configurations: such decisions come first."""


def explained(actions: Sequence[Action], start_s: float, currency: str) -> list[str]:
    """Sentences of the ``DECISIONS`` applied changes whose cost is largest, of one function each, in order of time."""
    rank = sorted(
        (action for action in actions if action.applied),
        key=lambda one: (SECOND not in one.reason, -abs(one.more_per_hour)),
    )
    of_each: dict[str, Action] = {}
    for action in rank:
        of_each.setdefault(action.function, action)
    chosen = sorted(list(of_each.values())[:DECISIONS], key=lambda one: one.time_s)
    return [_sentence(action, start_s, currency) for action in chosen]


def _sentence(action: Action, start_s: float, currency: str) -> str:
    more = action.more_per_hour
    cost = f"{money(abs(more), currency)} an hour {'more' if more > 0 else 'less'} than" if more else "as much as"
    at = f"{action.time_s - start_s:.0f} s"
    return (
        f"{at}: {action.function}, {action.change}, which costs {cost} leaving it as it was. Reason: {action.reason}."
    )

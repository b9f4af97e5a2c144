"""Changes that were the same for several functions at the same time, as one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoscaler.changes import ordered
from smoe.report.model import Action


@dataclass(frozen=True)
class Fold:
    """One change of one or several functions."""

    actions: tuple[Action, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(action.function for action in self.actions)

    @property
    def who(self) -> str:
        """The function's name, or how many functions of which kind."""
        first = self.actions[0]
        return first.function if len(self.actions) == 1 else f"{len(self.actions)} {plural(first)}"

    @property
    def change(self) -> str:
        """What changed, without the stated cost of a token where that differs."""
        first = self.actions[0]
        same = len({action.change for action in self.actions}) == 1
        return first.change if same else ordered(first.change)

    @property
    def why(self) -> str:
        """The reason; where there are several, the first function's with its name."""
        first = self.actions[0]
        same = len({action.reason for action in self.actions}) == 1
        return first.reason if same else f"{first.function}: {first.reason}"


def folded(actions: Sequence[Action], least: int = 2) -> list[Fold]:
    """In the order of the first of each; fewer than ``least`` functions stay by themselves."""
    groups: dict[tuple[object, ...], list[Action]] = {}
    for action in actions:
        key = (action.time_s, plural(action), action.kind, ordered(action.change), action.applied)
        groups.setdefault(key, []).append(action)
    folds: list[Fold] = []
    for group in groups.values():
        folds += [Fold(tuple(group))] if len(group) >= least else [Fold((action,)) for action in group]
    return folds


def plural(action: Action) -> str:
    """What the functions of such an action are called together."""
    kind = action.node.partition("-")[0]
    return f"{kind}s" if kind in ("expert", "segment") and "_" not in action.node else "functions"
